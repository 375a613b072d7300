"""What this package changes in other packages while they run: all of it.

Whatever changes Mesh TensorFlow, T5, seqio, TensorFlow or its Estimator, for
good or for a while, is an entry of `REGISTER` and is done by a function of this
module. Not listed is what these packages offer for the purpose: registering
with gin and seqio, gin's search path, the verbosity of logs and TensorFlow's
version 1 behavior, which T5's own command sets as well.

It imports nothing but the standard library, for `compat` needs it first.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import MutableMapping
import contextlib
from typing import Any
from typing import NamedTuple

# Where a replacement keeps the keys of the patches in it. `functools.wraps`
# copies it to whatever others wrap around the replacement.
_MARK = "_synthesizer_mtf_patches"


class Patch(NamedTuple):
  """One change.

  Attributes:
    owner: what is changed, or whose instances are, as "MODULE" or
      "MODULE:CLASS".
    name: of its attribute, or the key in a mapping.
    what: what is different.
    why: why it has to be.
    until: which change elsewhere makes it unnecessary.
  """
  owner: str
  name: str
  what: str
  why: str
  until: str


_MESH = "mesh_tensorflow.transformer.utils"
_MTF_MODEL = "t5.models.mtf_model:MtfModel"
_ESTIMATOR = "tensorflow_estimator.python.estimator.estimator:Estimator"
_EXPORT = "tensorflow.python.util.tf_export"
_NO_ESTIMATOR = "mesh_tensorflow trains without an Estimator"

REGISTER = {
    # compat.py
    "TF_CPP_MIN_LOG_LEVEL": Patch(
        "os:environ", "TF_CPP_MIN_LOG_LEVEL",
        "is 2 unless the user has set it",
        "TensorFlow prints notices at each start, before any message of ours",
        "TensorFlow starts without notices"),
    "standard error": Patch(
        "os", "dup2",
        "standard error passes through a filter, while TensorFlow is imported",
        "some notices are printed whatever TF_CPP_MIN_LOG_LEVEL says",
        "TensorFlow starts without notices"),
    "NO_GCE_CHECK": Patch(
        "os:environ", "NO_GCE_CHECK",
        "is true outside Google's machines, unless the user has set it",
        "at each look into cloud storage TensorFlow asks Google's metadata "
        "server for credentials, and without an answer tries for seconds",
        "TensorFlow remembers that there is no such server"),
    "pkg_resources": Patch(
        "warnings", "filterwarnings",
        "the notice that pkg_resources is deprecated is ignored",
        "t5 and mesh_tensorflow import it, about which no user can do anything",
        "both read their files by importlib.resources"),
    "register_tensor_conversion_function": Patch(
        "tensorflow.python.framework.ops", "register_tensor_conversion_function",
        "is there again",
        "mesh_tensorflow calls it there, and TensorFlow has moved it to "
        "tensor_conversion_registry",
        "mesh_tensorflow calls it where it is"),
    "hf_model": Patch(
        "sys:modules", "t5.models.hf_model",
        "is a stand-in where torch is not installed",
        "t5.models imports it, and it imports torch, which Mesh never uses",
        "t5.models imports it only where torch is installed"),
    "write_lines_to_file": Patch(
        _MESH, "write_lines_to_file",
        "decodes bytes first",
        "decode_from_file hands it bytes, which it writes as b'M\\xc3\\xbcnchen'",
        "mesh_tensorflow decodes what it writes"),
    "export_model": Patch(
        _MESH, "export_model",
        "encodes the inputs of a language model by the next entry",
        "the exported model would go on after an end of sequence, and mode "
        "infer continues the inputs themselves",
        "mesh_tensorflow's export encodes them as its mode infer does"),
    "encode_all_features": Patch(
        "mesh_tensorflow.transformer.dataset", "encode_all_features",
        "leaves out the end of sequence, while a language model is exported",
        "export_model calls it, and takes no other function",
        "as export_model"),
    # stack.py
    "layer_stack_cls": Patch(
        "mesh_tensorflow.transformer.transformer:make_layer_stack", "__defaults__",
        "layer_stack_cls is by default what synthesizer_stack.attention asks for",
        "gin's finalize hooks run in T5's command, but neither in T5's MtfModel "
        "nor in notebooks",
        "make_layer_stack takes a function of gin's for each layer"),
    "make_layer_stack": Patch(
        "mesh_tensorflow.transformer.transformer", "make_layer_stack",
        "raises if another class of stacks is bound than that of the choice",
        "make_bitransformer can be called without build_model and finalize hooks, "
        "and the attention that is bound would not be used",
        "as layer_stack_cls"),
    "build_model": Patch(
        _MESH, "build_model",
        "raises if an attention is bound which no stack of the model has",
        "the model would be trained with another attention, in silence",
        "gin tells which bindings were not used"),
    # vocabulary.py
    "cls": Patch(
        "mesh_tensorflow.transformer.transformer:get_vocab_embedding_cls",
        "__defaults__",
        "is by default our TokenEmbedding, where an attention is chosen by gin",
        "Mesh looks a token up as a product with one-hot rows of the vocabulary",
        "Mesh gathers rows"),
    "softmax_cross_entropy_with_logits": Patch(
        "mesh_tensorflow.layers", "softmax_cross_entropy_with_logits",
        "takes ids as they are, where such an embedding is used",
        "it writes one-hot targets and several tensors as large as the logits",
        "Mesh has a cross entropy of ids"),
    # optimizer.py
    "apply_grad": Patch(
        "mesh_tensorflow.optimize:AdafactorOptimizer", "apply_grad",
        "computes the same in few passes, where an attention is chosen by gin and "
        "the variable is not split",
        "it writes about ten tensors as large as the variable",
        "Mesh's Adafactor reads a variable a few times only"),
    # model_api.py
    "estimator": Patch(
        _MTF_MODEL, "estimator",
        "lets extra_gin_bindings win, checks them, and maps the variables of "
        "another attention",
        "bindings in a scope, as operative_config.gin has them, win in gin over "
        "those without; T5 starts only variables of the same name",
        "MtfModel checks gin, and takes a mapping of names"),
    "train": Patch(
        _MTF_MODEL, "train",
        "says that utils.run.train_model_fn is not used, and prepares the schedule "
        "of the next entry",
        "the first would be dropped in silence",
        "MtfModel.train uses it"),
    "learning rate": Patch(
        _MTF_MODEL, "_learning_rate_schedule",
        "is given total_train_steps, if it is a function that wants them",
        "T5's default, learning_rate_schedule_noam, fails without",
        "MtfModel hands them on, as utils.run does"),
    "eval": Patch(
        _MTF_MODEL, "eval",
        "makes the folder of the results",
        "T5 writes into it before anything makes it, which fails but in cloud "
        "storage",
        "T5 makes it"),
    "finetune": Patch(
        _MTF_MODEL, "finetune",
        "also takes its arguments by the names steps and checkpoint_steps",
        "T5's --use_model_api hands them over by these names, and fails",
        "T5's main calls finetune by the names of its parameters"),
    "_parse_operative_config": Patch(
        "t5.models.mtf_model", "_parse_operative_config",
        "keeps the attention and the warm start that were asked for before",
        "operative_config.gin, which MtfModel loads, would replace them",
        "MtfModel loads it first"),
    # estimator_shim.py
    "ESTIMATOR_API_NAME": Patch(
        _EXPORT, "ESTIMATOR_API_NAME",
        "is there again, where TensorFlow has no Estimator",
        "the Estimator's decorators name what they export by it, and all of "
        "mesh_tensorflow's training is done by a TPUEstimator",
        _NO_ESTIMATOR),
    "API_ATTRS": Patch(
        _EXPORT + ":API_ATTRS", "estimator",
        "as ESTIMATOR_API_NAME", "as ESTIMATOR_API_NAME", _NO_ESTIMATOR),
    "API_ATTRS_V1": Patch(
        _EXPORT + ":API_ATTRS_V1", "estimator",
        "as ESTIMATOR_API_NAME", "as ESTIMATOR_API_NAME", _NO_ESTIMATOR),
    "estimator_training": Patch(
        "sys:modules", "tensorflow.python.distribute.estimator_training",
        "is a stand-in for a deleted module, which says that Keras' coordinator "
        "does not run the training",
        "the Estimator imports it", _NO_ESTIMATOR),
    "tpu_embedding": Patch(
        "sys:modules", "tensorflow.python.tpu.tpu_embedding",
        "is a stand-in for a deleted module, with classes that do nothing",
        "the Estimator imports it, and T5 does not use it", _NO_ESTIMATOR),
    "tpu_embedding_gradient": Patch(
        "sys:modules", "tensorflow.python.tpu.tpu_embedding_gradient",
        "is a stand-in for a deleted module, and empty",
        "as tpu_embedding", _NO_ESTIMATOR),
    "session_support": Patch(
        "sys:modules", "tensorflow.python.tpu.session_support",
        "is a stand-in for a deleted module, with hooks that do nothing",
        "the Estimator shuts down the workers of TPUs by it", _NO_ESTIMATOR),
    "tf.compat.v1.estimator": Patch(
        "tensorflow.compat.v1", "estimator",
        "is that of the package tensorflow-estimator",
        "mesh_tensorflow and t5 read it there", _NO_ESTIMATOR),
    "tf.estimator": Patch(
        "tensorflow", "estimator",
        "as tf.compat.v1.estimator", "as tf.compat.v1.estimator", _NO_ESTIMATOR),
    "tpu_config": Patch(
        "sys:modules", "tensorflow.python.tpu.tpu_config",
        "is that of the package tensorflow-estimator",
        "mesh_tensorflow imports it", _NO_ESTIMATOR),
    "tpu_estimator": Patch(
        "sys:modules", "tensorflow.python.tpu.tpu_estimator",
        "is that of the package tensorflow-estimator",
        "mesh_tensorflow imports it", _NO_ESTIMATOR),
    # launcher.py
    "propagate": Patch(
        "logging:Logger", "propagate",
        "TensorFlow's logger does not hand its lines to absl's",
        "each line would be printed twice",
        "absl and TensorFlow share a logger"),
    # cluster.py
    "run": Patch(
        _MESH, "run",
        "leads or follows a job of several processes, while T5's main runs in "
        "a cluster",
        "T5's main calls it once gin is parsed, and starts no servers",
        "T5's main or Mesh's run starts the servers of TF_CONFIG"),
    # CarefulEstimator
    "get_estimator": Patch(
        _MESH, "get_estimator",
        "returns a CarefulEstimator, by the next entry",
        "it names the class of the estimator, and has no parameter for it",
        "it takes the class as a parameter"),
    "__class__": Patch(
        "tensorflow_estimator.python.estimator.tpu.tpu_estimator:TPUEstimator",
        "__class__",
        "becomes CarefulEstimator",
        "checkpoints are checked before they are used",
        "as get_estimator"),
    "get_checkpoint_iterator": Patch(
        _MESH, "get_checkpoint_iterator",
        "raises where there is no checkpoint, and skips torn ones",
        "it yields None for no checkpoint, which then fails elsewhere",
        "it yields complete checkpoints only"),
    "save": Patch(
        "tensorflow.python.training.saver:Saver", "save",
        "refuses a model that is not finite, and explains a failure",
        "Mesh makes the hook that saves, and takes no listeners for it",
        "utils.run takes listeners"),
    # seed.py
    "seed": Patch(
        _ESTIMATOR, "_config",
        "has tf_random_seed",
        "get_estimator makes the configuration, and takes no seed",
        "it takes one"),
    "random seeds": Patch(
        "mesh_tensorflow.placement_mesh_impl:PlacementMeshImpl", "random",
        "takes seeds from the names of operations, in train_with_seed",
        "it draws them in each process, so that dropout never is the same",
        "they follow from the seed of the graph"),
    "evaluation seed": Patch(
        "t5.models.mesh_transformer:mesh_eval_dataset_fn", "__defaults__",
        "seed is by default a number",
        "two evaluations of one checkpoint leave out other spans, and differ",
        "it is one in T5"),
    # summaries.py
    "save_summary_steps": Patch(
        _ESTIMATOR, "_config",
        "has save_summary_steps",
        "get_estimator makes the configuration, and does not pass this on",
        "it takes this parameter"),
    # warm_start.py
    "warm estimator": Patch(
        _MESH, "get_estimator",
        "returns one that starts from warm_start.checkpoint, if bound",
        "whatever trains it, and whether or not gin is finalized",
        "as the next entry"),
    "warm start": Patch(
        _ESTIMATOR, "_model_fn",
        "adds a scaffold that assigns the variables of a checkpoint",
        "the Estimator has no hook between the model and its session, and its "
        "own warm start can neither cut nor pad variables",
        "Mesh takes an init_fn for its scaffold"),
    # tasks/cache.py
    "module_import": Patch(
        "absl.flags:FLAGS", "set_default",
        "seqio's flag --module_import is this package by default",
        "seqio's command knows only the tasks that a module registers",
        "its entry point takes the default as an argument"),
    "pipeline_options": Patch(
        "absl.flags:FLAGS", "set_default",
        "seqio's flag --pipeline_options names Beam's runner for one machine",
        "the DirectRunner of newer Beams first asks a web site for another runner",
        "seqio or Beam takes this one"),
    # tools/plan_pod
    "disable_control_flow_v2": Patch(
        "tensorflow.compat.v1", "disable_control_flow_v2",
        "it is off while a training step is lowered",
        "T5's trainer has it off, and the loop over microbatches is counted in "
        "the graph itself",
        "Mesh's trainer runs with version 2"),
    "enable_control_flow_v2": Patch(
        "tensorflow.compat.v1", "enable_control_flow_v2",
        "it is on again afterwards, if it was",
        "as disable_control_flow_v2",
        "as disable_control_flow_v2"),
    "mark_as_parsed": Patch(
        "absl.flags:FLAGS", "mark_as_parsed",
        "flags have their defaults in tools that parse their own",
        "Mesh's placement of cores reads a flag of its own",
        "it takes that as a parameter"),
    "logical_cores_per_chip": Patch(
        "absl.flags:FLAGS", "set_default",
        "Mesh's flag --logical_cores_per_chip is that of the planned chips",
        "Mesh's placement of cores reads a flag of its own",
        "it takes that as a parameter"),
}


def wrap(key: str, owner: Any, make: Callable[[Any], Any]) -> None:
  """Replaces a function of `owner` for good; once is enough.

  Args:
    key: of `REGISTER`, which gives the name of the function.
    owner: a module, or an object.
    make: a function from the original to its replacement.
  """
  name = REGISTER[key].name
  original = getattr(owner, name)
  if is_applied(key, original):
    return
  replacement = make(original)
  setattr(replacement, _MARK, {*getattr(original, _MARK, ()), key})
  setattr(owner, name, replacement)


@contextlib.contextmanager
def wrapped(key: str, owner: Any, make: Callable[[Any], Any]) -> Iterator[None]:
  """As `wrap`, in its `with` block only."""
  name = REGISTER[key].name
  original = getattr(owner, name)
  wrap(key, owner, make)
  try:
    yield
  finally:
    setattr(owner, name, original)


def is_applied(key: str, function: Any) -> bool:
  """Whether our replacement is in a function, or in one that it wraps."""
  while function is not None:
    if key in getattr(function, _MARK, ()):
      return True
    function = getattr(function, "__wrapped__", None)
  return False


def assign(key: str, owner: Any, value: Any) -> None:
  """Gives the attribute of `owner` that the entry names another value."""
  setattr(owner, REGISTER[key].name, value)


def fill(key: str, mapping: MutableMapping[str, Any], value: Any) -> None:
  """Adds what the entry names to a mapping, unless it is there already."""
  mapping.setdefault(REGISTER[key].name, value)


def call(key: str, owner: Any, *args: Any, **kwargs: Any) -> Any:
  """Calls the function of `owner` that the entry names, which changes it."""
  return getattr(owner, REGISTER[key].name)(*args, **kwargs)
