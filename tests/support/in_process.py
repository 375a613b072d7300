"""Runs the launcher in this process, with a tiny model and real text."""

from absl.testing import flagsaver
import gin
from support import launching
from synthesizer_mtf import launcher
import tensorflow.compat.v1 as tf

NAME = "synthesizer_mesh_transformer: "


class Command(launching.Launcher):
  """The command in a folder with pairs of words; a test sets absl's flags as parsed."""

  def bindings(self):
    return [*super().bindings(), "utils.run.train_steps = 1"]

  def run(self, name, *files, bindings=(), main=launcher.main, **flags):
    """Runs the command's main, from a clean gin.

    Args:
      name: the model's subfolder.
      *files: gin files; cpu.gin follows them.
      bindings: bindings that follow those of the tiny model.
      main: the main function, the launcher's or T5's.
      **flags: further flags.

    Returns:
      the last line without the command's name; "" if the command succeeds.
    """
    gin.clear_config()
    given = {"model_dir": str(self.folder / name), "gin_file": [*files, "cpu.gin"],
             "gin_param": [*self.bindings(), *bindings], **flags}
    with flagsaver.flagsaver(**given), tf.Graph().as_default():
      try:
        main([""])
      except SystemExit as end:
        return str(end.code).removeprefix(NAME)
    return ""
