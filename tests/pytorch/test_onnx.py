"""Graphs of ONNX compute what PyTorch does, and the page's program decodes by them."""

import json
import os
import pathlib
import subprocess

import pytest
import sentencepiece
from support import documents
from support.paths import ROOT

_CODE = ROOT / "tools/hugging_face/pytorch"
_SCRIPT = pathlib.Path(__file__).with_name("graphs.py")


def _run(config, folder, *words):
  return subprocess.run(
      [config.getoption("pytorch"), *words], capture_output=True, text=True,
      check=False, env={
          **os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
          "HF_HOME": str(folder / "cache")})


@pytest.fixture(scope="module")
def graphs(pytestconfig, tmp_path_factory, sentencepiece_model):
  """What `graphs.py` finds."""
  folder = tmp_path_factory.mktemp("onnx")
  needed = _run(pytestconfig, folder, "-c", "import onnxruntime, onnxscript")
  assert not needed.returncode, "install onnxruntime and onnxscript beside PyTorch"
  [program] = [text for language, text in documents.blocks("docs/serving.md")
               if language == "python" and "def decode(" in text]
  (folder / "answer.py").write_text(program)
  done = _run(pytestconfig, folder, _SCRIPT, folder, _CODE, sentencepiece_model,
              folder / "answer.py")
  assert done.returncode == 0, done.stderr[-3000:]
  return {**json.loads(done.stdout.splitlines()[-1]), "folder": folder}


def test_graphs_give_the_logits_of_pytorch_for_batches_of_any_size(graphs):
  assert len(graphs["errors"]) == 4 and max(graphs["errors"].values()) < 1e-4, graphs


def test_only_layers_with_v_have_keys_in_their_cache(graphs):
  assert graphs["states"] == [
      f"past.{layer}.{kind}" for layer in range(6) for kind in ("keys", "values")
      if kind == "values" or layer in (0, 2)]


def test_the_program_of_the_page_decodes_as_generate_does(graphs):
  assert graphs["greedy"]


def test_a_search_with_all_beams_has_the_most_probable_answer(graphs):
  assert graphs["beams"] < 1e-4


def test_more_tokens_than_the_tables_have_are_an_error(graphs):
  assert graphs["info"]["max_inputs"] == graphs["info"]["max_targets"] == 20
  assert len(graphs["too long"]) == 2
  for message in graphs["too long"]:
    assert "21 tokens, but this model has tables for 20; give fewer" in message


def test_the_program_of_the_page_needs_neither_pytorch_nor_tensorflow(
    pytestconfig, graphs):
  folder = graphs["folder"]
  done = _run(pytestconfig, folder, "-c", f"""
import json, sys
sys.path.insert(0, {str(folder)!r})
import answer
answers = answer.answer({str(folder / "graphs")!r}, ["a text", "another"], 5)
assert not {{"torch", "transformers", "tensorflow"}} & set(sys.modules)
print(json.dumps(answers))""")
  assert done.returncode == 0, done.stderr[-3000:]
  assert json.loads(done.stdout) == graphs["graphs"]


def test_matrices_and_the_embedding_are_int8_and_tables_are_not(graphs):
  cross = [name for name in graphs["matrices"] if "EncDecAttention.k" in name
           or "EncDecAttention.v" in name]
  assert len(cross) == 12
  assert graphs["in int8"]["encoder"] == sorted(["shared", *cross, *(
      name for name in graphs["matrices"] if name.startswith("encoder"))])
  assert graphs["in int8"]["step"] == sorted(["shared", "shared", *(  # And head.
      name for name in graphs["matrices"]
      if name.startswith("decoder") and name not in cross)])


def test_logits_in_int8_are_near(graphs):
  assert 1e-4 < graphs["int8 error"] < 0.05


def test_graphs_in_int8_have_less_than_two_fifths_of_the_bytes(graphs):
  before, after = graphs["bytes"]
  assert before / 5 < after < before * 2 / 5


def test_the_program_of_the_page_leaves_out_ids_that_are_no_pieces(
    graphs, sentencepiece_model):
  pieces = sentencepiece.SentencePieceProcessor(str(sentencepiece_model))
  assert len(pieces) < 600 - 1
  assert graphs["beyond"] == [pieces.decode([9, 11])] != [""]


@pytest.mark.parametrize("package, dtype", [
    ("onnxscript", "float32"), ("onnxruntime", "int8")])
def test_a_package_that_is_missing_is_one_sentence(
    pytestconfig, graphs, package, dtype):
  folder = graphs["folder"]
  done = _run(pytestconfig, folder, "-c", f"""
import sys
sys.modules[{package!r}] = None
sys.path.insert(0, {str(_CODE)!r})
import to_onnx
to_onnx.main([{str(folder / "model")!r}, "--output=new", "--dtype={dtype}"])""")
  assert done.returncode == 1 and done.stderr.splitlines()[-1] == (
      f"to_onnx: --dtype={dtype} needs {package}, which is not here; install it by "
      f"`pip install {package}`.")


def test_a_folder_that_cannot_be_exported_is_one_sentence(pytestconfig, graphs):
  folder = graphs["folder"]
  for words, message in (
      ((folder / "model", f"--output={folder}/graphs"), "is there; name a new folder."),
      ((folder, f"--output={folder}/new"), "there is no config.json in ")):
    done = _run(pytestconfig, folder, _CODE / "to_onnx.py", *words)
    assert done.returncode == 1 and message in done.stderr.splitlines()[-1]
