"""The register of all changes that this package makes to other packages at run time.

`RECOGNIZED` has the places that decide by what other packages have built, `INSIDES` the
private names that are read, and `HOOKS` the operators and lists that Mesh uses.

Every permanent or temporary change of Mesh TensorFlow, T5, seqio, TensorFlow or its
Estimator is an entry of `REGISTER`, and a function of this module makes it. The
register omits uses of these packages' own interfaces: registration with gin and seqio,
gin's search path, defaults of absl's flags, environment variables that are not set,
warnings and the verbosity of logs, and TensorFlow's version 1 behavior and control
flow, which T5's own command sets as well.

The changes of `compat.make_importable` are made in every program of an environment with
this package that imports mesh_tensorflow; `synthesizer_mtf_start.py` is the hook. All
others are made when a program imports this package.

It imports only the standard library, because `compat` needs it first.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import MutableMapping
import contextlib
import inspect
from typing import Any
from typing import NamedTuple

# The attribute of a replacement that holds the keys of its patches. `functools.wraps`
# copies it to further wrappers of the replacement.
_MARK = "_synthesizer_mtf_patches"


class Patch(NamedTuple):
  """A change of another package.

  Attributes:
    owner: the changed module, class, function or mapping, as "MODULE" or
      "MODULE:NAME"; a class may stand for its changed instances.
    name: the name of the changed attribute, or the key in a mapping.
    what: the change.
    why: the reason, and why no argument, binding, subclass or listener does it.
    until: the change elsewhere that makes the patch unnecessary.
  """
  owner: str
  name: str
  what: str
  why: str
  until: str


_MESH = "mesh_tensorflow.transformer.utils"
_NO_ESTIMATOR = "mesh_tensorflow trains without an Estimator"

REGISTER = {
    # compat.py
    "register_tensor_conversion_function": Patch(
        "tensorflow.python.framework.ops", "register_tensor_conversion_function",
        "restores the function",
        "mesh_tensorflow calls it in this module while it is imported, and TensorFlow "
        "has moved it to tensor_conversion_registry",
        "mesh_tensorflow calls it in tensor_conversion_registry"),
    "hf_model": Patch(
        "sys:modules", "t5.models.hf_model",
        "is a stand-in where torch is not installed",
        "t5.models, which T5's main needs, imports it. It imports torch, which Mesh "
        "never uses",
        "t5.models imports it only where torch is installed"),
    "write_lines_to_file": Patch(
        _MESH, "write_lines_to_file",
        "decodes bytes first",
        "it gets bytes, from decodes and from data, and writes b'M\\xc3\\xbcnchen'. A "
        "decode_fn of ours would be one of the four functions that call it",
        "mesh_tensorflow decodes what it writes"),
    # gin_past.py
    "file readers": Patch(
        "gin.config", "_FILE_READERS",
        "is a reader that calls gin's, but passes over lines of T5's past, and takes a "
        "folder without an __init__.py for no package of gin files",
        "gin has no other way to skip a parameter that a function no longer has, or a "
        "reference to a class that is gone. A reader that is registered comes last, "
        "after gin's own has raised a TypeError for a user's folder models",
        "T5's published gin files hold no such lines, and gin skips such folders"),
    # stack.py
    "make_layer_stack": Patch(
        "mesh_tensorflow.transformer.transformer", "make_layer_stack",
        "makes a synthesizer_stack if gin chooses an attention, and raises if gin "
        "also binds another class of stacks",
        "gin's finalize hooks, which bind layer_stack_cls, run in T5's command, but "
        "neither in T5's MtfModel nor in notebooks",
        "make_layer_stack takes a gin function for each layer"),
    # mtf_model.py
    "MtfModel": Patch(
        "t5.models", "MtfModel",
        "is ours, a subclass",
        "in T5's class an operative_config.gin silently replaces the user's attention, "
        "in methods that take no function; programs name T5's class, not a subclass",
        "the user's attention wins in T5's class"),
    "mtf_model.MtfModel": Patch(
        "t5.models.mtf_model", "MtfModel",
        "as MtfModel", "with --use_model_api, T5's main takes the class from there",
        "as MtfModel"),
    "read record": Patch(
        "t5.models.mtf_model", "_parse_operative_config",
        "reads nothing while a method of our MtfModel runs, which has read the file",
        "T5's methods read the file over all that the user has bound, right before "
        "they read data, and take no function for it",
        "they take a function that fills gin"),
    # estimator_shim.py
    "estimator's modules": Patch(
        "sys", "meta_path",
        "ends with a finder of eight modules that TensorFlow has deleted. They replace "
        "nothing, and where TensorFlow has an Estimator there is no finder",
        "mesh_tensorflow imports tensorflow.compat.v1.estimator, tpu_config and "
        "tpu_estimator, and these import estimator_training, session_support, "
        "tpu_embedding and tpu_embedding_gradient; users read tf.estimator",
        _NO_ESTIMATOR),
    "estimator_export": Patch(
        "sys:modules", "tensorflow_estimator.python.estimator.estimator_export",
        "is a stand-in, whose decorator changes nothing",
        "it reads three names of TensorFlow's tf_export that are deleted, and every "
        "module of the Estimator imports it",
        _NO_ESTIMATOR),
    # launcher.py
    "run": Patch(
        _MESH, "run",
        "checks what a run needs, and leads or follows a job of several processes, "
        "while our command runs T5's main",
        "T5's main calls it once gin is parsed, and starts no servers",
        "T5's main or Mesh's run starts the servers of TF_CONFIG"),
    # get_estimator.py
    "get_estimator": Patch(
        _MESH, "get_estimator",
        "is our function: it checks the choice of an attention and the checkpoints, "
        "uses a fast Adafactor, and applies gin's warm start",
        "T5's main and MtfModel build everything with it, and it takes no classes",
        "it takes the classes of the estimator and of the optimizer"),
    "get_checkpoint_iterator": Patch(
        _MESH, "get_checkpoint_iterator",
        "raises without a checkpoint of a step, skips incomplete ones, and finds those "
        "of a folder without the file `checkpoint`",
        "it yields the nearest step, and None if `checkpoint` is missing. Mesh's modes "
        "call it before they call the estimator, and take no function for it",
        "it yields complete checkpoints only, of the steps that it is asked for"),
    "get_checkpoints_iterator": Patch(
        "t5.models.utils", "get_checkpoints_iterator",
        "as get_checkpoint_iterator",
        "T5's MtfModel.eval calls it. It yields the nearest step, and each step of "
        "\"all\" once for each of its files",
        "as get_checkpoint_iterator"),
    "save": Patch(
        "tensorflow.python.training.saver:Saver", "save",
        "refuses a model that is not finite, and explains a failure",
        "a listener learns when a save begins and when it has ended, but not that it "
        "fails; and the session takes the error of a file that is too large for the "
        "end of the data, and ends without it. Mesh makes the saver and its hook",
        "TensorFlow tells listeners of failures, or Mesh takes a saver"),
    # jax_runtime.py
    "mesh_impl": Patch(
        "mesh_tensorflow.placement_mesh_impl", "PlacementMeshImpl",
        "makes a JaxMeshImpl, while the model function of a run through JAX is called",
        "Mesh's model function makes the mesh itself, and takes no class for it",
        "Mesh's model function takes a mesh"),
    # seed.py
    "random seeds": Patch(
        "mesh_tensorflow.placement_mesh_impl:PlacementMeshImpl", "random",
        "derives the numbers from the names of operations and the step, in "
        "train_with_seed",
        "Mesh draws new seeds in each process, so dropout always differs; its layers "
        "pass no seed, and its model function makes the mesh itself",
        "they follow from the seed of the graph and the step"),
    "loops": Patch(
        "mesh_tensorflow:WhileLoopOperation", "lower",
        "notes the variables of the loop, in train_with_seed",
        "microbatches would all have the same dropout; Mesh makes their loop itself, "
        "and hands the number of the microbatch to no layer",
        "as random seeds"),
    "thread errors": Patch(
        "threading", "excepthook",
        "does not print the error of a file that cannot be written, while a command or "
        "a method of MtfModel runs",
        "TensorFlow's own thread that writes events raises it in vain, and the main "
        "thread raises it again, where it is one sentence",
        "a writer of events that raises in the thread that calls it"),
}


class Recognized(NamedTuple):
  """A place that decides by operations which other code has made.

  Attributes:
    by: what it looks at, and what it decides.
    why: why no argument, subclass or function object tells it; and why it is safe.
  """
  by: str
  why: str


# By the module. What such a place does not know exactly stays with the other package.
RECOGNIZED = {
    "attention/inputs/segments.py": Recognized(
        "segment ids that are Mesh's minimum of a tensor and the constant 1 mark "
        "padding alone, so that rows need not be read as packed rows",
        "Mesh makes them inside its models, also to decode, and hands layers nothing "
        "else; no id is above 1 then, whoever made them. All other ids may pack"),
    "fast/adafactor.py": Recognized(
        "TensorFlow's operations that read a variable or share its memory; an update "
        "in place waits for them",
        "Mesh's assignments wait for nothing but their gradient, and its graph does "
        "not tell which operations read a variable. An unknown operation is a reader"),
    "runtime/program.py": Recognized(
        "placeholders, operations with a state and reads of variables, at which the "
        "program that JAX runs ends",
        "a tensor that Mesh imports may be a constant or data, and the learning rate "
        "reads the step in the middle of Mesh's graph. An unknown operation becomes a "
        "part of the program, and XLA names it if it cannot compile it"),
    "trainer/data/data_record.py": Recognized(
        "the operations of the input pipeline, whose fingerprint tells other data",
        "a dataset has no other description; options are left out, as the estimator "
        "adds some. Another fingerprint begins the data again, and the log says so; "
        "where Python functions or tables read data, the log says so, too"),
    "trainer/data/seed.py": Recognized(
        "the AssignAdd of the step's number among the operations of a training's step, "
        "which it lets wait for all others",
        "Mesh's model function groups it with the updates, and tells it from them in "
        "no other way. A training that raises the number otherwise stays as it is"),
    "fast/mixed_precision.py": Recognized(
        "the types of operations in the lists of TensorFlow's rewriter",
        "casts around each product would patch Mesh's layers, and read and write each "
        "large tensor between two products twice more, which the rewriter avoids"),
    "trainer/watching/progress.py": Recognized(
        "the Print of Mesh's message that returns the loss of a training, which a "
        "terminal need not show twice",
        "Mesh prints the loss of each step itself, takes no argument for it, and hands "
        "out no loss from before; the loss stays the same"),
}


class Inside(NamedTuple):
  """What this package uses of another one beside its interface.

  Attributes:
    owner: a module or class, as "MODULE" or "MODULE:NAME".
    names: the names of private functions and attributes. They are read, and a function
      may be overridden by a subclass, which calls it.
    why: the reason, and why nothing public does it.
  """
  owner: str
  names: tuple[str, ...]
  why: str


_T5 = "mesh_tensorflow.transformer.transformer"

INSIDES = (
    Inside("gin.config", ("_CONFIG", "_FILE_READERS", "_LOCATION_PREFIXES",
                          "_OPERATIVE_CONFIG", "_REGISTRY"),
           "gin lists neither bindings with their scopes, nor calls, readers, folders "
           "and selectors; only gin_internals.py reads them"),
    Inside("mesh_tensorflow.optimize:AdafactorOptimizer",
           ("_beta1", "_clipping_threshold", "_decay_rate", "_epsilon1", "_epsilon2",
            "_exclude_from_parameter_scale", "_factored_dims", "_learning_rate",
            "_multiply_by_parameter_scale", "_stacked_dim_names"),
           "the fast optimizer takes the parameters of one that a user has made"),
    Inside(f"{_T5}:Unitransformer", ("_call_internal", "_compute_loss", "_loss_fn"),
           "the loss and the steps of decoding are in the middle of Mesh's methods"),
    Inside(f"{_T5}:Bitransformer", ("_shared_params",),
           "a classifier has the names of T5's shared embedding"),
    Inside(f"{_T5}:LayerStack", (
        "_layers", "_recompute_grads", "_sublayers_final", "_sublayers_initial",
        "_sublayers_per_layer"),
           "a fast stack is a copy with other layers and norms, which has no setters; "
           "and an export is refused if other functions surround the layers"),
    Inside(f"{_T5}:VocabEmbedding",
           ("_embedding_weights", "_output_dim",
            "_scale_variable_like_classifier_weights", "_vocab_dim"),
           "the fast embedding is a subclass that multiplies by the same variable"),
    Inside("seqio.dataset_providers:FunctionDataSource", ("_dataset_fn",),
           "a function without a seed gets none; a source does not tell its function"),
    Inside("mesh_tensorflow.transformer.utils", ("_dynamic_text2self",),
           "T5's trainer makes a delimited language model's features by it"),
    Inside("mesh_tensorflow.ops:SlicewiseOperation", ("_tf_fn",),
           "our operation checks the mesh and then runs it; and as in RECOGNIZED"),
    Inside("mesh_tensorflow.ops:ImportOperation", ("_tf_tensor",), "as in RECOGNIZED"),
    Inside("mesh_tensorflow.ops:WhileLoopOperation", ("_body_inputs",),
           "a seed needs what is inside of a loop"),
    Inside("tensorflow:Operation", ("_get_control_flow_context",),
           "nothing public says whether an operation is in a loop"),
    Inside("tensorflow:Operation", ("_add_control_inputs",),
           "a tensor may be captured before the program that JAX runs has all inputs"),
    Inside("tensorflow_estimator.python.estimator.tpu.tpu_estimator:TPUEstimator", (
        "_call_input_fn", "_call_model_fn", "_call_model_fn_eval", "_config",
        "_create_and_assert_global_step", "_ctx", "_session_config", "_train_model"),
           "the Estimator has no public way to build a graph without running it"),
    Inside("t5.models.mtf_model:MtfModel",
           ("_autostack", "_iterations_per_loop", "_keep_checkpoint_max",
            "_layout_rules", "_mesh_devices", "_mesh_shape", "_model_dir",
            "_model_type", "_optimizer", "_save_checkpoints_steps", "_sequence_length",
            "_tpu"),
           "the subclass records and checks the arguments of the constructor"),
    Inside("seqio.dataset_providers:FileDataSource",
           ("_block_length", "_cycle_length", "_splits"),
           "our sources are subclasses that read the same arguments"),
    Inside("seqio.dataset_providers:TfdsDataSource", ("_tfds_dataset",),
           "a subclass prepares the files before they are looked for"),
    Inside("seqio.dataset_providers:Task",
           ("_get_cached_source", "_metric_fn_constructor_args"),
           "a subclass checks a cache before it is read, and copies itself"),
)

# By the module, what it relies on in objects of Mesh TensorFlow that it has not made.
HOOKS = {
    "fast/decoding/loops.py":
        "moves operations in `mtf.Graph.operations`, as the constructor of Mesh's loop "
        "does with those of variables: they run before the loop, and Mesh has no other "
        "place for them. While the loop is lowered, a copy of the mesh multiplies by "
        "our `einsum`, which Mesh lets its users replace; a user's own stays",
    "fast/lookup.py":
        "`RowGradients.__add__`: Mesh adds up gradients by +, so rows are added to the "
        "sum of the others, and no tensor as large as the table is made",
    "fast/norms.py":
        "`_Input.__mul__`, `_Scaled.__mul__`: T5's norm ends with x * r * scale, and "
        "reads its epsilon and name from gin itself, which operative_config.gin then "
        "has. So Mesh's function runs, and its last two products are ours",
    "runtime/mesh.py":
        "reads `mtf.Graph.operations`: Mesh imports features without the names of "
        "their dimensions, and the reshape that follows has them",
}


def wrap(key: str, owner: Any, make: Callable[[Any], Any]) -> None:
  """Replaces a function of `owner` permanently; a second call changes nothing.

  Args:
    key: a key of `REGISTER`, whose entry has the name of the function.
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
  """Replaces a function as `wrap` does, but only within a `with` block."""
  name = REGISTER[key].name
  original = getattr(owner, name)
  wrap(key, owner, make)
  try:
    yield
  finally:
    setattr(owner, name, original)


def is_applied(key: str, function: Any) -> bool:
  """Whether a function, or one that it wraps, is our replacement."""
  def is_ours(each):
    return key in getattr(each, _MARK, ())

  return is_ours(inspect.unwrap(function, stop=is_ours))


def assign(key: str, owner: Any, value: Any) -> None:
  """Assigns a value to the attribute of `owner` that the entry names."""
  setattr(owner, REGISTER[key].name, value)


def fill(key: str, mapping: MutableMapping[str, Any], value: Any) -> None:
  """Adds the key that the entry names to a mapping, unless the key exists."""
  mapping.setdefault(REGISTER[key].name, value)


def append(key: str, owner: Any, value: Any) -> None:
  """Appends a value to the list of `owner` that the entry names."""
  getattr(owner, REGISTER[key].name).append(value)
