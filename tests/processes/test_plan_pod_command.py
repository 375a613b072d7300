"""The command `plan_pod`, and the fields that it writes."""

import json
import math
import subprocess
import sys

import matplotlib.image
import pytest
from support import plans


def test_the_command_compares_sweeps_and_writes_files(tmp_path):
  files = {kind: tmp_path / f"plans.{kind}" for kind in ("json", "png")}
  process = subprocess.run(
      [sys.executable, "-m", "synthesizer_mtf.tools.plan_pod",
       "--gin_file=models/bi_v1.gin", *(f"--gin_param={p}" for p in plans.TINY),
       "--attention=V,R", "--topology=2x2,v3-32", "--vocabulary_size=32",
       "--link_gbps=100", *(f"--{k}={path}" for k, path in files.items())],
      capture_output=True, text=True, check=False, timeout=300)
  assert process.returncode == 0, process.stderr
  written = [json.loads(line) for line in files["json"].read_text().splitlines()]
  assert [(p["name"], p["topology"], p["status"]) for p in written] == [
      ("V", "2x2", "ok"), ("R", "2x2", "ok"),
      ("V", "v3-32", "invalid"), ("R", "v3-32", "invalid")]
  check_fields(written[0])
  assert "R on v3-32 is not possible: batch = 8" in process.stdout
  assert "| V    | 2x2      | batch:4,model:2 |" in process.stdout
  assert "plan: 100%" in process.stderr
  assert "Path not found" not in process.stderr
  assert matplotlib.image.imread(files["png"]).std() > 0


def check_fields(result):
  assert result["rates"] == {
      "tflops": 123, "hbm_gbps": 900, "hbm_gib": 32, "link_gbps": 100}
  core, seconds = result["per_core"], result["seconds"]
  assert core["total_bytes"] == sum(core[f"{k}_bytes"] for k in (
      "parameter", "optimizer", "constant", "activation"))
  assert core["optimizer_bytes"] > 0 and core["activation_bytes"] > 0
  assert set(core["allreduce_bytes"]) >= {"batch", "model"}
  assert result["fits"] == "yes" and result["hbm_bytes"] == 16 * 2**30
  assert seconds["step"] == pytest.approx(
      seconds["matmul"] + seconds["memory"] + seconds["communication"])
  assert result["steps_per_second"] == pytest.approx(1 / seconds["step"])
  assert math.isclose(
      result["tokens_per_second"], 8 * 12 * result["steps_per_second"])
  assert result["versions"]["tensorflow"]
