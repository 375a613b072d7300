"""Checks of T5's own parameters, once gin has read all of them.

T5 and Mesh TensorFlow accept any value from gin. A wrong value causes a late message
about something else, or no message. This module checks bound values, but not references
such as @FUNCTION. Layers of this package check their own parameters.
"""

from collections.abc import Sequence
import inspect
import re

from absl import logging
import gin
import mesh_tensorflow as mtf
from mesh_tensorflow.transformer import utils
import seqio
from synthesizer_mtf import checks
from synthesizer_mtf import gin_internals
from synthesizer_mtf.attention.inputs import splits
from synthesizer_mtf.gin_internals import function_name
from synthesizer_mtf.gin_internals import is_reference
from synthesizer_mtf.gin_internals import macro
from synthesizer_mtf.gin_internals import parameters
from synthesizer_mtf.gin_internals import resolved
from synthesizer_mtf.t5.classifier import EncoderClassifier
from synthesizer_mtf.trainer.checkpoints import checkpoints
from synthesizer_mtf.trainer.command import value_checks
from synthesizer_mtf.trainer.data import data_checks
from synthesizer_mtf.trainer.model import answers
from synthesizer_mtf.trainer.model import jax_runtime
from synthesizer_mtf.trainer.model import scoring
import tensorflow.compat.v1 as tf

_RUN = "utils.run"
_MODES = ("train", "perplexity_eval", "eval", "score_eval", "infer",
          "score_from_strings", "score_from_dataset", "export_score",
          "export_infer", "export")
_DECODING = ("eval", "infer", "export_infer", "export")
_BEAMS = ("bitransformer", "bi_teacher_student", "bi_student_teacher")
_EVALUATIONS = ("perplexity_eval", "eval", "score_eval", "score_from_dataset")
# The minimum of each size; a model without layers is a bag of words.
_SIZES = {"d_model": 1, "d_ff": 1, "d_kv": 1, "num_heads": 1, "num_layers": 0}


@gin.config.register_finalize_hook
def check(config: gin_internals.Config) -> None:
  """Raises a ValueError for the first wrong parameter."""
  check_model(config)
  run = parameters(config, _RUN)
  if run.get("batch_size", 1) is None:
    value_checks.RUN_CHECKS["batch_size"](f"{_RUN}.batch_size", None)
  _check_mode(run)
  _check_devices(run)
  _check_task(macro(config, "MIXTURE_NAME"),
              _classifier(config))


def check_model(config: gin_internals.Config) -> None:
  """Checks the parameters that count however a model is trained.

  Raises:
    ValueError: a size, the dropout rate or another value is wrong.
  """
  for name, least in _SIZES.items():
    value = macro(config, name)
    if value is not None and not value_checks.is_whole(value, least):
      raise checks.Error(f"the gin macro `{name}` is {value!r} but must be "
                         f"{checks.integer(least)}; change it.")
  rate = macro(config, "dropout_rate")
  if not (rate is None or is_reference(rate) or checks.is_rate(rate)):
    raise checks.Error(f"the gin macro `dropout_rate` is {rate!r} but must be "
                       f"{checks.RATE}; change it.")
  value_checks.check({where: {name: resolved(config, value) for name, value in
                              values.items()} for where, values in config.items()})


def _check_mode(run):
  mode, split = run.get("mode", "train"), run.get("dataset_split", "train")
  if is_reference(mode) or is_reference(split):
    return
  checks.require(mode in _MODES, f"{_RUN}.mode", mode,
                 f"be one of {', '.join(_MODES)}")
  if mode == "train" and split != "train":
    raise checks.Error(
        f"`{_RUN}.dataset_split` is {split!r} but a model trains on 'train'; "
        f"leave it out, or bind `{_RUN}.mode`, for example by eval.gin.")


def _check_devices(run):
  """Checks that each part of the mesh has one device; TPUs have their own devices."""
  devices, shape = run.get("mesh_devices"), run.get("mesh_shape")
  if devices is None or is_reference(devices):
    return
  checks.require(
      isinstance(devices, (list, tuple)) and all(
          isinstance(device, str) for device in devices),
      f"{_RUN}.mesh_devices", devices, "be a list of names", "write it as ['cpu:0']")
  if shape is None or is_reference(shape):
    return
  check_device_count(len(devices), shape, f" {devices!r},")


def check_device_count(count: int, mesh_shape: str | mtf.Shape,
                       which: str = "") -> None:
  """Checks that there is one device for each part of the mesh.

  Args:
    count: the number of devices in `utils.run.mesh_devices`.
    mesh_shape: `utils.run.mesh_shape`.
    which: the name of the devices in the message.

  Raises:
    ValueError: there are more or fewer.
  """
  size = mtf.convert_to_shape(mesh_shape).size
  if size < 1:
    raise checks.Error(f"`{_RUN}.mesh_shape` is {mesh_shape!r}, but each size must be "
                       "at least 1; write it as 'model:2,batch:4'.")
  if count != size:
    raise checks.Error(
        f"`{_RUN}.mesh_devices` names {count} devices,{which} but "
        f"`{_RUN}.mesh_shape` is {mesh_shape!r} and needs {size}; name one for "
        "each part of the mesh, or change its shape.")


def _check_task(task, model):
  """Checks that a task whose targets are classes has a classifier."""
  ours = isinstance(task, str) and re.fullmatch("synth_.*_encoder", task)
  if ours and model is None:
    raise checks.Error(
        f"`MIXTURE_NAME` is {task!r}, whose targets are classes, but the model "
        "is not a classifier; add --gin_file=classifier.gin after the model file, "
        f"or choose {task[:-len('_encoder')]!r}.")


def check_run(config: gin_internals.Config, model_dir: str) -> None:
  """Checks parameters that `utils.run` needs, but not tools that only read gin.

  Raises:
    ValueError: a parameter is missing or wrong, or there is no checkpoint.
  """
  run = parameters(config, _RUN)
  mode = run.get("mode", "train")
  if not run.get("sequence_length") and mode not in ("eval", "score_eval"):
    raise checks.Error(f"`{_RUN}.sequence_length` is missing; bind it, as in "
                       "{'inputs': 512, 'targets': 114}.")
  task = macro(config, "MIXTURE_NAME")
  trains = mode == "train" and data_checks.data_function(config) == data_checks.TASKS
  if task == "" and (trains or mode in _EVALUATIONS):
    data_checks.check_task(task)
  if data_checks.is_known(task):
    features = seqio.get_mixture_or_task(task).output_features
    data_checks.check_vocabularies(task, features)
    if mode == "score_from_strings":
      data_checks.check_one_vocabulary(tuple(
          features[key].vocabulary for key in ("inputs", "targets") if key in features),
                                       "targets_filename")
    value_checks.check_lengths(run.get("sequence_length"), task, features)
    _check_classes(task, features, _classifier(config))
    data_checks.check_metrics(
        task, {"eval": "predictions", "score_eval": "scores"}.get(mode))
    if trains:
      data_checks.check_cached(task)
  _check_division(config, run)
  _check_outer_batch(config, run)
  if jax_runtime.chosen()[0] != "jax":  # Which looks for its devices itself.
    _check_gpus(run.get("mesh_devices"))
  if mode == "train":
    _check_train_steps(run, model_dir)
    if trains:
      data_checks.check_rates(task)
  elif mode.startswith("export") or run.get("eval_checkpoint_step") is not None:
    if not checkpoints.find(model_dir):
      raise checks.Error(
          f"--model_dir is {model_dir!r}, where there is no checkpoint, but "
          f"`{_RUN}.mode` is {mode!r}; name the folder of a trained model.")
    _check_steps(run, mode, model_dir)
  if mode in _EVALUATIONS[1:]:
    data_checks.check_unpacked(f"mode {mode!r} needs")
  if mode in _EVALUATIONS:
    data_checks.check_split(task, run.get("dataset_split", "train"))
  model_type = run.get("model_type", "bitransformer")
  if (trains or mode in _EVALUATIONS) and not is_reference(model_type):
    data_checks.check_features(task, model_type, mode)
  if mode in ("eval", "score_eval"):
    value_checks.check_output("--model_dir", parameters(config, "utils.eval_model").get(
        "eval_summary_dir") or model_dir, folder=True)
  if mode in _DECODING:
    check_beams(config, run.get("model_type", "bitransformer"))
  answers.warn_of_unused(mode)
  _check_decoding_of_tasks(config, run, mode)
  _check_files(config, mode)


def task_and_split(config: gin_internals.Config) -> tuple[str, str] | None:
  """The task or mixture that a run trains on, or whose outputs it evaluates, and where.

  None without a task, and in other modes.
  """
  task, run = macro(config, "MIXTURE_NAME"), parameters(config, _RUN)
  mode = run.get("mode", "train")
  trains = mode == "train" and data_checks.data_function(config) == data_checks.TASKS
  if not (trains or mode == "eval") or not data_checks.is_known(task):
    return None
  return task, run.get("dataset_split", "train")


def evaluated(config: gin_internals.Config) -> dict[str, str]:
  """What a run evaluates, as `data_checks.read_by`; nothing in other modes.

  Without a split, the log warns that Mesh TensorFlow takes that of the training.
  """
  run, task = parameters(config, _RUN), macro(config, "MIXTURE_NAME")
  split = run.get("dataset_split", "train")
  if run.get("mode", "train") not in _EVALUATIONS or is_reference(split):
    return {}
  if "dataset_split" not in run:
    logging.warning(
        "`%s.dataset_split` is not bound, so that the split 'train' is evaluated, by "
        "default; bind it to another one, such as 'validation'.", _RUN)
  return data_checks.read_by(task, split)


def _check_decoding_of_tasks(config, run, mode):
  """Checks that T5's infer_from_task.gin has a language model, which Mesh demands."""
  decode = parameters(config, "utils.infer_model").get("decode_fn")
  if mode == "infer" and run.get("model_type") != "lm" and function_name(decode) == (
      "mesh_tensorflow.transformer.utils.decode_from_dataset"):
    raise checks.Error(
        f"`infer_model.decode_fn` is @decode_from_dataset, but `{_RUN}.model_type` is "
        f"{run.get('model_type')!r}, and Mesh TensorFlow decodes tasks with 'lm' only; "
        "use eval.gin, which also writes predictions, or infer.gin on a file.")


def _check_steps(run, mode, model_dir):
  """Checks that there are checkpoints, and one only in a mode that scores with one."""
  name = f"{'export' if mode.startswith('export') else 'eval'}_checkpoint_step"
  asked = run.get(name)
  several = isinstance(asked, (list, tuple))
  if several or isinstance(asked, int):
    checkpoints.of_steps(model_dir, asked, f"`{_RUN}.{name}`")
  count = len(checkpoints.find(model_dir)) if asked == "all" else (
      len(set(asked)) if several else 1)
  if mode in scoring.MODES and count > 1:
    raise checks.Error(
        f"`{_RUN}.eval_checkpoint_step` is {asked!r}, but `{_RUN}.mode` is {mode!r} "
        "and scores with one checkpoint; bind its step, or -1 for the latest.")


def check_beams(config: gin_internals.Config, model_type: str,
                names: tuple[str, str] = ("Bitransformer.decode.beam_size",
                                          "Bitransformer.decode.temperature")) -> None:
  """Checks that beam search has no temperature.

  Args:
    config: gin's configuration.
    model_type: as in `utils.run`; only models with an encoder have beams.
    names: the names of the beam size and of the temperature in the message.

  Raises:
    ValueError: there are several beams and a temperature.
  """
  bound = {name: resolved(config, value) for name, value in config.get(
      ("", "Bitransformer.decode"), {}).items()}
  beams, temperature = bound.get("beam_size", 1), bound.get("temperature", 0.0)
  if model_type in _BEAMS and not any(map(is_reference, (beams, temperature))) and (
      beams > 1 and temperature):
    raise checks.Error(
        f"`{names[1]}` is {temperature!r} but `{names[0]}` is {beams!r}, and beam "
        f"search has no temperature; set `{names[1]}` to 0.0, or `{names[0]}` to 1.")


def _classifier(config):
  """The class that replaces the encoder-decoder, or None."""
  return parameters(config, "transformer.make_bitransformer").get("bitransformer_cls")


def _is_classifier(chosen):
  if is_reference(chosen):
    chosen = chosen.configurable.wrapped
  return inspect.isclass(chosen) and issubclass(chosen, EncoderClassifier)


def _check_classes(task, features, classifier):
  """Checks that a classifier's targets are classes, not text."""
  inputs, targets = (features.get(key) for key in ("inputs", "targets"))
  if _is_classifier(classifier) and (
      inputs is None or targets.vocabulary == inputs.vocabulary):
    raise checks.Error(
        f"`make_bitransformer.bitransformer_cls` is a classifier, but the targets of "
        f"{task!r} are text; leave out classifier.gin, or choose a task of classes, "
        "whose name ends in _encoder.")


def _check_gpus(devices):
  """Checks this process's GPUs; other processes', as /job:worker/gpu:0, are unknown."""
  if devices is None or is_reference(devices):
    return
  found = [re.fullmatch(r"/?(device:)?gpu:(\d+)", each.lower()) for each in devices]
  if not any(found):
    return
  count = len(tf.config.list_physical_devices("GPU"))
  for match in filter(None, found):
    if int(match[2]) >= count:
      raise checks.Error(
          f"`{_RUN}.mesh_devices` names {match[0]!r}, but TensorFlow finds {count} "
          "GPUs here; install '.[gpu]' and NVIDIA's driver, or take cpu.gin in the "
          "place of gpu.gin.")


def _check_files(config, mode):
  """Checks the files that a mode reads and writes, except those of tasks."""
  if mode == "train" and data_checks.data_function(config) == data_checks.TSV:
    value_checks.check_pairs("tsv_dataset_fn.filename", resolved(
        config, config.get(("", data_checks.TSV), {}).get("filename")))
  decoding, scoring = (parameters(config, each) for each in (
      "utils.decode_from_file", "utils.score_from_strings"))
  if mode == "infer" and decoding.get("input_filename"):
    value_checks.check_lines("input_filename", decoding["input_filename"])
    value_checks.check_output("output_filename", decoding.get("output_filename"))
  if mode == "score_from_strings" and isinstance(scoring.get("targets"), str):
    check_scored_texts(config, scoring.get("inputs"), scoring["targets"],
                       ("inputs_filename", "targets_filename"))
  if mode.startswith("export"):
    value_checks.check_output(f"{_RUN}.export_path", parameters(config, _RUN).get(
        "export_path"), folder=True)


def check_scored_texts(
    config: gin_internals.Config, inputs: Sequence[str] | str | None,
    targets: Sequence[str] | str, names: Sequence[str]) -> None:
  """Checks texts to score, lists of them or paths of files with their lines.

  Args:
    config: the parsed bindings.
    inputs: the texts of the inputs, or None.
    targets: those of the targets.
    names: the names of both.

  Raises:
    ValueError: inputs have different numbers of targets, or the model is a classifier.
  """
  if _is_classifier(_classifier(config)):
    raise checks.Error(
        f"`{names[1]}` is {targets!r}, which Mesh TensorFlow reads with the vocabulary "
        "of the inputs, but the targets of a classifier are classes; score a task with "
        "score_from_task.gin, or decode with as many answers as there are classes "
        "(`synthesizer_answers.number`), each with its score.")
  (lines, count), (_, of_inputs) = (_counts(name, texts) for name, texts in (
      (names[1], targets), (names[0], inputs or [""])))
  if count == 1 < min(lines, of_inputs):
    raise checks.Error(
        f"`{names[1]}` is {targets!r}, whose last line is empty, which Mesh TensorFlow "
        f"leaves out, and one target would count for all {of_inputs} of `{names[0]}`; "
        "give the text of the line, or remove it.")
  # Mesh TensorFlow scores a single target for all inputs.
  if inputs and count != 1 and (not count or count % of_inputs):
    raise checks.Error(
        f"`{names[1]}` has {count} texts, which is not a multiple of the {of_inputs} "
        f"of `{names[0]}`; give each input the same number of targets.")


def _counts(name, texts):
  """The number of texts in a list, or of the lines of a file; and what Mesh reads."""
  if not isinstance(texts, str):
    return len(texts), len(texts)
  return value_checks.check_lines(name, texts), len(utils.get_inputs_from_file(texts))


def _check_division(config, run):
  """Checks that sizes split by the layout are multiples of the mesh dimensions."""
  shape, rules = run.get("mesh_shape"), run.get("layout_rules")
  if shape is None or rules is None or any(map(is_reference, (shape, rules))):
    return
  shape, rules = mtf.convert_to_shape(shape), mtf.convert_to_layout_rules(rules)
  for dimension, name, size in (
      ("batch", f"{_RUN}.batch_size", run.get("batch_size")),
      ("d_ff", "d_ff", macro(config, "d_ff")),
      ("heads", "num_heads", macro(config, "num_heads"))):
    if isinstance(size, int):
      splits.check_division(name, mtf.Dimension(dimension, size), rules, shape)


def _check_outer_batch(config, run):
  """Checks that Mesh TensorFlow can split the batch into outer batches."""
  outer = parameters(config, "utils.tpu_estimator_model_fn").get("outer_batch_size")
  size = run.get("batch_size")
  if outer is None or not isinstance(size, int):
    return
  parameter = "utils.tpu_estimator_model_fn.outer_batch_size"
  checks.check_whole(parameter, outer)
  if size % outer:
    raise checks.Error(
        f"`{parameter}` is {outer}, which does not divide `{_RUN}.batch_size`, {size}; "
        "change one of them.")


def _check_train_steps(run, model_dir):
  """Checks the number of steps, which includes steps already trained."""
  steps, start = run.get("train_steps"), run.get("init_checkpoint")
  led = checkpoints.branch(model_dir)
  done = checkpoints.step_of(led[-1]) if led else None
  if isinstance(steps, int) and done is not None and steps < done:
    raise checks.Error(
        f"`{_RUN}.train_steps` is {steps} but the model in --model_dir "
        f"{model_dir!r} has been trained for {done} steps; raise it above "
        "these, or name another folder.")
  if not isinstance(start, str) or done is not None:
    return
  path = checkpoints.chosen(start) if tf.io.gfile.isdir(start) else start
  if path is None or not tf.train.checkpoint_exists(path):
    raise checks.Error(
        f"`{_RUN}.init_checkpoint` is {start!r}, but there is no such checkpoint; "
        "name one without its suffix, as in DIR/model.ckpt-1000.")
  trained = checkpoints.step_of(path)
  if isinstance(steps, int) and steps <= trained:
    raise checks.Error(
        f"`{_RUN}.train_steps` is {steps} but `{_RUN}.init_checkpoint` is "
        f"{start!r}, whose steps count; raise it above {trained}.")
  try:
    checkpoints.check(path)
  except checkpoints.DamagedError as error:
    raise checks.Error(f"`{_RUN}.init_checkpoint` is {start!r}, but {error}; copy the "
                       "checkpoint again, or name another.") from error

