#!/bin/sh
# Writes the lock files anew, with the newest versions that setup.py allows:
#
#   make lock
#
# It needs Python 3.11 and 3.12, or what UV names, and half a minute.
set -eu
cd "$(dirname "$0")/.."
repository=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

if [ -z "${UV:-}" ]; then
  "$(sh requirements/find_python.sh)" -m venv "$folder/venv"
  "$folder/venv/bin/python" -m pip install -qq uv
  UV=$folder/venv/bin/uv
fi

echo 'pip>=23.2' > "$folder/installer.in"

# compile FILE FROM TO: for all Pythons from one to before the other.
compile() {
  printf '[tool.uv]\nenvironments = ["%s"]\n' "python_version >= '$2' and \
python_version < '$3' and sys_platform == 'linux'" > "$folder/pyproject.toml"
  python=$(sh requirements/find_python.sh "$2" "$3")
  rm -f "requirements/$1"
  (cd "$folder" && "$UV" pip compile "$repository/setup.py" installer.in --extra test \
    --universal --generate-hashes \
    --python "$python" --python-version "$2" \
    --no-header --no-annotate --no-emit-index-url --quiet \
    --output-file "$repository/requirements/$1" > /dev/null)
  echo "requirements/$1: $(grep -c == "requirements/$1") packages."
}

compile python3.10-3.11.txt 3.10 3.12
compile python3.12-3.13.txt 3.12 3.14
