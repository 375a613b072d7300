"""The commands that train and evaluate a classifier; test_serving.py decodes."""

import pytest
from support import in_process
from support.events import scalars

MODEL = ["dataset.gin", "models/table7/linformer.gin", "models/table7/laptop.gin",
         "learning_rate_schedules/constant_0_001.gin"]
TASK = "synth_ag_news_encoder"


@pytest.mark.usefixtures("parsed_flags", "tasks_to_read")
def test_eval_writes_classes_and_their_accuracy(tmp_path, sentencepiece_model):
  command = in_process.Command(tmp_path, sentencepiece_model)
  bindings = [f"MIXTURE_NAME = '{TASK}'", "Linformer.rank = 3",
              "utils.run.sequence_length = {'inputs': 12, 'targets': 1}"]
  assert not command.run("model", *MODEL, bindings=bindings)
  assert not command.run("model", *MODEL, "eval.gin", bindings=[
      *bindings, "utils.run.dataset_split = 'test'", "eval_checkpoint_step = 1"])
  folder = tmp_path / "model" / "test_eval"
  predictions, targets = ((folder / f"{TASK}_{name}").read_text().splitlines()
                          for name in ("1_predictions", "targets"))
  assert targets and {*targets, *predictions} <= {
      "World", "Sports", "Business", "Sci/Tech"}
  right = sum(p == t for p, t in zip(predictions, targets, strict=True))
  assert scalars(folder)[f"eval/{TASK}/accuracy"] == (
      pytest.approx(100 * right / len(targets)))
