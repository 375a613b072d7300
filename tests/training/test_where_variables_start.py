"""Each way in to a warm start is asked where each variable came from, bit by bit."""

import os
import re

import gin
from mesh_tensorflow import optimize
from mesh_tensorflow.transformer import transformer_layers
from mesh_tensorflow.transformer import utils
import numpy as np
import pytest
from support import models
from support import sessions
from synthesizer_mtf.attention import notation
from synthesizer_mtf.tools.base import checkpoint_writer
from synthesizer_mtf.trainer.checkpoints import warm_start
from synthesizer_mtf.trainer.checkpoints import warm_start_plan
import tensorflow.compat.v1 as tf

SIZES = [*models.TINY, "num_layers = 1", "d_model = 8", "d_ff = 8",
         "AdafactorOptimizer.min_dim_size_to_factor = 8",
         "utils.get_variable_dtype.activation_dtype = 'float32'",
         "utils.get_variable_dtype.master_dtype = 'float32'",
         "transformer_layers.SelfAttention.relative_attention_type = 'bias_shared'",
         "Unitransformer.positional_embedding = False"]
BIAS = "SyntheticAttention.relative_attention_type = 'bias_shared'"
STEP = 7


def parse(attention, *bindings):
  models.parse_gin(["models/bi_v1.gin"], [
      *SIZES, f"synthesizer_stack.attention = {attention!r}", *bindings])


def estimator(folder, **others):
  """What `utils.run` makes of the bindings."""
  return utils.get_estimator(**models.estimator_arguments(
      folder, mesh_devices=["cpu:0"], **others))


def started(folder, **others):
  """The variables of a training before its first step, by name."""
  made = estimator(folder, **others)
  with tf.Graph().as_default(), sessions.start() as session:
    tf.train.create_global_step()
    features = {name: tf.fill([3, length], 3)
                for name, length in models.LENGTHS.items()}
    spec = made._call_model_fn(features, None, "train", made.config)
    session.run(tf.global_variables_initializer())
    spec.scaffold.init_fn(session)
    return session.run({v.op.name: v for v in tf.global_variables()})


def save(path, like):
  """Writes a checkpoint of random variables; returns them by name."""
  random = np.random.RandomState(0)
  values = {name: np.abs(random.randn(*value.shape)).astype(value.dtype)
            for name, value in like.items()}  # Slots are positive.
  values["global_step"] = np.int64(STEP)
  checkpoint_writer.write(*os.path.split(path), values.items())
  return values


def shaped_like(variables):
  """Arrays of the shapes; bfloat16, as T5 saves them, which a model casts."""
  return {name: np.empty(
      v.shape.as_list(), tf.bfloat16.as_numpy_dtype if v.dtype.base_dtype == tf.float32
      else v.dtype.as_numpy_dtype) for name, v in variables.items()}


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
  """A checkpoint of T5's own model, and its variables."""
  path = str(tmp_path_factory.mktemp("stock") / "model.ckpt-7")
  parse(None)
  _, variables = built()
  return path, save(path, shaped_like(variables))


def sources(variables, checkpoint):
  """For each variable the one in the checkpoint that has the same bits, or None."""
  names = {np.float32(value).tobytes(): name for name, value in checkpoint.items()}
  assert len(names) == len(checkpoint)
  return {name: names.get(np.float32(value).tobytes())
          for name, value in variables.items()}


def in_t5(name):
  return name.replace("SyntheticAttention", "SelfAttention")


def new(name):
  return name.split("/")[-1].startswith(("R", "alpha"))


@pytest.mark.slow
def test_t5s_parameter_fills_all_but_what_is_new_and_goes_on(stock, tmp_path):
  path, checkpoint = stock
  parse("R+V", BIAS)
  filled = sources(started(tmp_path, init_checkpoint=path), checkpoint)
  assert filled == {name: None if new(name) else in_t5(name) for name in filled}
  assert {in_t5(name) for name in filled if not new(name)} == set(checkpoint)


@pytest.mark.slow
def test_a_warm_start_fills_the_same_but_counts_from_0(stock, tmp_path):
  path, checkpoint = stock
  parse("R+V", BIAS, f"warm_start.checkpoint = '{path}'")
  variables = started(tmp_path)
  assert variables["global_step"] == 0
  filled = sources(variables, checkpoint)
  assert filled == {
      name: None if new(name) or "_slot_" in name or name == "global_step"
      else in_t5(name) for name in filled}


def test_a_binding_that_contradicts_t5s_parameter_is_an_error(tmp_path):
  for binding, message in [
      ("warm_start.checkpoint = 'one'", "`init_checkpoint` is 'two' and "
       "`warm_start.checkpoint` is 'one'; leave out the first"),
      ("warm_start.continue_training = False",
       "with which the step goes on, but `warm_s")]:
    gin.clear_config()
    parse("R+V", binding)
    with pytest.raises(ValueError, match=message):
      estimator(tmp_path, init_checkpoint="two")


def test_what_gin_binds_for_either_parameter_counts():
  parse("R+V", "warm_start.fresh = 'R'", "warm_start.renames = [('a', 'b')]",
        "warm_start.interpolate = True",
        "utils.tpu_estimator_model_fn.init_checkpoint = 'two'")
  assert warm_start.chosen(None) == warm_start.WarmStart(
      "two", "R", [("a", "b")], True, "init_checkpoint", interpolate=True)


# What each notation has that T5's self-attention has not.
FRESH = {
    "V": "", "R": "R", "Fix": "R", "FR": "R1 R2", "T": "T T_after", "D": "W1 W2",
    "FD": "W1 WA WB", "LD": "W1 WL", "Pattern": "", "R+V": "R alpha",
    "FR+D+V": "R1 R2 W1 W2 alpha",
    "LightConv": "gate W", "DyConv": "gate W", "Linformer": "E F", "SparseFixed": "",
    "SparseStrided": ""}
SCOPES = {name: name for name in notation.LAYERS}
TABLES = ("RandomLogits", "FixedRandomLogits", "FactorizedRandomLogits",
          "ToeplitzLogits", "DenseLogits", "FactorizedDenseLogits", "Linformer")


def build(attention):
  """Builds a model with a block for each notation."""
  parse(None, "d_kv = 4", BIAS, *[f"{name}.max_length = 16" for name in TABLES],
        f"encoder/synthesizer_stack.attention = {attention!r}",
        f"encoder/make_layer_stack.num_layers = {len(FRESH)}")
  return built()


def built():
  """The graph of the model that gin describes, for training, and its variables."""
  m = models.Model()
  with m.tf_graph.as_default():
    tf.train.create_global_step()
    ids = m.ids(np.full([2, 7], 3))
    m.model.call_simple(ids, ids, True, mode="train")
    variables = m.graph.trainable_variables
    optimize.AdafactorOptimizer(learning_rate=0.1).apply_grads(
        [v.outputs[0] for v in variables], variables)  # Any gradients, for the slots.
    return m.tf_graph, {v.op.name: v for v in tf.global_variables()}


@pytest.fixture(scope="module")
def every_notation(tmp_path_factory):
  """The graph, and checkpoints of T5 with and without slots with their variables."""
  _, theirs = build(None)
  graph, ours = build(list(FRESH))
  folder = tmp_path_factory.mktemp("t5")
  like = shaped_like(theirs)
  sources = {}
  for slots in (True, False):
    path = str(folder / f"model.ckpt-{slots}")
    sources[slots] = path, save(path, {
        name: value for name, value in like.items() if slots or "_slot_" not in name})
  return graph, ours, sources


def expected(name, checkpoint, goes_on):
  """The variable of T5 that one of ours must start from, by its meaning."""
  variable, slot, ending = name.partition("_slot_")
  if slot or name == "global_step":
    source = (expected(variable, checkpoint, goes_on) or "") + slot + ending if (
        slot) else name
    return source if goes_on and source in checkpoint else None
  block = re.match(r"encoder/block_(\d+)/layer_000/(\w+)/(?:part_\d/)?(\w+)$", name)
  if not block or block[2] == "rms_norm":
    return name
  attention = list(FRESH)[int(block[1])]
  assert block[2] == SCOPES.get(attention, "SyntheticAttention")
  if block[3] in FRESH[attention].split():
    return None
  assert block[3] in ("q", "k", "v", "o", "relative_attention_bias")
  return f"encoder/block_{block[1]}/layer_000/SelfAttention/{block[3]}"


@pytest.mark.slow
@pytest.mark.parametrize("slots", [True, False])
def test_each_variable_of_each_notation_starts_where_it_must(slots, every_notation):
  graph, variables, sources_of = every_notation
  path, checkpoint = sources_of[slots]
  for goes_on in (True, False):
    with graph.as_default(), sessions.start() as session:
      start = warm_start.assignments(path, continue_training=goes_on)
      session.run(tf.global_variables_initializer())
      before = session.run(variables)
      session.run(start)
      after = session.run(variables)
    filled = sources(after, checkpoint)
    for name in variables:
      assert filled[name] == expected(name, checkpoint, goes_on), name
      if filled[name] is None:  # As its initializer made it.
        np.testing.assert_array_equal(after[name], before[name])
    taken = set(filter(None, filled.values()))
    assert len(taken) == len([name for name in filled if filled[name]])
    assert all(re.search("SelfAttention/[qk]", name) or not goes_on and (
        "_slot_" in name or name == "global_step") for name in set(checkpoint) - taken)


OTHERS = sorted(
    name for name, cls in vars(transformer_layers).items()
    if isinstance(cls, type) and issubclass(cls, transformer_layers.SelfAttention)
    and name != "SelfAttention")


@pytest.mark.slow
@pytest.mark.parametrize("layer", OTHERS)
def test_another_layer_of_mesh_tensorflow_is_not_taken_for_t5s(layer, every_notation):
  _, variables, sources_of = every_notation
  model = {name: tuple(v.shape.as_list()) for name, v in variables.items()}
  saved = {name.replace("/SelfAttention/", f"/{layer}/"): value.shape
           for name, value in sources_of[True][1].items()}
  for goes_on in (True, False):
    with pytest.raises(ValueError, match="no variable for .*/(Synth|Light|Lin|Sparse)"):
      warm_start_plan.make_plan("CKPT", model, saved, continue_training=goes_on)
  fresh = "^encoder/block_.../layer_000/(?!rms_norm)|^decoder/.*/SelfAttention/"
  plan = warm_start_plan.make_plan("CKPT", model, saved, fresh)
  assert set(plan.taken) == set(plan.taken.values())
  # Without an attention of ours, Mesh TensorFlow's own way, but it is told.
  stock = {in_t5(name): shape for name, shape in model.items()
           if re.search("SyntheticAttention/[qkvo]$|^shared/embedding$", name)}
  plan = warm_start_plan.make_plan("CKPT", stock, saved, strict=False)
  assert set(plan.missing) == {name for name in stock if "SelfAttention" in name}
  assert warm_start_plan.warnings("CKPT", plan, stock)
