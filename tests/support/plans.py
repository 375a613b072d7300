"""A small model for the planner."""

from synthesizer_mtf.tools.plan_pod import planning
from synthesizer_mtf.tools.plan_pod import pods

TINY = [
    "d_model = 16", "d_ff = 24", "num_heads = 4", "d_kv = 6", "num_layers = 1",
    "RandomLogits.max_length = 12", "dropout_rate = 0.0",
    "utils.run.sequence_length = {'inputs': 12, 'targets': 8}",
    "utils.run.batch_size = 8", "utils.tpu_mesh_shape.model_parallelism = 2"]


def plan(*params, attention=None, topology="v5e:2x2", **options):
  """Plans this model, with more bindings, for devices of the host."""
  variant = planning.Variant(attention or "tiny", ["models/bi_v1.gin"],
                             [*TINY, *params], attention=attention)
  return planning.plan(variant, pods.parse_topology(topology), planning.Options(
      vocabulary_size=32, compiler="host", **options))
