"""The queue: several runs at a time, each with its share of the machine."""

import os
import signal
import sys

import pytest
from synthesizer_mtf.tools.base import machine
from synthesizer_mtf.tools.experiments import pipeline
from synthesizer_mtf.tools.experiments import process
from synthesizer_mtf.tools.experiments import progress
from synthesizer_mtf.tools.experiments import queue
from synthesizer_mtf.tools.experiments import shares

# Waits until a file exists; fails if it never does.
WAIT = """
import pathlib, sys, time
def wait(path):
  for _ in range(60000):
    if pathlib.Path(path).exists():
      return
    time.sleep(0.01)
  sys.exit(f"{path} never came")
"""


class Run:
  """A run whose stages are lines of Python."""

  def __init__(self, name, *stages):
    self.name, self.task, self._stages = name, "TASK", list(stages)

  def stages(self):
    return self._stages


@pytest.fixture(autouse=True)
def quick(monkeypatch):
  monkeypatch.setattr(process, "POLL_SECONDS", 0.01)


def stage(folder, name, code="", steps=None):
  """A stage that is done when there is a file of its name."""
  done = folder / f"{name}.done"
  code = f"{WAIT}\n{code}\npathlib.Path({str(done)!r}).touch()"
  return pipeline.Stage(name, [sys.executable, "-c", code],
                        folder / f"{name}.log", done.exists, steps)


def run(runs, places=2):
  """Runs a queue; returns the reasons of failure by name, in the order of the ends."""
  reasons = {}

  def finished(of, reason):
    assert of.name not in reasons
    reasons[of.name] = reason

  queue.run(runs, [shares.Share()] * places, finished)
  return reasons


def test_as_many_runs_as_places_are_at_work_at_the_same_time(tmp_path):
  meets = [f"pathlib.Path({str(tmp_path / me)!r}).touch(); "
           f"wait({str(tmp_path / other)!r})"
           for me, other in (("a", "b"), ("b", "a"))]
  ended = [str(tmp_path / f"{name}.done") for name in ("one", "two")]
  late = f"assert any(pathlib.Path(path).exists() for path in {ended})"
  assert run([Run("one", stage(tmp_path, "one", meets[0])),
              Run("two", stage(tmp_path, "two", meets[1])),
              Run("three", stage(tmp_path, "three", late))]) == {
                  "one": None, "two": None, "three": None}


@pytest.mark.parametrize("places", [1, 2])
def test_a_stage_that_runs_share_is_done_once(tmp_path, places):
  def shared():  # Each run makes its own stage, as runs of a table do.
    return stage(tmp_path, "shared", "print('once'); time.sleep(0.2)")

  after = f"wait({str(tmp_path / 'shared.done')!r})"
  own = {name: stage(tmp_path, name, after) for name in ("a", "b")}
  assert run([Run(name, shared(), own[name]) for name in own], places) == {
      "a": None, "b": None}
  assert (tmp_path / "shared.log").read_text() == "once\n"


@pytest.mark.parametrize("places", [1, 2])
def test_a_failure_is_noted_and_the_others_go_on(tmp_path, capsys, places):
  bad = stage(tmp_path, "bad", "print('why'); sys.exit('it was too hot')")
  lazy = pipeline.Stage("lazy", [sys.executable, "-c", "print('did nothing')"],
                        tmp_path / "lazy.log", lambda: False)
  never = stage(tmp_path, "never")
  reasons = run([Run("first", bad, never), Run("shares", bad),
                 Run("lazy", lazy), Run("good", stage(tmp_path, "good"))],
                places)
  assert reasons == {"first": "it was too hot", "shares": "it was too hot",
                     "lazy": "did nothing", "good": None}
  assert (tmp_path / "bad.log").read_text().count("why") == 1
  assert not never.is_done() and not never.log.exists()
  streams = capsys.readouterr()
  assert "bad ended with status 1" in streams.err
  assert "lazy left no result" in streams.err
  assert "1 of 4 runs done, 3 failed:" in streams.out.splitlines()[-1]


def test_finished_work_is_skipped_and_counts_as_done_before(tmp_path, capsys):
  first = stage(tmp_path, "first", "sys.exit(1)", range(30))
  (tmp_path / "first.done").touch()
  # A resumed stage: steps 11 to 20 of range(20).
  logs = "[print(f'tf_loss[1.5][{n}]', flush=True) for n in range(16, 21)]"
  goes_on = stage(tmp_path, "second", logs, range(10, 20))
  assert run([Run("a", first), Run("b", goes_on)]) == {"a": None, "b": None}
  lines = capsys.readouterr().out.splitlines()
  assert "first: done before" in lines and not first.log.exists()
  runs = [line for line in lines if "runs done" in line]
  assert runs[0].startswith("1 of 2 runs done:")
  assert " 30/40 steps" in runs[0] and " 40/40 steps" in runs[-1]


def test_the_first_steps_of_a_resumed_stage_count_as_done_before(tmp_path):
  code = "[print(f'tf_loss[1.5][{n}]', flush=True) for n in range(16, 19)]"
  running = stage(tmp_path, "train", code, range(10, 20)).start(shares.Share())
  while running.goes_on():
    assert running.done <= 8
  assert running.before == 5 and running.done == 10


def test_steps_of_a_run_that_failed_are_no_longer_waited_for(tmp_path, capsys):
  code = "print('tf_loss[2][3]', flush=True); sys.exit('no')"
  run([Run("bad", stage(tmp_path, "bad", code, range(10)),
           stage(tmp_path, "after", "", range(100)))])
  assert "0 of 1 runs done, 1 failed: 100%" in capsys.readouterr().out


def until_called_thrice(monkeypatch, folder, name):
  """The code of a stage that ends after three calls of a method of `Progress`."""
  method, calls, seen = getattr(progress.Progress, name), [], folder / "seen"

  def called(self, running):
    method(self, running)
    calls.append(self)
    if len(calls) == 3:
      seen.touch()

  monkeypatch.setattr(progress.Progress, name, called)
  return f"wait({str(seen)!r})"


@pytest.mark.parametrize("places", [1, 2])
def test_a_terminal_shows_one_line_for_all_or_a_bar_for_each(
    tmp_path, capsys, monkeypatch, places):
  monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
  monkeypatch.setenv("COLUMNS", "80")
  seen = until_called_thrice(monkeypatch, tmp_path, "show") if places == 2 else ""
  run([Run("a", stage(tmp_path, "train a", seen, range(20)))], places)
  shown = capsys.readouterr().out
  assert ("\rtrain a " in shown) == (places == 1)
  last = shown.splitlines()[-1]
  assert last.startswith("1 of 1 runs done: 100%") and last.endswith("left]")
  assert shown.count("runs done, 1 running:") > 1 or places == 1


def test_without_a_terminal_the_line_is_printed_from_time_to_time(
    tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0)
  seen = until_called_thrice(monkeypatch, tmp_path, "line")
  run([Run("a", stage(tmp_path, "a", seen, range(20)))])
  lines = [line for line in capsys.readouterr().out.splitlines()
           if "runs done" in line]
  assert len(lines) > 2 and lines[0].startswith("0 of 1 runs done, 1 running:")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_all_commands(tmp_path, number):
  pids = [tmp_path / "one.pid", tmp_path / "two.pid"]
  writes = [f"import os; pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))"
            "; time.sleep(600)" for pid in pids]
  waits = "".join(f"wait({str(pid)!r}); " for pid in pids) + "time.sleep(0.1)"
  runs = [Run("quick", stage(tmp_path, "quick", waits)),
          Run("one", stage(tmp_path, "one", writes[0])),
          Run("two", stage(tmp_path, "two", writes[1]))]
  before = signal.getsignal(signal.SIGTERM)
  with pytest.raises(KeyboardInterrupt):
    queue.run(runs, [shares.Share()] * 3,
              lambda *_: os.kill(os.getpid(), number))
  assert signal.getsignal(signal.SIGTERM) is before
  for pid in pids:
    with pytest.raises(ProcessLookupError):
      os.kill(int(pid.read_text()), 0)


def test_each_job_sees_its_own_cores(tmp_path):
  code = "import os; print(*os.sched_getaffinity(0))"
  seen = []
  for share in shares.shares(len(machine.cores())):
    running = stage(tmp_path, "a", code).start(share)
    while running.goes_on():
      pass
    seen.append(int((tmp_path / "a.log").read_text().splitlines()[-1]))
  assert sorted(seen) == machine.cores()


def test_more_jobs_than_cores_are_refused(monkeypatch):
  monkeypatch.setattr(machine, "cores", lambda: [3, 5])
  assert [share.cores for share in shares.shares(2)] == [(3,), (5,)]
  with pytest.raises(ValueError, match="--jobs=3, but .* 2 cores"):
    shares.shares(3)


@pytest.mark.parametrize("visible, jobs, expected", [
    ("4,5,6,7", 2, ["4,5", "6,7"]), ("GPU-a,GPU-b,GPU-c", 2, [
        "GPU-a", "GPU-b,GPU-c"]), ("1", 2, ["1", "1"]), ("-1", 2, [None, None]),
    (None, 2, ["0", "1,2"]), ("4,5", 1, [None])])
def test_each_job_has_its_share_of_the_gpus(
    tmp_path, monkeypatch, visible, jobs, expected):
  tool = tmp_path / "nvidia-smi"
  tool.write_text("#!/bin/sh\nfor i in 0 1 2; do echo \"GPU $i: X (UUID: $i)\"; "
                  "echo '  MIG 1g.5gb'; done\n")
  tool.chmod(0o755)
  monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
  monkeypatch.setattr(machine, "cores", lambda: [0, 1])
  monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
  if visible:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
  environments = [share.environment for share in shares.shares(jobs)]
  assert [e.get("CUDA_VISIBLE_DEVICES") for e in environments] == expected
  assert all(("TF_FORCE_GPU_ALLOW_GROWTH" in e) == (visible == "1")
             for e in environments)
