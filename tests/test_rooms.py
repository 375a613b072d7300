"""The rooms of the package: imports between them, and annotations."""

import ast
import collections
import functools
import importlib.metadata
import pathlib
import re
import sys

from packaging import utils
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "synthesizer_mtf"
OWN = {"synthesizer_mtf", "synthesizer_mesh_transformer", "synthesizer_mtf_start",
       "studies", "support"}

# From bottom to top. A room imports only from itself and from lower floors.
FLOORS = [
    ["checks", "compat", "estimator_shim", "gin_files", "gin_internals", "gin_names",
     "gin_macros", "gin_origins", "gin_past", "patches", "stored_help"],
    ["runtime"], ["attention"], ["t5"], ["fast"], ["trainer"], ["tasks"], ["launcher"],
    ["tools"], ["demo", "__main__"]]
FLOOR = {room: i for i, rooms in enumerate(FLOORS) for room in rooms}

# The rooms within the trainer, from bottom to top.
TRAINER = ["checkpoints", "data", "watching", "model", "command"]

MODULES = {
    ".".join(path.relative_to(folder).with_suffix("").parts): path
    for folder, inside in ((PACKAGE, "*.py"), (PACKAGE, "[a-z]*/**/*.py"),
                           (ROOT, "tasks/*.py"), (ROOT, "tools/**/*.py"))
    # The files in pytorch/ are copied beside exported models, and use nothing of ours.
    for path in sorted(folder.glob(inside)) if path.parent not in (
        ROOT, ROOT / "tools/hugging_face/pytorch")}
PUBLIC = {name: path for name, path in MODULES.items() if name != "__init__"}


def room(module):
  return module.partition(".")[0]


@functools.cache
def parsed(path):
  return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path):
  """A list of (name of our module that a file imports, whether in a function)."""
  tree = parsed(path)
  result = []
  inside = {id(node) for function in ast.walk(tree)
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
            for node in ast.walk(function)}
  for node in ast.walk(tree):
    targets = []
    if isinstance(node, ast.ImportFrom):  # Without a module it is "from . import".
      targets = [f"{node.module or 'synthesizer_mtf'}.{alias.name}"
               for alias in node.names]
    elif isinstance(node, ast.Import):
      targets = [alias.name for alias in node.names]
    for target in targets:
      if target.startswith("synthesizer_mtf."):
        result.append((target.partition(".")[2], id(node) in inside))
  return result


def module_of(target):
  """The module that an import names: the target, or the module that has this name."""
  while target and target not in MODULES:
    target = target.rpartition(".")[0]
  return target


def test_every_module_has_a_floor():
  assert len(PUBLIC) > 80
  assert {room(name) for name in PUBLIC} == set(FLOOR)


def test_arrows_between_rooms_only_go_down():
  assert not [(name, target) for name, path in PUBLIC.items()
              for target, _ in imports(path)
              if FLOOR[room(target)] > FLOOR[room(name)]]


def test_arrows_between_rooms_of_the_trainer_only_go_down():
  def floor(module):
    return TRAINER.index(module.split(".")[1])

  inside = {name: path for name, path in PUBLIC.items()
            if name.startswith("trainer.") and path.name != "__init__.py"}
  assert {name.split(".")[1] for name in inside} == set(TRAINER)
  assert not [(name, target) for name, path in inside.items()
              for target, _ in imports(path)
              if module_of(target) in inside and
              floor(module_of(target)) > floor(name)]


@pytest.mark.parametrize("above", [PACKAGE / "trainer", ROOT / "tools"])
def test_a_room_of_the_trainer_and_of_tools_has_at_most_twenty_modules(above):
  folders = collections.Counter(
      path.parent for path in MODULES.values()
      if path.name != "__init__.py" and above in path.parents)
  assert not {folder: count for folder, count in folders.items() if count > 20}


def room_of_tools(module):
  """The floor of a module of tools, and its room; a command is a room of its own."""
  folder, *inside = module.split(".")[1:]
  if folder in ("base", "experiments"):
    return ("base", "experiments").index(folder), folder
  return (3, module) if inside in ([], ["__main__"]) else (2, folder)


def test_arrows_between_rooms_of_tools_only_go_down_and_no_command_is_imported():
  arrows = [(name, module_of(target)) for name, path in PUBLIC.items()
            if path.name != "__init__.py"
            for target, _ in imports(path) if module_of(target).startswith("tools.")]
  assert not [arrow for arrow in arrows if room_of_tools(arrow[1])[0] == 3]
  inside = [tuple(map(room_of_tools, arrow)) for arrow in arrows
            if arrow[0].startswith("tools.")]
  assert {floor for (floor, _), _ in inside} == {0, 1, 2, 3}
  assert not [(name, target) for name, target in inside if target[0] > name[0]]


def test_no_function_hides_an_import_of_ours():
  assert not [(name, target) for name, path in PUBLIC.items()
              for target, hidden in imports(path) if hidden]


# Who builds a model: a call that does, and the modules that may make it.
BUILDERS = {
    "build_model": {"t5.stack", "trainer.model.building",
                    "trainer.model.get_estimator"},
    "call_simple": {"t5.classifier", "trainer.model.building"},
    "_dynamic_text2self": {"trainer.model.building"},
    "Lowering": {"trainer.model.building"}}


def test_a_model_is_built_in_one_place():
  callers = {call: {name for name, path in MODULES.items() for node in
                  ast.walk(parsed(path)) if isinstance(node, ast.Call) and
                  getattr(node.func, "attr", None) == call} for call in BUILDERS}
  assert callers == BUILDERS


def test_the_package_never_imports_studies_but_hands_over_to_it_by_name():
  hands_over = {name for name, path in MODULES.items()
                if re.search(r'(from |import |")studies\b', path.read_text("utf-8"))}
  assert hands_over == {"tools.base.studies_folder"}


def test_no_circle_of_imports():
  arrows = {name: {module_of(target) for target, _ in imports(path)} - {name, ""}
            for name, path in PUBLIC.items()}
  while arrows:
    leaves = {name for name, targets in arrows.items()
              if not targets & set(arrows)}
    assert leaves, f"a circle is among {sorted(arrows)}"
    arrows = {name: targets for name, targets in arrows.items()
              if name not in leaves}


def public_functions(body, prefix=""):
  """Yields (name, definition) of public functions and methods."""
  for node in body:
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
      yield from public_functions(node.body, f"{node.name}.")
    elif isinstance(node, ast.FunctionDef) and (
        node.name == "__init__" or not node.name.startswith("_")):
      yield prefix + node.name, node


def missing_annotations(function, method):
  """The parameters without annotation, and "return"."""
  given = function.args
  parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs,
                *filter(None, [given.vararg, given.kwarg])]
  static = any(getattr(d, "id", "") == "staticmethod"
               for d in function.decorator_list)
  if method and not static:
    parameters = parameters[1:]
  missing = [p.arg for p in parameters if p.annotation is None]
  if function.returns is None and function.name != "__init__":
    missing.append("return")
  return missing


def test_public_functions_are_annotated():
  assert not {(name, of): names for name, path in PUBLIC.items()
              for of, function in public_functions(parsed(path).body)
              if (names := missing_annotations(function, "." in of))}


def test_no_test_imports_another():
  for path in ROOT.glob("tests/**/*.py"):
    for node in ast.walk(parsed(path)):
      named = ([node.module or ""] if isinstance(node, ast.ImportFrom) else
               [a.name for a in node.names] if isinstance(node, ast.Import) else
               [])
      assert not [n for n in named if n.split(".")[0].startswith("test_")], path


def imported_at_once(path):
  """The packages that an import of a file imports, whatever is installed."""
  for node in parsed(path).body:
    if isinstance(node, ast.ImportFrom) and not node.level:
      yield node.module.partition(".")[0]
    elif isinstance(node, ast.Import):
      yield from (alias.name.partition(".")[0] for alias in node.names)


def undeclared(paths, extras=("",)):
  """The imported packages that the package, or its extras, do not require."""
  required = [re.match(r"([\w-]+)(?:.*extra == \W(\w+))?", line).groups("")
              for line in importlib.metadata.requires("synthesizer-mtf")]
  declared = {utils.canonicalize_name(name)
              for name, extra in required if extra in extras}
  distributions = importlib.metadata.packages_distributions()
  packages = {package for path in paths for package in imported_at_once(path)} - {
      *sys.stdlib_module_names, *OWN}
  return [package for package in packages
          if declared.isdisjoint(map(
              utils.canonicalize_name, distributions.get(package, ())))]


# These scripts run in environments of their own, with PyTorch, or beside another.
ELSEWHERE = (
    "baseline_process.py", "gpu_runs.py", "onnx_speed.py", "pytorch_speed.py",
    "compare.py", "graphs.py", "neighbours.py", "resize.py", "torch_training.py",
    "train_tiny.py")


def test_what_modules_import_is_declared():
  paths = {path for path in PUBLIC.values() if path.name not in ELSEWHERE}
  of_tools = {path for path in paths
              if {"tools", "demo"} & set(path.relative_to(ROOT).parts)}
  assert of_tools and not undeclared(of_tools, extras=("", "tools"))
  assert not undeclared(paths - of_tools)


def test_what_tests_import_is_declared():
  paths = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("studies/**/*.py"),
           ROOT / "conftest.py", ROOT / "requirements/lock.py"]
  assert not undeclared([path for path in paths if path.name not in ELSEWHERE],
                        extras=("", "dialogue", "test", "tools"))
