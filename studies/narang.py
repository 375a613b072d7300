"""Table 1 of Narang et al. 2021 (arXiv:2102.11972), for its Synthesizers.

That paper ran the authors' Synthesizers in the code base that this package extends. Its
models are those of Table 4 of arXiv:2005.00743 and two more. Its "plus" is a plain sum,
and its "plus alpha" has learned weights.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import functools
import math
import re
from typing import Any
from typing import NamedTuple

from synthesizer_mtf.tools.base import recipes
from synthesizer_mtf.tools.experiments import settings as settings_lib
from synthesizer_mtf.tools.plan_pod import compiling
from synthesizer_mtf.tools.plan_pod import lowering
from synthesizer_mtf.tools.plan_pod import planning
from synthesizer_mtf.tools.plan_pod import pods
import tensorflow.compat.v1 as tf

# The recipe in gin/recipes/pod for each column. All start from the pre-trained model,
# except one, which trains from scratch.
_FINETUNED = ("super_glue", "xsum", "web_questions")
_FROM_SCRATCH = "wmt14_ende"
_EARLY, _FINAL = 65536, 524288
_SAVED_EVERY = 8192  # `_EARLY` and `_FINAL` are multiples of this.
# Each row has one example, so our layers read tables of positions as the authors' layer
# does, by the index in the row.
_PRE_TRAINING = (
    "mesh_train_dataset_fn.pack = False",
    "utils.run.sequence_length = {'inputs': 512, 'targets': 114}",
    "utils.run.batch_size = ('tokens_per_batch', 65536)",
    # A loop would be counted once.
    "utils.serialize_num_microbatches.tokens_per_microbatch_per_replica = None")
_PRODUCT = re.compile(r"contracting_dims = \[([\d, ]*)\] x .*"
                      r": \(tensor<([^>]*)>, .*-> tensor<([^>]*)>")


class Row(NamedTuple):
  """One model.

  Attributes:
    name: the name in the notation of arXiv:2005.00743, with α for learned weights.
    model: the gin file of the model.
    parameters: the published number of parameters, in millions.
    operations: the published number of operations, in 10^12.
    steps_per_second: the published speed.
  """
  name: str
  model: str
  parameters: int
  operations: float
  steps_per_second: float


title = "Narang et al. 2021, Table 1"
NOTE = (
    "Operations are two for each multiply-add of the matrix products of a training "
    "step of 65,536 tokens in rows of one example, forward and back. "
    "The paper does not say what its figures count, so only ratios to V can be "
    "compared. R+V is 1.1% above: rounding its figure and V's can make 0.9% of it; "
    "Table 4 of arXiv:2005.00743 gives the same model 1.089 times V's operations.")
rows = (
    Row("V", "models/table4/transformer.gin", 223, 11.1, 3.50),
    Row("D", "models/table4/d.gin", 224, 11.4, 3.47),
    Row("D+V", "models/narang/d+v.gin", 243, 12.6, 3.22),
    Row("D+V α", "models/table4/d+v.gin", 243, 12.6, 3.01),
    Row("FR", "models/narang/fr.gin", 207, 10.1, 3.94),
    Row("R", "models/table4/r.gin", 254, 10.1, 4.08),
    Row("R+V", "models/narang/r+v.gin", 292, 12.0, 3.63),
    Row("R+V α", "models/table4/r+v.gin", 292, 12.0, 3.42),
    Row("LightConv", "models/table4/lightconv.gin", 224, 10.4, 4.07),
    Row("DyConv", "models/table4/dyconv.gin", 257, 11.8, 2.65))


# The early and the final loss, and the score of SuperGLUE, from the paper's Table 2,
# whose models have learned positions. The final losses are those of Table 4 of
# arXiv:2005.00743.
PUBLISHED_LOSSES = {
    "V": (2.245, 1.865, 69.72), "R+V": (2.202, 1.849, 76.84),
    "D": (2.339, 1.965, 61.02), "R": (2.458, 1.972, 64.61)}


def commands(chosen: Iterable[Row], bucket: str,
             settings: settings_lib.Settings) -> Iterator[tuple[str, list[str]]]:
  """Yields (description, command) for each training and evaluation.

  Args:
    chosen: some of `rows`.
    bucket: a folder, such as "gs://BUCKET".
    settings: the user's choices, whose steps have no effect.
  """
  for row in chosen:
    folder = f"{bucket}/narang/{row.name.lower().replace(' α', '_alpha')}"
    pre_training = [row.model, "recipes/pod/c4.gin"]
    yield f"{row.name}: pre-train", settings.launch(
        f"{folder}/c4", pre_training, {
            "utils.run.save_checkpoints_steps": _SAVED_EVERY,
            "utils.run.keep_checkpoint_max": _FINAL // _SAVED_EVERY + 1})
    yield f"{row.name}: early and final loss", settings.launch(
        f"{folder}/c4", [*pre_training, "perplexity_eval.gin"], {
            "utils.run.dataset_split": "validation",
            "utils.run.eval_checkpoint_step": [_EARLY, _FINAL]})
    start = {"utils.run.init_checkpoint": f"{folder}/c4/model.ckpt-{_FINAL}"}
    for recipe in _FINETUNED:
      yield from _of_recipe(row, recipe, folder, settings, start)
    yield from _of_recipe(row, _FROM_SCRATCH, folder, settings, {})


def _of_recipe(row, recipe, folder, settings, start):
  """Yields the commands at the start of a recipe, changed to another model."""
  train, evaluate = recipes.commands(f"recipes/pod/{recipe}.gin")
  for what, command, params in (("train on", train, start), ("evaluate", evaluate, {})):
    files = [name for name in recipes.values(command, "gin_file")
             if not name.startswith(("models/", "attention/"))]
    bindings = [binding for binding in recipes.values(command, "gin_param")
                if "init_checkpoint" not in binding]
    yield f"{row.name}: {what} {recipe}", [
        *settings.launch(f"{folder}/{recipe}", [row.model, *files], params),
        *(f"--gin_param={binding}" for binding in bindings)]


def lines(chosen: Iterable[Row]) -> Iterator[dict[str, Any]]:
  """Yields a dict for each row: the published figures, and the planner's counts."""
  counted = functools.cache(_counted)
  for row in chosen:
    yield _line(row, counted(row.model), counted(rows[0].model))


def _counted(model):
  """Returns the parameters, and the multiply-adds of all matrix products of a step."""
  with compiling.Worker(1) as worker:
    return worker.call(_count, model)


def _count(model):
  topology = pods.parse_topology("v5e:1x1")
  planning.Variant(model, [model], _PRE_TRAINING).parse([
      f"utils.tpu_mesh_shape.tpu_topology = {topology.mesh_name!r}"])
  run = lowering.read_run(topology, vocabulary_size=32128)
  with tf.Graph().as_default():
    step = lowering.lower(run, "train", compiling.devices(topology, compiling.HOST))
    step.mesh_impl.compile()
  return {"parameters": sum(v.size for v in step.graph.trainable_variables),
          "multiply_adds": sum(
              math.prod(_sizes(result)) * math.prod(
                  _sizes(left)[int(i)] for i in contracted.split(",") if i)
              for contracted, left, result in _PRODUCT.findall(
                  step.mesh_impl.arrays.lower().as_text()))}


def _sizes(shape):
  return [int(size) for size in shape.split("x")[:-1]]  # The last part is the dtype.


def _line(row, own, first):
  operations = [2e-12 * each["multiply_adds"] for each in (own, first)]
  ratio, published = operations[0] / operations[1], row.operations / rows[0].operations
  return {
      "row": row.name,
      "parameters": own["parameters"],
      "published parameters, millions": row.parameters,
      "parameters, % more": _percent(own["parameters"], row.parameters * 1e6),
      "operations of a step, 10^12": round(operations[0], 2),
      "published operations, 10^12": row.operations,
      "operations to V's": round(ratio, 3),
      "published, to V's": round(published, 3),
      "to V's, % more": _percent(ratio, published),
      "published steps/s": row.steps_per_second}


def _percent(ours, theirs):
  return round(100 * (ours / theirs - 1), 1)
