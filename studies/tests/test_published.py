"""The tables of other papers: their commands, figures and counts."""

import re
import shlex

import gin
import pytest
import seqio
from studies import lra
from studies import narang
from studies import published
from support import models
from support.paths import ROOT
from synthesizer_mtf import gin_internals
from synthesizer_mtf.tools import reproduce
from synthesizer_mtf.tools.base import recipes
from synthesizer_mtf.tools.base import tables
from synthesizer_mtf.tools.experiments import settings as settings_lib
from synthesizer_mtf.tools.plan_pod import compiling

SETTINGS = settings_lib.Settings()
EVERY_ROW = [(table, row) for table in published.TABLES.values() for row in table.rows]


@pytest.mark.parametrize("table, row", EVERY_ROW,
                         ids=[f"{t.__name__[-6:]}-{r.name}" for t, r in EVERY_ROW])
def test_every_command_parses_and_names_a_task(table, row):
  found = list(table.commands([row], "gs://mine", SETTINGS))
  assert len(found) == 10
  for _, command in found:
    models.parse_gin(recipes.values(command, "gin_file"),
                     recipes.values(command, "gin_param"))
    task = seqio.get_mixture_or_task(gin.query_parameter("%MIXTURE_NAME"))
    assert set(gin.query_parameter("utils.run.sequence_length")) == set(
        task.output_features)
  assert len({title for title, _ in found}) == 10


def test_fine_tuning_starts_from_the_last_step_and_translation_from_nothing():
  found = dict(narang.commands(narang.rows[:1], "gs://mine", SETTINGS))
  for name in ("super_glue", "xsum", "web_questions", "wmt14_ende"):
    start = re.findall(r"init_checkpoint = .*/c4/model.ckpt-524288",
                       " ".join(found[f"V: train on {name}"]))
    assert bool(start) == (name != "wmt14_ende")
  assert any("[65536, 524288]" in word for word in found["V: early and final loss"])


def test_means_of_long_range_arena_equal_those_of_its_table():
  for name, mean in (("V", 54.39), ("R+V", 52.88), ("Linformer", 51.36)):
    figures = lra.ROWS[name].paper.values()
    assert sum(figures) / len(figures) == pytest.approx(mean, abs=0.01)


def test_losses_of_narang_are_on_the_page_and_end_as_in_table_4():
  page = (ROOT / "studies/other_papers.md").read_text(encoding="utf-8")
  table_4 = {row.name: row.paper["Log PPL"] for row in tables.TABLES[4].rows}
  for name, (early, final, score) in narang.PUBLISHED_LOSSES.items():
    assert f"| {name} | {early} | {final} | {score} |" in page
    assert (final,) == table_4[name]


def test_mixtures_have_weights_only_where_they_are_named_alpha(monkeypatch):
  for row in narang.rows:
    if "+" in row.name:
      models.parse_gin([row.model])
      sums = gin_internals.bindings().get(("", "synthesizer_mtf.Mixture"), {})
      assert (sums.get("weights") == "sum") == ("α" not in row.name)


@pytest.mark.parametrize("name", ["d+v", "fr", "r+v"])
def test_models_of_narang_have_a_loss_at_a_tiny_size(name):
  models.parse_gin([f"models/narang/{name}.gin"], [
      *models.TINY, "num_layers = 1", "SyntheticAttention.num_heads = 3",
      "SyntheticAttention.key_value_size = 4"])
  m = models.Model()
  with m.tf_graph.as_default():
    inputs, targets = (m.ids([[5, 9, 3, 7, 2][:length]]) for length in (5, 4))
    _, loss = m.model.call_simple(inputs, targets, True, mode="train")
    ((found,),), _ = m.run(loss)
  assert 0 < found < 20


def test_counts_stand_beside_the_published_figures(monkeypatch, capsys, tmp_path):
  def counted(worker, count, model):
    several = 2 if "narang/r+v" in model else 1
    return {"parameters": several * 223_000_000,
            "multiply_adds": several * 8 * 10 ** 12}

  monkeypatch.setattr(compiling.Worker, "call", counted)
  json = tmp_path / "a.jsonl"
  assert reproduce.main(["--table=narang", "--rows=R+V", f"--json={json}"]) == 0
  printed = capsys.readouterr().out
  words = shlex.split(re.sub(r"\\\n|^[#|].*", "", printed.split("1:\n")[0], flags=re.M))
  assert "--gin_file=models/narang/r+v.gin" in words
  row = printed.split("| R+V ")[1].splitlines()[0]
  cells = [cell.strip() for cell in row.split("|")]
  assert cells[1:] == ["446,000,000", "292", "52.7", "32.0", "12.0", "2.0", "1.081",
                       "85.0", "3.63", ""]
  assert len(json.read_text().splitlines()) == 11


def test_bad_cells_have_a_dash():
  assert published.markdown("lra", [{"row": "R", "x": None, "y": 1234}]).splitlines()[
      2].split() == ["|", "R", "|", "-", "|", "1,234", "|"]
