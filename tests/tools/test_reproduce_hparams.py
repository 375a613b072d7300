"""TensorBoard's HPARAMS tab shows the runs of `reproduce`."""

import json
import sys

import pytest
from support.events import write_events
from synthesizer_mtf.tools import reproduce
from synthesizer_mtf.tools.base import results
from synthesizer_mtf.tools.base import tables
from synthesizer_mtf.tools.experiments import hparams
from synthesizer_mtf.tools.experiments import lines
from synthesizer_mtf.tools.experiments import paper
from synthesizer_mtf.tools.experiments import pipeline
from synthesizer_mtf.tools.experiments import process
from synthesizer_mtf.tools.experiments import runs as runs_lib
from synthesizer_mtf.tools.experiments import settings as settings_lib

GIN = ["d_ff = 8", "a/rate=0.5", "b.fast = True", "c.sizes = [1, 2]",
       "d.model = @Model", "e.name = 'small'"]
NEWS, REVIEWS = "synth_ag_news_encoder", "synth_imdb_reviews_encoder"


@pytest.fixture
def runs(tmp_path):
  """Runs of two rows as their training and evaluation leave them."""
  table = tables.TABLES[7]
  made = paper.runs(table, [table.rows[0], table.rows[-1]], (1, 2), tmp_path,
                    settings_lib.Settings(steps=7))
  for i, run in enumerate(made):
    write_events(run.model_dir, "global_step/sec", {1: 3.0, 7: 2.0})
    run.training.log.write_text("")
    write_events(run.model_dir / "test_eval", f"eval/{run.task}/accuracy",
                 {5: 1.0, 7: 50.0 + i})
    write_events(run.model_dir / "eval_text", "neg_log_perplexity", {7: -i})
  return made


def tensorboard(folder):
  """What TensorBoard's plugin tells its page: (experiment, groups by name)."""
  from tensorboard.backend.event_processing import data_provider
  from tensorboard.backend.event_processing import plugin_event_multiplexer
  from tensorboard.plugins import base_plugin
  from tensorboard.plugins.hparams import hparams_plugin
  from werkzeug import test

  events = plugin_event_multiplexer.EventMultiplexer()
  events.AddRunsFromDirectory(str(folder))
  events.Reload()
  apps = hparams_plugin.HParamsPlugin(base_plugin.TBContext(
      logdir=str(folder), data_provider=data_provider.MultiplexerDataProvider(
          events, str(folder)))).get_plugin_apps()

  def ask(route, **request):
    answer = test.Client(apps[route]).post(json=request)
    return json.loads(answer.get_data(as_text=True))

  groups = ask("/session_groups", startIndex=0, sliceSize=100,
               allowedStatuses=["STATUS_SUCCESS"])["sessionGroups"]
  return ask("/experiment"), {group["name"]: group for group in groups}


def test_the_tab_shows_settings_and_scores_of_each_run(runs, tmp_path):
  for run in runs:
    hparams.write(run, GIN)
  experiment, groups = tensorboard(tmp_path / "table7")
  differing = {info["name"] for info in experiment["hparamInfos"]
               if info["differs"]}
  assert differing == {"row", "task", "seed"}
  tags = {info["name"]["tag"] for info in experiment["metricInfos"]}
  assert {"scores/log_perplexity", f"scores/{NEWS}/accuracy",
          f"scores/{REVIEWS}/accuracy"} <= tags
  assert len(groups) == len(runs) == 8
  for i, run in enumerate(runs):
    group = groups[f"{run.name} on {run.task}"]
    assert group["hparams"] == {
        "row": run.row.name, "task": run.task, "seed": run.seed, "steps": 7,
        "d_ff": 8, "a/rate": 0.5, "b.fast": True, "c.sizes": "[1, 2]",
        "d.model": "@Model", "e.name": "small"}
    assert [session["name"] for session in group["sessions"]] == [
        f"{run.row.name.lower()}/seed_{run.seed}/{run.task}"]
    metrics = {metric["name"]["tag"]: (metric["trainingStep"], metric["value"])
               for metric in group["metricValues"]}
    assert metrics[f"scores/{run.task}/accuracy"] == (7, 50.0 + i)
    assert metrics["scores/log_perplexity"] == (7, float(i))


def test_event_files_are_written_once_and_do_not_change_scores(runs):
  run = runs[0]
  scores, scalars = run.scores(), list(results.scalars(run.model_dir))
  hparams.write(run, GIN)
  written = sorted(run.model_dir.iterdir())
  hparams.write(run, [])
  assert sorted(run.model_dir.iterdir()) == written
  assert len([path for path in written if path.suffix == ".hparams"]) == 1
  assert run.scores() == scores and run.is_done()
  assert list(results.scalars(run.model_dir)) == scalars


@pytest.mark.slow
def test_reproduce_writes_event_files_and_a_report_of_its_runs(
    runs, tmp_path, monkeypatch, capsys):
  assert all(run.is_done() for run in runs)
  left = []
  monkeypatch.setattr(process, "POLL_SECONDS", 0.01)
  monkeypatch.setattr(hparams, "write", lambda run, gin: left.append((run, gin)))
  monkeypatch.setattr(runs_lib.Run, "stages", lambda run: [pipeline.Stage(
      run.name, [sys.executable, "-c", "raise SystemExit('no')"],
      tmp_path / f"{run.name} {run.task}.log", tmp_path.is_file)])
  flags = ["--table=7", "--scale=laptop", "--steps=7", "--rows=V,FR+V",
           "--seeds=1", "--speed_rounds=0", f"--output_dir={tmp_path}",
           "--gin_param=a = 1"]
  assert reproduce.main(flags) == 1
  assert not left and "4 failed" in capsys.readouterr().out
  monkeypatch.setattr(runs_lib.Run, "stages", lambda run: [pipeline.Stage(
      run.name, [], tmp_path / "log", tmp_path.is_dir)])
  assert reproduce.main(flags) == 0
  assert [(run.row.name, gin) for run, gin in left] == [
      ("V", ["a = 1"]), ("FR+V", ["a = 1"])] * 2
  known = lines.read(tmp_path / "table7" / "table7.jsonl")
  assert [run["status"] for run in known.runs] == ["ok"] * 4


def test_without_tensorboard_nothing_is_written(runs, monkeypatch):
  before = sorted(runs[0].model_dir.iterdir())
  monkeypatch.setattr(hparams, "api", None)
  hparams.write(runs[0], GIN)
  assert sorted(runs[0].model_dir.iterdir()) == before
