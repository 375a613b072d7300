"""The cells of tables in Markdown."""


def cells(text):
  """The cells of each line of the tables in a text, without those of dashes."""
  rows = [[cell.strip() for cell in line.split("|")[1:-1]]
          for line in text.splitlines() if line.startswith("|")]
  return [row for row in rows if set("".join(row)) != {"-"}]
