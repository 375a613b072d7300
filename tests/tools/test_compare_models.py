"""A comparison of the user's own models: its models, its commands and its report."""

import json
import shutil

from matplotlib import image
import pytest
from scipy import stats
from support import checkpoint_files
from support import tables
from support.events import write_events
from synthesizer_mtf.tools import compare_models
from synthesizer_mtf.tools.base import attention_words
from synthesizer_mtf.tools.base import recipes
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.experiments import study_types
from synthesizer_mtf.trainer.watching import validation_record

TASK = "synth_text_pairs"
SCORES = ["--scores=bleu,edit_distance", "--lower_is_better=edit_distance"]
MODELS = ["--model", "V", "--model", "R below", "[R,V]", "--model", "far",
          "warm_start/from_t5.gin", "R/V", "RandomLogits.max_length = 64"]


def flags(folder, *more):
  return [f"--output_dir={folder}", f"--task={TASK}", "--steps=8", "--seeds=1,2",
          "--gin_file=dataset.gin", "--gin_file=models/laptop.gin", *MODELS, *more]


@pytest.mark.parametrize("word, bindings", [
    ("R+V", ["synthesizer_stack.attention = 'R+V'"]),
    ("[R,D+V]", ["synthesizer_stack.attention = ['R', 'D+V']"]),
    ("V/[R,@SelfAttention]", [
        "encoder/synthesizer_stack.attention = 'V'",
        "decoder/synthesizer_stack.attention = ['R', @SelfAttention]"]),
])
def test_a_word_chooses_the_attention_of_stacks_and_blocks(word, bindings):
  assert attention_words.bindings(word) == bindings
  assert attention_words.split(f"FR,{word},V") == ["FR", word, "V"]


def test_a_list_is_a_row_of_the_benchmark_with_tables_as_long_as_its_sequences():
  row = attentions.find_row("V/[R,LightConv,FR+V]")
  assert row.bindings(12, 6) == [
      "encoder/synthesizer_stack.attention = 'V'",
      "encoder/RandomLogits.max_length = 12",
      "encoder/FactorizedRandomLogits.max_length = 12",
      "decoder/synthesizer_stack.attention = ['R', 'LightConv', 'FR+V']",
      "decoder/RandomLogits.max_length = 6",
      "decoder/FactorizedRandomLogits.max_length = 6"]
  with pytest.raises(ValueError, match=r"unknown row '\[R,Q\]'.*'\[R,R,V\]'"):
    attentions.find_row("[R,Q]")


def write_results(folder):
  """Writes what the trainings and evaluations of all runs leave."""
  bleu = {"v": (40.0, 41.0), "r_below": (42.0, 43.5), "far": (30.0, 30.5)}
  for model, scores in bleu.items():
    for seed, score in enumerate(scores, 1):
      model_dir = folder / model / f"seed_{seed}" / TASK
      model_dir.mkdir(parents=True)
      checkpoint_files.save(model_dir, 8)
      write_events(model_dir, "global_step/sec", dict.fromkeys(range(8), 2.0))
      model_dir.with_suffix(".log").write_text(
          "".join(f"step, tf_loss[{9 - n}][{n}]\n" for n in range(1, 9)))
      for name, value in {"bleu": score, "edit_distance": score / 100}.items():
        # Two event files of the same second would have the same name.
        write_events(model_dir / f"{name}_eval", f"eval/{TASK}/{name}", {8: value})


@pytest.fixture(scope="module", name="comparison")
def fixture_comparison(tmp_path_factory):
  """The folder of a finished comparison."""
  folder = tmp_path_factory.mktemp("comparisons") / "mine"
  write_results(folder)
  assert compare_models.main(flags(folder, *SCORES)) == 0
  return folder


def test_the_report_has_intervals_and_paired_differences_of_whatever_was_scored(
    comparison):
  text = (comparison / "mine.md").read_text()
  head, v, below, *_ = tables.cells(text)
  assert head == ["model", f"{TASK}, bleu", "95% interval",
                  f"{TASK}, edit_distance", "95% interval"]
  half = stats.t.ppf(0.975, 1) * 0.5
  assert v == ["V", "40.5 ± 0.5", f"{40.5 - half:.1f} to {40.5 + half:.1f}",
               "0.405 ± 0.005", f"{.405 - half / 100:.3f} to {.405 + half / 100:.3f}"]
  assert below[0] == "R below"
  assert "bleu, best mean first:\n- ours: R below, V, far" in text
  assert "edit_distance, best mean first:\n- ours: far, V, R below" in text
  half = stats.t.ppf(0.975, 1) * 0.25  # Of the differences 2 and 2.5.
  cells = sum(tables.cells(text), [])
  assert f"{2.25 - half:+.1f} to {2.25 + half:+.1f}" in cells


def test_lines_and_picture_are_beside_the_report(comparison):
  lines = list(map(json.loads, (comparison / "mine.jsonl").open()))
  assert [(line["row"], line["seed"]) for line in lines] == [
      (row, seed) for seed in (1, 2) for row in ("V", "R below", "far")]
  assert image.imread(comparison / "mine.png").shape[1] > 500


def test_a_model_that_has_changed_is_refused(comparison):
  changed = [word.replace("= 64", "= 32") for word in flags(comparison, *SCORES)]
  with pytest.raises(SystemExit, match="/far holds a run with .*64.*, not .*32"):
    compare_models.main(changed)


def test_the_scores_of_another_split_are_not_taken_for_those_that_are_there(comparison):
  with pytest.raises(SystemExit, match="mine holds a run with .*'split': 'test'"):
    compare_models.main(flags(comparison, *SCORES, "--split=test"))


@pytest.fixture(scope="module")
def made_of_files(tmp_path_factory):
  """A finished comparison of a gin file, which includes another that names data."""
  sources = tmp_path_factory.mktemp("sources")
  (sources / "mine.gin").write_text(f"include '{sources}/data.gin'\nd_ff = 24\n")
  (sources / "data.gin").write_text(
      "synthesizer_mtf.tasks.pairs.train = 'train.tsv'\n"
      "synthesizer_mtf.tasks.pairs.validation = ['dev.*']\n")
  (sources / "row.gin").write_text("RandomLogits.stddev = 0.5\n")
  for name in ("train.tsv", "dev.tsv"):
    (sources / name).write_text("one\ttwo\n")
  folder = sources / "compared" / "mine"
  write_results(folder)
  given = [f"--output_dir={folder}", f"--task={TASK}", "--steps=8", "--seeds=1,2",
           *SCORES, f"--gin_file={sources}/mine.gin", "--model", "V",
           "--model", "far", "R+V", f"{sources}/row.gin"]
  assert compare_models.main(given) == 0
  return sources, given


@pytest.mark.parametrize("name, old, new", [
    ("mine.gin", "24", "32"), ("data.gin", "'train", "'./train"),
    ("train.tsv", "one", "six"), ("dev.tsv", "one", "six"),
    ("row.gin", "0.5", "0.25")])
def test_runs_made_from_other_contents_of_the_same_paths_are_refused(
    made_of_files, name, old, new):
  sources, given = made_of_files
  path = sources / name
  text = path.read_text()
  path.write_text(text.replace(old, new))
  with pytest.raises(SystemExit, match=(
      f"holds a run made from other contents: {path} has changed; bring them back")):
    compare_models.main(given)
  path.write_text(text)


def test_a_file_more_is_other_contents_but_no_comment_and_an_older_folder_says_so(
    made_of_files, capsys):
  sources, given = made_of_files
  (sources / "row.gin").write_text("# A comment.\nRandomLogits.stddev = 0.5\n")
  (sources / "dev.more").write_text("one\ttwo\n2\t3\n")
  with pytest.raises(SystemExit, match=r"contents: \S*dev.more is new; bring"):
    compare_models.main(given)
  (sources / "dev.more").unlink()
  (sources / "compared" / "mine" / "contents.json").unlink()
  assert compare_models.main(given) == 0
  assert "contents.json is missing, as in folders of older" in capsys.readouterr().out


def test_commands_add_what_a_model_differs_in_last(tmp_path):
  args = compare_models.parser().parse_args(flags(
      tmp_path, "--gin_param=RandomLogits.max_length = 16", "--split=test"))
  runs = compare_models.runs(args, compare_models.study("mine", args))
  train, evaluate = runs[2].stages()
  assert runs[2].row.name == "far"
  assert recipes.values(train.command, "gin_file") == [
      "dataset.gin", "models/laptop.gin", "warm_start/from_t5.gin"]
  params = recipes.values(train.command, "gin_param")
  assert f'MIXTURE_NAME = "{TASK}"' in params
  assert params[-4:] == ["RandomLogits.max_length = 16",
                         *attention_words.bindings("R/V"),
                         "RandomLogits.max_length = 64"]
  params = recipes.values(evaluate.command, "gin_param")
  assert 'utils.run.dataset_split = "test"' in params


def test_lower_scores_are_better_if_their_names_or_the_flag_say_so():
  evaluation = study_types.Evaluation(tasks=(TASK,), lower_is_better=("odd",))
  scored = evaluation.with_scores([{
      f"eval/{TASK}/{name}": 1.0 for name in ("mean_edit", "odd", "bleu")}])
  assert [score.lower_is_better for score in scored.scores] == [True, True, False]


def test_the_best_step_by_validation_is_compared_though_patience_ended_a_training(
    tmp_path, capsys):
  folder = tmp_path / "mine"
  write_results(folder)
  name = f"eval/{TASK}/edit_distance"
  for model_dir in folder.glob(f"*/*/{TASK}"):
    (model_dir / "best").mkdir()
    checkpoint_files.save(model_dir / "best", 4)
    for of, value in ((name, .25), (f"eval/{TASK}/bleu", 50.0)):
      write_events(model_dir / "best" / f"{value}_eval", of, {4: value, 8: 2 * value})
    validation_ = validation_record.Record(
        str(model_dir), "edit_distance", greater_is_better=False)
    validation_.add(4, .25, {})
    validation_.write()
    if "/v/" in str(model_dir):  # So training has no curve of the score.
      shutil.rmtree(model_dir / "bleu_eval")
  stopped = folder / "v/seed_2" / TASK
  for path in stopped.glob("model.ckpt-8.*"):
    path.unlink()
  checkpoint_files.save(stopped, 6)
  validation_.path = str(stopped / "validation.json")
  validation_.write(stopped_at=6)
  assert compare_models.main(flags(
      folder, *SCORES, "--best_by=edit_distance", "--json", str(tmp_path / "a"))) == 0
  assert "patience" in capsys.readouterr().out.lower()
  text = (folder / "mine.md").read_text()
  assert f"6 runs: {TASK} 6 to 8 steps; seeds 1, 2" in text
  assert "best step by edit_distance of the validation split. Patience ended 1" in text
  assert tables.cells(text)[1][:2] == ["V", "50.0 ± 0.0"]
  lines = list(map(json.loads, (tmp_path / "a").open()))
  assert {line["best_step"] for line in lines} == {4}
  assert [line["training_steps"] for line in lines if line["row"] == "V"] == [8, 6]
  assert [line["validation"] == [] for line in lines] == [
      line["row"] == "V" for line in lines]
  args = compare_models.parser().parse_args(
      flags(folder, *SCORES, "--best_by=edit_distance"))
  run, *_ = compare_models.runs(args, compare_models.study("mine", args))
  params = recipes.values(run.stages()[0].command, "gin_param")
  assert "train_and_eval.greater_is_better = False" in params


@pytest.mark.parametrize("more, message", [
    (["--output_dir=mine[2]"], "--output_dir is 'mine.2.'.* part of a pattern"),
    (["--model", "v"], "--model names 'V' and 'v', which would share a folder"),
    (["--task=nothing"], "--task is 'nothing', which is not a task"),
    (["--task=synth_text_lm", "--scores=bleu"], "synth_text_lm has no metrics"),
    (["--gin_param=utils.run.init_checkpoint = 'x'"], "bind `warm_start.checkpoint`"),
    (["--gin_param=utils.run.train_model_fn = @train_with_attention_summaries"],
     "train_with_seed.train_model_fn = @train_with_attention_summaries"),
])
def test_what_cannot_be_compared_is_refused(more, message, tmp_path):
  with pytest.raises(SystemExit, match=message):
    compare_models.main(flags(tmp_path / "new", *more))
  assert not (tmp_path / "new").exists()
