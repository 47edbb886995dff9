#!/bin/sh
# Usage: pin.sh PYTHON [TORCH]; rewrites constraints.txt from a fresh environment with every extra.
# TORCH is a version such as 2.13.0; the one that is pinned now if empty.
set -eu
torch="${2:-$(sed -n 's/^torch==//p' constraints.txt)}"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch" constraints.txt.new' EXIT INT TERM

sh scripts/python_version.sh "$1"
"$1" -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install -q "torch==$torch" -e '.[dev,pyg,ogb]'
"$scratch/venv/bin/python" -m pip freeze --exclude-editable > "$scratch/frozen"

{
    echo "# Exact versions of everything that '.[dev,pyg,ogb]' installs; rewritten by 'make constraints'."
    sed -n 's/^\([A-Za-z0-9._-]*==[^+]*\).*/\1/p' "$scratch/frozen" | grep -v -E '^(nvidia-|cuda-|triton==)'
} > constraints.txt.new
mv constraints.txt.new constraints.txt
