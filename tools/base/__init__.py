"""What several commands share, and no room above is imported.

  arguments.py       flags, and how a command ends
  attention_words.py attentions by their notation
  trained_model.py   the folder of a trained model, named by a flag
  layer_names.py     names of layers
  vocabularies.py    trains vocabularies of SentencePiece
  folders.py         folders that are written as a whole or not at all
  checkpoint_writer.py  a checkpoint, variable by variable
  cuts.py            which tasks only cut their texts
  recipes.py         the gin files of the recipes
  results.py         figures, read from checkpoints, event files and logs
  over_seeds.py      statistics over seeds
  machine.py         the machine that figures were measured on
  tables.py          the paper's tables: rows, columns and figures
  tabular.py         tables and JSON lines of figures
  studies_folder.py  hands a study over to studies/
"""
