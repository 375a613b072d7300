"""Adafactor in few passes agrees with the paper, and with Mesh's Adafactor."""

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
import numpy as np
import pytest
from support import models
from support import sessions
from synthesizer_mtf.fast import adafactor
import tensorflow.compat.v1 as tf

STEPS = 3
# Each order of the two factored dimensions, with and without other dimensions.
SHAPES = {
    "matrix": "a:7,b:5", "wide": "a:5,b:7", "square": "a:6,b:6", "vector": "a:11",
    "scalar": "", "narrow": "a:9,b:2", "stacked": "s:3,a:7,b:5",
    "last": "s:2,t:3,a:5,b:11", "outer": "a:7,s:3,b:5", "first": "a:5,b:7,s:2,t:3",
    "mixed": "s:3,a:5,t:2,b:7"}
SOME = {name: SHAPES[name] for name in ("matrix", "wide", "vector", "last")}
OPTIONS = {
    "default": {}, "momentum": {"beta1": 0.9}, "clipping": {"clipping_threshold": 0.3},
    "no clipping": {"clipping_threshold": None}, "not factored": {"factored": False},
    "absolute": {"multiply_by_parameter_scale": False},
    "absolute for some": {"exclude_from_parameter_scale": ["ma", "st"]},
    "stacked": {"stacked_dim_names": ["s", "nothing"]},
    "stacked twice": {"stacked_dim_names": ["s", "a"], "beta1": 0.5},
    "epsilons": {"epsilon1": 0.3, "epsilon2": 0.7}, "decay": {"decay_rate": 0.6},
    "size": {"min_dim_size_to_factor": 6}}


def parse(fast=True, attention="'R'"):
  gin.clear_config()
  models.parse_gin([], [f"synthesizer_stack.attention = {attention}",
                        f"synthesizer_optimizer.fast = {fast}"])


def numbers(shapes, seed=0):
  """Variables by name, and their gradients for each step."""
  generator = np.random.RandomState(seed)

  def draw(scale):
    return {name: np.float32(generator.normal(
        scale=scale, size=mtf.convert_to_shape(shape).to_integer_list))
            for name, shape in shapes.items()}

  return draw(0.1), [draw(10. ** -step) for step in range(STEPS)]


class Trainer:
  """The variables of a graph, which given gradients update."""

  def __init__(self, options, shapes, mesh_shape="", layout="", autostack=True,
               dtype=tf.float32, make=optimize.AdafactorOptimizer):
    self.tf_graph = tf.Graph()
    mesh_shape = mtf.convert_to_shape(mesh_shape)
    with self.tf_graph.as_default():
      tf.train.get_or_create_global_step()
      graph = mtf.Graph()
      mesh = mtf.Mesh(graph, "mesh")
      self.fed = {}
      grads = []
      for name, shape in shapes.items():
        shape = mtf.convert_to_shape(shape)
        value = mtf.get_variable(mesh, name, shape, dtype=dtype)
        self.fed[name] = tf.placeholder(tf.float32, shape.to_integer_list)
        grads.append(mtf.cast(mtf.import_tf_tensor(
            mesh, self.fed[name], shape), value.dtype))
      options = {"min_dim_size_to_factor": 4, "learning_rate": 0.1,
                 "decay_rate": 0.8, **options}
      updates = adafactor.fast(make, mesh_shape, layout)(**options).apply_grads(
          grads, graph.trainable_variables)
      masters = {v.name: v.get_master() for v in graph.all_variables}
      lowering = mtf.Lowering(graph, {
          mesh: mtf.placement_mesh_impl.PlacementMeshImpl(
              mesh_shape, mtf.convert_to_layout_rules(layout),
              [""] * mesh_shape.size)}, autostack=autostack)
    self.graph, self.lowering, self.updates = graph, lowering, updates
    self.masters = masters

  def run(self, start, grads):
    """The variables and slots by name, after steps from the values in `start`."""
    with self.tf_graph.as_default(), sessions.start() as session:
      session.run(tf.global_variables_initializer())
      known = {name: self.masters[name] for name in start}
      sessions.assign(session, known, start)
      session.run(self.lowering.copy_masters_to_slices())
      update = [self.lowering.lowered_operation(op) for op in self.updates]
      for step in grads:
        session.run(update, {self.fed[name]: grad for name, grad in step.items()})
      session.run(self.lowering.copy_slices_to_masters())
      return session.run(self.masters)

  def is_fast(self):
    """Whether every variable has our operation, or none."""
    count = sum(op.name.rpartition("/")[2].startswith("adafactor")
                for op in self.graph.operations)
    assert count in (0, len(self.fed))
    return count > 0


def train(options, shapes=SHAPES, fast=True, steps=slice(None), start=None, **kwargs):
  parse(fast)
  values, grads = numbers(shapes)
  trainer = Trainer(options, shapes, **kwargs)
  assert trainer.is_fast() == fast
  return trainer.run(start or values, grads[steps])


def check(one, other, rtol=2e-6):
  assert one.keys() == other.keys()
  for name, value in one.items():
    scale = np.abs(np.float32(value)).max()
    assert scale > 0, name
    np.testing.assert_allclose(
        np.float32(other[name]), np.float32(value), rtol=rtol, atol=rtol * scale,
        err_msg=name)


def rms(x, axes=None):
  return np.sqrt(np.mean(np.square(x), axes, keepdims=True))


def reference_moment(grad, slots, key, largest_two, decay_rate, epsilon1):
  """1/sqrt of the second moment of one variable, and its slots."""
  squares = np.square(grad) + epsilon1
  if largest_two is None:
    moments = {"_slot_v": squares}
  else:
    first, second = largest_two
    moments = {"_slot_vr": squares.mean(first, keepdims=True),
               "_slot_vc": squares.mean(second, keepdims=True)}
  for ending, mean in moments.items():
    slots[key + ending] = (decay_rate * slots.get(key + ending, 0) +
                           (1 - decay_rate) * mean)
  if largest_two is None:
    return slots[key + "_slot_v"]
  rows, columns = slots[key + "_slot_vr"], slots[key + "_slot_vc"]
  return rows * columns / rows.mean(second, keepdims=True)


def reference(shapes, learning_rate=0.1, decay_rate=0.8, beta1=0.0,
              clipping_threshold=1.0, factored=True, epsilon1=1e-30, epsilon2=1e-3,
              min_dim_size_to_factor=4, multiply_by_parameter_scale=True,
              stacked_dim_names=(), exclude_from_parameter_scale=()):
  """arXiv:1804.04235, algorithms 4 to 6, in float64; slots keep axes of size 1."""
  values, grads = numbers(shapes)
  values = {name: np.float64(value) for name, value in values.items()}
  slots = {}
  for step in grads:
    for name, grad in step.items():
      dims = mtf.convert_to_shape(shapes[name]).dims
      free = [i for i, d in enumerate(dims) if d.name not in stacked_dim_names]
      by_size = sorted(free, key=lambda i: -dims[i].size)[:2]
      is_factored = (factored and len(by_size) == 2 and
                     dims[by_size[1]].size >= min_dim_size_to_factor)
      x = np.float64(grad) / np.sqrt(reference_moment(
          np.float64(grad), slots, name, by_size if is_factored else None,
          decay_rate, epsilon1))
      if clipping_threshold is not None:
        x /= np.maximum(1, rms(x) / clipping_threshold)
      x *= learning_rate
      if multiply_by_parameter_scale and not any(
          part in name for part in exclude_from_parameter_scale):
        x *= np.maximum(rms(values[name], tuple(free)), epsilon2)
      if beta1:
        x = beta1 * slots.get(name + "_slot_m", 0) + (1 - beta1) * x
        slots[name + "_slot_m"] = x
      values[name] = values[name] - x
  return {**values, **slots}


def comparable(results):
  """Removes axes of size 1, which no variable here has."""
  return {name: np.squeeze(value) for name, value in results.items()}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_variables_and_slots_equal_those_of_the_paper(options):
  trained = train(options)
  check(comparable(reference(SHAPES, **options)), trained, rtol=1e-5)


@pytest.mark.slow
def test_blocks_of_rows_change_nothing(monkeypatch):
  expected = train({}, SOME)
  for block in (1, 10, 23):
    monkeypatch.setattr(adafactor, "_BLOCK", block)
    check(expected, train({}, SOME))


def test_with_gpus_no_squares_are_multiplied(monkeypatch):
  """GPUs may round matrix products."""
  expected = train({}, SOME)
  monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
  monkeypatch.setattr(tf, "matmul", None)
  check(expected, train({}, SOME))


def test_rows_without_gradients_do_not_move():
  """The tokens that a batch lacks have no gradient, and a zero has no scale."""
  shapes = {"embedding": "vocab:9,d_model:5", "scale": "d_model:5"}
  values, grads = numbers(shapes)
  grads[0]["embedding"][2:7] = 0
  grads[0]["scale"][:] = 0
  runs = []
  for fast in (False, True):
    parse(fast)
    runs.append(Trainer({}, shapes).run(values, grads[:1]))
  check(*runs)
  np.testing.assert_array_equal(runs[1]["embedding"][2:7], values["embedding"][2:7])
  np.testing.assert_array_equal(runs[1]["scale"], values["scale"])


@pytest.mark.parametrize("dtypes", [
    (tf.bfloat16, tf.float32, tf.bfloat16), (tf.bfloat16, tf.bfloat16, tf.float32),
    (tf.float32, tf.float32, tf.bfloat16)], ids=str)
def test_bfloat16_is_rounded_where_mesh_tensorflow_rounds_it(dtypes):
  """The dtypes are those of master, slice and activations."""
  options = {"dtype": mtf.VariableDType(*dtypes)}
  one = train({}, SOME, fast=False, **options)
  # One more rounding changes a variable by one part in 256.
  check(one, train({}, SOME, **options), rtol=2. ** -8)


def test_rates_may_be_tensors_of_the_step():
  """T5's learning rates are tensors, and so are the defaults of Adafactor."""
  options = {"learning_rate": None, "decay_rate": None}
  check(train(options, SOME, fast=False), train(options, SOME))


# With `autostack`, `mtf.Lowering` also stacks variables of one shape.
@pytest.mark.parametrize("mesh_shape, layout, autostack", [
    ("batch:2", "batch:batch", False),
    ("model:1,batch:3", "a:model,batch:batch", True)])
def test_variables_that_each_processor_holds_are_updated_fast(
    mesh_shape, layout, autostack):
  shapes = {"one": "a:7,b:5", "two": "a:7,b:5", "three": "a:7,b:5", "four": "b:5"}
  expected = train({"beta1": 0.5}, shapes, fast=False)
  parse()
  trainer = Trainer({"beta1": 0.5}, shapes, mesh_shape, layout, autostack)
  check(expected, trainer.run(*numbers(shapes)))
  assert not mesh_operations(trainer)
  assert stacks(trainer) == autostack


@pytest.mark.slow
def test_mesh_tensorflow_updates_variables_that_are_split():
  shapes = {"one": "a:7,b:4", "two": "a:7,b:4", "three": "b:4", "four": "b:4",
            "whole": "a:7,c:5"}
  expected = train({}, shapes, fast=False)
  parse()
  for autostack in (True, False):
    trainer = Trainer({}, shapes, "model:2", "b:model", autostack)
    check(expected, trainer.run(*numbers(shapes)))
    assert mesh_operations(trainer) == set(shapes) - {"whole"}
    assert stacks(trainer) == autostack


def mesh_operations(trainer):
  """The variables that Mesh TensorFlow's own operations update."""
  names = [op.name for op in trainer.tf_graph.get_operations()]
  return {name for name in trainer.fed
          if any(f"{name}/adafactor/rsqrt" in other for other in names)}


def stacks(trainer):
  return any(isinstance(v, mtf.StackedVariable) for v in trainer.graph.all_variables)


@pytest.mark.slow
def test_slots_of_mesh_tensorflow_go_on():
  """Either optimizer continues from the other's slots, as from a checkpoint."""
  half, rest = slice(0, 2), slice(2, STEPS)
  options = {"beta1": 0.9}, SOME
  expected = train(*options, fast=False)
  for first in (True, False):
    saved = train(*options, fast=first, steps=half)
    check(expected, train(*options, fast=not first, steps=rest, start=saved))


def test_a_schedule_for_some_variables_is_kept():
  def make(**options):
    del options["learning_rate"]
    return optimize.AdafactorWithMultiLRSchedule(
        variable_search=["mat"], alt_lr_schedules=[[0.4]], learning_rate=0.1,
        **options)

  slow, fast = [train({}, SOME, fast=fast, make=make) for fast in (False, True)]
  check(slow, fast)
  plain = train({}, SOME)
  np.testing.assert_array_equal(plain["vector"], fast["vector"])
  assert np.abs(plain["matrix"] - fast["matrix"]).max() > 1e-3


def test_mesh_tensorflow_updates_in_all_other_cases(monkeypatch):
  shapes = {"matrix": "a:7,b:5"}
  parse(attention="None")
  assert not Trainer({}, shapes).is_fast()
  parse()
  for make in (mesh_rate, lambda **_: optimize.AdamWeightDecayOptimizer(0.1)):
    assert not Trainer({}, shapes, make=make).is_fast()
  monkeypatch.setattr(adafactor.splits, "is_on_tpu", lambda mesh: True)
  assert not Trainer({}, shapes).is_fast()


def mesh_rate(**options):
  """Adafactor whose rate is a tensor of Mesh TensorFlow."""
  class Rate(mtf.Tensor):
    def __init__(self):
      pass

    def __mul__(self, other):
      return other * 0.1

    __rmul__ = __mul__

  return optimize.AdafactorOptimizer(**{**options, "learning_rate": Rate()})


def test_a_variable_without_gradient_is_left_alone():
  parse()
  with tf.Graph().as_default():
    mesh = mtf.Mesh(mtf.Graph(), "mesh")
    mtf.get_variable(mesh, "a", mtf.Shape([mtf.Dimension("d", 3)]))
    variables = mesh.graph.trainable_variables
    assert adafactor.fast(optimize.AdafactorOptimizer)(
        learning_rate=0.1).apply_grads([None], variables) == []


def test_a_switch_that_is_no_boolean_is_an_error():
  parse("3")
  with pytest.raises(ValueError, match=(
      r"`synthesizer_optimizer.fast` is 3 but must be True or False")):
    Trainer({}, {"matrix": "a:7,b:5"})


def squared_product(features, table):
  return {"loss": mtf.reduce_sum(mtf.square(mtf.einsum(
      [features["x"], table], reduced_dims=[table.shape.dims[0]])))}


def test_gradients_may_come_out_of_a_loop_over_microbatches():
  parse()
  runs = []
  for splits in (1, 2):
    m = models.Model()
    with m.tf_graph.as_default():
      tf.train.get_or_create_global_step()
      table = mtf.get_variable(m.mesh, "table", mtf.convert_to_shape("a:5,b:7"))
      x = mtf.import_fully_replicated(
          m.mesh, tf.reshape(tf.range(20, dtype=tf.float32), [4, 5]),
          mtf.convert_to_shape("batch:4,a:5"))
      grads, _ = mtf.serialize_training_step(
          {"x": x}, lambda f, table=table: squared_product(f, table),
          x.shape.dims[0], splits)
      updates = adafactor.fast(optimize.AdafactorOptimizer)(
          learning_rate=0.1, min_dim_size_to_factor=4).apply_grads(
              grads, m.graph.trainable_variables)
      runs.append(m.run(updates=updates, steps=STEPS, scale=0.5)[1])
  assert set(runs[0]) == {"table", "table_slot_vr", "table_slot_vc"}
  check(*runs, rtol=1e-5)


@pytest.mark.slow
def test_an_update_waits_for_all_operations_that_read_the_variable():
  """The update waits also for gradients that it does not need, as in T5's trainer."""
  tf.disable_resource_variables()
  models.parse_gin([], models.TINY + [
      "synthesizer_stack.attention = 'R+V'", "num_layers = 1"])
  m = models.Model()
  with m.tf_graph.as_default():
    ids = m.ids(np.ones((2, 5), int))
    _, loss = m.model.call_simple(ids, ids, True, mode="train")
    variables = m.graph.trainable_variables
    grads = mtf.gradients([loss], [v.outputs[0] for v in variables])
    tf.train.get_or_create_global_step()
    updates = adafactor.fast(optimize.AdafactorOptimizer)(
        learning_rate=0.1).apply_grads(grads, variables)
    lowering = mtf.Lowering(m.graph, {m.mesh: mtf.placement_mesh_impl.PlacementMeshImpl(
        "", "", [""])}, autostack=False)
    for update in updates:
      lowering.lowered_operation(update)
  products = {op for op in m.tf_graph.get_operations()
              if op.type in ("MatMul", "BatchMatMulV2", "Einsum")}
  waiting = 0
  for update in m.tf_graph.get_operations():
    if update.type != "AssignSub":
      continue
    slice_var = update.inputs[0].op
    reads = [op for op in slice_var.outputs[0].consumers() if op.type == "Identity"]
    users = {user for read in reads for user in read.outputs[0].consumers()}
    waits = set(update.control_inputs)
    users = {user for user in users if user.type != "Assign"}
    assert users <= waits, update.name
    waiting += bool(users & products)
  assert waiting > 10
