"""Draws the rooms of the package, of its trainer and of its tools, from the imports.

  python docs/rooms.py

writes rooms.svg, rooms_trainer.svg and rooms_tools.svg beside this file. A box is a
room, with its modules and lines. An arrow goes from a room to one that it imports, and
is the wider, the more imports there are.
"""

import ast
import collections
import pathlib

import matplotlib.pyplot as plt

ROOT = pathlib.Path(__file__).resolve().parents[1]
_LARGE = ("benchmark", "calibrate", "hugging_face", "inspect_task", "plan_pod",
          "plot_attention")
_FILES, _LOWEST = "single files", "gin files, checks, register"

# For each picture: its rooms with their places (x, floor); floor 0 is the lowest.
PICTURES: dict[str, dict[str, tuple[float, float]]] = {
    "rooms": {
        "tools": (.35, 6), "demo": (.75, 6.5), "launcher": (.1, 5), "tasks": (.9, 5),
        "trainer": (.5, 4.5), "fast": (.3, 3), "t5": (.5, 2), "attention": (.3, 1),
        "runtime": (.85, 1), _LOWEST: (.6, 0)},
    "rooms_trainer": {
        "command": (.5, 4), "model": (.2, 3), "watching": (.8, 2), "data": (.3, 1),
        "checkpoints": (.6, 0)},
    "rooms_tools": {
        _FILES: (.5, 3), **{room: ((i + .5) / len(_LARGE), 1.8 + .5 * (i % 2))
                            for i, room in enumerate(_LARGE)},
        "experiments": (.25, .8), "base": (.6, 0)}}


def modules() -> dict[str, pathlib.Path]:
  """The files of the package, its tasks and its tools, by the names of modules."""
  found = {}
  for folder, paths in ((ROOT / "synthesizer_mtf", ["**/*.py"]),
                        (ROOT, ["tasks/**/*.py", "tools/**/*.py"])):
    for path in sorted(path for pattern in paths for path in folder.glob(pattern)):
      name = path.relative_to(folder).with_suffix("").parts
      if name[0] in ("tools", "tasks") and folder != ROOT:
        continue  # A link to a folder at the top.
      found[".".join(name).removesuffix(".__init__")] = path
  return found


def room_of(picture: str, module: str) -> str | None:
  """The room of a module in a picture; None if it is not in the picture."""
  first, *rest = module.split(".")
  if not rest and first.startswith("__"):
    return None  # The package itself, which imports every room.
  if picture == "rooms":
    return first if first in PICTURES[picture] else _LOWEST
  if first != picture.removeprefix("rooms_") or not rest:
    return None
  return rest[0] if rest[0] in PICTURES[picture] else _FILES


def imports(path: pathlib.Path) -> list[str]:
  """The modules of ours, or names in them, that a file imports."""
  return [f"{node.module}.{alias.name}".partition(".")[2]
          for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
          if isinstance(node, ast.ImportFrom) and node.module
          and node.module.split(".")[0] == "synthesizer_mtf" for alias in node.names]


def draw(picture: str) -> None:
  """Writes a picture beside this file."""
  sizes: dict[str, list[int]] = collections.defaultdict(list)
  arrows: collections.Counter[tuple[str, str]] = collections.Counter()
  for module, path in modules().items():
    room = room_of(picture, module)
    if room:
      sizes[room].append(len(path.read_text(encoding="utf-8").splitlines()))
      arrows.update((room, target) for target in (
          room_of(picture, name) for name in imports(path)) if target not in (
              None, room))
  places = PICTURES[picture]
  top = max(floor for _, floor in places.values())
  figure, axes = plt.subplots(figsize=(10, 1.1 * top + 1.2))
  boxes = {room: axes.annotate(
      f"{room}\n{len(sizes[room])} modules, {sum(sizes[room]):,} lines", place,
      ha="center", va="center", size=8, zorder=3,
      bbox={"boxstyle": "round,pad=.5", "fc": "#f4f4f4", "ec": "#333333"})
           for room, place in places.items()}
  for (room, target), count in arrows.items():
    axes.annotate("", places[target], places[room], zorder=4, arrowprops={
        "arrowstyle": "-|>", "color": "#4477aa", "alpha": .7,
        "lw": .6 + count ** .5 / 4, "patchA": boxes[room].get_bbox_patch(),
        "patchB": boxes[target].get_bbox_patch(),
        "connectionstyle": "arc3,rad=.12"})
  axes.set(xlim=(0, 1), ylim=(-.4, top + .4))
  axes.axis("off")
  with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": picture}):
    figure.savefig(pathlib.Path(__file__).with_name(f"{picture}.svg"),
                   bbox_inches="tight", metadata={"Date": None})
  plt.close(figure)


def main() -> None:
  """Writes all pictures."""
  for picture in PICTURES:
    draw(picture)


if __name__ == "__main__":
  main()
