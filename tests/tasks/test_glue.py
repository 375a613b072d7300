"""GLUE, SuperGLUE and SQuAD: metrics, mixtures and the paper's averages."""

import json
import re

import gin
import pytest
import seqio
from support import prepared
from support.events import write_events
from synthesizer_mtf.tasks import averages
from synthesizer_mtf.tasks import super_glue
from t5.data import glue_utils
from t5.data import mixtures  # noqa: F401
import tensorflow.compat.v1 as tf

NONSENSE = "banana"
MIXTURES = ["synth_glue", "synth_super_glue", "synth_glue_super_glue",
            "synth_en_mix"]


def evaluate(name, *rows):
  """The scores of rows (target text, prediction, further features)."""
  task = seqio.TaskRegistry.get(name)
  targets, predictions = [], []
  for target, prediction, *features in rows:
    example = {"targets_pretokenized": target.encode(),
               **(features[0] if features else {})}
    targets.append(task.postprocess_fn(target, example=example, is_target=True))
    predictions.append(task.postprocess_fn(prediction, example=example))
  scores = {}
  for metric in task.metric_fns:
    scores.update(metric(targets, predictions))
  return scores


ACCURACY = [
    "glue_sst2", "glue_mnli", "glue_mnli_matched", "glue_mnli_mismatched", "glue_qnli",
    "glue_rte", "glue_wnli", "super_glue_boolq", "super_glue_copa", "super_glue_rte",
    "super_glue_wic", "ag_news", "imdb_reviews"]


def test_accuracy_counts_nonsense_as_wrong():
  for name in ACCURACY:
    label = prepared.BY_TASK[f"synth_{name}"].targets
    scores = evaluate(f"synth_{name}", (label, label), (label, label),
                      (label, label), (label, NONSENSE), (label, ""))
    assert scores == {"accuracy": 60}


def test_cola_has_matthews_correlation():
  yes, no = "acceptable", "unacceptable"
  # 1 true positive, 1 false negative and 2 true negatives:
  # 2 / sqrt(1 * 2 * 2 * 3).
  scores = evaluate("synth_glue_cola", (yes, yes), (yes, no), (no, no), (no, no))
  assert scores == {"matthews_corrcoef": pytest.approx(57.735, abs=1e-3)}
  task = seqio.TaskRegistry.get("synth_glue_cola")
  assert task.postprocess_fn(NONSENSE) == -1


def test_pairs_have_f1_and_accuracy():
  for name, yes in (("mrpc", "equivalent"), ("qqp", "duplicate")):
    # 2 true positives, 1 false negative: F1 is 4 / 5.
    scores = evaluate(f"synth_glue_{name}", (yes, yes), (yes, NONSENSE),
                      (f"not_{yes}", f"not_{yes}"), (yes, yes))
    assert scores == {"f1": pytest.approx(80), "accuracy": 75}


def test_stsb_has_both_correlations():
  rows = [("1.0", "1.0"), ("2.0", "2.0")]
  assert evaluate("synth_glue_stsb", *rows, ("3.0", "4.0")) == {
      "pearson_corrcoef": pytest.approx(300 / (28 / 3) ** 0.5),
      "spearman_corrcoef": pytest.approx(100)}
  # Nonsense counts as -1, which is worse than any score.
  scores = evaluate("synth_glue_stsb", *rows, ("3.0", NONSENSE))
  assert scores["spearman_corrcoef"] == pytest.approx(-50)


def test_cb_has_the_mean_f1_of_three_classes():
  scores = evaluate(
      "synth_super_glue_cb", ("entailment", "entailment"),
      ("contradiction", "contradiction"), ("neutral", "neutral"),
      ("neutral", NONSENSE))
  assert scores == {"mean_3class_f1": pytest.approx(100 * (1 + 1 + 2 / 3) / 3),
                    "accuracy": 75}


def test_multirc_has_f1_of_answers_and_exact_match_of_questions():
  question = [{"idx/question": number} for number in (7, 8)]
  scores = evaluate(
      "synth_super_glue_multirc", ("True", "True", question[0]),
      ("False", "False", question[0]), ("True", "True", question[1]),
      ("True", NONSENSE, question[1]))
  assert scores == {"f1": pytest.approx(80), "exact_match": 50}


def test_record_has_the_best_answer_and_counts_a_query_once():
  def query(number, *answers):
    return {
        "idx/passage": 1, "idx/query": number,
        "answers": [answer.encode() for answer in answers]}
  first = query(1, "Y", "X")
  scores = evaluate(
      "synth_super_glue_record", ("Y", "x", first), ("X", "x", first),
      ("The big bank", "bank", query(2, "The big bank")),
      ("Z", "", query(3, "Z")), ("Z", NONSENSE, query(4, "Z")))
  assert scores == {"em": 25, "f1": pytest.approx(100 * (1 + 2 / 3) / 4)}


def test_wsc_asks_whether_the_noun_was_predicted():
  right, wrong = {"label": 1}, {"label": 0}
  scores = evaluate(
      "synth_super_glue_wsc", ("Tom", "the tom", right), ("Bob", "Tom", wrong),
      ("Tom", "", right), ("Bob", "", wrong), ("Tom", NONSENSE, right))
  assert scores == {"accuracy": 40}


def test_squad_has_the_best_of_all_answers():
  answers = {"answers": [b"the cat", b"a big cat"]}
  scores = evaluate("synth_squad", ("the cat", "Big Cat.", answers),
                    ("the cat", "cat dog", answers), ("the cat", "", answers))
  assert scores == {"em": pytest.approx(100 / 3),
                    "f1": pytest.approx(100 * (1 + 2 / 3) / 3)}


def test_wsc_trains_on_right_referents_and_evaluates_all(tmp_path):
  right = prepared.BY_TASK["synth_super_glue_wsc"].row
  rows = [right, {**right, "label": 0}, right]
  name = "super_glue/wsc.fixed:1.0.2"
  prepared.write(name, {"train": rows, "validation": rows}, str(tmp_path))
  source = super_glue.RightReferents(name)
  source.tfds_dataset.override_data_dir(str(tmp_path))
  def count(split):
    return len(list(source.get_dataset(split, shuffle=False)))
  assert (count("train"), count("validation")) == (2, 3)


def test_mixtures_have_the_weights_of_t5():
  def rates(name):
    mixture = seqio.MixtureRegistry.get(name)
    return {task.name: mixture.get_rate(task) for task in mixture.tasks}

  ours = rates("synth_glue")
  for theirs, rate in glue_utils.GLUE_WEIGHT_MAPPING.items():
    if "_ax_" not in theirs:
      assert ours.pop(f"synth_{theirs.removesuffix('_v002')}") == rate
  assert not ours
  total = seqio.MixtureRegistry.get("super_glue_v102_proportional").total_rate
  assert seqio.MixtureRegistry.get("synth_super_glue").total_rate == total
  both = {**rates("synth_glue"), **rates("synth_super_glue")}
  for name in ("synth_glue_rte", "synth_super_glue_rte"):
    both[name] /= 2  # It is in both benchmarks.
  assert rates("synth_glue_super_glue") == both


def test_en_mix_takes_its_rates_from_gin_and_from_the_data_sets(tasks_to_read):
  gin.parse_config("rate_unsupervised.value = 5")
  mixture = seqio.MixtureRegistry.get("synth_en_mix")
  rates = {task.name: mixture.get_rate(task) for task in mixture.tasks
           if "train" in task.splits}
  assert rates.pop("synth_c4_span_corruption") == 5
  assert set(rates.values()) == {2}  # rows
  theirs = {re.split(r"_v[0-9]", task.name)[0]
            for task in seqio.MixtureRegistry.get("en_mix").tasks}
  ours = {task.name.removeprefix("synth_").removesuffix("_span_corruption")
          for task in mixture.tasks}
  assert theirs - ours == {"glue_ax", "super_glue_axb", "super_glue_axg"}
  assert not ours - theirs


@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_yields_every_member(name, tasks_to_read, monkeypatch):
  mixture = seqio.MixtureRegistry.get(name)
  members = [task for task in mixture.tasks if "train" in task.splits]
  # Here each row of a member is its number; other tests check the real rows.
  monkeypatch.setattr(seqio.Mixture, "get_rate", lambda *_: 1.0)
  monkeypatch.setattr(
      seqio.Task, "get_dataset",
      lambda task, *_, **__: tf.data.Dataset.from_tensors(
          {key: [members.index(task)] for key in ("inputs", "targets")}
      ).repeat())
  dataset = mixture.get_dataset({"inputs": 9, "targets": 9}, "train",
                                shuffle=False).take(40 * len(members))
  found = {int(row["inputs"][0]) for row in dataset.as_numpy_iterator()}
  assert found == set(range(len(members)))
  assert all(task.name.startswith("synth_") for task in members)
  assert {task.name for task in set(mixture.tasks) - set(members)} <= {
      "synth_glue_mnli_matched", "synth_glue_mnli_mismatched"}


# Rows of the paper's Tables 5 and 6: the average and the cells.
PAPER = {
    # T5 (Base), Syn (R) and Syn (D).
    83.5: "53.1 92.2 92.0/88.7 89.1/88.9 88.2/91.2 84.7/85.0 91.7 76.9",
    75.1: "41.2 91.2 85.9/79.4 74.0/74.3 85.5/89.0 77.6/78.1 87.6 59.2",
    72.0: "18.9 89.9 86.4/79.4 75.3/75.5 85.2/88.3 77.4/78.1 86.9 57.4",
    # T5 (Base), Syn (R) and Syn (R+V) on SuperGLUE.
    70.3: "78.2 72.1/83.9 59.0 73.1/32.1 71.1/70.3 77.3 65.8 80.8",
    61.1: "69.5 54.6/73.2 60.0 63.0/15.7 58.4/57.4 67.5 64.4 66.3",
    72.2: "79.3 82.7/91.1 64.0 74.3/34.9 70.8/69.9 82.7 64.6 75.0",
}


def test_averages_equal_those_of_the_paper():
  for average, cells in PAPER.items():
    numbers = [float(x) for cell in cells.split() for x in cell.split("/")]
    table = averages.GLUE if len(numbers) == 12 else averages.SUPER_GLUE
    names = [name for column in table.values() for name in column]
    columns = averages.columns(dict(zip(names, numbers)), table)
    assert averages.average(columns) == pytest.approx(average, abs=0.06)


def test_a_task_reports_each_score_of_the_tables():
  for table in averages.TABLES.values():
    for name in (name for column in table.values() for name in column):
      task, metric = name.split("/")
      label = prepared.BY_TASK[f"synth_{task}"].targets
      features = {"idx/question": 1, "idx/passage": 1, "idx/query": 1,
                  "answers": [b"Y"], "label": 1}
      other = "2.0" if task == "glue_stsb" else NONSENSE
      assert metric in evaluate(f"synth_{task}", (label, label, features),
                                (label, other, features))


def test_the_command_prints_and_writes_the_columns(tmp_path, capsys):
  with tf.Graph().as_default():
    writer = tf.summary.FileWriter(str(tmp_path))
  for step, shift in ((10, 0), (20, 1)):
    for name in (n for names in averages.GLUE.values() for n in names):
      summary = tf.Summary()
      summary.value.add(tag=f"eval/synth_{name}", simple_value=50.0 + shift)
      writer.add_summary(summary, step)
  writer.close()
  path = tmp_path / "rows.jsonl"
  averages.main([str(tmp_path), "--json", str(path)])
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  assert [(row["step"], row["average"]) for row in rows] == [(10, 50), (20, 51)]
  printed = capsys.readouterr().out
  assert "step 20" in printed and "51.0/51.0" in printed and "CoLA" in printed


def test_a_damaged_event_file_counts_up_to_the_damage_and_says_so(tmp_path, capsys):
  write_events(tmp_path, "eval/synth_glue_cola/matthews_corrcoef", {1: 5.0, 2: 6.0})
  path, = tmp_path.glob("events*")
  path.write_bytes(path.read_bytes()[:-9])
  with pytest.raises(SystemExit, match="no event file with scores"):
    averages.main([str(tmp_path / "none")])
  assert list(averages.read_scores(str(tmp_path))) == [1]
  assert f"averages: '{path}' is damaged after 2 events" in capsys.readouterr().err
