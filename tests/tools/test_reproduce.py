"""`tools/reproduce`: its tables, commands, runs and reports."""

import json
import pathlib
import re
import shlex
import sys

import gin
from matplotlib import image
import pytest
import seqio
from support import checkpoint_files
from support import models
from support import tables as tables_lib
from support.events import write_events
from synthesizer_mtf import gin_internals
from synthesizer_mtf.tools import reproduce
from synthesizer_mtf.tools.base import recipes
from synthesizer_mtf.tools.base import results
from synthesizer_mtf.tools.base import tables
from synthesizer_mtf.tools.experiments import claims
from synthesizer_mtf.tools.experiments import first_check
from synthesizer_mtf.tools.experiments import lines
from synthesizer_mtf.tools.experiments import paper
from synthesizer_mtf.tools.experiments import pictures
from synthesizer_mtf.tools.experiments import pipeline
from synthesizer_mtf.tools.experiments import settings as settings_lib
from synthesizer_mtf.tools.experiments import study_report as report_lib
from synthesizer_mtf.trainer.watching import validation_record

TABLES = tables.TABLES
STATE = {"machine": {"cpu": "abacus", "cores": 3}, "versions": {"t5": "0.9.4"}}
TINY = ["d_model = 8", "d_ff = 12", "num_layers = 1", "num_heads = 2",
        "d_kv = 4"]
EVERY_ROW = [(table, row) for table in TABLES.values() for row in table.rows]


def test_every_row_has_all_the_figures_of_the_paper():
  for table, row in EVERY_ROW:
    cells = {column.title: len(column.scores) for column in table.columns}
    if table.number == 3:
      cells["Emb"] = 1
    if row.name == "Control":
      del cells["LM1B PPL"], cells["LM Params (M)"]
    if (table.number, row.name) == (3, "R+D"):
      cells = {}
    assert {title: len(figures) for title, figures in row.paper.items()} == cells, (
        row.name)


@pytest.mark.parametrize("number", [5, 6])
def test_the_papers_average_is_the_average_of_its_cells(number):
  table = TABLES[number]
  for row in table.rows:
    cells = [tables.value(row.paper[column.title])
             for column in table.columns]
    if row.name != "DyConv":  # The paper's own average differs by more.
      assert cells[0] == pytest.approx(sum(cells[1:]) / 8, abs=0.16), row.name


@pytest.mark.parametrize(
    "table, row", EVERY_ROW, ids=[f"{t.number}-{r.name}" for t, r in EVERY_ROW])
@pytest.mark.parametrize("scale", ["paper", "laptop"])
def test_commands_parse_and_name_registered_tasks(table, row, scale):
  tasks = table.trained()
  for task in tasks if row is table.rows[0] else tasks[:1]:
    of_row = paper.Commands(table, row, task, scale)
    made = [of_row.train("DIR", {}), of_row.evaluate("DIR", {})]
    if of_row.pretrained:
      made.append(of_row.pretrain("DIR"))
    for command in made:
      models.parse_gin(recipes.values(command, "gin_file"),
                       recipes.values(command, "gin_param"))
      mixture = seqio.get_mixture_or_task(gin.query_parameter("%MIXTURE_NAME"))
      assert set(gin.query_parameter("utils.run.sequence_length")) == set(
          mixture.output_features)
      assert gin.query_parameter("utils.run.train_steps") > 0
  expected = {"Base+": "V", "Control": "V"}.get(row.name, row.name)
  bindings = gin_internals.bindings()
  chosen = {values["attention"] for (_, name), values in bindings.items()
            if name.endswith("synthesizer_stack") and "attention" in values}
  assert chosen == {expected}


@pytest.mark.parametrize("number, row, task", [
    (2, "R+V", "synth_wmt14_ende"), (2, "R+V", "synth_wmt14_enfr"),
    (2, "R+V", "synth_lm1b"), (3, "R+V", "synth_cnn_dailymail"),
    (3, "R+V", "synth_personachat"), (4, "R+V", "synth_c4_span_corruption"),
    (5, "R+V", "synth_en_mix")])
def test_commands_of_the_papers_scale_equal_those_of_the_recipes(
    number, row, task):
  table = TABLES[number]
  row = next(r for r in table.rows if r.name == row)
  of_row = paper.Commands(table, row, task, "paper")
  recipe = recipes.commands(f"recipes/pod/{tables.RECIPES[task]}.gin")
  for command, theirs in zip(
      (of_row.train("DIR", {}), of_row.evaluate("DIR", {})), recipe):
    assert set(recipes.values(command, "gin_file")) == set(
        recipes.values(theirs, "gin_file"))
    ours = {p.replace('"', "'") for p in recipes.values(command, "gin_param")}
    for param in recipes.values(theirs, "gin_param"):
      if "init_checkpoint" not in param and "dataset_split = 'test'" not in param:
        assert param in ours


def test_paper_scale_prints_pre_training_before_the_runs_that_start_from_it(capsys):
  assert reproduce.main(["--table=6", "--scale=paper", "--rows=D",
                         "--bucket=gs://mine"]) == 0
  printed = capsys.readouterr().out
  titles = re.findall(r"# Table 6, D: ([\w-]+)", printed)
  assert titles == ["pre-train", "train", "evaluate"]
  words = shlex.split(re.sub(r"\\\n|^#.*", "", printed, flags=re.M))
  pretrained = recipes.values(words, "model_dir")[0]
  start, = [w for w in words if "init_checkpoint" in w]
  assert pretrained.startswith("gs://mine/") and pretrained in start


@pytest.mark.parametrize("flags, message", [
    ("--table=7 --scale=paper --rows=FR,D",
     r"--rows names 'D', but the rows of Table 7 are V, Linformer, FR, FR\+V"),
    ("--table=4 --scale=laptop --jobs=9999",
     "--jobs=9999, but this machine lets us use .* cores"),
    ("--json=no/such.jsonl --compare a.jsonl b.jsonl", "no folder 'no'")])
def test_mistakes_end_in_one_sentence_before_anything_is_done(
    flags, message, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SystemExit, match=message):
    reproduce.main(flags.split())
  assert not list(tmp_path.iterdir()) and not capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--study=blocks", "--results=.", "--table=narang"])
def test_without_the_folder_of_studies_a_sentence_says_where_it_is(flag, monkeypatch):
  for name in ("studies", "studies.run"):  # As if there were none.
    monkeypatch.setitem(sys.modules, name, None)
  with pytest.raises(SystemExit, match="the folder studies/ of this package's .*clone"):
    reproduce.main([flag])


@pytest.mark.parametrize("flags, message", [
    ("--compare=a.jsonl", "expected 2 arguments"),
    ("--table=4 --scale=laptop --compare a.jsonl b.jsonl",
     "takes two files and --json, not --table --scale; the files say"),
    ("--compare a.jsonl b.jsonl --seeds=7", "not --seeds;"),
    ("--table=4 --study=blocks", "--table and --study exclude each other"),
    ("--scale=laptop", "one of --table, --study, --compare and --results is"),
    ("", "--compare and --results is required"),
    ("--results=. --study=blocks", "--results takes nothing else, not --study"),
    ("--table=lra --scale=laptop", "leave out --scale=laptop"),
    ("--table=narang --steps=5", "leave out --steps"),
    *((f"--table=4 --scale=laptop {flag}", flag.split("=")[0]) for flag in (
        "--steps=0", "--finetune_steps=-1", "--speed_rounds=-1", "--jobs=0",
        "--jobs=two"))])
def test_flags_that_do_not_go_together_are_refused(flags, message, capsys):
  with pytest.raises(SystemExit) as exit_info:
    reproduce.main(flags.split())
  assert exit_info.value.code == 2
  assert message in capsys.readouterr().err


def test_a_pattern_in_the_working_folder_names_files(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "a.tsv").write_text("one")
  digests = [claims.contents([], [f"synthesizer_mtf.tasks.pairs.train = '{pattern}'"])
           for pattern in ("*.tsv", "?.tsv", "a.tsv")]
  assert all(len(files) == 1 and files == digests[0] for files in digests)


def test_a_folder_of_runs_on_other_data_is_refused(tmp_path):
  data, checkpoint = tmp_path / "data.tsv", tmp_path / "start" / "model.ckpt-3.index"
  checkpoint.parent.mkdir()
  for path in (data, checkpoint):
    path.write_text("before")
  chosen = settings_lib.Settings(gin_params=[
      f"warm_start.checkpoint = '{checkpoint.parent}'",
      f"synthesizer_mtf.tasks.pairs.train = '{data}'"])
  folder = tmp_path / "table4"
  chosen.claim(folder)
  for path in (data, checkpoint):
    path.write_text("now")
    with pytest.raises(ValueError, match=f"other contents: {path} has changed"):
      chosen.claim(folder)
    path.write_text("before")
  chosen.claim(folder)


def report_of(number, folder, seeds=(1, 2), rows=None, **settings):
  """The runs of some rows, whose trainings are complete, and their report."""
  table = TABLES[number]
  rows = [row for row in table.rows if rows is None or row.name in rows]
  settings = settings_lib.Settings(**settings)
  runs = paper.runs(table, rows, seeds, folder, settings)
  for run in runs:
    write_events(run.model_dir, "global_step/sec", {1: 2.0})
    run.training.log.write_text("")
  return runs, report_lib.Report(
      paper.study(table, rows, settings), [], runs, settings, STATE)


def test_report_has_means_errors_ratios_orders_and_failures(tmp_path):
  runs, report = report_of(4, tmp_path, rows=("V", "R", "D"), steps=7)
  losses = {("V", 1): 4.0, ("V", 2): 4.5, ("R", 1): 3.5, ("R", 2): 3.5}
  for run in runs:
    if (run.row.name, run.seed) in losses:
      write_events(run.model_dir / "eval_x", "neg_log_perplexity",
                   {7: -losses[run.row.name, run.seed], 5: -99.0})
  report.failures = {runs[1]: "it was too hot"}
  report.speed = {
      "V": {"status": "ok", "steps_per_second": 2.0, "parameters": 5e6,
            "tflops": 0.25},
      "R": {"status": "ok", "steps_per_second": 3.0, "parameters": 4e6,
            "tflops": 0.125},
      "D": {"status": "failed", "reason": "no memory"}}
  text = report.markdown()
  shown = {name: cells for name, *cells in tables_lib.cells(text)}
  assert shown["V"] == ["4.250 ± 0.250", "1.865", "2.00 (1.00)", "3.90 (1.00)",
                        "5.0M", "223.0M", "0.250 (1.00)", "3.700 (1.00)"]
  assert shown["R"][:4] == ["3.500 ± 0.000", "1.972", "3.00 (1.50)",
                            "4.26 (1.09)"]
  assert shown["D"][::2] == ["failed", "failed", "failed", "failed"]
  assert "- ours: R, V\n- paper (Table 4): V, R" in text
  assert f"{runs[1].name} on" in text and "it was too hot" in text
  assert "The speed of D failed: no memory" in text
  assert "synth_c4_span_corruption 7 steps; seeds 1, 2" in text
  assert "compare the order, not the values" in text
  pictures.draw_table(report, tmp_path / "a.png")
  assert image.imread(tmp_path / "a.png").std() > 0.05

  path = tmp_path / "a.jsonl"
  path.write_text(report.lines())
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  assert [row["kind"] for row in rows] == ["run"] * 6 + ["row"] * 3
  assert {row["format"] for row in rows} == {lines.FORMAT}
  known = lines.read(path)
  assert known.runs == rows[:6] and known.setting == {
      "table": 4, "scale": "laptop", "steps": 7, "finetune_steps": 0,
      "gin_params": []}
  assert [row["status"] for row in rows[:6]] == [
      "ok", "failed", "ok", "ok", "not run", "ok"]
  assert rows[0]["scores"] == {"log_perplexity": 4.0}
  assert rows[0]["seed"] == 1 and rows[0]["steps"] == 7
  assert rows[6]["ours"] == {"Log PPL": [[4.0], [4.5]], "Steps/Sec": [[2.0]],
                             "Params": [[5e6]], "TFLOPS": [[0.25]]}
  assert rows[6]["paper"]["Log PPL"] == [1.865]


def test_scores_of_another_task_stand_beside_the_papers(tmp_path):
  task = "synth_glue_sst2_encoder"
  (run,), report = report_of(7, tmp_path, (3,), ("V",), steps=4, task=task)
  assert not run.is_done()
  write_events(run.model_dir / "validation_eval", f"eval/{task}/accuracy", {4: 77.0})
  head, row = tables_lib.cells(report.markdown())
  assert (head[1], row[1]) == (f"{task}, accuracy", "77.0")
  assert row[head.index("paper: News")] == "88.83"


def test_a_run_of_glue_is_done_with_all_its_scores_and_their_average(tmp_path):
  (run,), report = report_of(5, tmp_path, (1,), ("V",), steps=2, finetune_steps=2)
  for column in TABLES[5].columns[1:]:
    for name in column.scores:
      assert not run.is_done()
      folder = run.model_dir / f"{name.replace('/', '_')}_eval"
      write_events(folder, f"eval/synth_{name}",
                   {4: 50.0 if column.title == "CoLA" else 58.0})
  assert run.is_done()
  row = json.loads(report.lines().splitlines()[-1])
  assert row["ours"]["Glue"] == [[57.0]] and row["ours"]["MRPC"] == [[58.0, 58.0]]
  head, v = tables_lib.cells(report.markdown())
  assert (head[1], v[1:3]) == ("Glue", ["57.00", "83.5"])
  at = head.index("MRPC, f1")
  assert v[at:at + 2] == ["58.00", "92.0"]


@pytest.mark.slow
@pytest.mark.parametrize("number, rows, lengths", [
    (4, ("V", "R"), (12, 6)), (7, ("V", "Linformer"), (12, 1))])
def test_speed_compares_rows_with_the_first(number, rows, lengths):
  table = TABLES[number]
  rows = [row for row in table.rows if row.name in rows]
  calls = []
  speed = reproduce.measure_speed(
      table, rows, settings_lib.Settings(gin_params=TINY), lengths, 2, 1,
      lambda done, what: calls.append(done), vocabulary=30)
  assert list(speed) == [row.name for row in rows]
  for name, result in speed.items():
    assert result["status"] == "ok", result["reason"]
    assert result["steps_per_second"] > 0 and result["tflops"] > 0
    assert (result["ratio"] == 1) == (name == "V")
  assert len({result["parameters"] for result in speed.values()}) == len(rows)
  assert sum(calls) == 3 * len(rows)


def test_a_training_that_patience_has_ended_is_complete_and_the_report_says_so(
    tmp_path):
  runs, report = report_of(2, tmp_path, rows=("V",), steps=8, best_by="bleu",
                           task="synth_wmt14_ende")
  lasts, _ = report_of(2, tmp_path, rows=("V",), steps=8, task="synth_wmt14_ende")
  for run, last, end in zip(runs, lasts, (6, 8)):
    train, evaluate = run.stages()
    (run.model_dir / "best").mkdir(parents=True)
    checkpoint_files.save(run.model_dir, 2, end)
    checkpoint_files.save(run.model_dir / "best", 4)
    record = validation_record.Record(str(run.model_dir), "bleu")
    record.add(4, 3.0, {})
    record.write()
    assert train.is_done() == (end == 8)
    record.write(stopped_at=2)
    assert train.is_done() == (end == 8)
    record.write(stopped_at=6 if end == 6 else None)
    assert train.is_done() and not evaluate.is_done()
    assert last.training.is_done() == (end == 8)
    write_events(run.model_dir / "best/validation_eval",
                 f"eval/{run.task}/bleu", {4: 30.0})
    assert evaluate.is_done()
  known = [json.loads(line) for line in report.lines().splitlines()][:2]
  assert [line["best_step"] for line in known] == [4, 4]
  assert [line.get("stopped_at") for line in known] == [6, None]
  assert "Patience ended 1 of 2 trainings, at step 6. " in report.markdown()


@pytest.mark.parametrize("best_by, bindings, message", [
    (None, ["patience = 3"], "patience` is 3, so .*; add --best_by=METRIC"),
    ("bleu", ["metric = 'loss'"], "metric` is 'loss', but --best_by=bleu names"),
    ("bleu", ["patience = 0"], "`train_and_eval.patience` is 0 but must be")])
def test_gin_that_chooses_another_step_is_refused_before_the_first_run(
    best_by, bindings, message):
  chosen = stage("v", "train_and_eval.eval_dataset_fn = @mesh_eval_dataset_fn",
                 *(f"train_and_eval.{binding}" for binding in bindings))
  with pytest.raises(ValueError, match=message):
    first_check.check([chosen], best_by)


def test_the_log_perplexity_of_a_mixture_is_the_mean_over_its_tasks(tmp_path):
  for folder, value in (("a_validation", 9.0), ("b_test_320", 7.0),
                        ("b_test_320_beam", 5.0), ("a_test_320", 4.0)):
    write_events(tmp_path / f"eval_{folder}", "neg_log_perplexity",
                 {4: -value})
  assert results.log_perplexity(tmp_path, 4, "beam") == 5
  assert results.log_perplexity(tmp_path, 4) == (4 + 7) / 2
  assert results.log_perplexity(tmp_path, 5) is None


def test_the_best_step_by_a_score_that_should_be_low_is_the_lowest(tmp_path):
  table = tables.TABLES[2]
  for best_by, is_low in (("bleu", False), ("perplexity_per_word", True),
                          ("synth_lm1b/perplexity_per_word", True)):
    run, = paper.runs(table, table.rows[:1], [1], tmp_path, settings_lib.Settings(
        task="synth_lm1b", best_by=best_by))
    assert is_low == ("--gin_param=train_and_eval.greater_is_better = False" in
                      run.training.command)


# All models are built before the first one is trained.


def stage(attention, *params, seed=1):
  words = ["dataset.gin", "models/laptop.gin", f"attention/{attention}.gin"]
  params = [*models.TINY, "utils.run.sequence_length = {'inputs': 16, 'targets': 12}",
            f"train_with_seed.seed = {seed}", *params]
  return pipeline.Stage(
      attention, ["command", *(f"--gin_file={word}" for word in words),
                  *(f"--gin_param={param}" for param in params)],
      pathlib.Path("log"), lambda: False, range(3))


def test_a_later_row_is_refused_before_the_first_one_runs():
  with pytest.raises(ValueError, match="max_length` is 8 but the sequence has length"):
    first_check.check([stage("v"), stage("r", "RandomLogits.max_length = 8")])


def test_rows_that_fit_pass_and_leave_gin_as_it_was():
  gin.parse_config("nobody = 3")
  first_check.check([stage("v"), stage("r")])
  assert gin.query_parameter("%nobody") == 3
  with pytest.raises(ValueError):
    gin.query_parameter("utils.run.sequence_length")


def test_models_that_differ_by_a_seed_are_built_once(monkeypatch):
  built = []
  monkeypatch.setattr(first_check, "build", lambda: built.append(1))
  first_check.check([stage("v", seed=seed) for seed in (1, 2, 3)] + [stage("r")])
  assert len(built) == 2
