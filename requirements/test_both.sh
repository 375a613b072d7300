#!/bin/sh
# Runs the tests on both stacks: the newest Python's in .venv, the other in .venv-other.
#
#   make test-both
#   sh requirements/test_both.sh test quick   the target of each, in this order
#
# On a machine with the Pythons of one stack only it says so, and runs the first.
set -eu
cd "$(dirname "$0")/.."
first=${1:-test}
other=${2:-test}

make VENV="${VENV:-.venv}" PYTHON="${PYTHON:-}" "$first"
if "${VENV:-.venv}/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 12))'
then
  from=3.10 before=3.12 stack="TensorFlow 2.15 (Python 3.10 or 3.11)"
else
  from=3.12 before=3.14 stack="TensorFlow 2.21 (Python 3.12 or 3.13)"
fi
if python=$(VENV="" PYTHON="" sh requirements/find_python.sh $from $before 2>/dev/null)
then
  make VENV=.venv-other PYTHON="$python" "$other"
else
  echo "There is no Python for $stack on this machine: its tests were not run."
fi
