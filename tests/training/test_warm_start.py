"""Models that start from a checkpoint with another attention or length."""

import gin
import mesh_tensorflow as mtf
from mesh_tensorflow import optimize
import numpy as np
import pytest
from support import checkpoint_files
from support import decoding
from support import models
from support import reference
from support import sessions
from synthesizer_mtf import gin_files
from synthesizer_mtf.trainer.checkpoints import warm_start
from synthesizer_mtf.trainer.checkpoints import warm_start_plan
from synthesizer_mtf.trainer.model import summaries
import tensorflow.compat.v1 as tf

LENGTH = 9
T5 = ["transformer_layers.SelfAttention.relative_attention_type = 'bias_shared'",
      "Unitransformer.positional_embedding = False"]
FROM_T5 = "warm_start/from_t5.gin"
CHECKPOINT = "warm_start.checkpoint = 'DIR'"
TABLES = ("RandomLogits", "FactorizedRandomLogits", "DenseLogits",
          "FactorizedDenseLogits", "ToeplitzLogits", "FixedRandomLogits")


def parse(attention, *bindings, files=(FROM_T5,), max_length=16):
  """Configures the small model; `attention` is a notation, or None for T5's."""
  models.parse_gin(files, models.TINY + T5 + [
      "num_layers = 1",
      f"synthesizer_stack.attention = {attention!r}",
      *[f"{name}.max_length = {max_length}" for name in TABLES],
      CHECKPOINT, *bindings])


def run(path=None, save=None, train=0, steps=(0,), **plan):
  """Builds the model that gin describes, starts it, and perhaps trains it.

  Args:
    path: the checkpoint to start from; None for fresh variables.
    save: where to save it at the end.
    train: for how many steps to train it.
    steps: the training steps at which to measure the loss.
    **plan: of `warm_start_plan.make_plan`.

  Returns:
    the loss at each of `steps`, and the variables by name.
  """
  m = models.Model()
  ids = np.random.RandomState(0).randint(2, models.VOCABULARY, (4, LENGTH))
  with m.tf_graph.as_default():
    tf.set_random_seed(1)
    step = tf.train.create_global_step()
    _, loss = m.model.call_simple(
        m.ids(ids), m.ids(ids[:, ::-1]), True, mode="train")
    variables = m.graph.trainable_variables
    updates = optimize.AdafactorOptimizer(learning_rate=0.1).apply_grads(
        mtf.gradients([loss], [v.outputs[0] for v in variables]), variables
        ) if train else []
    lowering = mtf.Lowering(m.graph, {
        m.mesh: mtf.placement_mesh_impl.PlacementMeshImpl("", "", [""])},
                            autostack=False)
    loss = lowering.export_to_tf_tensor(loss)
    updates = [lowering.lowered_operation(op) for op in updates]
    start = path and warm_start.assignments(path, **plan)
    with sessions.start() as session:
      session.run(tf.global_variables_initializer())
      if path:
        session.run(start)
      session.run(lowering.copy_masters_to_slices())
      for _ in range(train):
        session.run(updates)
      session.run(lowering.copy_slices_to_masters())
      if save:
        tf.train.Saver().save(session, save)
      variables = session.run({v.op.name: v for v in tf.global_variables()})
      losses = []
      for number in steps:
        step.load(number, session)
        losses.append(session.run(loss))
      return losses, variables


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
  """A checkpoint trained with T5's own layer: its path and loss."""
  path = str(tmp_path_factory.mktemp("stock") / "model.ckpt")
  parse(None)
  (loss,), _ = run(save=path, train=40)
  assert loss < 1  # From log(32): the tests below need trained weights.
  return path, loss


@pytest.mark.slow
def test_v_starts_as_the_transformer(stock):
  path, loss = stock
  parse("V")
  (started,), _ = run(path)
  np.testing.assert_allclose(started, loss, rtol=1e-6)


@pytest.mark.slow
def test_a_mixture_in_which_v_dominates_starts_near_the_transformer(
    stock, mixed):
  path, loss = stock
  parse("R+V")
  (started,), _ = run(path)
  near, equal = (abs(x - loss) / loss for x in (started, mixed[1]))
  assert near < 2e-3
  assert equal > 20 * near


@pytest.fixture(scope="module")
def mixed(stock, tmp_path_factory):
  """A checkpoint of R+V with equal weights: its path and loss."""
  path = str(tmp_path_factory.mktemp("mixed") / "model.ckpt")
  parse("R+V", "Mixture.initial_weights = None")
  (loss,), _ = run(stock[0], save=path)
  return path, loss


ANNEALING = ["Mixture.final_weights = {'R': 1.0}",
             "Mixture.annealing_steps = (10, 20)"]


@pytest.mark.slow
def test_weights_anneal_until_r_alone_is_left(mixed):
  path, loss = mixed
  parse("R+V", *ANNEALING)
  (before, middle, after), _ = run(path, steps=(10, 15, 30))
  np.testing.assert_allclose(before, loss, rtol=1e-6)
  parse("R+V", "Mixture.initial_weights = {'R': 0.75}")
  (expected,), _ = run(path, fresh="/alpha$")
  np.testing.assert_allclose(middle, expected, rtol=1e-6)
  parse("R")
  (expected,), _ = run(path)
  np.testing.assert_allclose(after, expected, rtol=1e-6)
  assert abs(after - before) > 0.01


@pytest.mark.slow
def test_decoding_reads_the_weights_of_the_step(monkeypatch):
  monkeypatch.setattr(tf.train, "get_global_step", lambda: tf.constant(3, tf.int64))
  decoding.parse("R+V", "Mixture.final_weights = {'R': 1.0}",
                 "Mixture.annealing_steps = (0, 4)", "num_layers = 1")
  decoding.check_greedy_decoding()


def test_annealing_without_a_step_is_an_error():
  parse("R+V", *ANNEALING)
  m = models.Model()
  with m.tf_graph.as_default(), pytest.raises(ValueError) as error:
    m.model.call_simple(m.ids([[2]]), m.ids([[2]]), True, mode="train")
  assert "`Mixture.annealing_steps` needs the training step" in str(error.value)


@pytest.mark.slow
def test_a_model_with_a_greater_max_length_computes_the_same(tmp_path):
  path = str(tmp_path / "model.ckpt")
  mixture_of_all = "R+Fix+FR+T+D+FD+V", "Mixture.initial_weights = None"
  parse(*mixture_of_all, max_length=10)
  (loss,), old = run(save=path)
  parse(*mixture_of_all, "FactorizedDenseLogits.b = 5", max_length=20)
  (grown,), new = run(path)
  np.testing.assert_allclose(grown, loss, rtol=1e-6)
  resized = {name for name, value in old.items() if new[name].shape != value.shape}
  assert {name.rpartition("/")[2] for name in resized} == {
      "R", "R1", "R2", "T", "T_after", "W2", "WA"}
  scope = "encoder/block_000/layer_000/SyntheticAttention/"
  for name, shape in {"part_0/R": (2, 20, 20), "part_1/R": (2, 20, 20),
                      "R1": (2, 20, 8), "T": (2, 20),
                      "part_4/W2": (2, 6, 20), "part_5/WA": (2, 6, 4)}.items():
    assert new[scope + name].shape == shape and scope + name in resized
  for name in resized:
    before, after = old[name], new[name]
    lead = tuple(slice(n) for n in before.shape)
    np.testing.assert_array_equal(after[lead], before)
    rest = np.ones(after.shape, bool)
    rest[lead] = False
    assert (after[rest] != 0).all()  # Fresh, not padded.


ENCODER = "encoder/block_000/layer_000/"
SELF = ENCODER + "SelfAttention/"
OURS = ENCODER + "SyntheticAttention/"


def saved(scope=SELF, bias=(2, 32), **more):
  """Names and shapes of a layer with 2 heads of 6, and of an embedding."""
  shapes = {"shared/embedding": (32, 10), scope + "relative_attention_bias": bias,
            **{scope + name: (10, 12) for name in "qkv"}, scope + "o": (12, 10)}
  shapes.update((scope + name, shape) for name, shape in more.items())
  return shapes


def make_plan(model, checkpoint, **kwargs):
  return warm_start_plan.make_plan("CKPT", model, checkpoint, **kwargs)


def test_new_variables_start_fresh_and_unused_ones_are_reported():
  checkpoint = saved(k_slot_v=(10, 12), k2=(3,))
  model = {**saved(OURS, R=(2, 16, 16), alpha=(2, 2), v_slot_v=(10, 12)),
           "global_step": ()}
  del model[OURS + "k"]
  plan = make_plan(model, checkpoint)
  assert plan.taken[OURS + "q"] == SELF + "q"
  assert plan.fresh == [OURS + "R", OURS + "alpha"]
  assert plan.unused == [SELF + "k", SELF + "k2"]
  assert plan.optimizer == 2
  text = "\n".join(warm_start_plan.describe("CKPT", plan, model, checkpoint))
  for said in ("5 variables start from CKPT", "the step counts from 0",
               "fresh: encoder/block_*/layer_000/SyntheticAttention/R, ",
               "not in the model: encoder/block_*/layer_000/SelfAttention/k, "):
    assert said in text


def test_training_goes_on_with_the_step_and_the_optimizer_where_shapes_agree():
  old, new = ({**saved(OURS, R=r, R_slot_v=r, q_slot_v=(10, 12)), "global_step": ()}
              for r in ((2, 8, 8), (2, 16, 16)))
  plan = make_plan(new, old, continue_training=True)
  assert plan.resized == [OURS + "R"] and plan.optimizer == 1
  assert plan.taken == {name: name for name in new if name != OURS + "R_slot_v"}


def test_all_that_depends_on_max_length_can_be_resized():
  for name, old, new in [
      ("shared/positional_embedding", (16, 10), (32, 10)),
      (ENCODER + "Linformer/E", (2, 16, 4), (2, 32, 4)),
      (OURS + "b2", (2, 32), (2, 16))]:  # A shorter one takes the first entries.
    assert make_plan({name: new}, {name: old}).resized == [name]


# Variables by scope, as their old and their new shapes. FR's axes are all unequal.
GROWN = {
    "part_0/R": ((3, 5, 5), (3, 8, 8)), "part_1/R1": ((3, 5, 2), (3, 8, 2)),
    "part_1/R2": ((3, 5, 2), (3, 8, 2)), "part_2/T": ((3, 5), (3, 8)),
    "part_2/T_after": ((3, 4), (3, 7)), "part_3/W2": ((3, 4, 5), (3, 4, 8)),
    "part_3/b2": ((3, 5), (3, 8)), "part_4/WA": ((3, 4, 2), (3, 4, 5)),
    "part_4/WB": ((3, 4, 6), (3, 4, 6))}


def started(path, shapes, **options):
  """(old, new): the values of variables before and after a start of other shapes."""
  generator = np.random.RandomState(0)
  values = {OURS + n: generator.randn(*old) for n, (old, _) in shapes.items()}
  for which in (0, 1):
    with tf.Graph().as_default(), sessions.start() as session:
      variables = {OURS + n: tf.get_variable(
          OURS + n, pair[which], tf.float32, tf.constant_initializer(-7.0))
                   for n, pair in shapes.items()}
      if which:
        start = warm_start.assignments(path, **options)
        session.run(tf.global_variables_initializer())
        session.run(start)
        new = session.run(variables)
      else:
        session.run(tf.global_variables_initializer())
        for n, variable in variables.items():
          variable.load(values[n], session)
        tf.train.Saver().save(session, path)
  return [{n.removeprefix(OURS): v for n, v in side.items()} for side in (values, new)]


@pytest.fixture(params=["sizes are integers", "sizes are TensorFlow 1's"])
def sizes(request):
  """Both kinds of tf.TensorShape; the command has TensorFlow 1's."""
  if request.param == "sizes are integers":
    yield
  else:
    tf.disable_v2_tensorshape()
    yield
    tf.enable_v2_tensorshape()


@pytest.mark.usefixtures("sizes")
def test_growing_tables_are_interpolated_linearly_in_the_position(tmp_path):
  old, new = started(str(tmp_path / "model.ckpt"), GROWN, interpolate=True)
  expected = {
      "part_0/R": reference.stretched(reference.stretched(old["part_0/R"], 1, 8), 2, 8),
      "part_1/R1": reference.stretched(old["part_1/R1"], 1, 8),
      "part_1/R2": reference.stretched(old["part_1/R2"], 1, 8),
      "part_3/W2": reference.stretched(old["part_3/W2"], 2, 8),
      "part_3/b2": reference.stretched(old["part_3/b2"], 1, 8),
      "part_4/WA": reference.stretched(old["part_4/WA"], 2, 5),
      "part_4/WB": old["part_4/WB"]}
  # All offsets of T are one line, from the farthest key before to that after.
  line = np.concatenate([old["part_2/T"][:, ::-1], old["part_2/T_after"]], 1)
  line = reference.stretched(line, 1, 15)
  expected |= {"part_2/T": line[:, :8][:, ::-1], "part_2/T_after": line[:, 8:]}
  assert set(expected) == set(GROWN)
  for name, value in expected.items():
    np.testing.assert_allclose(new[name], value, atol=1e-5, err_msg=name)


def test_without_interpolation_new_positions_start_fresh(tmp_path):
  old, new = started(str(tmp_path / "model.ckpt"), GROWN)
  np.testing.assert_allclose(new["part_2/T"][:, :5], old["part_2/T"], atol=1e-6)
  assert (new["part_2/T"][:, 5:] == -7).all()


def test_shorter_and_equal_tables_are_not_interpolated(tmp_path):
  old, new = started(str(tmp_path / "model.ckpt"), {
      "part_0/R": ((3, 8, 8), (3, 5, 5)), "part_1/R1": ((3, 5, 2), (3, 5, 2))},
                     interpolate=True)
  np.testing.assert_allclose(new["part_0/R"], old["part_0/R"][:, :5, :5], atol=1e-6)
  np.testing.assert_allclose(new["part_1/R1"], old["part_1/R1"], atol=1e-6)


def test_the_log_names_what_is_interpolated_and_what_is_not():
  old = {OURS + "R": (2, 5, 5), ENCODER + "Linformer/E": (2, 5, 4)}
  new = {OURS + "R": (2, 8, 8), ENCODER + "Linformer/E": (2, 8, 4)}
  plan = make_plan(new, old, interpolate=True)
  text = "\n".join(warm_start_plan.describe("CKPT", plan, new, old))
  assert "interpolated: encoder/block_*/layer_000/SyntheticAttention/R [2" in text
  assert "positions fresh: encoder/block_*/layer_000/Linformer/E [2" in text


def test_a_table_that_repeats_cannot_be_interpolated(tmp_path):
  shapes = {"part_0/R": ((3, 5, 5), (3, 8, 8)), "R1": ((3, 6, 2), (3, 6, 2))}
  models.parse_gin([], ["RandomLogits.tile_length = 8",
                        "FactorizedRandomLogits.tile_length = 6"])
  with pytest.raises(ValueError, match=r"`RandomLogits.tile_length` is 8, so .*"
                     r"part_0/R' repeats, and \[3, 5, 5\] .* cannot become"):
    started(str(tmp_path / "model.ckpt"), shapes, interpolate=True)
  gin.clear_config()
  models.parse_gin([], ["decoder/RandomLogits.tile_length = 8",
                        "FactorizedRandomLogits.tile_length = 6"])
  old, new = started(str(tmp_path / "model.ckpt"), shapes, interpolate=True)
  np.testing.assert_allclose(new["R1"], old["R1"], atol=1e-6)  # A tile stays.


def test_whether_to_interpolate_is_a_boolean():
  start = warm_start.WarmStart("DIR", interpolate=2)
  with pytest.raises(ValueError, match="`warm_start.interpolate` is 2"):
    start.added_to(None)


def test_one_shared_bias_serves_the_first_layer_that_wants_it():
  name = "encoder/block_003/layer_000/SyntheticAttention/relative_attention_bias"
  plan = make_plan({name: (2, 32)}, saved())
  assert plan.taken[name] == SELF + "relative_attention_bias"


def test_alpha_is_taken_for_the_same_parts_only():
  old = saved(OURS, R=(2, 16, 16), alpha=(2, 2))
  dense = saved(OURS, W1=(10, 12), W2=(2, 6, 16), alpha=(2, 2))
  assert OURS + "alpha" in make_plan(old, old).taken
  assert OURS + "alpha" in make_plan(dense, old).fresh


def test_a_part_of_a_mixture_is_found_by_its_name_or_told_by_the_user():
  one = saved(OURS, **{"part_0/W1": (10, 12), "part_0/W2": (2, 6, 16)})
  alone = saved(OURS, W1=(10, 12), W2=(2, 6, 16))
  assert make_plan(alone, one).taken[OURS + "W1"] == OURS + "part_0/W1"
  two = {**one, OURS + "part_1/W1": (10, 12)}
  for model, checkpoint in ((alone, two), (two, alone)):
    with pytest.raises(ValueError, match="say which with `warm_start.renames`"):
      make_plan(model, checkpoint)
  plan = make_plan(alone, two, renames=[("/W1$", "/part_1/W1")])
  assert plan.taken[OURS + "W1"] == OURS + "part_1/W1"


def test_a_checkpoint_that_does_not_fit_is_an_error_with_a_remedy():
  def dense(b):
    return saved(OURS, W1=(10, 12), WA=(2, 6, 4), WB=(2, 6, b))

  for model, checkpoint, message in [
      ({**saved(OURS), "decoder/layer_norm/scale": (10,)}, saved(),
       "has no variable for decoder/layer_norm/scale, which are not new"),
      (saved(OURS), saved(OURS, q=(10, 16)), f"'{OURS}q' has the shape "
       r"\[10, 16\] in the checkpoint 'CKPT', but .* `SyntheticAttention.num"),
      (saved(OURS, bias=(4, 32)), saved(), "has 2 heads in 'encoder/', but the "
       "model has 4; bind `SyntheticAttention.num_heads`"),
      (saved(OURS, R=(4, 16, 16), bias=(4, 32)), saved(),
       "has 2 heads in 'encoder/', but the model has 4"),
      (dense(8), dense(5), "bind `FactorizedDenseLogits.b = 5`"),
      (saved(OURS, R1=(2, 16, 8)), saved(OURS, R1=(2, 16, 4)),
       "let it start fresh with `warm_start.fresh`")]:
    with pytest.raises(ValueError, match=message):
      make_plan(model, checkpoint)


def test_the_classifier_on_an_encoder_and_what_the_user_names_start_fresh():
  kernels = ["classifier/kernel", "classifier_hidden_0/kernel"]
  plan = make_plan({**saved(OURS), **dict.fromkeys(kernels, (10, 4))}, saved())
  assert plan.fresh == kernels
  assert make_plan({kernels[0]: (10, 4)}, {kernels[0]: (10, 4)}).taken
  # So is what the user names.
  plan = make_plan({**saved(OURS), "shared/embedding": (64, 10)}, saved(),
                   fresh="embedding")
  assert plan.fresh == ["shared/embedding"]


def test_the_functions_that_gin_binds_for_t5s_parameter_count():
  model = {**saved(OURS), "encoder/new/w": (3,), "encoder/b/w": (3,), "global_step": ()}
  selection = warm_start_plan.Selection(
      lambda name: "new" not in name, lambda name: name.replace("/b/", "/a/"))
  checkpoint = {**saved(), "encoder/a/w": (3,), "global_step": ()}
  plan = make_plan(model, checkpoint, selection=selection, continue_training=True)
  assert plan.fresh == ["encoder/new/w"]
  assert plan.taken["encoder/b/w"] == "encoder/a/w"
  only = warm_start_plan.Selection(pattern="SelfAttention/[qk]")
  plan = make_plan(model, checkpoint, selection=only, continue_training=True)
  assert plan.taken == {OURS + name: SELF + name for name in "qk"}


def test_without_our_attention_a_missing_variable_is_a_warning():
  model = {**saved(), "decoder/rms_norm/scale": (10,)}
  plan = make_plan(model, saved(), strict=False)
  assert plan.missing == plan.fresh == ["decoder/rms_norm/scale"]
  line, = warm_start_plan.warnings("CKPT", plan, model)
  assert "CKPT has no variable for decoder/rms_norm/scale, which start fresh" in line
  with pytest.raises(ValueError, match="has no variable for"):
    make_plan(model, {"other": (2,)}, strict=False)  # It gives nothing at all.


def test_a_relative_position_bias_that_is_lost_is_a_warning():
  model = {name: shape for name, shape in saved(OURS).items() if "bias" not in name}
  line, = warm_start_plan.warnings("CKPT", make_plan(model, saved()), model)
  assert "bind `SyntheticAttention.relative_attention_type = " in line
  full = saved(OURS)
  assert not warm_start_plan.warnings("CKPT", make_plan(full, saved()), full)


def test_the_slots_of_a_users_optimizer_go_on():
  old, new = (saved(scope, **{"q/lion_m": (10, 12)}) for scope in (SELF, OURS))
  plan = make_plan(new, old, continue_training=True, endings=["/lion_m"])
  assert plan.taken[OURS + "q/lion_m"] == SELF + "q/lion_m"
  plan = make_plan(new, old, endings=["/lion_m"])
  assert OURS + "q/lion_m" not in plan.taken and plan.optimizer == 1
  assert not plan.unused


def test_both_spellings_of_t5s_norm_are_read():
  finals = {"rms_norm": "rms_norm", "layer_norm": "final_layer_norm"}

  def names(spelling):
    return [f"{scope}/scale{slot}" for slot in ("", "_slot_v") for scope in (
        f"encoder/{finals[spelling]}", f"decoder/{finals[spelling]}",
        ENCODER + spelling)]

  for old, new in (("layer_norm", "rms_norm"), ("rms_norm", "layer_norm")):
    model, checkpoint = (dict.fromkeys(names(spelling), (10,)) | saved(scope)
                         for spelling, scope in ((new, OURS), (old, SELF)))
    plan = make_plan(model, checkpoint, continue_training=True)
    assert not plan.fresh and not plan.unused and not plan.optimizer
    assert {(n, plan.taken[n]) for n in names(new)} == {*zip(names(new), names(old))}
    lines = warm_start_plan.describe("CKPT", plan, model, checkpoint)
    assert f"{new}/scale from encoder/block_*/layer_000/{old}/scale" in "".join(lines)


def test_another_norm_is_not_taken_for_t5s():
  scale = {ENCODER + "rms_norm/scale": (10,)}
  for others in (
      ["layer_norm/scale", "layer_norm/bias"],  # With a mean, of somebody's own.
      ["layer_norm_subsampled/scale"], ["scale_norm/scale"], ["my_rms_norm/scale"],
      ["true_layer_norm/layer_prepostprocess/layer_norm/layer_norm_scale"]):
    checkpoint = {**saved(), **{ENCODER + name: (10,) for name in others}}
    with pytest.raises(ValueError, match="no variable for .*rms_norm/scale"):
      make_plan({**saved(), **scale}, checkpoint)
  with pytest.raises(ValueError, match="no variable for .*layer_norm/scale"):
    make_plan({**scale, ENCODER + "layer_norm/scale": (10,)}, scale)  # One for two.


class Estimator:
  """The part of an Estimator that knows its last checkpoint."""

  def __init__(self, last):
    self._last = last

  def latest_checkpoint(self):
    return self._last

  def configure(self, **changes):
    """Does nothing."""


def test_a_model_with_a_checkpoint_of_its_own_goes_on_from_it():
  estimator = Estimator("model.ckpt-4")
  calls = []
  warm_start.train(estimator, 5, checkpoint="/nowhere", batch_size=6,
                   train_model_fn=lambda *args, **kwargs: calls.append(
                       (args, kwargs)))
  assert calls == [((estimator, 5), {"batch_size": 6})]


def test_the_last_checkpoint_of_a_folder_needs_no_file_that_names_it(tmp_path):
  checkpoint_files.save(tmp_path, 4, 8)
  (tmp_path / "checkpoint").unlink()
  assert warm_start.find_checkpoint(str(tmp_path)).endswith("model.ckpt-8")
  checkpoint_files.name_in_state(tmp_path, 12)
  for path in tmp_path.glob("model.ckpt-*"):
    path.unlink()
  for missing in (tmp_path, "/nowhere/model.ckpt-1"):
    with pytest.raises(ValueError, match=f"`warm_start.checkpoint` is '{missing}' but "
                       "there is no checkpoint; name"):
      warm_start.find_checkpoint(str(missing))


def test_the_binding_reaches_the_trainer_and_keeps_other_train_functions():
  parse("R+V", "utils.run.train_model_fn = @train_with_attention_summaries")
  assert gin.query_parameter("utils.run.train_model_fn").configurable.wrapped is (
      warm_start.train.__wrapped__)
  assert gin.query_parameter("warm_start.train_model_fn").configurable.wrapped is (
      summaries.train_with_attention_summaries.__wrapped__)


@pytest.mark.parametrize("bindings", [
    ["utils.run.train_model_fn = @warm_start"],
    ["utils.run.train_model_fn = @scope/warm_start"],
    ["utils.run.train_model_fn = %MINE", "MINE = @warm_start"],
    ["utils.run.train_model_fn = @train_with_seed",
     "train_with_seed.train_model_fn = @warm_start"]])
def test_a_user_may_bind_the_function_that_the_checkpoint_binds(bindings):
  parse("R+V", *bindings)
  calls = []
  function = gin_files.bound("utils.run.train_model_fn", None)
  assert gin_files.bound("warm_start.train_model_fn", None) is None  # Not itself.
  with pytest.raises(ValueError, match="`warm_start.checkpoint` is 'DIR' but there is"):
    function(Estimator(None))
  with gin.unlock_config():
    gin.bind_parameter("warm_start.train_model_fn", lambda *args: calls.append(args))
    gin.bind_parameter("warm_start.checkpoint", None)
  function(Estimator(None), 5)
  assert [args[1:] for args in calls] == [(5,)]


@pytest.mark.parametrize("bindings, message", [
    (["warm_start.train_model_fn = @train_with_seed",
      "train_with_seed.train_model_fn = @a/warm_start",
      "utils.run.train_model_fn = @warm_start"], "which trains by itself again"),
    (["utils.run.init_checkpoint = 'other'"],
     "`utils.run.init_checkpoint` and `warm_start.checkpoint` are both bound"),
    (["warm_start.checkpoint = %gin.REQUIRED"], "checkpoint` is %gin.REQUIRED"),
])
def test_contradictory_and_missing_bindings_are_errors(bindings, message):
  with pytest.raises(ValueError, match=message):
    parse("R+V", *bindings)


def test_the_function_without_a_checkpoint_is_an_error():
  with pytest.raises(ValueError, match="`warm_start.checkpoint` is missing, but"):
    models.parse_gin([], ["utils.run.train_model_fn = @warm_start"])
