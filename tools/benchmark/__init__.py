"""`benchmark`: the rows of `attentions`, measured in turns.

`measuring` makes a dict for each row, and `result_tables.COLUMNS` says what of it a
table shows. A new column is a line there, and a new figure a key of `Program.sizes`.
"""

from synthesizer_mtf.tools.base import packages

main = packages.main(__name__)
