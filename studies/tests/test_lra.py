"""The other tasks of Long Range Arena: texts and pictures."""

import numpy as np
import pytest
import seqio
from studies.tasks import lra_pathfinder
from support.task_files import bind
from support.task_files import examples
from support.task_files import preprocessed
import tensorflow as tf


def test_reviews_are_bytes_and_cut_to_their_length():
  row = {"text": "Né good.", "label": 1}
  example = preprocessed("synth_lra_text", row, {"inputs": 100, "targets": 1})
  assert example["inputs"].tolist() == [b + 3 for b in "Né good.".encode()]
  assert example["targets"].tolist() == [2]
  short = preprocessed("synth_lra_text", row, {"inputs": 5, "targets": 1})
  assert short["inputs"].tolist() == example["inputs"].tolist()[:5]


def test_pictures_are_grey_pixels_row_by_row_and_black_is_no_padding():
  picture = np.random.RandomState(0).randint(0, 256, (32, 32, 3)).astype(np.uint8)
  picture[0, 0] = 0
  picture[31, 31] = 255
  example = preprocessed("synth_lra_image", {"image": picture, "label": 6, "id": "x"},
                   {"inputs": 1024, "targets": 1})
  found = example["inputs"].reshape(32, 32)
  assert found.min() == found[0, 0] == 1 and found.max() == found[31, 31] == 256
  luma = picture @ np.array([0.299, 0.587, 0.114])  # ITU-R BT.601
  np.testing.assert_allclose(found - 1, luma, atol=1.01)
  assert example["targets"].tolist() == [7]
  task = seqio.TaskRegistry.get("synth_lra_image")
  assert task.postprocess_fn("frog") == "frog"
  assert task.output_features["inputs"].vocabulary.vocab_size == 257


def test_a_picture_of_another_size_is_refused():
  with pytest.raises(ValueError, match="is of 28 x 28 pixels, but 32 x 32 "
                     "are needed; name another data set"):
    preprocessed("synth_lra_image", {
        "image": np.zeros([28, 28, 1], np.uint8), "label": 6},
           {"inputs": 1024, "targets": 1})


def test_the_validation_is_the_end_of_the_training_split():
  source = seqio.TaskRegistry.get("synth_lra_image").source
  assert set(source.splits) == {"train", "validation", "test"}
  for loader in (source.tfds_dataset, _renamed(source)):
    assert [loader._split_map[split] for split in ("train", "validation", "test")] == [
        "train[:90%]", "train[90%:]", "test"]


def _renamed(source):
  bind("tfds.names", {"cifar10:3.0.2": "cifar100:3.0.2"})
  assert source.tfds_dataset.name == "cifar100:3.0.2"
  return source.tfds_dataset


PAPERS = ["1.0\tP1\tP2\tab\tcde", "0\tP3\tP4\tfghijkl\tm"]


@pytest.fixture(name="papers")
def fixture_papers(tmp_path):
  """A function that writes the files of AAN."""
  bind("lra_retrieval.directory", str(tmp_path))

  def write(*rows, split="train"):
    (tmp_path / f"new_aan_pairs.{split}.tsv").write_text(
        "".join(f"{row}\n" for row in rows))

  return write


def letters(text):
  return [byte + 3 for byte in text.encode()]


def test_each_of_two_papers_has_half_of_the_inputs(papers):
  papers(*PAPERS)
  papers(*PAPERS, split="eval")
  for split in ("train", "validation"):
    found = examples("synth_lra_retrieval", split, {"inputs": 10, "targets": 1})
    assert [e["inputs"].tolist() for e in found] == [
        letters("ab") + [0] * 3 + letters("cde") + [0] * 2,
        letters("fghij") + letters("m") + [0] * 4]
    assert [e["targets"].tolist() for e in found] == [[2], [1]]
  longest = examples("synth_lra_retrieval", "train", {"inputs": None, "targets": 1})
  assert [len(e["inputs"]) for e in longest] == [6, 14]


def test_cut_papers_are_counted(papers, capfd):
  papers(*PAPERS)
  examples("synth_lra_retrieval", "train", {"inputs": 10, "targets": 1})
  assert "1 of 2 examples of synth_lra_retrieval" in capfd.readouterr().err


@pytest.mark.parametrize("row, message", [
    ("1\tP1\tP2", "line 2: 3 columns, but a label, two names and two texts"),
    ("1\tP1\tP2\tab\t", "line 2: 5 columns, but a label, two names and two texts"),
    ("yes\tP1\tP2\ta\tb", "line 2: the label is 'yes' but must be 0 or 1")])
def test_a_wrong_pair_is_named(row, message, papers):
  papers(PAPERS[0], row)
  with pytest.raises(ValueError, match=message):
    examples("synth_lra_retrieval", "train", {"inputs": 10, "targets": 1})


def test_missing_papers_and_an_odd_length_are_errors(papers):
  with pytest.raises(ValueError, match="has no 'new_aan_pairs.test.tsv'"):
    examples("synth_lra_retrieval", "test", {"inputs": 10, "targets": 1})
  papers(*PAPERS)
  with pytest.raises(ValueError, match="gives the inputs of synth_lra_retrieval 7 ids"):
    examples("synth_lra_retrieval", "train", {"inputs": 7, "targets": 1})


@pytest.fixture(name="lines")
def fixture_lines(tmp_path):
  """A folder of Pathfinder with 20 pictures, and the function that writes them."""
  bind("lra_pathfinder32.directory", str(tmp_path))
  folder = tmp_path / "curv_contour_length_14"
  (folder / "imgs" / "0").mkdir(parents=True)
  (folder / "metadata").mkdir()

  def write(number, side=32, row=None):
    picture = np.full([side, side, 1], number, np.uint8)
    content = tf.io.encode_png(picture).numpy()
    (folder / "imgs" / "0" / f"sample_{number}.png").write_bytes(content)
    with open(folder / "metadata" / f"{number // 8}.npy", "a") as f:
      f.write((row or f"imgs/0 sample_{number}.png 0 {number % 2} 1.8 2") + "\n")

  for number in range(20):
    write(number)
  lra_pathfinder._checked.cache_clear()
  return folder, write


LINES = {"inputs": 1024, "targets": 1}


def pictures_of(split):
  return [(e["inputs"][0] - 1, e["targets"].item() - 1)
          for e in examples("synth_lra_pathfinder32", split, LINES)]


def test_pictures_of_the_release_are_split_once_with_their_labels(lines):
  found = {split: pictures_of(split) for split in ("train", "validation", "test")}
  assert [len(found[split]) for split in found] == [16, 2, 2]
  assert sorted(sum(found.values(), [])) == [(n, n % 2) for n in range(20)]
  assert found["train"] != sorted(found["train"])
  assert pictures_of("test") == found["test"]


def test_an_empty_picture_is_left_out(lines):
  (lines[0] / "imgs" / "0" / "sample_3.png").write_bytes(b"")
  source = seqio.TaskRegistry.get("synth_lra_pathfinder32").source
  assert [source.num_input_examples(s) for s in source.splits] == [15, 2, 2]


@pytest.mark.parametrize("spoil, message", [
    (lambda folder, write: (folder / "imgs/0/sample_9.png").unlink(),
     r"1.npy', line 2 names '.*sample_9.png', which cannot be read"),
    (lambda folder, write: (folder / "imgs/0/sample_9.png").write_bytes(
        (folder / "imgs/0/sample_9.png").read_bytes()[:-9]),
     "sample_9.png' is not a whole PNG file; fetch it again"),
    (lambda folder, write: write(21, side=28),
     "sample_21.png' is of 28 x 28 pixels, but 32 x 32 are needed"),
    (lambda folder, write: write(21, row="imgs/0 sample_21.png"),
     "2.npy', line 5: a folder, a picture, a number and a label"),
    (lambda folder, write: bind("lra_pathfinder32.difficulty", "easy"),
     "has no files '.*curv_baseline/metadata/"),
    (lambda folder, write: bind("lra_pathfinder32.difficulty", "light"),
     "difficulty` is 'light' but must be one of 'easy', 'intermediate', 'hard'"),
])
def test_a_mistake_in_a_folder_is_an_error_before_training(spoil, message, lines):
  spoil(*lines)
  with pytest.raises(ValueError, match=message):
    pictures_of("train")
