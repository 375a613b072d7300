#!/bin/sh
# Prints the newest supported Python, on the path or of pyenv: 3.13, 3.12, 3.11, 3.10.
#
#   sh requirements/find_python.sh [FROM BEFORE]    as in 3.10 3.12
#
# Where the environment VENV exists, it is the Python of that environment. PYTHON
# names one, which is then the only one. Where there is none that can make
# an environment, one sentence on standard error says so, and what to type.
set -eu
from=${1:-3.10}
before=${2:-3.14}

# Its version, as in 3.11, and whether it can make environments, as in "3.11 1".
# TensorFlow has no wheels for PyPy, nor for a Python without the lock of threads.
ask='
import sys, sysconfig
if (sys.version_info[0] > 2 and sys.implementation.name != "cpython"
    or sysconfig.get_config_var("Py_GIL_DISABLED")):
  sys.exit(1)
try:
  import ensurepip, venv
except ImportError:
  print("%d.%d 0" % sys.version_info[:2])
else:
  print("%d.%d 1" % sys.version_info[:2])
'

is_supported() {
  minor=${1#3.}
  case $1 in 3.*) ;; *) return 1 ;; esac
  [ "$minor" -ge "${from#3.}" ] && [ "$minor" -lt "${before#3.}" ]
}

fail() {
  echo "$*" >&2
  exit 1
}

without_venv() {
  fail "$1 (Python $2) cannot make environments, for it lacks venv or pip:" \
    "type 'apt install python$2-venv' on Debian or Ubuntu, or name another" \
    "Python, as in make PYTHON=/path/of/python3.12."
}

if [ -n "${PYTHON:-}" ]; then
  answer=$("$PYTHON" -c "$ask" 2>/dev/null) ||
    fail "There is no $PYTHON, or it is no CPython that runs: name a Python 3.10" \
      "to 3.13, as in make PYTHON=/path/of/python3.12."
  version=${answer% *}
  is_supported "$version" ||
    fail "synthesizer_mtf needs Python 3.10 to 3.13, because its TensorFlow" \
      "has wheels for no other, but $PYTHON is Python $version: name one of" \
      "those, as in make PYTHON=python3.12."
  [ "${answer#* }" = 1 ] || without_venv "$PYTHON" "$version"
  command -v "$PYTHON"
  exit
fi

# Of Python 3.10 the base executable would be that of the environment itself.
base='import sys; print("%s/bin/python%d.%d" % (sys.base_prefix, *sys.version_info[:2]))'
if [ -n "${VENV:-}" ] && python=$("$VENV/bin/python" -c "$base" 2>/dev/null); then
  answer=$("$python" -c "$ask" 2>/dev/null || true)
  if [ "${answer#* }" = 1 ] && is_supported "${answer% *}"; then
    echo "$python"
    exit
  fi
fi

lacking=
for version in 3.13 3.12 3.11 3.10; do
  is_supported "$version" || continue
  for python in "python$version" python3 \
      "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/$version".*/bin/python; do
    case $("$python" -c "$ask" 2>/dev/null || true) in
      "$version 1") command -v "$python"; exit ;;
      "$version 0") lacking=$lacking${lacking:+ }$python:$version ;;
    esac
  done
done

if [ -n "$lacking" ]; then
  first=${lacking%% *}
  without_venv "${first%:*}" "${first#*:}"
fi
fail "synthesizer_mtf needs a Python from $from to before $before, because its" \
  "TensorFlow has wheels for no other, and there is none on the path or in" \
  "pyenv: type 'apt install python3-venv' on Debian 12, 13 or Ubuntu 22.04," \
  "24.04; 'brew install python@3.12' on macOS; with uv 'uv python install" \
  "3.12' and then make PYTHON=\"\$(uv python find 3.12)\"."
