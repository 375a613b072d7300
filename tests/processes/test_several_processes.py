"""One training, evaluation or decoding in two processes on one machine, through JAX."""

import json
import os
import re
import shutil
import time
import types

import numpy as np
import pytest
from support import launching
from support import ports
from support import stacks
from support.processes import COMMAND
from support.processes import LIMIT
from support.processes import Process
import tensorflow.compat.v1 as tf

pytestmark = [pytest.mark.slow, stacks.only_new]
# With a seed, the initial model answers something, and the same each time.
BINDINGS = ["dropout_rate = 0.0", "utils.run.save_checkpoints_steps = 1",
            "mesh_train_dataset_fn.shuffle = False",
            "utils.run.train_model_fn = @synthesizer_mtf.train_with_seed",
            "utils.run.mesh_shape = 'model:2,batch:2'",
            "utils.run.keep_checkpoint_max = None",
            "utils.get_variable_dtype.master_dtype = 'float32'"]


class Processes:
  """Runs the launcher with a tiny R+V model, as one process or as two."""

  def __init__(self, folder, vocabulary):
    self.folder = folder
    self.launch = launching.Launcher(folder, vocabulary)
    self.started = []

  def start(self, name, steps, *bindings, files=(), devices=4, log=None):
    """Starts one process; its output goes to LOG.log."""
    self.launch.model_dir = self.folder / name
    path = self.folder / f"{log or name}.log"
    flags = (f"--xla_force_host_platform_device_count={devices} "
             "--xla_backend_optimization_level=0")
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}

    def run(words, folder):
      with open(path, "w") as file:
        return Process([COMMAND, "--verbosity=1", *words], file, cwd=folder,
                       env=variables)

    process = self.launch(*files, bindings=[
        *BINDINGS, f"utils.run.train_steps = {steps}", *bindings], run=run,
                          mesh="jax.gin")
    process.log = path
    self.started.append(process)
    return process

  def start_one(self, *args, **kwargs):
    """Starts one process, as a list like `start_two`."""
    return [self.start(*args, **kwargs)]

  def start_two(self, name, steps, *bindings, files=(), numbers=(2, 2)):
    """Starts two processes of two devices each; the second has no folder."""
    port, = ports.free_ports(1)
    return [self.start(
        name if index == 0 else "unused", steps,
        f"synthesizer_processes.coordinator_address = 'localhost:{port}'",
        f"synthesizer_processes.num_processes = {number}",
        f"synthesizer_processes.process_id = {index}", *bindings, files=files,
        devices=2, log=f"{name}.{index}") for index, number in enumerate(numbers)]


@pytest.fixture(scope="module")
def processes(tmp_path_factory, sentencepiece_model):
  run = Processes(tmp_path_factory.mktemp("processes"), sentencepiece_model)
  yield run
  for process in run.started:
    process.kill()


@pytest.fixture(scope="module")
def killed(processes):
  """Two processes whose second gets killed, and one that starts as they did."""
  both = processes.start_two("two", 1000000, launching.ADAFACTOR)
  wait_for_line(both[0], r"(?s)(tf_loss\[.*){4}")
  both[1].kill()
  both[0].wait()
  one, two = processes.folder / "one", processes.folder / "two"
  one.mkdir()
  for path in two.glob("model.ckpt-0.*"):
    shutil.copy(path, one)
  (one / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"')
  saved = int(tf.train.latest_checkpoint(str(two)).split("-")[-1])
  alone = processes.start("one", saved + 2, launching.ADAFACTOR)
  assert alone.wait() == 0, alone.log.read_text()[-3000:]
  return types.SimpleNamespace(
      two=two, leader=both[0], saved=saved, alone=losses(alone),
      losses=losses(both[0]), last_line=last_line(both[0]))


def wait_for_line(process, pattern):
  deadline = time.monotonic() + LIMIT
  while not re.search(pattern, process.log.read_text()):
    text = process.log.read_text()[-3000:]
    assert process.poll() is None, text
    assert time.monotonic() < deadline, text
    time.sleep(0.1)


def losses(process):
  """The losses of all steps, as Mesh TensorFlow prints them."""
  return [float(loss) for loss in re.findall(
      r"tf_loss\[([^]]+)\]\[\d+\]", process.log.read_text())]


def last_line(process):
  return process.log.read_text().strip().splitlines()[-1]


def test_two_processes_have_the_losses_of_one(killed):
  assert len(killed.losses) >= 4
  np.testing.assert_allclose(killed.losses[:3], killed.alone[:3], atol=1e-5)
  assert killed.losses[2] != killed.losses[0]


def test_a_killed_process_ends_the_other_with_one_sentence(killed):
  assert killed.leader.returncode == 1
  assert killed.last_line == (
      "synthesizer_mesh_transformer: process 1 of 2 has ended (see its own output): "
      "start all processes again, and training continues from the newest checkpoint.")


def test_the_same_commands_go_on_and_only_process_0_writes(processes, killed):
  both = processes.start_two("two", killed.saved + 2, launching.ADAFACTOR)
  codes = [process.wait() for process in both]
  assert codes == [0, 0], both[0].log.read_text()[-3000:]
  text = both[0].log.read_text()
  assert f"The data continue from the position of step {killed.saved}" in text
  np.testing.assert_allclose(losses(both[0]), killed.alone[-2:], atol=1e-3)
  assert (killed.two / f"model.ckpt-{killed.saved + 2}.index").exists()
  assert not list((processes.folder / "unused").glob("*ckpt*"))


def test_two_processes_evaluate_and_decode_as_one(processes, killed):
  folder, started = processes.folder, []
  (folder / "words").write_text("\n".join(processes.launch.words) + "\n")
  for mode, bindings in (
      ("eval", ["utils.run.dataset_split = 'validation'", "eval_checkpoint_step = 0"]),
      ("infer", ["input_filename = 'words'", "infer_checkpoint_step = 0",
                 "Bitransformer.decode.beam_size = 2",
                 "synthesizer_answers.number = 2"])):
    for name in f"{mode}_one", f"{mode}_two":
      shutil.copytree(killed.two, folder / name)
      start = processes.start_two if name.endswith("two") else processes.start_one
      started += start(name, 1, *bindings, f"output_filename = '{name}/answers'",
                       files=[f"{mode}.gin"])
  for process in started:
    assert process.wait() == 0, process.log.read_text()[-3000:]
  expected, evaluated = [
      next((folder / f"eval_{number}").glob("*/*_predictions")).read_text()
      for number in ("one", "two")]
  assert evaluated == expected and expected.strip()
  for line, answers in zip(*[[*map(json.loads, next(
      (folder / f"infer_{number}").glob("answers-*")).read_text().splitlines())]
      for number in ("one", "two")], strict=True):
    np.testing.assert_allclose(answers.pop("scores"), line.pop("scores"), atol=1e-4)
    assert answers == line


def test_a_killed_leader_ends_the_other_with_one_sentence(processes):
  leader, follower = processes.start_two("led", 1000000)
  wait_for_line(leader, r"tf_loss\[")
  leader.kill()
  assert follower.wait() == 1
  assert last_line(follower) == (
      "synthesizer_mesh_transformer: process 0 has ended before its job was done; see "
      "its own output, and start all processes again.")


def test_processes_of_other_numbers_end_with_one_sentence(processes):
  for process in processes.start_two("numbers", 1, numbers=(2, 3)):
    assert process.wait() == 1
    assert re.search(
        "a process says that it is 1 of 3 with jax .*, but process 0 waits for one of "
        r"\[1\] of 2", last_line(process))


def test_a_process_that_never_starts_is_named(processes):
  for index, message in enumerate((
      "process 1 of 2 has not started within 1 seconds",
      "process 0 does not answer at 'localhost:")):
    process = processes.start(
        "missing", 1, f"synthesizer_processes.coordinator_address = 'localhost:"
        f"{ports.free_ports(1)[0]}'", "synthesizer_processes.num_processes = 2",
        f"synthesizer_processes.process_id = {index}",
        "synthesizer_processes.timeout_seconds = 1")
    assert process.wait() == 1
    assert message in last_line(process)
