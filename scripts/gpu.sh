#!/bin/sh
# Sets up the CUDA build of torch in .venv-gpu, with PyG beside it, and runs benchmarks/gpu.py:  scripts/gpu.sh PYTHON [ARGS]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=$1
shift
cd "$root"
if [ ! -x .venv-gpu/bin/python ]; then
    "$python" -m venv .venv-gpu
fi
# Not by constraints.txt, which pins the CPU build of torch. PyG's own kernels are not needed: edge indices work without.
.venv-gpu/bin/python -m pip install -q torch -e '.[dev]' torch_geometric
.venv-gpu/bin/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || {
    echo "torch finds no CUDA device: see the driver (nvidia-smi), or run python benchmarks/gpu.py --dry" >&2
    exit 2
}
mkdir -p .venv-gpu-rivals
ln -sfn ../.venv-gpu .venv-gpu-rivals/pyg
exec .venv-gpu/bin/python benchmarks/gpu.py "$@"
