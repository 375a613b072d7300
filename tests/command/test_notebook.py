"""Errors in a cell of IPython are the user's lines and our sentence."""

import sys
import traceback
import types

import pytest
from synthesizer_mtf import checks
from synthesizer_mtf.trainer.watching import notebook
from synthesizer_mtf.trainer.watching import stopping


class Shell:
  """What IPython has for errors: one handler, and a way to show an exception."""

  custom_exceptions = ()

  def set_custom_exc(self, kinds, handler):
    self.custom_exceptions, self._handler = kinds, handler

  def showtraceback(self, error, tb_offset):
    del tb_offset
    self.shown = "".join(traceback.format_exception(error[1]))

  def run(self, function):
    try:
      function()
    except self.custom_exceptions as error:
      self._handler(self, type(error), error, error.__traceback__, tb_offset=None)
      return error


@pytest.fixture(name="shell")
def fixture_shell(monkeypatch):
  shell = Shell()
  monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(
      get_ipython=lambda: shell))
  notebook.apply()
  return shell


def caused():
  try:
    raise KeyError("inside")
  except KeyError as error:
    with checks.calling({}):
      checks.require(False, "steps", 0, "be positive")
    raise AssertionError from error


def test_an_error_of_ours_is_shown_without_our_lines_and_keeps_them(shell):
  error = shell.run(caused)
  assert shell.shown.endswith("Error: `steps` is 0 but must be positive; change it.\n")
  assert "in caused" in shell.shown and "checks.py" not in shell.shown
  assert "inside" not in shell.shown
  whole = "".join(traceback.format_exception(error))  # As %tb shows it.
  assert "checks.py" in whole and "inside" in whole


def test_an_interrupt_of_our_code_is_short_and_another_is_whole(shell):
  shell.run(lambda: stopping.stop(2, None))
  assert shell.shown.endswith("Stopped: Stopped.\n")
  assert "stopping.py" not in shell.shown

  def own():
    raise KeyboardInterrupt

  shell.run(own)
  assert "in own" in shell.shown


def test_a_handler_of_the_users_stays(shell):
  shell.set_custom_exc((KeyError,), None)
  notebook.apply()
  assert shell.custom_exceptions == (KeyError,)
