"""Checks before a run know ours, Mesh TensorFlow's and T5's functions, and no other."""

import gin
import pytest
import seqio
from support import checkpoint_files
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_internals
from synthesizer_mtf.trainer.command import run_checks

# Functions of a user, most with names of this package, of Mesh TensorFlow or of T5.
USERS = [
    ("warmup", "mine", "steps"), ("warm_start", "mine", "checkpoint"),
    ("decode_from_file", "mine", "repeats"), ("run", "my_utils", "batch_size"),
    ("constant_learning_rate", "mine", "learning_rate"),
    ("masked", "mine", "dropout_rate"),
    ("AdafactorOptimizer", "mine", "decay_rate")]


@pytest.fixture(name="register")
def fixture_register(monkeypatch):
  """Lets a test register functions with gin that later tests do not see."""
  registry = type(gin.config._REGISTRY)()  # Its copy() shares parts.
  for selector, function in gin.config._REGISTRY.items():
    registry[selector] = function
  monkeypatch.setattr(gin.config, "_REGISTRY", registry)

  def register(name, module, parameter):
    scope = {}
    exec(f"def function({parameter}=1000): pass", scope)
    scope["function"].__module__ = module
    gin.external_configurable(scope["function"], name, module=module)

  return register


def test_values_of_a_users_own_functions_are_not_judged_and_hide_no_wrong_one(register):
  for name, module, parameter in USERS:
    register(name, module, parameter)
    gin.bind_parameter(f"{module}.{name}.{parameter}", "10%")
  gin.finalize()
  for parameter, value in {
      "mesh_tensorflow.transformer.utils.run.batch_size": "x",
      "mesh_tensorflow.transformer.utils.decode_from_file.repeats": 0,
      "mesh_tensorflow.optimize.AdafactorOptimizer.decay_rate": "x",
      "synthesizer_mtf.warm_start.checkpoint": 3}.items():
    gin.clear_config()
    gin.bind_parameter(parameter, value)
    with pytest.raises(ValueError, match=parameter.rpartition(".")[2]):
      gin.finalize()


@pytest.mark.usefixtures("tasks_to_read")
def test_a_users_class_is_no_classifier_by_its_name(register, tmp_path):
  register("MyEncoderClassifier", "mine", "size")
  mesh = "mesh_tensorflow.transformer."
  data = gin.config.ConfigurableReference("mesh_train_dataset_fn", False)
  config = {("", mesh + "utils.run"): {
                "sequence_length": {"inputs": 8, "targets": 8},
                "train_dataset_fn": data, "model_type": "bitransformer"},
            ("MIXTURE_NAME", "gin.macro"): {"value": "synth_text_pairs"},
            ("", mesh + "transformer.make_bitransformer"): {
                "bitransformer_cls": gin.config.ConfigurableReference(
                    "MyEncoderClassifier", False)}}
  run_checks.check(run_checks.bound_run("command", config, str(tmp_path)))
  config["", mesh + "transformer.make_bitransformer"]["bitransformer_cls"] = (
      gin.config.ConfigurableReference("EncoderClassifier", False))
  with pytest.raises(ValueError, match="is a classifier, but the targets"):
    run_checks.check(run_checks.bound_run("command", config, str(tmp_path)))


def test_one_embedding_needs_vocabularies_of_one_rounded_size(monkeypatch):
  def check(extra_ids, **bindings):
    monkeypatch.setattr(run_checks.Run, "features", {
        "inputs": seqio.Feature(seqio.ByteVocabulary(extra_ids=0)),  # 259, so 384.
        "targets": seqio.Feature(seqio.ByteVocabulary(extra_ids=extra_ids))})
    run_checks.check(run_checks.Run(
        "method", "infer", {"sequence_length": {"inputs": 8, "targets": 8}}, "it",
        {("", f"mesh_tensorflow.transformer.transformer.{name}"): values
         for name, values in bindings.items()}))

  check(125)
  check(126, Bitransformer={"shared_embedding": False})
  check(126, Unitransformer={"vocab_divisor": 200})
  with pytest.raises(ValueError, match="shared_embedding` is True, but the vocabular"
                     "ies of 'it' have 259 ids for inputs and 385 for targets; bind"):
    check(126)


def test_a_users_stack_is_not_ours_by_its_name(register):
  for cls in ("my_synthesizer_stack", "synthesizer_stacks"):
    register(cls, "mine", "layers")
    with pytest.raises(ValueError, match="would not be used"):
      gin_files.parse(["attention/r.gin"], [
          f"make_layer_stack.layer_stack_cls = @{cls}"])


def scored(inputs, targets, **bindings):
  """Checks texts to score, with bindings of `make_bitransformer`."""
  make = ("", "mesh_tensorflow.transformer.transformer.make_bitransformer")
  run_checks.check(run_checks.Run(
      "command", "score_from_strings", {"sequence_length": 8}, config={make: bindings},
      texts=(inputs, targets)))


def test_texts_to_score_are_refused_by_a_classifier_alone():
  scored(["a"], ["one"])
  with pytest.raises(ValueError, match="targets_filename.*'one'.*score_from_task.gin"):
    scored(["a"], ["one"], bitransformer_cls=gin.config.ConfigurableReference(
        "EncoderClassifier", False))


def test_an_empty_last_line_is_no_single_target_for_all_inputs(tmp_path):
  for name, text in (("two", "a\nb\n"), ("one", "a\n"), ("one_empty", "a\n\n"),
                     ("two_empty", "a\nb\n\n")):
    (tmp_path / name).write_text(text)
  for inputs, targets in (("two", "two_empty"), ("two", "one"), ("two_empty", "two"),
                          ("one", "one_empty")):
    scored(str(tmp_path / inputs), str(tmp_path / targets))
  with pytest.raises(ValueError, match="targets_filename` is .*, whose last line is emp"
                     ".*would count for all 2 of `inputs_filename`"):
    scored(str(tmp_path / "two"), str(tmp_path / "one_empty"))


def evaluated():
  return run_checks.evaluated(run_checks.bound_run("command", gin_internals.bindings()))


def test_an_evaluation_without_a_split_is_told_that_it_reads_that_of_the_training(
    log, monkeypatch, tmp_path):
  files = ["/a/b.tsv", "/a/c-*.tsv", "/a/d.tsv", "/a/e.tsv"]
  gin_files.parse(["dataset.gin", "eval.gin"], [
      "MIXTURE_NAME = 'synth_text_pairs'",
      "synthesizer_mtf.tasks.pairs.train = '/t.tsv'",
      f"synthesizer_mtf.tasks.pairs.test = {files}"])
  for split, words, told in [(None, "train of t.tsv", True), ("train", "train of t.tsv",
                                                              False),
                             ("test", "test of b.tsv, c-*.tsv, d.tsv, ...", False)]:
    log.clear()
    if split:
      gin_files.bind({"utils.run.dataset_split": split})
    assert evaluated() == {
        "synth_text_pairs": words, "": words}
    assert ("`utils.run.dataset_split` is not bound" in log.text) == told
  gin_files.bind({"MIXTURE_NAME/gin.macro.value": "synth_glue"})
  assert evaluated()["synth_glue_cola"] == "test" == evaluated()[""]
  gin_files.bind({"utils.run.mode": "train"})
  assert not evaluated()


def test_steps_count_from_the_checkpoint_that_training_goes_back_to(tmp_path):
  def check(steps):
    run_checks.check(run_checks.Run(
        "command", "train_others", {"train_steps": steps, "train_dataset_fn": len,
                                    "sequence_length": 8}, model_dir=str(tmp_path)))

  checkpoint_files.save(tmp_path, 10, 20)
  with pytest.raises(ValueError, match="has been trained for 20 steps; raise it"):
    check(12)
  (tmp_path / "checkpoint").write_text(
      'model_checkpoint_path: "model.ckpt-10"\n'
      'all_model_checkpoint_paths: "model.ckpt-20"\n')
  check(12)
  with pytest.raises(ValueError, match="has been trained for 10 steps; raise it"):
    check(8)
