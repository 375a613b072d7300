#!/bin/sh
# Starts install.py, which makes an environment, with any Python that can run it:
#
#   sh requirements/install.sh .venv
#
# This Python only fetches uv. uv then finds the Python of the environment.
set -eu
here=$(dirname "$0")

for python in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.10 \
    "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.*/bin/python; do
  if "$python" -c 'import sys, ensurepip, fcntl, venv; sys.exit(sys.version_info < (3, 8))' \
      2> /dev/null; then
    exec "$python" "$here/install.py" "$@"
  fi
done
if command -v uv > /dev/null; then
  exec uv run --no-project --python ">=3.10,<3.14" "$here/install.py" "$@"
fi
echo "There is no Python 3 on the path or in pyenv that can make environments, and no" \
  "uv: type 'apt install python3-venv' on Debian or Ubuntu, 'brew install" \
  "python@3.13' on macOS, or install uv." >&2
exit 1
