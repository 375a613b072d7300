"""docs/pytorch.md does what it says, in the environment that `--pytorch` names."""

import json
import os
import re
import subprocess

import pytest
from support import documents
from support import shell
from support.paths import ROOT

PAGE = "docs/pytorch.md"
# Runs blocks of Python one after the other, and says what was imported at the end.
RUN = """
import json, sys
sys.path.insert(0, "")
for code_of_page in json.load(open("blocks.json")):
  exec(code_of_page)
print([name for name in sys.modules if name.startswith(("tensorflow", "mesh_"))])
"""


@pytest.fixture(scope="module")
def folder(pytestconfig, tmp_path_factory):
  """A folder in which the page's commands were run, with `tools/` in it."""
  folder = tmp_path_factory.mktemp("page")
  (folder / "tools").symlink_to(ROOT / "tools")
  for language, text in documents.blocks(PAGE):
    for words in shell.commands(text) if language == "sh" else ():
      if words[0] == "python":
        _run(pytestconfig, folder, *words[1:])
  return folder


def _run(config, folder, *words):
  done = subprocess.run(
      [config.getoption("pytorch"), *words], capture_output=True, text=True,
      cwd=folder, check=False, env={
          **os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
          "HF_HOME": str(folder / "cache")})
  assert done.returncode == 0, done.stderr[-3000:]
  return done.stdout


def test_the_programs_of_the_page_print_what_it_shows(pytestconfig, folder):
  blocks = documents.blocks(PAGE)
  (folder / "blocks.json").write_text(json.dumps(
      [text for language, text in blocks if language == "python"]))
  lines = _run(pytestconfig, folder, "-c", RUN).splitlines()
  shown = "".join(text for language, text in blocks if language == "text")
  assert shown and not set(shown.splitlines()) - set(lines)
  assert lines[-1] == "[]"  # No TensorFlow.


def test_the_page_lists_the_notations_of_the_file():
  code = (ROOT / "tools/hugging_face/pytorch/modeling_synthesizer.py").read_text()
  names = re.findall(r'"(\w+)": \w+', re.search(
      r"^SYNTHESIZERS = \{(.*?)\}", code, re.DOTALL | re.MULTILINE)[1])
  listed = re.findall(r"^\| ([\w, +]+) \|", documents.read(PAGE), re.MULTILINE)
  assert len(names) == 8
  assert {name for row in listed for name in row.split(", ")} == {
      "name", *names, "R+V"}


@pytest.mark.parametrize("words, message", [
    (["--attention=R+W"], "names the attention 'W', which modeling_synthesizer.py la"),
    (["--attention=R/V/R"], "give one notation, or that of the encoder and that of"),
    (["--attention=R", "--d_kv=0"], "--d_kv is 0; give a positive integer."),
    (["--attention=R", "--output=synthesizer_pytorch"], "there and not empty; name")])
def test_a_folder_that_cannot_be_written_is_one_sentence(
    pytestconfig, folder, words, message):
  done = subprocess.run(
      [pytestconfig.getoption("pytorch"), "tools/hugging_face/pytorch/write.py",
       "--output=other", *words], capture_output=True, text=True, cwd=folder,
      check=False)
  assert done.returncode == 1 and not (folder / "other").exists()
  assert message in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
