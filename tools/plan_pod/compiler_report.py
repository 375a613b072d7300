"""Tables of the TPU compiler's figures."""

from typing import Any

from synthesizer_mtf.tools.base import tabular
from synthesizer_mtf.tools.benchmark import attentions
from synthesizer_mtf.tools.plan_pod import report

_LEGEND = """\
Figures of libtpu {libtpu}, by JAX {jax}, for one core. args, temp, code: MiB of memory
  for variables and features, results, and the program; HBM: their share of its memory.
Gop, GB: operations and bytes accessed, in 10^9; a loop over microbatches counts once.
ms: the compiler's estimate, in cycles, with all microbatches. It leaves out gathers,
  scatters and communication. to {base}: ms relative to this row's.
few: 10^6 entries that gathers and scatters read or add fewer than 128 at a time.
collectives: their number, and the MiB that a core puts in."""


def table(plans: list[dict[str, Any]]) -> str:
  """Returns a Markdown table of the compiled plans, with reasons for refusals.

  Args:
    plans: the dicts that `plan_pod.plan` returns, with "compiler".
  """
  plans = [p for p in plans if "compiler" in p]
  done = [p for p in plans if p["compiler"]["status"] == "compiled"]
  done = [{**p, "base": _base(p, done)} for p in done]
  parts = []
  if done:
    parts += [_by_mode(plans) if len({p["mode"] for p in plans}) > 1 else
              report.aligned(_COLUMNS, done),
              _LEGEND.format(base=done[0]["base"]["name"],
                             **done[0]["compiler"]["versions"])]
  parts += [f"The compiler refused {p['name']} on {p['topology']}: "
            f"{p['compiler']['reason']}."
            for p in plans if p["compiler"]["status"] == "refused"]
  return "\n\n".join(parts)


def _by_mode(plans):
  """Returns a line for each plan, with a cell for each mode: MiB of results, GB, ms."""
  cells, modes = {}, list(dict.fromkeys(p["mode"] for p in plans))
  for p in plans:
    cells.setdefault((p["name"], p["topology"]), {})[p["mode"]] = p["compiler"]
  return tabular.markdown(
      [["plan", "topology"] + [f"{mode}: temp, GB, ms" for mode in modes]] + [
          [*key] + [_cell(found.get(mode)) for mode in modes]
          for key, found in cells.items()])


def _cell(compiler):
  if compiler is None or compiler["status"] == "refused":
    return "refused" if compiler else ""
  return (f"{compiler['temporary_bytes'] / 2**20:,.0f}, "
          f"{compiler['bytes_accessed'] / 1e9:.2f}, {compiler['milliseconds']:.1f}")


def _base(plan, plans):
  """Returns the plan that a plan is compared with: stock's, or the first."""
  alike = [p for p in plans
           if (p["topology"], p["mode"]) == (plan["topology"], plan["mode"])]
  return next((p for p in alike if p["name"].endswith(attentions.STOCK)), alike[0])


def _mib(name):
  return lambda p: f"{p['compiler'][name] / 2**20:,.0f}"


def _used(plan):
  """Returns the share of a core's memory that the step and its program take."""
  compiler = plan["compiler"]
  return (compiler["memory_bytes"] + compiler["code_bytes"]) / plan["hbm_bytes"]


def _few(plan):
  return sum(plan["compiler"][kind][0] for kind in ("gathers", "scatters"))


def _collectives(plan):
  return ", ".join(f"{number} {kind} {size / 2**20:,.0f}" for kind, (number, size) in
                   plan["compiler"]["collectives"].items()) or "none"


_COLUMNS = (
    ("plan", lambda p: p["name"]),
    ("topology", lambda p: p["topology"]),
    ("mode", lambda p: p["mode"]),
    ("args", _mib("argument_bytes")), ("temp", _mib("temporary_bytes")),
    ("code", _mib("code_bytes")),
    ("HBM", lambda p: f"{_used(p):.0%}"),
    ("Gop", lambda p: f"{p['compiler']['operations'] / 1e9:,.0f}"),
    ("GB", lambda p: f"{p['compiler']['bytes_accessed'] / 1e9:,.2f}"),
    ("ms", lambda p: f"{p['compiler']['milliseconds']:.1f}"),
    ("to base", lambda p: "{:.2f}".format(
        p["compiler"]["milliseconds"] / p["base"]["compiler"]["milliseconds"])),
    ("few", lambda p: f"{_few(p) / 1e6:.1f}"),
    ("collectives", _collectives),
    ("s to compile", lambda p: f"{p['compiler']['seconds']:.0f}"),
)
