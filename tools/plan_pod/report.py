"""Writes plans: tables and reasons."""

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.benchmark import attentions

_LEGEND = """\
All figures are of one core{versions}. param, optim: MiB of its parts of the variables;
  args, temp, code: MiB for variables and features, results, and the program; fits:
  whether they fit into the core's memory, and the share of it{fits}.
Gop, GB: operations and bytes accessed, in 10^9; a loop over microbatches counts once.
collectives: their number, and the MiB that a core puts in, with all microbatches."""
_TIMED = """
ms: the compiler's estimate, in cycles, with all microbatches. It leaves out gathers,
  scatters and communication. to {base}: ms relative to this row's.
few: 10^6 entries that gathers and scatters read or add fewer than 128 at a time."""
_ON_HOST = ', "perhaps" if\n  libtpu would have to keep less'


def table(plans: list[dict[str, Any]]) -> str:
  """Returns a Markdown table of the compiled plans, and why the others are not there.

  Args:
    plans: the dicts that `planning.plan` returns.
  """
  valid = [p for p in plans if p["status"] == "ok"]
  valid = [{**p, "base": _base(p, valid)} for p in valid]
  parts = []
  if valid:
    several_modes = len({p["mode"] for p in plans}) > 1
    timed = all("seconds" in p for p in valid)
    parts += [_by_mode(plans) if several_modes else
              aligned(_COLUMNS + _TIMED_COLUMNS * timed, valid), _legend(valid, timed)]
  parts += [
      f"{p['name']} on {p['topology']} is not possible: {p['reason']}"
      if p["status"] == "invalid" else
      f"The compiler refused {p['name']} on {p['topology']}: {p['reason']}."
      for p in plans if p["status"] != "ok"]
  return "\n\n".join(parts + _replicated(valid))


def _mib(size):
  return f"{size / 2**20:,.0f}" if size >= 2**20 else f"{size / 2**20:.3g}"


def _base(plan, plans):
  """Returns the plan that a plan is compared with: stock's, or the first."""
  alike = [p for p in plans
           if (p["topology"], p["mode"]) == (plan["topology"], plan["mode"])]
  return next((p for p in alike if p["name"].endswith(attentions.STOCK)), alike[0])


def _by_mode(plans):
  """Returns a line for each plan, with a cell for each mode: MiB of results, GB, ms."""
  cells, modes = {}, list(dict.fromkeys(p["mode"] for p in plans))
  for p in plans:
    cells.setdefault((p["name"], p["topology"]), {})[p["mode"]] = _cell(p)
  return tabular.markdown(
      [["plan", "topology"] + [f"{mode}: temp, GB, ms" for mode in modes]] + [
          [*key] + [row.get(mode, "") for mode in modes] for key, row in cells.items()])


def _cell(plan):
  if plan["status"] != "ok":
    return plan["status"]
  core = plan["per_core"]
  milliseconds = f"{1e3 * plan['seconds']:.1f}" if "seconds" in plan else "-"
  return (f"{core['temporary_bytes'] / 2**20:,.0f}, "
          f"{core['bytes_accessed'] / 1e9:.2f}, {milliseconds}")


def _core(name):
  return lambda p: _mib(p["per_core"][f"{name}_bytes"])


def _fits(plan):
  return f"{plan['fits']}, {plan['per_core']['total_bytes'] / plan['hbm_bytes']:.0%}"


def _collectives(plan):
  core, again = plan["per_core"], plan["microbatches"] - 1
  return ", ".join(
      f"{number} {kind} "
      f"{_mib(size + again * core['loop_collectives'].get(kind, (0, 0))[1])}"
      for kind, (number, size) in core["collectives"].items()) or "none"


def _few(plan):
  return sum(plan["per_core"][kind][0] for kind in ("gathers", "scatters"))


# Pairs of a title and a function of the plan.
_COLUMNS = (
    ("plan", lambda p: p["name"]),
    ("topology", lambda p: p["topology"]),
    ("mesh", lambda p: p["mesh_shape"] or "1 core"),
    ("batch", lambda p: f"{p['batch_size']}"),
    ("microbatches", lambda p: f"{p['microbatches']}"),
    ("parameters", lambda p: f"{p['parameters']:,}"),
    ("param", _core("parameter")), ("optim", _core("optimizer")),
    ("args", _core("argument")), ("temp", _core("temporary")), ("code", _core("code")),
    ("fits", _fits),
    ("Gop", lambda p: f"{p['per_core']['operations'] / 1e9:,.0f}"),
    ("GB", lambda p: f"{p['per_core']['bytes_accessed'] / 1e9:,.2f}"),
    ("collectives", _collectives),
    ("s to compile", lambda p: f"{p['per_core']['compiling_seconds']:.0f}"))
_TIMED_COLUMNS = (
    ("ms", lambda p: f"{1e3 * p['seconds']:.1f}"),
    ("to base", lambda p: f"{p['seconds'] / p['base']['seconds']:.2f}"),
    ("few", lambda p: f"{_few(p) / 1e6:.1f}"))


def _legend(plans, timed):
  versions = plans[0].get("versions", {})
  compilers = " and ".join(f"{name} {versions[name]}" for name in ("jax", "libtpu")
                           if name in versions)
  text = _LEGEND.format(
      versions=f", by {compilers}" * bool(compilers), fits=_ON_HOST * (not timed))
  return text + (_TIMED.format(base=plans[0]["base"]["name"]) if timed else (
      "\nThe devices are those of the host, so there is no time; libtpu tells it."))


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
    plans: the dicts that `planning.plan` returns, with "paper".
  """
  plans = [p for p in plans if p["status"] == "ok" and "paper" in p]
  base = next((p for p in plans if p["paper"]["row"] == "Transformer"), None)
  if base is None or len(plans) < 2:
    return None
  columns = _PAPER + (_PAPER_TIMED if all("seconds" in p for p in plans) else ())
  return aligned(columns, [{**p, "base": base} for p in plans])


def _tera(plan):
  return 1e-12 * plan["per_core"]["operations"] * plan["microbatches"]


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


def aligned(columns: Iterable[tuple[str, Callable[[dict], str]]],
            plans: list[dict[str, Any]]) -> str:
  """Returns a Markdown table with a line for each plan.

  Args:
    columns: pairs of a title and a function of the plan.
    plans: dicts.
  """
  return tabular.markdown([[title for title, _ in columns]] + [
      [text(plan) for _, text in columns] for plan in plans])
