"""Where a decoding step spends its time: `step_operations`."""

import types

from studies import step_operations
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark import model

CONFIG = model.Configuration(
    inputs=12, targets=6, decode_batch=3, num_layers=1, d_model=8, num_heads=2, d_kv=4,
    d_ff=16, vocabulary=64)


def test_the_operations_of_each_part_run_once_in_a_step():
  program = model.build(attentions.find_row("V"), CONFIG, "decode")
  found = step_operations.of_steps(program.trace(), CONFIG.targets)
  program.close()
  counts = {key: count for key, (_, count) in found.items()}
  assert counts["feed-forward", "MatMul"] == 2  # wi and wo.
  assert counts["cross-attention", "MatMul"] == 2  # q and o; keys come before the loop.
  assert counts["self-attention", "MatMul"] == 4
  assert counts["cross-attention", "BatchMatMulV3"] == 2


def node(name, kind, begin, end):
  return types.SimpleNamespace(
      node_name=name, timeline_label=f"{name} = {kind}(x, y)",
      op_start_rel_micros=begin, op_end_rel_micros=end)


def test_a_line_has_the_microseconds_of_a_step_and_small_ones_have_none():
  layer = "loop/while/decoder/block_000/layer_000/"
  nodes = [node(f"{layer}DenseReluDense/wi", "_MklMatMul", 0, 300),
           node(f"{layer}DenseReluDense/wo", "_MklMatMul", 10, 500),
           node(f"{layer}DenseReluDense/relu", "Relu", 0, 1),
           node("encoder/wi", "_MklMatMul", 0, 7000)]
  stats = types.SimpleNamespace(dev_stats=[types.SimpleNamespace(node_stats=nodes)])
  found = step_operations.of_steps(stats, 2)
  assert step_operations.table({"V": found, "R": {}}).splitlines() == [
      "| part         | operation | V       | R     |",
      "| ------------ | --------- | ------- | ----- |",
      "| feed-forward | MatMul    | 395 (1) | 0 (0) |",
      "| all          |           | 396 (2) | 0 (0) |"]
