"""The parts of `hugging_face`.

  architecture.py  sizes, kind and weights of a T5 model, on both sides
  config.py        Hugging Face's config.json
  weights.py       Hugging Face's files of weights
  model_gin.py     the gin files of an imported model
  trained.py       the model in a folder of our trainer
  tokenizers.py    vocabularies on both sides
  added_tokens.py  tokens that Hugging Face's tokenizers add
  fast_tokenizer.py  tokenizer.json
  folders.py       folders that are written as a whole or not at all
  importing.py     from Hugging Face to Mesh TensorFlow
  exporting.py     from Mesh TensorFlow to Hugging Face
"""
