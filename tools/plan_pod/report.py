"""Writes plans: tables and reasons."""

from typing import Any

from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.benchmark import attentions

_LEGEND = """\
All figures are of one core{versions}. param, optim: MiB of its parts of the variables;
  args, temp, code: MiB for variables and features, results, and the program; fits:
  whether they fit into its memory, and the share of it. "perhaps": the compiler for the
  host keeps more than that of the device may.
Gop, GB: operations and bytes accessed, in 10^9; a loop over microbatches counts once.
collectives: their number, and the MiB of their results, with all microbatches."""
_TIMED = """
ms: the compiler's estimate, in cycles, with all microbatches. It leaves out gathers,
  scatters and communication. "a to b": b where packed rows hold several examples, a
  where each holds one. to base: a relative to {base}."""
_UNTIMED = """
No time is estimated: the program was compiled for devices of the host. libtpu estimates
  that of TPUs; for GPUs only a run tells it."""
_EXTENDED = """
Compiled with `num_layers` of {}, and extended in a straight line, which is rough for
  temp and fits."""

_PACKED = """
Rows are packed: where a row holds several examples, R, Fix and FD find the positions in
  each by two more products with one-hot rows, so R can multiply more than V.
  `SyntheticAttention.positions = "row"` saves these products."""


def table(plans: list[dict[str, Any]]) -> str:
  """Returns a Markdown table of the compiled plans, and why the others are not there.

  Args:
    plans: the dicts that `planning.plan` returns.
  """
  valid = [p for p in plans if p["status"] == "ok"]
  parts = []
  if valid:
    valid = [{**p, "base": _base(p, valid)} for p in valid]
    timed = all("seconds" in p for p in valid)
    parts += [_aligned(_COLUMNS + _TIMED_COLUMNS * timed, valid), _legend(valid, timed)]
  parts += [
      f"{p['name']} on {p['topology']} is not possible: {p['reason']}"
      if p["status"] == "invalid" else
      f"The compiler refused {p['name']} on {p['topology']}: {p['reason']}."
      for p in plans if p["status"] != "ok"]
  parts += ["\n  ".join([f"{p['name']} on {p['topology']} keeps:", *p["replicated"]])
            for p in valid if p["replicated"]]
  return "\n\n".join(parts)


def paper_table(plans: list[dict[str, Any]]) -> str | None:
  """Compares plans of the paper's models, which have "paper", with its Table 4."""
  plans = [p for p in plans if p["status"] == "ok" and "paper" in p]
  base = next((p for p in plans if p["paper"]["row"] == "Transformer"), None)
  if base is None or len(plans) < 2:
    return None
  columns = _PAPER + (_PAPER_TIMED if all("seconds" in p for p in plans) else ())
  return _aligned(columns, [{**p, "base": base} for p in plans])


def _aligned(columns, plans):
  """Returns a Markdown table with a line for each plan.

  Args:
    columns: pairs of a title and a function of the plan.
    plans: dicts.
  """
  return tabular.markdown([[title for title, _ in columns]] + [
      [text(plan) for _, text in columns] for plan in plans])


def _mib(size):
  return f"{size / 2**20:,.0f}" if size >= 2**20 else f"{size / 2**20:.3g}"


def _base(plan, plans):
  """Returns the plan that a plan is compared with: stock's, or the first."""
  alike = [p for p in plans
           if (p["topology"], p["mode"]) == (plan["topology"], plan["mode"])]
  return next((p for p in alike if p["name"].endswith(attentions.STOCK)), alike[0])


def _core(name):
  return lambda p: _mib(p["per_core"][f"{name}_bytes"])


def _collectives(plan):
  core, again = plan["per_core"], plan["microbatches"] - 1
  return ", ".join(
      f"{number} {kind} "
      f"{_mib(size + again * core['loop_collectives'].get(kind, (0, 0))[1])}"
      for kind, (number, size) in core["collectives"].items()) or "none"


def _tera(plan):
  return 1e-12 * plan["per_core"]["operations"] * plan["microbatches"]


# Pairs of a title and a function of the plan.
_COLUMNS = (
    ("plan", lambda p: p["name"] + f", {p['mode']}" * (p["mode"] != "train")),
    ("topology", lambda p: p["topology"]),
    ("mesh", lambda p: p["mesh_shape"] or "1 core"),
    ("batch", lambda p: f"{p['batch_size']}"),
    ("microbatches", lambda p: f"{p['microbatches']}"),
    ("parameters", lambda p: f"{p['parameters']:,}"),
    ("param", _core("parameter")), ("optim", _core("optimizer")),
    ("args", _core("argument")), ("temp", _core("temporary")), ("code", _core("code")),
    ("fits", lambda p: (
        f"{p['fits']}, {p['per_core']['total_bytes'] / p['hbm_bytes']:.0%}")),
    ("Gop", lambda p: f"{p['per_core']['operations'] / 1e9:,.0f}"),
    ("GB", lambda p: f"{p['per_core']['bytes_accessed'] / 1e9:,.2f}"),
    ("collectives", _collectives),
    ("s to compile", lambda p: f"{p['per_core']['compiling_seconds']:.0f}"))
_TIMED_COLUMNS = (
    ("ms", lambda p: " to ".join(dict.fromkeys(
        f"{1e3 * p[name]:.1f}" for name in ("seconds", "most_seconds")))),
    ("to base", lambda p: f"{p['seconds'] / p['base']['seconds']:.2f}"))
_PAPER = (
    ("model", lambda p: p["paper"]["row"]),
    ("M parameters", lambda p: f"{p['parameters'] / 1e6:.1f}"),
    ("paper", lambda p: f"{p['paper']['parameters_millions']}"),
    ("10^12 operations", lambda p: f"{_tera(p):.2f}"),
    ("paper's TFLOPS", lambda p: f"{p['paper']['tflops']:.2f}"),
    ("relative", lambda p: f"{_tera(p) / _tera(p['base']):.2f}"),
    ("paper", lambda p: f"{p['paper']['tflops'] / p['base']['paper']['tflops']:.2f}"))
_PAPER_TIMED = (
    ("steps/s", lambda p: f"{p['steps_per_second']:.2f}"),
    ("paper", lambda p: f"{p['paper']['steps_per_second']:.2f}"),
    ("ratio", lambda p: f"{p['base']['seconds'] / p['seconds']:.2f}"),
    ("paper", lambda p: f"{p['paper']['ratio']:.2f}"))


def _legend(plans, timed):
  versions = plans[0].get("versions", {})
  compilers = " and ".join(f"{name} {versions[name]}" for name in ("jax", "libtpu")
                           if name in versions)
  layers = plans[0].get("compiled_layers")
  return _LEGEND.format(versions=f", by {compilers}" * bool(compilers)) + (
      _TIMED.format(base=plans[0]["base"]["name"]) if timed else _UNTIMED) + (
          _EXTENDED.format(" and ".join(map(str, layers))) if layers else "") + (
              _PACKED * any(plan.get("packed") for plan in plans))
