"""Writes the results of the benchmark: a table, and CSV."""

import csv
from typing import Any

from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.benchmark.breakdown import PARTS
from synthesizer_mtf.tools.benchmark.breakdown import PRODUCTS

_STOCK = {"cross_attention": "cross-attention", "feed_forward": "feed-forward",
          "norm": "norms", "vocabulary": "embeddings and losses",
          "optimizer": "updates", "decoding": "decoding"}


def header(results: list[dict[str, Any]]) -> str:
  """Returns a few lines that describe the machine and the model of the results."""
  result = results[0]
  place, config = result["machine"], result["configuration"]
  versions = [result["versions"]]
  versions += [r["row_versions"] for r in results if "row_versions" in r]
  return "\n".join([
      f"{place['cpu']}, {place['cores']} cores, device {result['device']}, "
      f"load {place['load']} at the start",
      *dict.fromkeys(", ".join(f"{k} {v}" for k, v in of.items()) for of in versions),
      "{num_layers}+{num_layers} layers, d_model {d_model}, {num_heads} x {d_kv} "
      "heads, d_ff {d_ff}, vocabulary {vocabulary}, batch {batch}, float32, "
      "dropout {dropout_rate}, ".format(**config) +
      ("T5's" if config["relative_bias"] else "no") + " relative position bias" +
      "".join(f", stock {text}" for part, text in _STOCK.items()
              if config[f"stock_{part}"]) +
      (f", packed: {config['packed']} examples in a row" if config["packed"] else ""),
  ])


# Title, measure, and a function of the result. Columns without any value are left out.
# A ratio above 1 means faster than `SelfAttention`.
COLUMNS = (
    ("parameters", "train", lambda r: f"{r['parameters']:,}"),
    ("of attention", "train", lambda r: f"{r['attention_parameters']:,}"),
    ("speed", "train", lambda r: _spread(r["ratio"], r["ratio_quartiles"])),
    ("share", "train", lambda r: _spread(r["share"], r["share_quartiles"])),
    ("paper", "train", lambda r: f"{r['paper_ratio']:.2f}"),
    ("ms/step", "train", lambda r: _spread(
        1e3 * r["median_seconds"], [1e3 * s for s in r["quartiles_seconds"]], 0)),
    ("steps/s", "train", lambda r: f"{r['steps_per_second']:.2f}"),
    ("multiply-adds", "train", lambda r: f"{r['multiply_adds'] / 1e6:,.1f}M"),
    ("TFLOPS", "train", lambda r: f"{r['einsum_tflops']:.3f}"),
    ("eval", "eval", lambda r: _spread(r["ratio"], r["ratio_quartiles"])),
    ("MiB", "memory", lambda r: f"{r['peak_mebibytes']:.0f}"),
    ("memory", "memory", lambda r: f"{r['memory_share']:.2f}"),
)

LEGEND = """\
speed, eval: how many times as fast as {reference} in the same round, median
  [quartiles]: training step, and loss alone.
share: (the row's time - the floor's) / (SelfAttention's time - the floor's), of a
  training step in the same round.
paper: the same ratio of steps/s in Table 4 of arXiv:2005.00743.
multiply-adds, TFLOPS: einsums only, as Mesh TensorFlow counts them (it writes
  many element-wise products as einsums, too); 2 operations for each.
memory: (the row's peak - the floor's) / (SelfAttention's peak - the floor's)."""


_BREAKDOWN_LEGEND = """\
Milliseconds of the median training step, split by the shares in traced steps. The
  gradient of an operation counts with its part. rest: norms, dropout and sums between
  layers, and idle time. products: the matrix products of all parts. bare: each of these
  products alone, with the start of a run."""


_DECODING_LEGEND = """\
Tokens per second of all examples, median [quartiles], encoder included; in parentheses
  how many times as fast as {reference} in the same round. Weights are random, and no
  text ends early."""


def title(measure: str, sizes: dict[str, Any]) -> str:
  """Returns what is measured, in words: the measure, or the kind of decoding.

  Args:
    measure: a key of `model.MEASURES`, or another.
    sizes: the fields of the configuration.
  """
  if measure != "decode":
    return measure
  search = "greedy" if sizes["beam"] == 1 else f"beam {sizes['beam']}"
  return f"{search}, batch {sizes['decode_batch']}"


def _spread(value, quartiles, digits=2):
  low, high = quartiles
  return f"{value:.{digits}f} [{low:.{digits}f} {high:.{digits}f}]"


def table(results: list[dict[str, Any]]) -> str:
  """Returns Markdown tables with a line for each row and length; one is for decoding.

  Args:
    results: the dicts that `measuring` returns.

  Returns:
    a string. Below the tables are legends, and rows that were not possible or failed.
  """
  decodings = [r for r in results if r["measure"] == "decode"]
  others = [r for r in results if r["measure"] != "decode"]
  # Memory has no reference.
  config = {"reference": next(
      (r["reference"] for r in results if "reference" in r), attentions.STOCK)}
  parts = [_table(others, COLUMNS, LEGEND.format(**config))] if others else []
  if decodings:
    titles = dict.fromkeys(title("decode", r["configuration"]) for r in decodings)
    columns = [(name, name, _rate) for name in titles]
    parts.append(_table(decodings, columns, _DECODING_LEGEND.format(**config)))
  return "\n\n".join(parts)


def _table(results, columns, legend):
  lines = {}
  for result in results:
    key = result["row"], result["inputs"], result["targets"]
    name = title(result["measure"], result["configuration"])
    lines.setdefault(key, {})[name] = result
  filled = [
      [name, *(_cell(name, line.get(measure), text) for line in lines.values())]
      for name, measure, text in columns]
  filled = [["row", *(row for row, _, _ in lines)],
            ["lengths", *(f"{i}/{t}" for _, i, t in lines)]] + [
                column for column in filled if any(column[1:])]
  return "\n".join(
      [tabular.markdown([*zip(*filled)]), *_failures(results), "", legend])


def _rate(result):
  """Returns tokens per second, and how they compare."""
  low, high = result["tokens_per_second_quartiles"]
  text = f"{result['tokens_per_second']:,.0f} [{low:,.0f} {high:,.0f}]"
  return text + (f" ({result['ratio']:.2f})" if "ratio" in result else "")


def breakdown(results: list[dict[str, Any]]) -> str:
  """Returns a Markdown table of the milliseconds of each part of a training step.

  Args:
    results: the dicts that `measuring` returns.

  Returns:
    a string, with a line for each row and length that was traced.
  """
  lines = [["row", "lengths", *PARTS, "step", PRODUCTS, "bare"]]
  for r in results:
    if "parts_seconds" in r:
      seconds = [*map(r["parts_seconds"].get, PARTS), r["median_seconds"],
                 r["products_seconds"], r["bare_products_seconds"]]
      lines.append([r["row"], f"{r['inputs']}/{r['targets']}",
                    *(f"{1e3 * s:.0f}" for s in seconds)])
  return "\n".join([tabular.markdown(lines), "", _BREAKDOWN_LEGEND])


def _cell(name, result, text):
  if result is None:
    return ""
  try:
    return text(result)
  except KeyError:  # This was not measured.
    shown = name in ("speed", "eval", "memory") or result["measure"] == "decode"
    return result["status"] if shown and result["status"] != "ok" else ""


def _failures(results):
  """Returns a line for each obstacle, with the measures that met it."""
  met = {}
  for r in results:
    if r["status"] != "ok":
      key = r["row"], f"{r['inputs']}/{r['targets']}", r["status"], r["reason"]
      met.setdefault(key, []).append(title(r["measure"], r["configuration"]))
  lines = [f"{row} at {lengths} ({', '.join(measures)}) {status}: {reason}."
           for (row, lengths, status, reason), measures in met.items()]
  return [""] + lines if lines else []


def write_csv(results: list[dict[str, Any]], path: str) -> None:
  """Writes the results as CSV; columns are `a.b` for dicts and `a.0` for lists."""
  flat = [dict(_flatten(result)) for result in results]
  names = list(dict.fromkeys(name for row in flat for name in row))
  with open(path, "w", encoding="utf-8", newline="") as f:
    writer = csv.DictWriter(f, names)
    writer.writeheader()
    writer.writerows(flat)


def _flatten(value, prefix=""):
  """Yields (name, value) pairs; single times and gin bindings stay in JSON."""
  for name, entry in value.items():
    if name in ("seconds", "peaks_mebibytes", "gin"):
      continue
    if isinstance(entry, list):
      entry = dict(enumerate(entry))
    if isinstance(entry, dict):
      yield from _flatten(entry, f"{prefix}{name}.")
    else:
      yield f"{prefix}{name}", entry
