"""The studies of `reproduce`: their commands, reports, pictures and pages."""

import itertools
import json
import math
import pathlib
import shutil

import gin
from matplotlib import image
from matplotlib import pyplot
import numpy as np
import pytest
from scipy import stats
from studies import catalogue
from studies import finished
from studies import heat_map
from studies import prepare
from studies import run as run_lib
from studies import size_curves
from support import checkpoint_files
from support import models
from support import paths
from support import tables as tables_lib
from support.events import write_events
from synthesizer_mtf.tools.base import recipes
from synthesizer_mtf.tools.base import tables
from synthesizer_mtf.tools.experiments import pictures
from synthesizer_mtf.tools.experiments import runs as runs_lib
from synthesizer_mtf.tools.experiments import settings as settings_lib
from synthesizer_mtf.tools.experiments import study_report as report_lib
from synthesizer_mtf.tools.experiments import study_types
from synthesizer_mtf.tools.plot_attention import seeds

EVERY_STUDY = list(catalogue.STUDIES.values())
every_study = pytest.mark.parametrize("study", EVERY_STUDY, ids=lambda s: s.name)


@every_study
def test_commands_of_every_row_parse(study, tmp_path):
  names = [f"{data}_{split}" for split in ("TRAIN", "VALIDATION") for data in (
      "BOOLQ", "BROWN", "DEMO", "LIBREOFFICE", "ROTTEN_TOMATOES", "WIKITEXT")]
  (tmp_path / "data.gin").write_text("".join(f"{name} = 'f'\n" for name in names))
  settings = settings_lib.Settings(gin_files=[str(tmp_path / "data.gin")])
  for row, task in itertools.product(study.rows, study.tasks):
    if (run_lib.picture(study) is not heat_map.plot or row is study.rows[0]
        or task is study.tasks[0]):
      alone = study._replace(tasks=(task,))
      stages = [stage for run in runs_lib.runs(alone, [row], [3], tmp_path, settings)
                for stage in run.stages()]
      assert len(stages) == (task.name not in row.not_on) * (
          1 + len(task.evaluations) + row.is_warm)
      for stage in stages:
        models.parse_gin(recipes.values(stage.command, "gin_file"),
                         recipes.values(stage.command, "gin_param"))
        seed = gin.query_parameter("train_with_seed.seed") if stage.steps else None
        assert seed in (None, 1 if "pretrained" in stage.title else 3)


def test_warm_rows_share_the_training_of_the_model_they_start_from(tmp_path):
  study = catalogue.STUDIES["warm_start"]
  found = runs_lib.runs(study, study.rows, [1, 2], tmp_path,
                          settings_lib.Settings(40, 20))
  starts = {tuple(run.stages()[0].command) for run in found if run.row.is_warm}
  assert len(starts) == 1 and "--gin_param=utils.run.train_steps = 40" in min(starts)
  for run in found:
    start = f"warm_start.checkpoint = \"{tmp_path}/warm_start/pretrained_v/"
    commands = [" ".join(stage.command) for stage in run.stages()[-2:]]
    for command in commands:
      assert (f"{start}model.ckpt-40" in command) == run.row.is_warm
      assert ("annealing_steps = [2, 12]" in command) == bool(run.row.annealing)
    assert "utils.run.train_steps = 20" in commands[0]
    assert "utils.run.eval_checkpoint_step = [20]" in commands[1] or (
        run.task != "boolq" and "step = [5, 10, 15, 20]" in commands[1])


def test_fine_tuning_starts_from_the_row_and_seed_of_another_study(tmp_path):
  study = catalogue.STUDIES["finetuning"]
  found = runs_lib.runs(study, study.rows, [2, 5], tmp_path,
                        settings_lib.Settings(40, 20))
  for run in found:
    start, train, evaluate = run.stages()
    folder = f"{tmp_path}/span_corruption/{run.row.name.lower()}/seed_{run.seed}"
    assert f"--model_dir={folder}/span_corruption" in start.command
    assert "--gin_param=utils.run.train_steps = 40" in start.command
    assert "--gin_file=warm_start/from_t5.gin" not in start.command
    for stage in (train, evaluate):
      assert (f"--gin_param=warm_start.checkpoint = \"{folder}/span_corruption/"
              "model.ckpt-40\"") in stage.command
    assert "--gin_param=utils.run.train_steps = 20" in train.command
  logs = {run.stages()[0].log for run in found}
  assert len(logs) == len(found) / len(study.tasks)


@pytest.mark.parametrize("steps, looks, saved", [
    (500, [166, 332, 500], 166), (9, [3, 6, 9], 3), (2, [1, 2], 1), (1, [1], 1)])
def test_every_step_to_evaluate_has_a_saved_checkpoint(steps, looks, saved, tmp_path):
  study = catalogue.STUDIES["span_corruption"]
  run, = runs_lib.runs(study, study.rows[:1], [1], tmp_path,
                       settings_lib.Settings(steps))
  train, evaluate = run.stages()
  assert f"--gin_param=utils.run.save_checkpoints_steps = {saved}" in train.command
  assert f"--gin_param=utils.run.eval_checkpoint_step = {looks}" in evaluate.command


def test_an_evaluation_with_a_suffix_of_its_own_leaves_the_first_alone(tmp_path):
  study = catalogue.STUDIES["translation"]
  run, = runs_lib.runs(study, study.rows[:1], [1], tmp_path, settings_lib.Settings(8))
  _, greedy, beam = run.stages()
  name = "eval/synth_text_pairs/bleu"
  write_events(run.model_dir / "validation_eval", name, {4: 1.0, 8: 2.0})
  assert greedy.is_done() and not beam.is_done() and not run.is_done()
  write_events(run.model_dir / f"validation_eval_{_suffix(beam)}", name, {8: 3.0})
  assert beam.is_done() and run.is_done()
  assert run.scores() == {name: 2.0, f"beam_4/{name}": 3.0}
  assert "--gin_param=Bitransformer.decode.beam_size = 4" in beam.command
  assert greedy.log != beam.log


def test_the_best_step_by_validation_is_evaluated_if_asked(tmp_path):
  study = catalogue.STUDIES["translation"]
  settings = settings_lib.Settings(8, best_by="neg_log_perplexity")
  run, = runs_lib.runs(study, study.rows[:1], [1], tmp_path, settings)
  train, *evaluations = run.stages()
  assert '--gin_param=train_and_eval.metric = "neg_log_perplexity"' in train.command
  assert "--gin_param=utils.run.save_checkpoints_steps = 2" in train.command
  best = run.model_dir / "best"
  for stage in evaluations:
    assert f"--model_dir={best}" in stage.command and not stage.is_done()
    assert "--gin_param=utils.run.eval_checkpoint_step = -1" in stage.command
  best.mkdir(parents=True)
  checkpoint_files.save(best, 6)
  name = "eval/synth_text_pairs/bleu"
  for suffix, bleu in (("", 2.0), ("_beam_4", 3.0)):
    write_events(best / f"validation_eval{suffix}", name, {6: bleu})
  write_events(run.model_dir / "validation_eval", name, {4: 1.0, 6: 2.0, 8: 1.5})
  write_events(run.model_dir, "global_step/sec", dict.fromkeys(range(8), 2.0))
  pathlib.Path(f"{run.model_dir}.log").write_text("")
  report = report_lib.Report(
      study, [], [run], settings, {"machine": {"cpu": "abacus", "cores": 3}})
  line, = report.lines_of_runs()
  assert line["scores"] == {name: 2.0, f"beam_4/{name}": 3.0}
  assert line["validation"] == [(4, 1.0), (6, 2.0), (8, 1.5)]
  assert (line["best_step"], line["best_by"]) == (6, "neg_log_perplexity")
  assert "its best step by neg_log_perplexity of the validation" in report.markdown()
  path = tmp_path / "lines.jsonl"
  path.write_text(report.lines())
  assert len(finished.read(path, study, settings)) == 1
  path.write_text(report.lines().replace(
      '"training_steps": 8', '"training_steps": 6, "stopped_at": 6'))
  assert len(finished.read(path, study, settings)) == 1
  with pytest.raises(ValueError, match="holds runs of .*best_by"):
    finished.read(path, study, settings_lib.Settings(8))


def _suffix(stage):
  suffix, = [param.partition(" = ")[2].strip('"')
             for param in recipes.values(stage.command, "gin_param")
             if param.startswith("utils.run.eval_dir_suffix")]
  return suffix


def test_one_task_of_a_study_can_be_run(tmp_path):
  study = catalogue.STUDIES["warm_start"]
  found = runs_lib.runs(study, study.rows[:2], [1, 2], tmp_path,
                          settings_lib.Settings(task="libreoffice"))
  assert [(run.task, run.seed) for run in found] == [
      ("libreoffice", seed) for seed in (1, 1, 2, 2)]


def test_figures_of_the_paper_equal_those_of_its_tables():
  assert tables.figure(4, "Log PPL", "R") == 1.972
  assert tables.figure(6, "BoolQ", "V") == 78.2
  assert tables.figure(5, "SST", "D") == 89.9
  assert tables.figure(4, "Log PPL", "T") is None
  rows = {row.name: row.paper for row in catalogue.STUDIES["encoders"].rows}
  assert rows["FR+V"] == {"accuracy": 84.61} and rows["T"] == {}


TINY = study_types.Study(
    "tiny", "A tiny study",
    (study_types.Task("t", "t.gin", (study_types.Evaluation(
        (study_types.Score("Loss", "log_perplexity", True, 2, "C4"),)),), 8),),
    (study_types.Row("V", ("v.gin",), paper={"Loss": 1.5}),
     study_types.Row("R", ("r.gin",), paper={"Loss": 1.75}),
     study_types.Row("D", ("d.gin",), paper={"Loss": 1.25}),
     study_types.Row("T", ("t.gin",))))


def line_of(row, seed, score):
  return {"kind": "run", "study": "tiny", "scale": "laptop", "steps": 0,
          "finetune_steps": 0, "gin_params": [], "row": row, "task": "t",
          "seed": seed, "status": "ok", "scores": {"log_perplexity": score},
          "training_steps": 8, "training_seconds": 1800,
          "training_loss": [[4, score + 2], [8, score + 1]],
          "validation": [[4, score + 1], [8, score]],
          "machine": {"cpu": "abacus", "cores": 3}}


LINES = [line_of(*numbers) for numbers in [
    ("V", 1, 2.0), ("V", 2, 2.1), ("V", 3, 2.2), ("R", 1, 4.0), ("R", 2, 4.2),
    ("R", 3, 4.1), ("D", 1, 3.0), ("D", 2, 3.4)]]


def test_report_has_means_errors_orders_and_missing_runs():
  text = report_lib.Report(TINY, LINES).markdown()
  cells = {name: rest for name, *rest in tables_lib.cells(text) if name != "Loss"}
  error = np.std([2.0, 2.1, 2.2], ddof=1) / np.sqrt(3)
  assert cells["V"] == [f"2.10 ± {error:.2f}", "1.5"]
  assert cells["D"] == ["3.20 ± 0.20 (2 of 3 seeds)", "1.25"]
  assert cells["T"] == ["not run", "-"]
  assert "- ours: V, D, R\n- paper (C4): D, V, R\n" in text
  assert "rank correlation with the paper: 0.50" in text
  # The differences are 2.0, 2.1 and 1.9 for R, and 1.0 and 1.3 for D. For one degree of
  # freedom, Student's t is 12.706.
  r, d = 4.303 * 0.1 / np.sqrt(3), 12.706 * 0.15
  p = 2 * stats.ttest_1samp([2.0, 2.1, 1.9], 0).pvalue
  assert [rest for name, *rest in tables_lib.cells(text) if name == "Loss"] == [
      ["R", "+2.00", f"{2 - r:+.2f} to {2 + r:+.2f}", f"{p:.3f}", "*"],
      ["D", "+1.15", f"{1.15 - d:+.2f} to {1.15 + d:+.2f}", "0.083", ""]]
  assert "8 runs: t 8 steps; seeds 1, 2, 3; 4.0 hours" in text
  assert "abacus, 3 cores" in text


@pytest.mark.parametrize("known, differences", [
    ([], 0), (LINES[:1], 0), (LINES[3:6], 0), (LINES[:2], 0), ([LINES[0], LINES[3]], 0),
    ([LINES[0], LINES[4]], 0), ([*LINES[:2], *LINES[3:5]], 1)])
def test_a_report_says_what_is_known_so_far(known, differences):
  rows = tables_lib.cells(report_lib.Report(TINY, known).markdown())
  assert [row[0] for row in rows[1:5]] == ["V", "R", "D", "T"]
  assert sum(row[1] != "not run" for row in rows[1:5]) == len(
      {line["row"] for line in known})
  assert max(0, len(rows) - 6) == differences


def test_each_score_of_a_task_has_its_column_and_order():
  more = study_types.Evaluation((study_types.Score("Acc", "accuracy"),), suffix="x")
  task = TINY.tasks[0]._replace(
      evaluations=(*TINY.tasks[0].evaluations, more))
  lines = [{**line, "scores": {**line["scores"], "x/accuracy": 50 - line["seed"]}}
           for line in LINES]
  text = report_lib.Report(TINY._replace(tasks=(task,)), lines).markdown()
  head, v, *_ = tables_lib.cells(text)
  assert head == ["model", "Loss", "paper: C4", "Acc"]
  assert v == ["V", "2.10 ± 0.06", "1.5", "48.0 ± 0.6"]
  assert "Acc, best mean first" in text and "Loss, best mean first" in text


def test_lines_of_runs_are_read_from_what_they_left(tmp_path):
  settings = settings_lib.Settings(8)
  run, = runs_lib.runs(TINY, TINY.rows[:1], [1], tmp_path, settings)
  report = report_lib.Report(TINY, [], [run], settings,
                               {"machine": {"cpu": "abacus", "cores": 3}})
  assert report.lines_of_runs() == [] and not report.is_known(run)
  write_events(run.model_dir / "eval_x", "neg_log_perplexity",
               {2: -5.0, 4: -4.0, 8: -3.0})
  write_events(run.model_dir, "global_step/sec", dict.fromkeys(range(8), 2.0))
  pathlib.Path(f"{run.model_dir}.log").write_text(
      "".join(f"step, tf_loss[{9 - n}][{n}]\n" for n in range(1, 9)))
  line, = report.lines_of_runs()
  assert line["scores"] == {"log_perplexity": 3.0}
  assert line["training_seconds"] == 4
  assert line["validation"] == [(2, 5.0), (4, 4.0), (8, 3.0)]
  assert line["training_loss"] == [(n, 9 - n) for n in range(1, 9)]
  assert (line["steps"], line["machine"]["cpu"]) == (8, "abacus")
  assert report.is_known(run)


def test_parts_of_a_curve_are_the_same_for_all_runs(tmp_path):
  task = TINY.tasks[0]._replace(steps=120)
  study = TINY._replace(tasks=(task,))
  run, = runs_lib.runs(study, study.rows[:1], [1], tmp_path, settings_lib.Settings())
  write_events(run.model_dir / "eval_x", "neg_log_perplexity", {120: -3.0})
  write_events(run.model_dir, "global_step/sec", dict.fromkeys(range(20), 2.0))
  # A log may lack some steps; here it lacks every seventh.
  pathlib.Path(f"{run.model_dir}.log").write_text("".join(
      f"step, tf_loss[{n}][{n}]\n" for n in range(1, 121) if n % 7))
  curve = run.line()["training_loss"]
  assert [step for step, _ in curve] == list(range(3, 121, 3))
  assert curve[0] == (3, 2.0) and curve[2] == (9, 8.5)


def test_a_line_is_kept_where_its_folder_is_gone(tmp_path):
  found = runs_lib.runs(TINY, TINY.rows, [1], tmp_path, settings_lib.Settings(8, None))
  report = report_lib.Report(TINY, LINES, found)
  assert [report.is_known(run) for run in found] == [True, True, True, False]
  assert report.lines_of_runs() == LINES


def test_lines_that_were_written_are_read_again(tmp_path):
  path = tmp_path / "tiny.jsonl"
  settings = settings_lib.Settings()
  assert finished.read(path, TINY, settings) == []
  path.write_text(report_lib.Report(TINY, LINES).lines())
  assert finished.read(path, TINY, settings) == LINES


@pytest.mark.parametrize("change, message", [
    ({"row": "Q"}, "Q on t, seed 1, is not of the study tiny"),
    ({"training_steps": 9}, "has 9 steps .* not 8 and log_perplexity"),
    ({"scores": {"bleu": 1.0}}, "the scores \\['bleu'\\], not 8 and log_perplexity"),
    ({"steps": 4}, "holds runs of .*'steps': 4.* not .*'steps': 0"),
    ({"scores": {"log_perplexity": math.nan}}, "is nan"),
])
def test_lines_of_another_study_or_version_are_named(change, message, tmp_path):
  path = tmp_path / "tiny.jsonl"
  path.write_text(json.dumps({**LINES[0], **change}))
  with pytest.raises(ValueError, match=message):
    finished.read(path, TINY, settings_lib.Settings())


RESULTS = paths.ROOT / "studies" / "results"
KEPT = [path for name in catalogue.STUDIES
        if (path := RESULTS / f"{name}.jsonl").exists()]


def test_every_study_has_its_line_in_the_index_and_every_file_its_study():
  text = (RESULTS.parent / "README.md").read_text()
  assert all(f"| `{name}` |" in text for name in catalogue.STUDIES)
  files = {path.stem for path in RESULTS.glob("*.jsonl")}
  assert files <= {*catalogue.STUDIES, "attention", "gpu_runs"}


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_page_has_the_table_that_its_lines_make(path):
  study = catalogue.STUDIES[path.stem]
  lines = finished.read(path, study, settings_lib.Settings())
  pages = [RESULTS / f"{path.stem}.md", paths.ROOT / "docs" / f"{path.stem}.md"]
  text = "".join(page.read_text() for page in pages if page.exists())
  for part in report_lib.Report(study, lines).markdown().split("\n\n"):
    assert part.strip() in text


def test_a_study_whose_lines_are_all_there_has_its_table_and_picture_again(tmp_path):
  folder = tmp_path / "listops"
  folder.mkdir()
  shutil.copy(RESULTS / "listops.jsonl", folder)
  assert run_lib.main(["--study=listops", f"--output_dir={tmp_path}"]) == 0
  assert (folder / "listops.md").read_text().strip() in (
      RESULTS / "listops.md").read_text()
  assert (folder / "listops.png").read_bytes()[1:4] == b"PNG"


def test_page_of_attention_has_what_its_lines_say():
  found = seeds.markdown(seeds.read([RESULTS / "attention.jsonl"]), 4)
  text = (RESULTS / "attention.md").read_text()
  for part in found.split("\n\n"):
    assert part in text


def test_picture_has_the_curves_of_every_row(tmp_path):
  pictures.draw_study(TINY, LINES, tmp_path / "all.png")
  pictures.draw_study(TINY, LINES[:1], tmp_path / "one.png")
  drawn = [image.imread(tmp_path / f"{name}.png") for name in ("all", "one")]
  assert min(picture.std() for picture in drawn) > 0.02
  assert drawn[0].shape == drawn[1].shape
  assert abs(drawn[0] - drawn[1]).max() > 0.5
  run_lib.draw(TINY, [], tmp_path / "none.png")
  assert not (tmp_path / "none.png").exists()


def test_picture_of_all_studies_has_a_panel_for_each_task(tmp_path, capsys):
  for path in KEPT:
    (tmp_path / path.name).write_bytes(path.read_bytes())
  assert run_lib.main([f"--results={tmp_path}"]) == 0
  assert "results.png" in capsys.readouterr().out
  picture = image.imread(tmp_path / "results.png")
  kept = [catalogue.STUDIES[path.stem] for path in KEPT]
  alone = [study for study in kept if run_lib.picture(study) is not pictures.draw_study]
  assert all((tmp_path / f"{study.name}.png").exists() for study in kept)
  panels = sum(len(study.tasks) for study in kept if study not in alone)
  assert picture.shape[0] == 480 * -(-panels // 2) and picture.std() > 0.02


def test_rows_of_a_panel_are_sorted_with_the_best_above():
  figure, axis = pyplot.subplots()
  pictures.draw_scores(axis, TINY, TINY.tasks[0], [*LINES, line_of("D", 3, 3.2)])
  pyplot.close(figure)
  assert names(axis) == ["R", "D", "V"]  # From bottom to top; a lower loss is better.
  assert "lower is better" in axis.get_xlabel()


def names(axis):
  return [label.get_text() for label in axis.get_yticklabels()]


@pytest.mark.parametrize("lines, seeds, caption", [
    (LINES, [1, 2, 3], "8 of 12 runs, not ranked; 95% interval, n = 2 to 3"),
    ([line_of(row, seed, 2.) for row in "VRD" for seed in (1, 2, 3)], [],
     "all equal, not ranked; no interval, n = 3")])
def test_rows_are_not_ranked_while_runs_are_missing_or_all_are_equal(
    lines, seeds, caption):
  figure, axis = pyplot.subplots()
  pictures.draw_scores(axis, TINY, TINY.tasks[0], lines, seeds)
  pyplot.close(figure)
  assert names(axis)[::-1] == ["V", "R", "D"]
  assert axis.get_title() == caption


def test_a_missing_or_wrong_source_of_studies_is_named(tmp_path):
  with pytest.raises(SystemExit, match="has no wikitext2-train.jsonl.gz"):
    prepare.main([str(tmp_path), str(tmp_path / "out")])
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flags, message", [
    ("--table=lra --rows=V,T", "'T', but the rows of --table=lra are V, R, D, FR"),
    ("--study=blocks --gin_file=d.gin --rows=V,Q",
     "names 'Q', but the rows of --study=blocks"),
    ("--study=blocks --gin_file=d.gin --task=boolq",
     "are span_corruption; use one of these"),
    ("--study=blocks --gin_file=d.gin --scale=laptop", "a study has only one"),
    ("--study=blocks", "needs --gin_file=data.gin"),
    ("--results=.", "but holds no lines of a study")])
def test_mistakes_end_in_one_sentence_before_anything_is_done(
    flags, message, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SystemExit, match=message):
    run_lib.main(flags.split())
  assert not list(tmp_path.iterdir()) and not capsys.readouterr().out


ABILITIES = catalogue.STUDIES["abilities"]


def accuracies(row, task, scores, seed=1):
  """A line of a run with the accuracies of a task's evaluations."""
  names = [name for name, _ in task.scores()]
  return {"row": row, "task": task.name, "seed": seed,
          "scores": dict(zip(names, scores))}


def test_a_task_is_not_run_by_rows_that_cannot_do_it(tmp_path):
  found = runs_lib.runs(ABILITIES, ABILITIES.rows, [1], tmp_path,
                        settings_lib.Settings())
  assert {run.task for run in found if run.row.name == "Linformer"} == {
      "first_last", "same_offset", "missing"}
  assert {run.task for run in found if "cross-attention" in run.row.name} == {
      "reverse", "look_up"}
  assert {run.task for run in found if run.row.name == "V"} == {
      task.name for task in ABILITIES.tasks}


def test_the_score_of_an_ability_is_the_accuracy_on_symbols_to_predict(tmp_path):
  run, *_ = runs_lib.runs(ABILITIES, ABILITIES.rows, [1], tmp_path,
                          settings_lib.Settings())
  write_events(run.model_dir / "eval_x", "token_accuracy",
               {run.step: 0.25, run.step - 1: 0.5})
  assert run.is_done() and run.scores() == {"token_accuracy": 0.25}


@pytest.mark.parametrize("score, expected", [
    (0.95, "solves"), (0.9499, "partly"), (0.226, "partly"), (0.2, "chance"),
    (0.05, "chance")])
def test_an_outcome_is_computed_from_the_chance_level(score, expected):
  assert heat_map.outcome(score, 0.125) == expected


def test_the_map_has_a_cell_for_each_row_and_task_and_means_over_seeds(tmp_path):
  recall, parity = (task for task in ABILITIES.tasks if task.name in (
      "recall", "parity"))
  lines = [accuracies("V", recall, [1.0]), accuracies("V", recall, [0.5], 2),
           accuracies("R", parity, [0.5])]
  found = heat_map.means(ABILITIES, lines)
  assert found.shape == (11, 26)
  assert found.loc["recall", "V"] == 0.75 and found.loc["parity", "R"] == 0.5
  assert found.notna().sum().sum() == 2
  heat_map.plot(ABILITIES, lines, tmp_path / "map.png")
  plain = image.imread(tmp_path / "map.png")
  assert plain.std() > 0.05
  rows = {row.name: {task.name: "solves" for task in ABILITIES.tasks}
          for row in ABILITIES.rows}
  (tmp_path / "map_predictions.json").write_text(json.dumps({"rows": rows}))
  heat_map.plot(ABILITIES, lines, tmp_path / "map.png")
  red = (image.imread(tmp_path / "map.png")[..., :3] == [1, 0, 0]).all(axis=2)
  assert red.any() and not (plain[..., :3] == [1, 0, 0]).all(axis=2).any()


def test_the_predictions_are_of_the_rows_and_tasks_of_the_study():
  predicted = json.loads((RESULTS / "abilities_predictions.json").read_text())
  cells = {(row.name, task.name) for row in ABILITIES.rows for task in ABILITIES.tasks
           if task.name not in row.not_on}
  assert {(row, task) for row, of in predicted["rows"].items() for task in of} >= cells
  assert {outcome for of in predicted["rows"].values() for outcome in of.values()} == {
      "solves", "partly", "chance"}
  assert set(predicted["reasons_by_task"]) == {task.name for task in ABILITIES.tasks}


def test_each_row_can_be_named_in_a_list():
  assert not [row.name for study in EVERY_STUDY for row in study.rows
              if "," in row.name or "/" in row.name]


LENGTHS = catalogue.STUDIES["ability_lengths"]


def test_models_trained_up_to_n_are_evaluated_from_n_to_2_n():
  for task in LENGTHS.tasks:
    module = task.params["MIXTURE_NAME"].removeprefix("synth_")
    (size, trained), = [(name, value) for name, value in task.params.items()
                        if name in (f"{module}.pairs", f"{module}.length")]
    assert task.params[f"{module}.shortest"] == trained // 2
    assert [evaluation.params[size] for evaluation in task.evaluations] == [
        trained, 3 * trained // 2, 2 * trained] == [
            score.at for _, score in task.scores()]
    assert {evaluation.params[f"{module}.shortest"]
            for evaluation in task.evaluations} == {None}


def test_each_size_has_a_score_of_its_own(tmp_path):
  run, *_ = runs_lib.runs(LENGTHS, LENGTHS.rows, [1], tmp_path, settings_lib.Settings())
  for number, stage in enumerate(run.stages()[1:]):
    assert not stage.is_done()
    write_events(run.model_dir / f"eval_x_{_suffix(stage)}", "token_accuracy",
                 {run.step: number / 4})
    assert stage.is_done()
  assert run.is_done() and list(run.scores().values()) == [0.0, 0.25, 0.5]


def test_the_curves_have_the_mean_of_each_size_and_model(tmp_path):
  recall = LENGTHS.tasks[0]
  lines = [accuracies("V", recall, [1.0, 0.5, 0.25]),
           accuracies("V", recall, [0.5, 0.5, 0.75], 2),
           accuracies("R", recall, [0.25, 0.2, 0.1])]
  found = size_curves.means(LENGTHS, recall, lines)
  assert found["V"].to_dict() == {4: 0.75, 6: 0.5, 8: 0.5}
  assert found["R"].to_dict() == {4: 0.25, 6: 0.2, 8: 0.1}
  size_curves.plot(LENGTHS, lines, tmp_path / "curves.png")
  assert image.imread(tmp_path / "curves.png").std() > 0.05
