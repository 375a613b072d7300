"""The parts of `calibrate`.

  settings.py    what gin needs: V where T5 has its own layer, the task, new attentions
  blocks.py      the layers with dot products, and what takes the place of each
  reading.py     a model in evaluation mode, over batches of a task
  moments.py     what the graph adds up over a batch, for each layer
  means.py       the mean attention of a layer, from the sums over all batches
  targets.py     from means to the variables of R, T, ...
  fitting.py     all of this for the layers of a model
  writing.py     the checkpoint, and its operative_config.gin

To evaluate many targets in one session, build one `reading.Graph` of the mixture
TARGET+V for each (`settings.choose`), and assign `fitting.variables` to it, whose
`heads` say which heads are TARGET.
"""
