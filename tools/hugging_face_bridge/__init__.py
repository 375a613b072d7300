"""The parts of `hugging_face`.

  architecture.py  what a T5 model is: its sizes and its kind
  names.py         names and shapes of weights on both sides, one table
  config.py        Hugging Face's config.json
  weights.py       Hugging Face's files of weights
  model_gin.py     the gin files of an imported model
  trained.py       what a folder of our trainer holds
  tokenizers.py    vocabularies on both sides
  folders.py       folders that are written as a whole or not at all
  importing.py     from there to here
  exporting.py     from here to there
"""
