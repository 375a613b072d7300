"""A small model for the planner."""

from synthesizer_mtf.tools.plan_pod import __main__ as plan_pod
from synthesizer_mtf.tools.plan_pod import pods

TINY = [
    "d_model = 16", "d_ff = 24", "num_heads = 4", "d_kv = 6", "num_layers = 1",
    "RandomLogits.max_length = 12", "dropout_rate = 0.0",
    "utils.run.sequence_length = {'inputs': 12, 'targets': 8}",
    "utils.run.batch_size = 8", "utils.tpu_mesh_shape.model_parallelism = 2"]


def plan(*params, attention=None, topology="2x2", **kwargs):
  """Plans this model, with more bindings, on a topology."""
  topology = pods.parse_topology(topology)
  variant = plan_pod.Variant(attention or "tiny", ["models/bi_v1.gin"],
                             [*TINY, *params], attention=attention)
  return plan_pod.plan(variant, topology, pods.CHIPS[topology.generation],
                       vocabulary_size=32, **kwargs)
