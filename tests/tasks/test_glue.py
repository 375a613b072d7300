"""GLUE and SuperGLUE: mixtures, and the paper's averages."""

import json
import re

import gin
import pytest
import seqio
from support import prepared
from support.events import write_events
from support.task_files import scores
from synthesizer_mtf.tasks import averages
from synthesizer_mtf.tasks import super_glue
from t5.data import glue_utils
from t5.data import mixtures  # noqa: F401
import tensorflow.compat.v1 as tf

MIXTURES = ["synth_glue", "synth_super_glue", "synth_glue_super_glue",
            "synth_en_mix"]


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
  numbers = {int(row["inputs"][0]) for row in dataset.as_numpy_iterator()}
  assert numbers == set(range(len(members)))
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
      other = "2.0" if task == "glue_stsb" else "banana"
      assert metric in scores(f"synth_{task}", (label, label, features),
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
