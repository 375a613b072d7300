"""How fast a model is with the attentions that a budget chose."""

from collections.abc import Mapping
from collections.abc import Sequence
import shlex
from typing import Any

from mesh_tensorflow.transformer import utils
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.base import layer_names
from synthesizer_mtf.tools.benchmark import __main__ as benchmark
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark import model
from synthesizer_mtf.tools.benchmark import result_tables
from synthesizer_mtf.tools.calibrate import blocks
from synthesizer_mtf.tools.calibrate import moments
from t5.models import mesh_transformer

_MACROS = ("d_model", "d_kv", "d_ff", "num_heads")
_ROUNDS = {"train": (3, 20), "eval": (3, 20), "decode": (1, 5)}


def word(layers: Mapping[str, moments.Layer], kept: Mapping[str, str]) -> str:
  """The word of `attention_words` for a choice of layers, as [R,V]/V.

  Args:
    layers: `reading.Graph.layers` of the model with V.
    kept: what takes the place of V, by the names of layers.
  """
  stacks = layer_names.by_stack(
      (name, kept.get(name, layer.notation)) for name, layer in layers.items())
  return "/".join(members[0] if len({*members}) == 1 else f"[{','.join(members)}]"
                  for members in stacks.values())


def sizes(layers: Mapping[str, moments.Layer]) -> dict[str, Any] | None:
  """The sizes of gin's model as `model.Configuration` has them.

  Returns:
    a dict; None for a model that the benchmark does not have, such as one with stacks
    of different depths.
  """
  depths = [sum(name.startswith(f"{stack}/") for name in layers)
            for stack in ("encoder", "decoder")]
  lengths = gin_files.bound("utils.run.sequence_length", {})
  found = {name: gin_files.bound(f"%{name}", None) for name in _MACROS}
  if sum(depths) != len(layers) or depths[0] != depths[1] or None in found.values() or (
      not {"inputs", "targets"} <= set(lengths)):
    return None
  return {
      **found, "num_layers": depths[0], "inputs": lengths["inputs"],
      "targets": lengths["targets"],
      "vocabulary": utils.targets_vocabulary(
          mesh_transformer.get_vocabulary()).vocab_size}


def table(rows: Sequence[str], of_model: Mapping[str, Any], bias: bool) -> str:
  """Measures rows as `benchmark` does, and returns its tables.

  Args:
    rows: words; the first is the one that the others are compared with.
    of_model: what `sizes` returns.
    bias: whether the model has T5's relative position bias.
  """
  config = model.Configuration(**of_model, relative_bias=bias)
  results = benchmark.benchmark(
      [attentions.find_row(row) for row in rows], [config], _ROUNDS, memory_repeats=0,
      traced=0, decodings=[(config.beam, config.decode_batch)], reference=rows[0])
  flags = [f"--{name}={value}" for name, value in of_model.items()]
  command = shlex.join(["--rows=" + ",".join(rows), f"--reference={rows[0]}", *flags,
                        *["--relative_bias"] * bias])
  return (f"{result_tables.header(results)}\n\n{result_tables.table(results)}\n\n"
          f"The same again: python -m synthesizer_mtf.tools.benchmark {command}")


def gin_lines(layers: Mapping[str, moments.Layer],
              kept: Mapping[str, str]) -> list[str]:
  """The gin bindings of a choice of layers."""
  return [f"{gin_files.parameter(scope, 'synthesizer_stack', 'attention')} = {value}"
          for scope, value in blocks.entries(layers, kept).items()]
