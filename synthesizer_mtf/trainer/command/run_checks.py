"""The table of runs: what parameters, files and checkpoints have to be together.

Here a new check is a new row of `ROWS`: when it is looked at, in which modes, and a
function of a `Run`. value_checks.py has the checks of single values.
"""

from collections.abc import Callable
from collections.abc import Mapping
import inspect
import re
from typing import Any
from typing import NamedTuple

from absl import flags
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
from synthesizer_mtf.trainer.checkpoints import branches
from synthesizer_mtf.trainer.checkpoints import complete
from synthesizer_mtf.trainer.checkpoints import warm_start
from synthesizer_mtf.trainer.command import value_checks
from synthesizer_mtf.trainer.data import data_checks
from synthesizer_mtf.trainer.data import file_checks
from synthesizer_mtf.trainer.model import answers
from synthesizer_mtf.trainer.model import jax_runtime
from synthesizer_mtf.trainer.model import scoring
import tensorflow.compat.v1 as tf

_TASK = "--gin_param=\"MIXTURE_NAME = 'TASK'\", with the name of a task"
_PLACEHOLDER = "glue_v002_proportional"  # "Override these values", says T5's file.
# Mesh TensorFlow's values of the sizes that every model file of T5 binds.
_SIZES = {"num_layers": 6, "d_model": 1024, "d_ff": 4096, "num_heads": 8, "d_kv": 128}
_BEAMS = ("bitransformer", "bi_teacher_student", "bi_student_teacher")


class Run(NamedTuple):
  """What is checked before it begins.

  Attributes:
    when: "gin" once gin is parsed, "command" before the command runs, "new" when an
      `MtfModel` is made, "method" when one of its methods runs.
    mode: of `utils.run`; trainings by other data than tasks are "train_tsv", by T5's
      function for TSV files, and "train_others".
    values: the parameters of `utils.run`, by their names.
    task: the name of a task or mixture.
    config: gin's configuration.
    model_dir: the folder of the model.
    vocabulary: that of texts to score, or a tuple of those of inputs and targets.
    texts: inputs and targets to score, each a list of texts or the path of a file.
  """
  when: str
  mode: str
  values: dict[str, Any]
  task: Any = None
  config: gin_internals.Config = {}
  model_dir: str = ""
  vocabulary: Any = None
  texts: tuple[Any, Any] = (None, None)

  def get(self, name: str, default: Any = None) -> Any:
    """The value of a parameter of `utils.run`; the default for a reference, too."""
    value = self.values.get(name, default)
    return default if is_reference(value) else value

  @property
  def features(self) -> Mapping[str, seqio.Feature]:
    """The output features of the task; none of an unknown one."""
    return (seqio.get_mixture_or_task(self.task).output_features
            if data_checks.is_known(self.task) else {})

  @property
  def vocabularies(self) -> tuple[seqio.Vocabulary, ...]:
    """Those of the inputs and the targets, as far as the task has them."""
    return tuple(self.features[name].vocabulary for name in ("inputs", "targets")
                 if name in self.features)

  @property
  def reads_text(self) -> bool:
    """Whether it trains on a task, or evaluates its outputs."""
    return self.mode in ("train", "eval") and data_checks.is_known(self.task)

  @property
  def split(self) -> Any:
    return self.get("dataset_split", "train")

  @property
  def model_type(self) -> Any:
    return self.get("model_type", "bitransformer")


def bound_run(when: str, config: gin_internals.Config, model_dir: str = "") -> Run:
  """The `Run` that gin describes."""
  values = parameters(config, "utils.run")
  mode = "train" if is_reference(values.get("mode")) else values.get("mode", "train")
  if mode == "train":
    kinds = {data_checks.TASKS: "train", data_checks.TSV: "train_tsv"}
    mode = kinds.get(data_checks.data_function(config) or "", "train_others")
  texts = parameters(config, "utils.score_from_strings")
  return Run(when, mode, values, macro(config, "MIXTURE_NAME"), config, model_dir,
             texts=(texts.get("inputs"), texts.get("targets")))


def _name(parameter):
  """What messages call a parameter of `utils.run`."""
  return checks.called(f"utils.run.{parameter}")


def _has_devices(run):
  shape = str(run.values.get("mesh_shape"))
  if "tpu_mesh_shape" not in shape or parameters(
      run.config, "utils.tpu_mesh_shape").get("tpu_topology"):
    return
  if flags.FLAGS.tpu:
    raise checks.Error("--tpu is given, but `utils.tpu_mesh_shape.tpu_topology` is "
                       "missing; bind it, as in '2x2' for eight cores.")
  raise checks.Error("No device is named; add --gin_file=cpu.gin after the "
                     "model file, or gpu.gin, or give --tpu and a topology.")


def _has_data(run):
  if not run.values.get("train_dataset_fn"):
    raise checks.Error("There are no data to train on; add --gin_file=dataset.gin and "
                       f"{_TASK}.")


def _has_own_task(run):
  """The user overrides the placeholder task of T5's dataset.gin.

  Without a task, as with T5's `tsv_dataset_fn`, the placeholder gives the vocabulary of
  T5's models.
  """
  if run.task != _PLACEHOLDER or complete.find(run.model_dir):
    return
  given = [*(flags.FLAGS.gin_param or ()), *map(_text, flags.FLAGS.gin_file or ())]
  if not any(_PLACEHOLDER in text for text in given):
    raise checks.Error(f"`MIXTURE_NAME` is missing; add {_TASK}, such as "
                       "'synth_text_pairs' for pairs of your own.")


def _text(path):
  """The text of a user's file; files of packages are not searched here."""
  if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
    return ""
  with tf.io.gfile.GFile(path) as f:
    return f.read()


def _has_model(run):
  """Each model file binds `model_type`, or sizes that differ from Mesh TensorFlow's."""
  sizes = {name: macro(run.config, name) for name in _SIZES}
  if sizes == _SIZES and not run.values.get("model_type") and not complete.find(
      run.model_dir):
    raise checks.Error(
        "There is no model file, and Mesh TensorFlow's own sizes are 206 million "
        "parameters; add --gin_file=models/laptop.gin for a small model, or bind "
        "`utils.run.model_type` = 'bitransformer' for these sizes.")


def _has_lengths(run):
  if not run.values.get("sequence_length"):
    raise checks.Error("`utils.run.sequence_length` is missing; bind it, as in "
                       "{'inputs': 512, 'targets': 114}.")


def _trains_on_its_split(run):
  if run.split != "train":
    raise checks.Error(
        f"`utils.run.dataset_split` is {run.split!r} but a model trains on 'train'; "
        "leave it out, or bind `utils.run.mode`, for example by eval.gin.")


def _devices_fit_mesh(run):
  """Each part of the mesh has one device; TPUs have their own devices."""
  devices, shape = run.get("mesh_devices"), run.get("mesh_shape")
  if shape is None:
    return
  mesh_shape = mtf.convert_to_shape(shape)
  if any(size < 1 for size in mesh_shape.to_integer_list):
    raise checks.Error(f"`{_name('mesh_shape')}` is {shape!r}, but each size must "
                       "be at least 1; write it as 'model:2,batch:4'.")
  size = mesh_shape.size
  if devices is not None and len(devices) != size:
    raise checks.Error(
        f"`{_name('mesh_devices')}` names {len(devices)} devices, {devices!r}, but "
        f"`{_name('mesh_shape')}` is {shape!r} and needs {size}; name one for "
        "each part of the mesh, or change its shape.")


def _sizes_fit_mesh(run):
  """Sizes split by the layout are multiples of the mesh dimensions."""
  shape, rules = run.get("mesh_shape"), run.get("layout_rules")
  if shape is None or rules is None:
    return
  shape, rules = mtf.convert_to_shape(shape), mtf.convert_to_layout_rules(rules)
  for dimension, name, size in (
      ("batch", _name("batch_size"), run.get("batch_size")),
      ("d_ff", "d_ff", macro(run.config, "d_ff")),
      ("heads", "num_heads", macro(run.config, "num_heads"))):
    if isinstance(size, int):
      splits.check_division(name, mtf.Dimension(dimension, size), rules, shape)


def _outer_batches_fit(run):
  """Mesh TensorFlow can split the batch into outer batches."""
  outer = parameters(run.config, "utils.tpu_estimator_model_fn").get("outer_batch_size")
  size = run.get("batch_size")
  if outer is None or not isinstance(size, int):
    return
  parameter = "utils.tpu_estimator_model_fn.outer_batch_size"
  checks.check_whole(parameter, outer)
  if size % outer:
    raise checks.Error(
        f"`{parameter}` is {outer}, which does not divide `utils.run.batch_size`, "
        f"{size}; change one of them.")


def _gpus_exist(run):
  """This process has its GPUs; other processes', as /job:worker/gpu:0, are unknown."""
  if jax_runtime.chosen()[0] == "jax":  # Which looks for its devices itself.
    return
  gpus = [re.fullmatch(r"/?(device:)?gpu:(\d+)", device.lower())
          for device in run.get("mesh_devices") or ()]
  count = len(tf.config.list_physical_devices("GPU")) if any(gpus) else 0
  for gpu in filter(None, gpus):
    if int(gpu[2]) >= count:
      raise checks.Error(
          f"`utils.run.mesh_devices` names {gpu[0]!r}, but TensorFlow finds {count} "
          "GPUs here; install '.[gpu]' and NVIDIA's driver, or take cpu.gin in the "
          "place of gpu.gin.")


def _classes_have_a_classifier(run):
  ours = isinstance(run.task, str) and re.fullmatch("synth_.*_encoder", run.task)
  if ours and _classifier(run.config) is None:
    raise checks.Error(
        f"`MIXTURE_NAME` is {run.task!r}, whose targets are classes, but the model "
        "is not a classifier; add --gin_file=classifier.gin after the model file, "
        f"or choose {run.task[:-len('_encoder')]!r}.")


def _classifier(config):
  """The class that replaces the encoder-decoder, or None."""
  return parameters(config, "transformer.make_bitransformer").get("bitransformer_cls")


def _is_classifier(config):
  chosen = _classifier(config)
  if is_reference(chosen):
    chosen = chosen.configurable.wrapped
  return inspect.isclass(chosen) and issubclass(chosen, EncoderClassifier)


def _classifier_has_classes(run):
  features = run.features
  if "targets" in features and _is_classifier(run.config) and (
      "inputs" not in features or
      features["targets"].vocabulary == features["inputs"].vocabulary):
    raise checks.Error(
        "`make_bitransformer.bitransformer_cls` is a classifier, but the targets of "
        f"{run.task!r} are text; leave out classifier.gin, or choose a task of "
        "classes, whose name ends in _encoder.")


def _vocabularies_fit_embedding(run):
  """An embedding of inputs and targets needs vocabularies of one (rounded) size."""
  vocabularies = run.vocabularies
  if not vocabularies or vocabularies[0] == vocabularies[-1]:
    return  # It is not read here: it may be far away.
  divisor = parameters(run.config, "transformer.Unitransformer").get(
      "vocab_divisor", 128)
  sizes = [vocabulary.vocab_size for vocabulary in vocabularies]
  shared = parameters(run.config, "transformer.Bitransformer").get(
      "shared_embedding", True)
  rounded = {-(-size // divisor) for size in sizes}
  if shared is True and len(rounded) > 1 and run.model_type == "bitransformer" and (
      _classifier(run.config) is None):
    raise checks.Error(
        "`Bitransformer.shared_embedding` is True, but the vocabularies of "
        f"{run.task!r} have {sizes[0]} ids for inputs and {sizes[1]} "
        "for targets; bind `Bitransformer.shared_embedding = False`.")


def _has_task(run):
  if run.task == "":  # The launcher has checked others.
    data_checks.check_task(run.task)


def _has_texts(run):
  if not is_reference(run.values.get("model_type")):
    data_checks.check_features(run.task, run.model_type, run.mode)


def _texts_have_one_vocabulary(run):
  vocabulary = run.vocabulary
  if run.when == "command":
    vocabulary = run.vocabularies
  if run.texts[1] is not None and vocabulary:
    data_checks.check_one_vocabulary(vocabulary, checks.called("targets_filename"))


def _trains_further(run):
  """The number of steps is above that of steps already trained, which it includes."""
  steps, start = run.values.get("train_steps"), run.values.get("init_checkpoint")
  led = branches.branch(run.model_dir)
  done = complete.saved_step(led[-1]) if led else None
  if isinstance(steps, int) and done is not None and steps < done:
    raise checks.Error(
        f"`utils.run.train_steps` is {steps} but the model in --model_dir "
        f"{run.model_dir!r} has been trained for {done} steps; raise it above "
        "these, or name another folder.")
  if not isinstance(start, str) or done is not None:
    return
  trained = complete.saved_step(
      warm_start.find_checkpoint(start, "utils.run.init_checkpoint"))
  if isinstance(steps, int) and steps <= trained:
    raise checks.Error(
        f"`utils.run.train_steps` is {steps} but `utils.run.init_checkpoint` is "
        f"{start!r}, whose steps count; raise it above {trained}.")


def _steps_exist(run):
  """There are checkpoints, and one only in a mode that scores with one."""
  exports = run.mode.startswith("export")
  name = f"{'export' if exports else 'eval'}_checkpoint_step"
  asked = run.values.get(name)
  if not exports and asked is None:
    return
  if not complete.find(run.model_dir):
    raise checks.Error(
        f"--model_dir is {run.model_dir!r}, where there is no checkpoint, but "
        f"`utils.run.mode` is {run.mode!r}; name the folder of a trained model.")
  several = isinstance(asked, (list, tuple))
  if several or isinstance(asked, int):
    complete.at_steps(run.model_dir, asked, f"`utils.run.{name}`")
  count = len(complete.find(run.model_dir)) if asked == "all" else (
      len(set(asked)) if several else 1)
  if run.mode in scoring.MODES and count > 1:
    raise checks.Error(
        f"`utils.run.eval_checkpoint_step` is {asked!r}, but `utils.run.mode` is "
        f"{run.mode!r} and scores with one checkpoint; bind its step, or -1 for the "
        "latest.")


def _reads_unpacked_rows(run):
  method = "eval" if run.mode in ("eval", "score_eval") else "score"
  data_checks.check_unpacked(f"`MtfModel.{method}` needs" if run.when == "method"
                             else f"mode {run.mode!r} needs")


def _beams_have_no_temperature(run):
  """Only models with an encoder have beams."""
  decode = {name: resolved(run.config, value) for name, value in run.config.get(
      ("", "Bitransformer.decode"), {}).items()}
  beams, temperature = decode.get("beam_size", 1), decode.get("temperature", 0.0)
  if run.model_type in _BEAMS and not any(map(is_reference, (beams, temperature))) and (
      beams > 1 and temperature):
    of_beams, of_temperature = (checks.called(f"Bitransformer.decode.{name}")
                                for name in ("beam_size", "temperature"))
    raise checks.Error(
        f"`{of_temperature}` is {temperature!r} but `{of_beams}` is {beams!r}, and "
        f"beam search has no temperature; set `{of_temperature}` to 0.0, or "
        f"`{of_beams}` to 1.")


def _decodes_no_task(run):
  """T5's infer_from_task.gin has a language model, which Mesh demands."""
  decode = parameters(run.config, "utils.infer_model").get("decode_fn")
  model_type = run.values.get("model_type")
  if model_type != "lm" and function_name(decode) == (
      "mesh_tensorflow.transformer.utils.decode_from_dataset"):
    raise checks.Error(
        "`infer_model.decode_fn` is @decode_from_dataset, but `utils.run.model_type` "
        f"is {model_type!r}, and Mesh TensorFlow decodes tasks with 'lm' only; "
        "use eval.gin, which also writes predictions, or infer.gin on a file.")


def _has_lines(run):
  files = parameters(run.config, "utils.decode_from_file")
  if files.get("input_filename"):
    file_checks.check_lines("input_filename", files["input_filename"])
    file_checks.check_output("output_filename", files.get("output_filename"))


def _texts_fit(run):
  """Each input has as many targets, and the model is no classifier."""
  inputs, targets = run.texts
  if targets is None or is_reference(targets):
    return
  of_inputs, of_targets = (checks.called(f"{name}_filename")
                           for name in ("inputs", "targets"))
  if _is_classifier(run.config):
    raise checks.Error(
        f"`{of_targets}` is {targets!r}, which Mesh TensorFlow reads with the "
        "vocabulary of the inputs, but the targets of a classifier are classes; score "
        "a task with score_from_task.gin, or decode with as many answers as there are "
        "classes (`synthesizer_answers.number`), each with its score.")
  (lines, count), (_, wanted) = _counts(of_targets, targets), _counts(
      of_inputs, inputs or [""])
  if count == 1 < min(lines, wanted):
    raise checks.Error(
        f"`{of_targets}` is {targets!r}, whose last line is empty, which Mesh "
        f"TensorFlow leaves out, and one target would count for all {wanted} of "
        f"`{of_inputs}`; give the text of the line, or remove it.")
  # Mesh TensorFlow scores a single target for all inputs.
  if inputs and count != 1 and (not count or count % wanted):
    raise checks.Error(
        f"`{of_targets}` has {count} texts, which is not a multiple of the {wanted} "
        f"of `{of_inputs}`; give each input the same number of targets.")


def _counts(name, texts):
  """The number of texts in a list, or of the lines of a file; and what Mesh reads."""
  if not isinstance(texts, str):
    return len(texts), len(texts)
  return file_checks.check_lines(name, texts), len(utils.get_inputs_from_file(texts))


_NEW = {"new"}
_TRAINS = {"train", "train_tsv", "train_others"}
_EVALUATES = {"eval", "score_eval"}
_SCORES = {"score_from_dataset"}
_READS_TASK = {"train", "perplexity_eval", *_EVALUATES, *_SCORES}
_RUNS = {*value_checks.MODES, *_TRAINS}

# Columns: when it is looked at, in which modes, and the check. In this order.
ROWS: list[tuple[str, set[str], Callable[[Run], Any]]] = [
    ("gin", _TRAINS, _trains_on_its_split),
    ("gin method new", _RUNS | _NEW, _devices_fit_mesh),
    ("gin", _RUNS, _classes_have_a_classifier),
    ("command", _RUNS, _has_devices),
    ("command", _TRAINS, _has_data),
    ("command", {"train"}, _has_own_task),
    ("command", _TRAINS, _has_model),
    ("command", _RUNS - _EVALUATES, _has_lengths),
    ("command", _READS_TASK, _has_task),
    ("command", _RUNS, lambda run: data_checks.check_vocabularies(
        run.task, run.features)),
    ("command method", {"score_from_strings"}, _texts_have_one_vocabulary),
    ("command method", _RUNS, lambda run: data_checks.check_lengths(
        run.get("sequence_length"), run.task, run.features)),
    ("command method", _RUNS, _classifier_has_classes),
    ("command method", _RUNS, _vocabularies_fit_embedding),
    ("command method", {"train"}, lambda run: data_checks.check_cached(run.task)),
    ("command method new", _RUNS | _NEW, _sizes_fit_mesh),
    ("command method", _RUNS, _outer_batches_fit),
    ("command method", _RUNS, _gpus_exist),
    ("command", _TRAINS, _trains_further),
    ("command", _RUNS - _TRAINS, _steps_exist),
    ("command method", _EVALUATES | _SCORES, _reads_unpacked_rows),
    ("command method", _READS_TASK - {"train"}, lambda run: data_checks.check_split(
        run.task, run.split)),
    ("command method", _RUNS, lambda run: data_checks.check_metrics(run.task, {
        "eval": "predictions", "score_eval": "scores"}.get(run.mode))),
    ("command method", _READS_TASK, _has_texts),
    ("command method", {"train"}, lambda run: data_checks.check_rates(run.task)),
    ("command", _EVALUATES, lambda run: file_checks.check_output(
        "--model_dir", parameters(run.config, "utils.eval_model").get(
            "eval_summary_dir") or run.model_dir, folder=True)),
    ("command method", {"eval", "infer", "export_infer", "export"},
     _beams_have_no_temperature),
    ("command", _RUNS, lambda run: answers.warn_of_unused(run.mode)),
    ("command", {"infer"}, _decodes_no_task),
    ("command", {"infer"}, _has_lines),
    ("command", {"train_tsv"}, lambda run: file_checks.check_pairs(
        "tsv_dataset_fn.filename", resolved(run.config, run.config.get(
            ("", data_checks.TSV), {}).get("filename")))),
    ("command method", {"score_from_strings"}, _texts_fit),
    ("command", {"export", "export_infer", "export_score"}, lambda run:
     file_checks.check_output("utils.run.export_path", run.values.get("export_path"),
                              folder=True)),
]


def check(run: Run) -> None:
  """Raises a ValueError for the first row that a run does not fit."""
  for when, modes, check_run in ROWS:
    if run.when in when.split() and run.mode in modes:
      check_run(run)


@gin.config.register_finalize_hook
def check_gin(config: gin_internals.Config) -> None:
  """Raises a ValueError for the first wrong parameter."""
  value_checks.check(config)
  check(bound_run("gin", config))


def evaluated(run: Run) -> dict[str, str]:
  """What a run evaluates, as `data_checks.read_by`; nothing in other modes.

  Without a split, the log warns that Mesh TensorFlow takes that of the training.
  """
  if run.mode not in _READS_TASK - {"train"} or is_reference(
      run.values.get("dataset_split")):
    return {}
  if "dataset_split" not in run.values:
    logging.warning(
        "`utils.run.dataset_split` is not bound, so that the split 'train' is "
        "evaluated, by default; bind it to another one, such as 'validation'.")
  return data_checks.read_by(run.task, run.split)
