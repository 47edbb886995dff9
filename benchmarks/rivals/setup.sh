#!/bin/sh
# Makes the environments of the rivals:  benchmarks/rivals/setup.sh [FOLDER] [PYTHON]
# FOLDER is .venv-rivals in the repository unless given; PYTHON must be 3.11, the last that DGL 2.1 has wheels for.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:-$root/.venv-rivals}
python=${2:-python3.11}
mkdir -p "$folder"

make_env() {
    name=$1
    shift
    [ -x "$folder/$name/bin/python" ] || "$python" -m venv "$folder/$name"
    "$folder/$name/bin/python" -m pip install -q "$@"
}

# DGL 2.1.0 is the last release with public wheels for Linux. It wants help to be imported at all:
# - torch 2.2.1: `import dgl` loads a GraphBolt library made for the exact version of torch, the newest of them 2.2.1;
# - numpy below 2: torch 2.2 was built against version 1;
# - torchdata 0.7.1: later ones have no `torchdata.datapipes`, which `dgl.graphbolt` imports;
# - pydantic, pyyaml, pandas, setuptools: imported by GraphBolt, but not among its requirements.
make_env dgl "dgl==2.1.0" "torch==2.2.1" "torchdata==0.7.1" "numpy<2" "setuptools<80" pydantic pyyaml pandas
DGLBACKEND=pytorch "$folder/dgl/bin/python" -c 'import dgl; print("dgl", dgl.__version__)'

make_env pyg "torch_geometric==2.8.1" "torch==2.13.0" numpy scipy setuptools
"$folder/pyg/bin/python" -c 'import torch_geometric as pyg; print("torch_geometric", pyg.__version__)'

make_env pykeen "pykeen==1.11.1" "torch_geometric==2.8.1" "torch==2.13.0" matplotlib
"$folder/pykeen/bin/python" -c 'import importlib.metadata as found; print("pykeen", found.version("pykeen"))'

# NeighborLoader samples by torch-sparse, which is only published as source; so is torch-scatter, which it imports.
# Their setup imports torch, hence no isolation. A C++20 compiler is needed; a job takes up to 2 GiB, and with one the
# two take half an hour. Without them the benchmarks leave NeighborLoader out.
export MAX_JOBS="${MAX_JOBS:-1}" FORCE_ONLY_CPU=1
for source in "torch-scatter==2.1.2" "torch-sparse==0.6.18"; do
    "$folder/pyg/bin/python" -m pip install -q --no-build-isolation "$source" ||
        echo "could not build $source: there will be no NeighborLoader" >&2
done

# iSpLib multiplies by kernels in C that are made for this processor, in an environment on top of PyG's: its patch of PyG
# takes over the products of torch-sparse. ISPLIB_SOURCE and FUSEDMM_SOURCE name local copies of the repositories. Its
# kernels set the number of threads to that of all processors; those lines go, so that a benchmark decides. Without the
# environment the benchmarks leave iSpLib out.
make_isplib() {
    scratch=$(mktemp -d)
    git clone -q "${ISPLIB_SOURCE:-https://github.com/HipGraph/iSpLib}" "$scratch/isplib" &&
        git -C "$scratch/isplib" checkout -q 371aac46e0e83e94fd9132f71dcf3f6309998c41 &&
        git clone -q --no-checkout "${FUSEDMM_SOURCE:-https://github.com/OnixHoque/FusedMM_Extended}" "$scratch/fusedmm" &&
        git -C "$scratch/fusedmm" checkout -q acd9a2fb4aa9dfb5f13b00606eb7ad8e1436fb06 -- . ':!dataset' &&
        (
            cd "$scratch/fusedmm" &&
                sed -i 's/omp_set_num_threads(NTHREADS);//' fusedMM.c kernels/codegen/genkern.base kernels/src/kernels.c &&
                sed -i 's/^all: @(pre)lib @(pre)lib_pt/all: @(pre)lib_pt/' kernels/codegen/genmake.base && # not those for one thread
                ./configure && sh ./generate_shared_object.sh
        ) > "$folder/isplib.log" 2>&1 &&
        cp "$scratch/fusedmm/shared_object/libmyfusedmm.a" "$scratch/isplib/csrc/fusedmm/fusedmm_cpu.a" &&
        make_env isplib "setuptools<81" wheel &&
        "$folder/pyg/bin/python" -c 'import site; print(site.getsitepackages()[0])' > "$folder/isplib/pyg.path" &&
        cp "$folder/isplib/pyg.path" "$("$folder/isplib/bin/python" -c 'import site; print(site.getsitepackages()[0])')/pyg.pth" &&
        "$folder/isplib/bin/python" -m pip install -q --no-build-isolation "$scratch/isplib"
    made=$?
    rm -rf "$scratch"
    return $made
}
make_isplib || { rm -rf "$folder/isplib"; echo "could not build iSpLib: see $folder/isplib.log" >&2; }
