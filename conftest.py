"""The choice of tests for `make quick`; tests/support/fixtures.py has the fixtures.

No folder of `tests/` may have the name of a folder of gin files. `tests/` is on
Python's path, so gin would look for `models/laptop.gin` in the Python package `models`.
"""

import atexit
import os

import hypothesis

# `make test` has a worker for each of two cores; threads that wait spin.
for kind in ("INTRA", "INTER"):
  os.environ.setdefault(f"TF_NUM_{kind}OP_THREADS", "1")

# Tests of several devices need some, and JAX makes them when it starts. The programs
# are tiny: to optimize them takes longer than to run them.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4 "
                      "--xla_backend_optimization_level=0")

# The cases are the same on each machine, and are not written to the repository.
hypothesis.settings.register_profile(
    "suite", derandomize=True, deadline=None, database=None, max_examples=120)
hypothesis.settings.register_profile(
    "many", deadline=None, database=None,
    max_examples=int(os.environ.get("HYPOTHESIS_CASES", "2000")))
hypothesis.settings.register_profile(
    "quick", hypothesis.settings.get_profile("suite"), max_examples=10)
hypothesis.settings.load_profile("suite")


def pytest_addoption(parser):
  parser.addoption(
      "--quick", action="store_true",
      help="leave out tests/processes/, what is marked as slow, and of each table "
      "of cases all but the first, and the first with each variant")
  parser.addoption(
      "--pytorch", metavar="PYTHON",
      help="run tests/pytorch/, too, with a Python that has PyTorch and Transformers")


def pytest_configure(config):
  """Imports TensorFlow, with the fixtures, but not where others run the tests."""
  if hasattr(config, "workerinput"):
    # Runs after what TensorFlow and JAX register. Python would then free what all tests
    # have left, and that takes ten seconds.
    atexit.register(os._exit, 0)
  if config.getoption("quick"):
    hypothesis.settings.load_profile("quick")
  if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
    config.pluginmanager.import_plugin("support.fixtures")


def pytest_ignore_collect(collection_path, config):
  """Does not import tests/processes/ with `--quick`, nor what needs PyTorch without."""
  left_out = {"processes": config.getoption("quick"),
              "pytorch": not config.getoption("pytorch")}
  return left_out.get(collection_path.name) or None


# The folders with the longest files. If these came last, one worker would wait.
FIRST = ["processes", "docs", "training", "tools"]


def pytest_collection_modifyitems(config, items):
  """Puts the folders with the longest files first; with `--quick`, selects tests."""
  places = {folder: place for place, folder in enumerate(FIRST)}
  items.sort(key=lambda item: places.get(item.path.parent.name, len(FIRST)))
  if config.getoption("quick"):
    chosen = list(_quick(items))
    config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
    items[:] = chosen


def _quick(items):
  """Yields the first case of each test, and the first with each variant."""
  from support import cases  # It imports TensorFlow.
  seen = set()
  for item in items:
    if item.get_closest_marker("slow"):
      continue
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    notation = parameters.get("notation")
    test = item.path, item.function
    case = *test, notation if notation in cases.VARIANTS else None
    if case not in seen and (test not in seen or case[-1]):
      seen.update([test, case])
      yield item
