"""plan_pod and the TPU's compiler, which a script replaces here.

docs/plan_a_pod_tables.md has the figures of the compiler itself.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support import plans
from support import processes
from synthesizer_mtf.tools.plan_pod import __main__ as plan_pod
from synthesizer_mtf.tools.plan_pod import compiler_report
from synthesizer_mtf.tools.plan_pod import compiling
from synthesizer_mtf.tools.plan_pod import modules
from synthesizer_mtf.tools.plan_pod import pods
from tensorflow.compiler.xla.service import hlo_pb2

SAID = {"operations": 3e9, "bytes_accessed": 2e9, "argument_bytes": 2**20,
        "temporary_bytes": 2**21, "output_bytes": 0, "code_bytes": 2**22,
        "seconds": 7.0, "versions": compiling.VERSIONS}
MODULE = """\
HloModule jit, is_scheduled=true

%body.1 (p: (f32[3,5])) -> (f32[3,5]) {
  %p = (f32[3,5]{1,0}) parameter(0)
  %x.1 = f32[3,5]{1,0:T(8,128)} add(%a, %b), backend_config={"estimated_cycles":"70"}
  ROOT %t = (f32[3,5]{1,0}) tuple(%x.1), backend_config={"estimated_cycles":"900"}
}

%fused.2 (q: f32[50]) -> f32[6,4] {
  %g = f32[6,4]{1,0} gather(%q, %i), offset_dims={1}, slice_sizes={1,4}
  ROOT %h = bf16[6,256]{1,0} gather(%q, %i), offset_dims={1}, slice_sizes={1,256}
}

ENTRY %main.3 (a: f32[3,5]) -> f32[3,5] {
  %f = f32[6,4] fusion(%a), calls=%fused.2, backend_config={"estimated_cycles":"20"}
  %w = (f32[3,5]{1,0}) while(%f), condition=%cond, body=%body.1
  %r = bf16[7,4]{1,0:T(8,128)(2,1)} all-reduce(%f), replica_groups={{0,1}}, to_apply=%s
  %u = f32[9]{0} copy(%r), backend_config={"estimated_cycles":"9223372036854775807"}
  ROOT %s.1 = f32[50,2]{1,0} scatter(%a, %i, %f), update_window_dims={1}, to_apply=%s
}
"""


@pytest.fixture(name="environment")
def fixture_environment(tmp_path):
  """Makes a folder whose `python` prints versions, and then the given result."""
  def make(says="", versions=compiling.VERSIONS, module=MODULE, before="",
           topology="{}"):
    tmp_path.joinpath("topology").write_text(topology)
    said = says if isinstance(says, str) else json.dumps(says)
    tmp_path.joinpath("said").write_text(f"a notice\n{said}\n")
    tmp_path.joinpath("module").write_text(module)
    tmp_path.joinpath("versions").write_text(
        "".join(f"{name} {version}\n" for name, version in versions.items()))
    python = tmp_path / "bin" / "python"
    python.parent.mkdir(exist_ok=True)
    python.write_text(f"""#!/bin/sh
cd {tmp_path}
[ "$1" = -c ] && exec cat versions
[ -e "$4" ] || exec cat topology
echo "$2 $3" > asked
{before}
cp module "$4.txt"
exec cat said
""")
    python.chmod(0o755)
    return str(tmp_path)

  return make


def plan(environment, attention, mode, **kwargs):
  return plans.plan(attention=attention, compiler=compiling.Compiler(environment),
                    mode=mode, **kwargs)


@pytest.fixture(scope="module")
def planned():
  """A plan of R, which the compiler has not seen."""
  return plans.plan(attention="R", mode="eval")


def compiled(planned, environment, **changes):
  """A plan with the compiler's answer, as if it were for this plan, or refused."""
  compiler = compiling.Compiler(environment)
  found = compiler.compile(b"a program", pods.parse_topology("2x2"))
  if found["status"] == "compiled":
    found |= {"memory_bytes": 3 * 2**20, "milliseconds": 2.0}
  return {**planned, **changes, "compiler": found}


def test_a_module_gives_cycles_collectives_and_entries_read_one_by_one():
  assert modules.summarized(MODULE) == {
      "cycles": 20, "loop_cycles": 70, "collectives": {"all-reduce": [1, 56]},
      "gathers": [24, 24 + 6 * 256], "scatters": [100, 100]}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_the_compilers_memory_and_time_take_the_place_of_ours(
    environment, mode, tmp_path):
  found = plan(environment(SAID), "R", mode, keep=str(tmp_path / "kept"))
  compiler = found["compiler"]
  assert tmp_path.joinpath("asked").read_text() == "v3:2x2 8\n"
  assert compiler["memory_bytes"] == 3 * 2**20
  assert compiler["milliseconds"] == pytest.approx(1e3 * 90 / pods.CHIPS["v3"].clock)
  assert found["per_core"]["total_bytes"] == (3 + 4) * 2**20 and found["fits"] == "yes"
  seconds = found["seconds"]
  assert seconds["compiled"] == pytest.approx(1e-3 * compiler["milliseconds"])
  assert found["steps_per_second"] == pytest.approx(
      1 / (seconds["compiled"] + seconds["communication"]))
  assert json.loads(json.dumps(found))["compiler"]["seconds"] == SAID["seconds"]
  check_communication(tmp_path.joinpath("kept.hlo").read_bytes())
  assert tmp_path.joinpath("kept.hlo.txt").read_text() == MODULE


def check_communication(program):
  module = hlo_pb2.HloModuleProto.FromString(program)
  instructions = [i for c in module.computations for i in c.instructions]
  calls = [i for i in instructions if i.opcode == "custom-call"]
  assert {i.custom_call_target for i in calls} == {"synthesizer_mtf.allreduce"}
  groups = {i.backend_config for i in calls}
  assert {tuple(map(len, json.loads(g)["groups"])) for g in groups} <= {
      (2,) * 4, (4,) * 2, (8,)}
  assert not any(i.opcode == "copy" for i in instructions)


def test_rows_are_compared_with_stock(planned, environment):
  found = [compiled(planned, environment(SAID), name=name)
           for name in ("R", "SelfAttention")]
  found[0]["compiler"]["milliseconds"] *= 0.5
  text = compiler_report.table(found)
  cells = row_of(text, "R")
  assert cells[:6] == ["R", "2x2", "eval", "1", "2", "4"]
  assert "0.50" in cells and "1 all-reduce 0" in cells and "7" in cells


def row_of(text, name):
  row, = [line for line in text.splitlines() if line.startswith(f"| {name} ")]
  return [cell.strip() for cell in row.strip("|").split("|")]


def test_several_modes_stand_beside_each_other(planned, environment):
  found = [compiled(planned, environment(SAID), mode=mode)
           for mode in ("eval", "infer")]
  found[1]["compiler"]["temporary_bytes"] = 2**24
  found.append(compiled(planned, environment({"refused": "no"}), name="V",
                        mode="infer"))
  text = compiler_report.table(found)
  assert row_of(text, "R")[1:] == ["2x2", "2, 2.00, 2.0", "16, 2.00, 2.0"]
  assert row_of(text, "V")[1:] == ["2x2", "", "refused"]


def test_a_refusal_is_a_sentence_with_the_compilers_reason(planned, environment):
  for says, sentence in (
      ({"refused": 'UNIMPLEMENTED: no %op, metadata={op_name="encoder/block_000/R"}'},
       "at encoder/block_000/R: UNIMPLEMENTED: no %op"),
      ("F0000 check failed", "the compiler ended with status 0: F0000 check failed")):
    refused = compiled(planned, environment(says))
    assert not refused["compiler"]["out_of_memory"]  # More of it would not help.
    assert compiler_report.table([refused]).startswith(
        f"The compiler refused R on 2x2: {sentence}")


@pytest.mark.slow
def test_a_plan_refused_for_its_memory_names_what_takes_most(environment):
  refused = plan(environment({"refused": (
      "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory for HLO "
      "temporaries (45.11G) exceeds available HBM (15.75G). HLO")}), "R", "eval")
  assert refused["status"] == "ok"
  text = compiler_report.table([refused])
  assert text.startswith(
      "The compiler refused R on 2x2: it needs 45.11 GiB of a core's memory, and there "
      "are 15.75: 29.36 GiB too much; the largest variable is")
  assert "the largest activation, by our own count, " in text


def test_a_topology_that_the_compiler_does_not_know_is_refused_before_any_step(
    environment, capsys):
  refused = environment(topology='{"refused": "libtpu knows no topology v3:9x9: NO"}')
  with pytest.raises(SystemExit) as end:
    plan_pod.main([f"--compile={refused}", "--topology=v3:9x9"])
  assert end.value.code.startswith(
      "plan_pod: --topology=v3:9x9: libtpu knows no topology v3:9x9: NO; name one")
  assert "building" not in capsys.readouterr().err


def test_another_environment_is_refused_with_how_to_make_one(planned, environment):
  for versions, sentence in (
      ({}, "has no jax"), ({**compiling.VERSIONS, "libtpu": "0.1"}, "has libtpu 0.1"),
      ({"jax": compiling.VERSIONS["jax"]}, "has no libtpu")):
    with pytest.raises(ValueError, match=sentence) as error:
      compiling.Compiler(environment(versions=versions))
    assert f"-m venv {compiling.ENVIRONMENT} && " in str(error.value)
  with pytest.raises(ValueError, match="there is no Python.*-m venv /nowhere"):
    compiling.Compiler("/nowhere")
  with pytest.raises(ValueError, match="as expected: no mlir; use jax"):
    compiled(planned, environment({"unfit": "no mlir"}))


def test_the_script_says_that_it_has_no_jax():
  ran = subprocess.run(
      [sys.executable, "-S", str(compiling._SCRIPT), "v3:2x2", "8"], text=True,
      capture_output=True, check=False)
  assert ran.returncode == 1
  assert "No module named 'jax'" in json.loads(ran.stdout)["unfit"]


@pytest.mark.slow
def test_an_interrupted_compilation_tells_what_was_done(environment, tmp_path):
  command = ["--gin_file=models/bi_v1.gin", "--attention=R,V", "--vocabulary_size=32",
             "--mode=eval", f"--json={tmp_path}/plans.json", "--compile=" + environment(
                 SAID, before="[ -e second ] && exec sleep 60; touch second"),
             *(f"--gin_param={param}" for param in plans.TINY)]
  out, err = tmp_path / "out", tmp_path / "err"
  process = processes.start(_run, command, out, err)
  deadline = time.time() + 240
  while not (tmp_path / "second").exists() or not _sleeps(tmp_path):
    assert time.time() < deadline and process.is_alive()
    time.sleep(0.2)
  os.kill(process.pid, signal.SIGINT)
  process.join(120)
  assert process.exitcode == 130, err.read_text()
  assert "plan_pod: interrupted; the finished plans are above." in err.read_text()
  assert "| R " in out.read_text() and "| V " not in out.read_text()
  assert len((tmp_path / "plans.json").read_text().splitlines()) == 1


def _run(command, *streams):
  """Runs the command in a process of its own, with its streams in files."""
  for number, path in enumerate(streams, start=1):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
  plan_pod.main(command)


def _sleeps(folder):
  """Whether the script compiles the second program."""
  return os.path.getmtime(folder / "asked") > os.path.getmtime(folder / "second")
