"""The commands and calls of docs/t5_recipes.md, one after another, in a tiny size."""

import os
import string

from absl import flags
from absl.testing import flagsaver
import gin
import pytest
import seqio
from support import documents
from support import launching
from support import shell
from synthesizer_mtf import launcher
from t5.models import mesh_transformer_main
import tensorflow.compat.v1 as tf

PAGE = "docs/t5_recipes.md"
MAINS = {"t5_mesh_transformer": mesh_transformer_main.main,
         "synthesizer_mesh_transformer": launcher.main}
# They come before the page's bindings, so the page's win. It evaluates and decodes
# all checkpoints of a folder, which are one.
TINY = ["d_model = 16", "d_ff = 24", "num_heads = 2", "d_kv = 6", "num_layers = 1",
        "utils.run.batch_size = 4", "utils.run.train_steps = 1",
        "utils.run.keep_checkpoint_max = 1", launching.SGD,
        "utils.run.sequence_length = {'inputs': 16, 'targets': 12}",
        "Bitransformer.decode.max_decode_length = 8"]
# They come after the page's bindings, which are for models of a useful size.
SHORT = ["tokens_per_batch = 64", "Bitransformer.decode.max_decode_length = 4",
         "utils.run.sequence_length = {'inputs': 16, 'targets': 12}"]


@pytest.fixture(name="paths")
def fixture_paths(tmp_path, tasks_to_read, sentencepiece_model):
  """The values of the page's variables."""
  words = launching.Launcher(tmp_path, sentencepiece_model).words[:5]
  paths = {name: str(tmp_path / name.lower()) for name in (
      "MODEL_DIR", "TUNED_DIR", "TSV_DIR", "QUERY_DIR", "EXPORT_DIR", "OUTPUTS",
      "SCORES", "INPUTS", "TARGETS")}
  for name, lines in {"INPUTS": words, "TARGETS": [w[::-1] for w in words]}.items():
    with open(paths[name], "w") as f:
      f.write("\n".join(lines) + "\n")
  return {**paths, "DATA_DIR": tasks_to_read, "TSV": str(tmp_path / "dev.tsv")}


def run(words):
  """Runs a command of the page in this process."""
  gin.clear_config()
  name, *words = words
  # The model API takes the sizes from the model's folder.
  tiny, short = ([f"--gin_param={binding}" for binding in bindings
                  if "--use_model_api" not in words] for bindings in (TINY, SHORT))
  with flagsaver.flagsaver(), tf.Graph().as_default():
    for flag in ("gin_file", "gin_param", "module_import"):
      flags.FLAGS[flag].present = 0  # Otherwise a parsed flag is extended.
    MAINS[name](flags.FLAGS([name, *tiny, *map(launcher.as_read, words), *short]))


@pytest.mark.slow
@pytest.mark.usefixtures("parsed_flags")
def test_the_page_works_from_top_to_bottom(paths, caplog):
  caplog.set_level("INFO", logger="tensorflow")
  ran = 0
  for language, text in documents.blocks(PAGE):
    if language == "sh":
      command, = shell.commands(string.Template(text).substitute(paths))
      run(command)
    else:
      gin.clear_config()
      exec(text, {**paths, "PRETRAINED_DIR": paths["MODEL_DIR"],
                  "MODEL_DIR": paths["MODEL_DIR"] + "_trivia"})
      seqio.TaskRegistry.remove("nq_context_free")
      seqio.MixtureRegistry.remove("trivia_all")
    ran += 1
  assert ran == len(documents.blocks(PAGE)) > 8
  assert "Warm start: the step count continues; " in caplog.text
  assert "is missing, so training reads the data" not in caplog.text
  assert {"OUTPUTS", "SCORES"} <= {
      name for name, path in paths.items()
      if any(each.startswith(os.path.basename(path) + mark) for mark in "-."
             for each in os.listdir(os.path.dirname(path)))}
  assert os.listdir(paths["EXPORT_DIR"])
