"""`benchmark`: rows, which `attentions` lists, measured in turns.

`measuring` makes a dict of each row's figures, and `result_tables.COLUMNS` says which
of them a table shows. A new column is a line there; a new figure is a key of the dict.
"""
