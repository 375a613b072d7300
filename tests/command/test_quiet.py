"""Tests of synthesizer_mtf.quiet."""

import os
import subprocess
import sys

from synthesizer_mtf import quiet


def test_notices_are_kept_off_standard_error_and_errors_are_not(capfd):
  with quiet.filtered(quiet._NOTICES):
    os.write(2, b"I0000 00:00:1.5 1 port.cc:153] oneDNN is on.\n"
             b"E1 cuda_dnn.cc:9261] Unable to register cuDNN factory: x\n"
             b"E0000 cpu.cc:1] This processor lacks AVX.\n")
  os.write(2, b"I0000 afterwards\n")
  assert capfd.readouterr().err == (
      "E0000 cpu.cc:1] This processor lacks AVX.\nI0000 afterwards\n")


def test_the_last_words_of_a_program_are_printed():
  code = ("import os; from synthesizer_mtf import quiet\n"
          "with quiet.filtered('^I0000 '):\n"
          "  os.write(2, b'I0000 x\\nlast words\\n'); os.abort()")
  ran = subprocess.run([sys.executable, "-c", code], capture_output=True,
                       text=True, check=False)
  assert ran.returncode != 0
  assert ran.stderr == "last words\n"


def test_importing_the_package_prints_nothing():
  ran = subprocess.run([sys.executable, "-c", "import synthesizer_mtf"],
                       capture_output=True, text=True, check=False)
  assert (ran.returncode, ran.stderr) == (0, "")
