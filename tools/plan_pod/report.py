"""Writes plans: tables and reasons."""

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.plan_pod import pods

# Pairs of a title and a function of the plan.
_COLUMNS = (
    ("plan", lambda p: p["name"]),
    ("topology", lambda p: p["topology"]),
    ("mesh", lambda p: p["mesh_shape"] or "1 core"),
    ("batch", lambda p: f"{p['batch_size']}"),
    ("parameters", lambda p: f"{p['parameters']:,}"),
    ("param MiB", lambda p: _mib(p["per_core"]["parameter_bytes"])),
    ("optim MiB", lambda p: _mib(p["per_core"]["optimizer_bytes"])),
    ("activ MiB", lambda p: _mib(p["per_core"]["activation_bytes"])),
    ("fits", lambda p: p["fits"]),
    ("G mult-adds", lambda p: f"{p['per_core']['multiply_adds'] / 1e9:,.1f}"),
    ("all-reduce MiB", lambda p: ", ".join(
        f"{axis} {_mib(size)}" for axis, size in
        p["per_core"]["allreduce_bytes"].items()) or "none"),
    ("matmul ms", lambda p: f"{1e3 * p['seconds']['matmul']:.1f}"),
    ("links ms", lambda p: f"{1e3 * p['seconds']['communication']:.1f}"),
    ("compiled ms", lambda p: "-" if "compiled" not in p["seconds"] else
     f"{1e3 * p['seconds']['compiled']:.1f}"),
    ("steps/s", lambda p: f"{p['steps_per_second']:.2f}"),
)

_LEGEND = """\
All figures are of one core. param, optim: slices of the variables; activ: the most
  results kept at once, an upper bound without --compile; fits: whether the three fit
  into the core's memory, "perhaps" if XLA would have to fuse or repeat some results.
G mult-adds: 10^9 multiply-adds of the matrix products of a step. all-reduce: bytes
  that a core puts in, by mesh dimension.
matmul, links: the time of the matrix products and of communication at the rates below.
  compiled: the compiler's estimate of all but communication, with --compile.
steps/s: the most that matmul and links allow; with --compile, compiled and links.
Rates: {chips};
  from {sources}."""


# The smallest share of all reduced bytes that the report mentions.
_LARGE_SHARE = 0.1


def _mib(size):
  return f"{size / 2**20:,.0f}" if size >= 2**20 else f"{size / 2**20:.3g}"


def table(plans: list[dict[str, Any]]) -> str:
  """Returns a Markdown table of the valid plans, and why the others are not valid.

  Args:
    plans: the dicts that `plan_pod.plan` returns.
  """
  valid = [p for p in plans if p["status"] == "ok"]
  parts = [aligned(_COLUMNS, valid)] if valid else []
  parts += [f"{p['name']} on {p['topology']} is not possible: {p['reason']}"
            for p in plans if p["status"] != "ok"]
  if valid:
    parts.append(_legend(valid))
  parts += _repeated(valid) + _replicated(valid)
  return "\n\n".join(parts)


def _legend(plans):
  rates = {p["chip"]: p["rates"] for p in plans}
  chips = "; ".join(
      "{} chip: {tflops} TFLOPS, {hbm_gbps} GB/s, {hbm_gib} GiB, {link_gbps} "
      "Gbit/s per link".format(name, **r) for name, r in rates.items())
  return _LEGEND.format(chips=chips, sources=pods.SOURCES)


def _repeated(plans):
  """Returns a line for each large all-reduce that every microbatch repeats.

  Over the dimensions that split the batch, gradients should be reduced only once.
  """
  return [
      f"{p['name']} on {p['topology']}: each of the {e['times_per_step']} "
      f"microbatches reduces over {'+'.join(e['mesh_dimensions'])}, in all "
      f"{_mib(e['bytes_per_core'])} MiB a step: {e['operation']}"
      for p in plans for e in p["largest_allreduces"][:2]
      if e["times_per_step"] > 1 and
      not set(e["mesh_dimensions"]) & set(p["model_parallel_dimensions"]) and
      e["bytes_per_core"] > _LARGE_SHARE * sum(
          p["per_core"]["allreduce_bytes"].values())]


def _replicated(plans):
  """Returns a paragraph for each plan with variables that ought to be split."""
  parts = []
  for p in plans:
    lines = [
        f"  {e['count']} x {e['variable']} {e['shape']}: "
        f"{_mib(e['bytes_per_core'])} MiB per core; "
        + (f"{' or '.join(e['could_split'])} would divide"
           if e["could_split"] else "no dimension of it divides")
        for e in p["replicated"]]
    if lines:
      axes = sorted({e["mesh_dimension"] for e in p["replicated"]})
      parts.append("\n".join([
          f"{p['name']} on {p['topology']}: replicated over {', '.join(axes)}, "
          "which should split them:", *lines]))
  return parts


def paper_table(plans: list[dict[str, Any]]) -> str | None:
  """Compares plans of the paper's models with its Table 4.

  Args:
    plans: the dicts that `plan_pod.plan` returns, with "paper".
  """
  plans = [p for p in plans if p["status"] == "ok" and "paper" in p]
  base = next((p for p in plans if p["paper"]["row"] == "Transformer"), None)
  if base is None or len(plans) < 2:
    return None
  columns = (
      ("model", lambda p: p["paper"]["row"]),
      ("steps/s", lambda p: f"{p['steps_per_second']:.2f}"),
      ("paper", lambda p: f"{p['paper']['steps_per_second']:.2f}"),
      ("ratio", lambda p: "{:.2f}".format(
          p["steps_per_second"] / base["steps_per_second"])),
      ("paper", lambda p: f"{p['paper']['ratio']:.2f}"),
      ("T mult-adds", lambda p: f"{p['per_core']['multiply_adds'] / 1e12:.2f}"),
      ("paper TFLOPS", lambda p: f"{p['paper']['tflops']:.2f}"),
      ("ratio", lambda p: "{:.2f}".format(
          p["per_core"]["multiply_adds"] / base["per_core"]["multiply_adds"])),
      ("paper", lambda p: "{:.2f}".format(
          p["paper"]["tflops"] / base["paper"]["tflops"])),
      ("M parameters", lambda p: f"{p['parameters'] / 1e6:.1f}"),
      ("paper", lambda p: f"{p['paper']['parameters_millions']}"),
  )
  ours, papers = (
      ", ".join(p["paper"]["row"] for p in sorted(plans, key=steps, reverse=True))
      for steps in (lambda p: p["steps_per_second"],
                    lambda p: p["paper"]["steps_per_second"]))
  return (f"{aligned(columns, plans)}\n\nFastest first: {ours}\n"
          f"in the paper:  {papers}")


def aligned(columns: Iterable[tuple[str, Callable[[dict], str]]],
            plans: list[dict[str, Any]]) -> str:
  """Returns a Markdown table with a line for each plan.

  Args:
    columns: pairs of a title and a function of the plan.
    plans: dicts.
  """
  return tabular.markdown([[title for title, _ in columns]] + [
      [text(plan) for _, text in columns] for plan in plans])
