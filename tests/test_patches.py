"""Tests of the register of changes to other packages."""

import ast
from collections.abc import MutableMapping
import functools
import importlib
import inspect
import pathlib
import re
import types

import pytest
from synthesizer_mtf import compat
from synthesizer_mtf import patches

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path for folder in ("synthesizer_mtf", "tasks", "tools")
    for path in (ROOT / folder).rglob("*.py")
    # In a checkout, the package may contain links to `tasks` and `tools`.
    if path.resolve() == path and path.name != "patches.py"
    # They run in an environment of their own, with PyTorch and without this package.
    and not path.stem.endswith("_synthesizer"))

ALLOWED = {
    "bar.total",  # Our own progress bar.
    # A raised exception, and its traceback, while notebook.py shows it.
    "error.__cause__", "error.__suppress_context__", "last.tb_next"}


def test_only_one_module_reads_gins_own_state():
  names = [path.name for path in SOURCES if "gin.config._" in path.read_text()]
  assert names == ["gin_internals.py"]


# They look only at operations of classes of their own.
OWN_OPERATIONS = {"fast/lookup.py", "fast/vocabulary.py"}


def test_places_that_decide_by_operations_of_others_are_in_the_register():
  package = ROOT / "synthesizer_mtf"
  looks = re.compile(r"\.type (==|in|!=|not)|\bop\.type\b|\.operation\b|\bnode\.op\b|"
                     r"\.consumers\(|get_operations\(|_MIXED_PRECISION_GRAPH_REWRITE")
  modules = {str(path.relative_to(package)) for path in SOURCES
           if package in path.parents and looks.search(path.read_text())}
  assert modules - OWN_OPERATIONS - {"trainer/checkpoints/optimizer_slots.py"} == set(
      patches.RECOGNIZED)
  for place, entry in patches.RECOGNIZED.items():
    assert all(text and text == text.strip() for text in entry), place


def owner_of(patch):
  """The changed module or class, or the class of the changed instances."""
  module, _, name = patch.owner.partition(":")
  owner = importlib.import_module(module)
  return getattr(owner, name) if name else owner


OPERATORS = {f"__{prefix}{name}__" for prefix in ("", "r", "i") for name in (
    "add", "sub", "mul", "truediv", "matmul")}


def test_operators_and_lists_that_mesh_uses_are_in_the_register():
  package = ROOT / "synthesizer_mtf"
  hooks = {
      str(path.relative_to(package)) for path in SOURCES if package in path.parents
      for node in ast.walk(ast.parse(path.read_text()))
      if getattr(node, "attr", None) == "operations" or (
          isinstance(node, ast.FunctionDef) and node.name in OPERATORS)}
  assert hooks == set(patches.HOOKS)


def private_names(tree, imported=frozenset()):
  """The private names that a file reads of objects that are not its own.

  Args:
    tree: the syntax tree of the file.
    imported: the names that modules of ours make, which this one imports.
  """
  own, assigned = made_names(tree), set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Attribute):
      of, name = ast.unparse(node.value), node.attr
    elif isinstance(node, ast.Call) and len(node.args) > 1 and (
        getattr(node.func, "id", "") in ("getattr", "hasattr")) and (
            isinstance(node.args[1], ast.Constant)):
      of, name = "", node.args[1].value
    else:
      continue
    known = (imported if of.startswith("super(") else
             own | imported if of in ("self", "cls") else own)
    if re.fullmatch("_[A-Za-z].*", name) and name not in known | PUBLISHED:
      assigned.add(name)
  return assigned


# Begin with _, but are documented.
PUBLISHED = {"_asdict", "_exit", "_fields", "_replace"}


def made_names(tree):
  """The names of what a file defines, and of the attributes that it assigns."""
  return {node.name for node in ast.walk(tree)
          if isinstance(node, (ast.FunctionDef, ast.ClassDef))} | {
              node.id if isinstance(node, ast.Name) else node.attr
              for node in ast.walk(tree)
              if isinstance(getattr(node, "ctx", None), ast.Store) and (
                  isinstance(node, ast.Name) or root_of(node) in ("self", "cls") and
                  isinstance(node, ast.Attribute))}


def imported_trees(tree):
  """The syntax trees of our modules that a file imports."""
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
        "synthesizer_mtf"):
      folder = node.module.replace(".", "/")
      for alias in node.names:
        for place in (f"{folder}/{alias.name}", folder):
          path = ROOT / f"{place}.py"
          if not path.exists():
            path = ROOT / f"{place.removeprefix('synthesizer_mtf/')}.py"
          if path.exists():
            yield ast.parse(path.read_text())


def test_private_names_of_other_packages_are_in_the_register():
  known = {name for inside in patches.INSIDES for name in inside.names}
  unlisted = {}
  for path in SOURCES:
    tree = ast.parse(path.read_text())
    if names := private_names(tree):
      imported = set().union(*map(made_names, imported_trees(tree)))
      if names := private_names(tree, imported) - known:
        unlisted[str(path)] = names
  assert not unlisted
  sources = "".join(path.read_text() for path in SOURCES)
  for inside in patches.INSIDES:
    assert inside.why == inside.why.strip() != ""
    owner, module = owner_of(inside), inside.owner.partition(":")[0]
    text = inspect.getsource(importlib.import_module(module))
    for name in inside.names:
      assert re.search(rf"\b{name}\b", sources), name
      assert hasattr(owner, name) or f"self.{name} = " in text, name


@pytest.mark.parametrize("text", [
    "x._a", "self._a", "super()._a", "def _a(self):\n  super()._a()",
    "getattr(x, '_a', 0)", "class A:\n  def f(self):\n    return self.b._a"])
def test_an_unlisted_private_name_is_found(text):
  assert private_names(ast.parse(text)) == {"_a"}


@pytest.mark.parametrize("text", [
    "class A:\n  def f(self):\n    self._a = 1\n    return self._a",
    "_a = 1\nother._a", "point._replace(x=1)", "x.__class__"])
def test_own_and_published_names_need_no_entry(text):
  assert not private_names(ast.parse(text))


def test_entries_say_what_why_and_until_when():
  for key, patch in patches.REGISTER.items():
    assert all(text and text == text.strip() for text in patch), key


def test_what_entries_change_exists():
  compat.apply()
  for key, patch in patches.REGISTER.items():
    owner = owner_of(patch)
    if patch.owner == "sys:modules":
      assert importlib.import_module(patch.name), key
    elif isinstance(owner, MutableMapping):
      assert patch.name in owner, key
    elif not hasattr(owner, patch.name):  # Only its instances have the attribute.
      assert f"self.{patch.name} =" in inspect.getsource(owner), key


def test_every_entry_is_used():
  used = {
      call.args[0].value for path in SOURCES
      for call in ast.walk(ast.parse(path.read_text()))
      if isinstance(call, ast.Call) and root_of(call.func) == "patches"}
  assert used == set(patches.REGISTER)


def root_of(node):
  """The name that an expression such as a.b[c].d begins with, or None."""
  while isinstance(node, (ast.Attribute, ast.Subscript)):
    node = node.value
  return node.id if isinstance(node, ast.Name) else None


def foreign_modules(tree):
  """The names under which a file imports other packages, and parts of them."""
  imported = set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      imported |= {a.asname or a.name.partition(".")[0] for a in node.names}
    elif isinstance(node, ast.ImportFrom) and not node.level and not (
        node.module.startswith("synthesizer_mtf")):
      imported |= {a.asname or a.name for a in node.names}
  return imported


def made_here(function):
  """The names in a function for the results of its calls, such as copies.

  The result of a method of an argument may belong to the argument.
  """
  given = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
  return {
      node.targets[0].id for node in ast.walk(function)
      if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and
      isinstance(node.targets[0], ast.Name) and not (
          isinstance(node.value.func, ast.Attribute) and
          root_of(node.value.func) in given)}


def targets(node):
  """The expressions that a statement assigns to, or deletes."""
  if isinstance(node, (ast.Assign, ast.Delete)):
    assigned = node.targets
  elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For)):
    assigned = [node.target]
  else:
    assigned = []
  for target in assigned:
    yield from ast.walk(target)


def is_private(name):
  return name.startswith("_")


def changes(text):
  """Finds what a file changes in objects that are not its own.

  Its own objects are `self`, and those that a function has made or copied. The private
  attributes of the latter are not its own.

  Args:
    text: a string, Python.

  Returns:
    a list of strings, the changed expressions.
  """
  tree = ast.parse(text)
  modules = foreign_modules(tree)
  changed = []
  own = {}
  for function in ast.walk(tree):  # Inner functions come later, and win.
    if isinstance(function, ast.FunctionDef):
      own.update(dict.fromkeys(ast.walk(function), made_here(function)))
  for node in ast.walk(tree):
    for target in targets(node):
      root = root_of(target)
      if isinstance(target, ast.Subscript) and root in modules:
        changed.append(ast.unparse(target))
      if not isinstance(target, ast.Attribute) or isinstance(
          target.ctx, ast.Load) or root in ("self", "cls"):
        continue
      if root in own.get(node, ()) and not is_private(target.attr):
        continue
      changed.append(ast.unparse(target))
    if isinstance(node, ast.Call):
      name = getattr(node.func, "attr", getattr(node.func, "id", None))
      if name in ("setattr", "delattr"):
        changed.append(ast.unparse(node))
  return changed


def test_only_the_register_changes_other_packages():
  assert not {str(path): unlisted for path in SOURCES
              if (unlisted := set(changes(path.read_text())) - ALLOWED)}


@pytest.mark.parametrize("text", [
    "import m\nm.f = 1",
    "from m import u\nu.f = 1",
    "import m\nm.modules['a'] = 1",
    "import m\ndel m.f",
    "import os\nos.environ['A'] = '1'",
    "import m\nm.f += 1",
    "import m\nm.f, a = 1, 2",
    "import m\nm.get_logger().propagate = False",
    "def f(estimator):\n  estimator._config = 1",
    "def f(saver):\n  saver.save = 1",
    "def f():\n  saver, = g()\n  saver.save = 1",
    "def f():\n  estimator = g()\n  estimator.__class__ = 1",
    "def f():\n  def inner(estimator):\n    estimator.config = 1",
    "def f(lowering):\n  impl = lowering.impl()\n  impl.einsum = 1",
    "setattr(x, 'f', 1)",
])
def test_a_change_outside_the_register_is_found(text):
  assert changes(text)


def greet():
  return "hello"


def loud(function):
  @functools.wraps(function)
  def wrapped():
    return function() + "!"

  return wrapped


@pytest.fixture
def owner(monkeypatch):
  """A module of another package, with a function that the register names."""
  monkeypatch.setitem(patches.REGISTER, "greet", patches.Patch(
      "owner", "greet", "is louder", "it is not heard", "it is heard"))
  return types.SimpleNamespace(greet=greet)


def test_a_second_wrap_changes_nothing(owner):
  patches.wrap("greet", owner, loud)
  once = owner.greet
  patches.wrap("greet", owner, loud)
  assert owner.greet is once
  assert owner.greet() == "hello!"


def test_a_function_that_others_have_wrapped_is_still_replaced(owner):
  owner.greet = loud(greet)
  patches.wrap("greet", owner, loud)
  assert owner.greet() == "hello!!"


@pytest.mark.parametrize("updated", [("__dict__",), ()])
def test_what_others_wrap_around_ours_is_not_replaced(owner, updated):
  patches.wrap("greet", owner, loud)
  ours = owner.greet
  theirs = functools.wraps(ours, updated=updated)(lambda: ours().upper())
  owner.greet = theirs
  patches.wrap("greet", owner, loud)
  assert owner.greet is theirs
  assert owner.greet() == "HELLO!"


def test_two_patches_of_one_function_both_apply(owner, monkeypatch):
  monkeypatch.setitem(
      patches.REGISTER, "greet again", patches.REGISTER["greet"])
  for key in ("greet", "greet again", "greet", "greet again"):
    patches.wrap(key, owner, loud)
  assert owner.greet() == "hello!!"


def test_a_temporary_patch_ends_with_its_block(owner):
  with pytest.raises(ZeroDivisionError):
    with patches.wrapped("greet", owner, loud):
      assert owner.greet() == "hello!"
      raise ZeroDivisionError
  assert owner.greet is greet


def test_a_temporary_patch_leaves_a_lasting_one(owner):
  patches.wrap("greet", owner, loud)
  with patches.wrapped("greet", owner, loud):
    assert owner.greet() == "hello!"
  assert owner.greet() == "hello!"
