"""Test splits with hidden labels, and the files of predictions for the servers."""

import json

import pytest
import seqio
from synthesizer_mtf.tasks import submission

LABELLED = [name for name in submission.FILES if seqio.TaskRegistry.get(
    name).metric_fns[0].__name__ != "no_score"]


def hidden(name):
  """The example that a task makes of a row of a test split."""
  example = {"idx/question": 3, "idx/passage": 1, "idx/query": 2, "answers": [],
             "label": -1, "targets_pretokenized": b"<unk>"}
  text = "-1.0" if name.endswith("stsb") else "<unk>"
  return seqio.TaskRegistry.get(name).postprocess_fn(
      text, example=example, is_target=True)


def test_hidden_labels_have_no_score_and_no_error():
  for name in submission.FILES:
    task = seqio.TaskRegistry.get(name)
    assert task.metric_fns  # Without a metric, Mesh TensorFlow does not decode.
    predictions = [task.postprocess_fn(text, example={
        "targets_pretokenized": b"Tom"}) for text in ("True", "banana")]
    for metric in task.metric_fns:
      assert metric([hidden(name)] * 2, predictions) == {}


def test_a_split_with_some_labels_has_scores():
  example = {"idx/question": 3, "idx/passage": 1, "idx/query": 2,
             "answers": [b"x"], "label": 1, "targets_pretokenized": b"Tom"}
  for name in LABELLED:
    task, values = seqio.TaskRegistry.get(name), {}
    for text in ("1.0", "True", "entailment", "acceptable", "positive", "equivalent",
                 "duplicate", "choice1"):
      target = task.postprocess_fn(text, example=example, is_target=True)
      if target != -1 and target != hidden(name):
        for metric in task.metric_fns:
          values.update(metric(
              [target] * 3, [task.postprocess_fn(text, example=example)] * 3))
    assert values, name


ROWS = [{"idx": 4}, {"idx": 7}]
MULTIRC = [{"idx/paragraph": p, "idx/question": q, "idx/answer": a}
           for p, q, a in [(0, 5, 1), (0, 5, 2), (0, 6, 3), (1, 7, 4)]]


# The predictions of two rows, and the lines of a table or in JSON.
LINES = [
    ("glue_cola", [1, 0], ["4\t1", "7\t0"]),
    ("glue_wnli", [1, -1], ["4\t1", "7\t0"]),
    ("glue_stsb", [3.8, 7.0], ["4\t3.8", "7\t5.0"]),
    ("glue_ax", [2, 1], ["4\tcontradiction", "7\tneutral"]),
    ("glue_qnli", [0, 1], ["4\tentailment", "7\tnot_entailment"]),
    ("super_glue_boolq", [1, 0], ["true", "false"]),
    ("super_glue_wsc", [1, -1], ["True", "False"]),
    ("super_glue_copa", [0, 1], [0, 1]),
    ("super_glue_cb", [1, 2], ["contradiction", "neutral"]),
    ("super_glue_axb", [0, 1], ["entailment", "not_entailment"]),
]


def test_lines_are_those_that_the_servers_take():
  for task, predictions, expected in LINES:
    written, invalid = submission.lines(f"synth_{task}", ROWS, predictions)
    if "super" in task:
      assert [json.loads(line) for line in written] == [
          {**row, "label": label} for row, label in zip(ROWS, expected)]
    else:
      assert written == ["index\tprediction", *expected]
    assert invalid == predictions.count(-1)


def test_multirc_has_a_line_for_each_paragraph():
  written, _ = submission.lines("synth_super_glue_multirc", MULTIRC, [
      {"value": v} for v in (1, 0, -1, 1)])
  assert [json.loads(line) for line in written] == [
      {"idx": 0, "passage": {"questions": [
          {"idx": 5, "answers": [{"idx": 1, "label": 1}, {"idx": 2, "label": 0}]},
          {"idx": 6, "answers": [{"idx": 3, "label": 0}]}]}},
      {"idx": 1, "passage": {"questions": [
          {"idx": 7, "answers": [{"idx": 4, "label": 1}]}]}}]


def test_record_has_a_line_for_each_query():
  rows = [{"idx/passage": 0, "idx/query": q} for q in (8, 8, 9)]
  found, _ = submission.lines("synth_super_glue_record", rows, [
      {"value": v} for v in ("the bank", "the bank", "Ünal")])
  assert [json.loads(line) for line in found] == [
      {"idx": 8, "label": "the bank"}, {"idx": 9, "label": "Ünal"}]


def test_missing_predictions_are_refused(tmp_path):
  with pytest.raises(ValueError, match="1 predictions but 2 examples.*num_eval_ex"):
    submission.lines("synth_glue_cola", ROWS, [1])
  (tmp_path / "synth_glue_cola_8_predictions").write_text("1\n")
  with pytest.raises(SystemExit, match="has no predictions .*at step 9 .*: 8\\)"):
    submission.main([str(tmp_path), "--step=9", f"--output={tmp_path}/out"])


def test_one_command_writes_the_files_of_the_last_step(tasks_to_read, tmp_path, capsys):
  for name, step, text in (
      ("glue_ax", 8, "2\n-1\n"), ("glue_ax", 4, "0\n0\n"),
      ("super_glue_axb", 8, "1\n0\n")):
    (tmp_path / f"synth_{name}_{step}_predictions").write_text(text)
  submission.main([str(tmp_path), f"--output={tmp_path}/out",
                   f"--t5_tfds_data_dir={tasks_to_read}"])
  printed = capsys.readouterr()
  assert "Step 8: AX.tsv, AX-b.jsonl in" in printed.out
  assert "synth_glue_ax: 1 predictions are not labels" in printed.err
  assert (tmp_path / "out" / "AX.tsv").read_text() == (
      "index\tprediction\n5\tcontradiction\n5\tentailment\n")
  assert (tmp_path / "out" / "AX-b.jsonl").read_text()
  assert not list((tmp_path / "out").glob("*.unfinished"))


def test_the_test_mixtures_have_all_tasks_that_the_servers_want(tasks_to_read):
  for name, count in (("synth_glue_test", 11), ("synth_super_glue_test", 10)):
    members = {task.name for task in seqio.MixtureRegistry.get(name).tasks}
    assert len(members) == count and members <= set(submission.FILES)
  rows = submission._rows("synth_super_glue_axb", "test")
  assert [int(row["idx"]) for row in rows] == [5, 5]
