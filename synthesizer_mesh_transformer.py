"""The installed command: `synthesizer_mtf.launcher`, after a faster start.

This module stands beside the package: a module inside it would first run the package's
imports.
"""

import gc
import sys

HELP = """\
synthesizer_mesh_transformer trains, evaluates, decodes and exports T5 models with
synthesized attention. It takes the flags and gin files of t5_mesh_transformer.

  --model_dir=DIR          the folder of the model; training continues from its last
                           checkpoint
  --gin_file=FILE          a gin file of this package, of T5 or of yours; can be given
                           several times, and a later file wins
  --gin_param="NAME = VALUE"  one binding; can be given several times, and wins over
                           all files
  --tpu=NAME               a Cloud TPU, instead of --gin_file=cpu.gin
  --t5_tfds_data_dir=DIR   where the prepared data sets of TFDS lie
  --module_import=MODULE   a module with tasks or attentions of your own, such as
                           my_attention for my_attention.py in the working folder
  --verbosity=1            the whole log, and the traceback of every error
  --helpfull               all flags, also those of TensorFlow and T5

Train R+V on pairs of your own, a tab between inputs and targets, on a CPU:

  synthesizer_mesh_transformer --model_dir=models/r+v \\
    --gin_file=dataset.gin --gin_file=models/laptop.gin \\
    --gin_file=attention/r+v.gin --gin_file=cpu.gin \\
    --gin_file=learning_rate_schedules/constant_0_001.gin \\
    --gin_param="MIXTURE_NAME = 'synth_text_pairs'" \\
    --gin_param="synthesizer_mtf.tasks.pairs.train = 'pairs.tsv'" \\
    --gin_param="synthesizer_mtf.tasks.vocabulary.sentencepiece_model = 'spm.model'" \\
    --gin_param="utils.run.sequence_length = {'inputs': 64, 'targets': 64}" \\
    --gin_param="utils.run.batch_size = 16" --gin_param="utils.run.train_steps = 1000"

(python -m synthesizer_mtf.tools.train_vocabulary makes such a vocabulary.)
Then evaluate it, with the model's own configuration and a gin file of T5:

  synthesizer_mesh_transformer --model_dir=models/r+v \\
    --gin_file=models/r+v/operative_config.gin --gin_file=eval.gin \\
    --gin_param="synthesizer_mtf.tasks.pairs.validation = 'held_out.tsv'" \\
    --gin_param="utils.run.dataset_split = 'validation'"

Attentions, by --gin_param="synthesizer_stack.attention = 'R+V'" or attention/r+v.gin:
  V R Fix FR T D FD LD Pattern   and any mixture of them, as R+V or FR+D+V
  Linformer LightConv DyConv SparseFixed SparseStrided      alone

Tasks, for MIXTURE_NAME:
  own text        synth_text_span_corruption synth_text_lm synth_text_pairs
                  synth_text_pairs_encoder synth_own_mixture
  pre-training    synth_c4_span_corruption synth_lm1b
  text to text    synth_wmt14_ende synth_wmt14_enfr synth_cnn_dailymail
                  synth_personachat synth_squad synth_dpr synth_xsum synth_web_questions
  understanding   synth_glue* synth_super_glue* synth_en_mix
  classification  synth_ag_news* synth_imdb_reviews*

Pages: README.md and docs/ of the repository. docs/train.md explains this command,
docs/data.md tasks, docs/attentions.md attentions, and docs/failures.md restarts.
"""


def main() -> None:
  """Starts the launcher, which switches garbage collection on again."""
  if {"--help", "--helpshort", "-help", "-h", "--h", "-?"} & set(sys.argv[1:]):
    print(HELP, end="")
    return
  gc.disable()  # Imports create no garbage; this saves most of a second.
  try:
    from synthesizer_mtf import launcher
  except KeyboardInterrupt:
    sys.exit(130)
  launcher.console_entry_point()


if __name__ == "__main__":
  main()
