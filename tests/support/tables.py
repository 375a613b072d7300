"""Reads tables in Markdown."""


def cells(text):
  """Returns the cells of each line of a text's tables, without lines of dashes."""
  rows = [[cell.strip() for cell in line.split("|")[1:-1]]
          for line in text.splitlines() if line.startswith("|")]
  return [row for row in rows if set("".join(row)) != {"-"}]
