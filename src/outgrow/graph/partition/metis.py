"""METIS edge-cut partitioning of an undirected graph, in a process of its own.

Karypis, Kumar: A fast and high quality multilevel scheme for partitioning irregular graphs, SIAM Journal on Scientific
Computing 20, 1998. With several weights for each node, each of which is balanced: Karypis, Kumar: Multilevel algorithms
for multi-constraint graph partitioning, SC 1998.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.memory_limits import available_bytes
from outgrow.graph.partition.symmetrize import SymmetricCsr, count_neighbours, fill_neighbours, symmetrize
from outgrow.graph.topology import Topology

Array = NDArray[Any]

_CHILD = Path(__file__).with_name("metis_worker.py")
_PER_NEIGHBOUR, _PER_NODE, _PER_WEIGHT, _PROCESS_BYTES = 16, 24, 8, 40 << 20
"""Memory model of METIS: numbers per neighbour, per node, and per node for each weight beyond the first, input
included; and bytes of the bare process.

These are the largest values measured, on R-MAT graphs, which METIS can hardly coarsen from level to level.
"""


def run_metis(
    topology: Topology, num_parts: int, weight: Array | None, *, imbalance: float, seed: int, memory_bytes: int | None
) -> Array:
    """Return the part of each node as computed by METIS; parts may be empty.

    Edges between the same two nodes are counted together, in both directions; self-loops are ignored.

    Args:
        topology: The graph, with at least one node.
        num_parts: Number of parts, at least 2.
        weight: ``[V]`` or ``[V, n]`` int64, weights of each node, all of which are balanced; None for 1 each. With
            several, METIS bisects recursively; else it makes all parts at once.
        imbalance: How much heavier than the mean a part may be; METIS does not always achieve it.
        seed: Seed of METIS.
        memory_bytes: Memory limit; None for the memory that the system or its container has available.

    Returns:
        ``[V]`` integers.

    Raises:
        InputError: METIS failed, or it would exceed the memory or the range of its integers.
    """
    import pymetis

    dtype = pymetis.zero_copy_dtype()
    budget = available_bytes() if memory_bytes is None else memory_bytes
    # First for the symmetric edges alone, which are needed to count neighbours for the full estimate.
    _require_memory(topology.indices.nbytes + 32 * topology.num_nodes, budget)
    edges = symmetrize(topology)
    count = count_neighbours(edges)
    num_neighbours = int(count.sum())
    # METIS sums counts and weights in its own integers, and would overflow silently.
    largest = max(num_neighbours, 2 * topology.num_edges, 0 if weight is None else int(weight.sum(0).max()))
    if largest > np.iinfo(dtype).max:
        raise _metis_error(f"numbers of {dtype.itemsize * 8} bits", f"numbers up to {largest:,}")
    num_weights = 1 if weight is None or weight.ndim == 1 else weight.shape[1]
    _require_memory(estimate_metis_bytes(topology.num_nodes, num_neighbours, dtype.itemsize, num_weights), budget)
    # The result shares the file, so nothing needs to be sent back.
    lengths = [len(count) + 1, num_neighbours, num_neighbours, 0 if weight is None else weight.size, len(count)]
    # Imbalances of bisections within bisections multiply.
    rounds = 1 if num_weights == 1 else math.ceil(math.log2(num_parts))
    # METIS takes the imbalance in thousandths, at least 1.
    ufactor = max(1, round(((1 + imbalance) ** (1 / rounds) - 1) * 1000))
    options = {"parts": num_parts, "seed": seed, "ufactor": ufactor, "lengths": lengths}
    try:
        with _shared_array(sum(lengths), dtype) as (file, shared):
            _fill_metis_input(np.split(shared, np.cumsum(lengths)[:-1]), edges, count, weight)
            # Freed before METIS starts: the estimate does not include the two at once.
            del edges, count
            _run_metis_child(file, options)
            # A copy: the mapping with the large input can then be released.
            return shared[-topology.num_nodes :].copy()
    except OSError as error:
        raise _metis_error("memory and a process for METIS", str(error)) from error


def estimate_metis_bytes(num_nodes: int, num_neighbours: int, width: int, num_weights: int = 1) -> int:
    """Estimate the peak memory of METIS and its input in bytes.

    Args:
        num_nodes: Number of nodes.
        num_neighbours: Number of neighbours of all nodes.
        width: Bytes of an integer.
        num_weights: Number of weights of each node.
    """
    per_node = _PER_NODE + _PER_WEIGHT * (num_weights - 1)
    return _PROCESS_BYTES + width * (_PER_NEIGHBOUR * num_neighbours + per_node * num_nodes)


def estimate_metis_input_bytes(num_nodes: int, num_neighbours: int, num_edges: int) -> int:
    """Estimate the bytes that the calling process holds while METIS runs in a process of its own.

    Args:
        num_nodes: Number of nodes.
        num_neighbours: Number of neighbours of all nodes.
        num_edges: Number of edges, which are grouped by both ends to find the neighbours.
    """
    import pymetis

    # Pointers, one weight and the result of each node; a neighbour and the number of edges to it.
    shared = pymetis.zero_copy_dtype().itemsize * (3 * num_nodes + 2 * num_neighbours)
    return shared + 4 * num_edges + 16 * num_nodes


def _fill_metis_input(arrays: list[Array], edges: SymmetricCsr, count: Array, weight: Array | None) -> None:
    indptr, neighbours, multiplicity, weights, _ = arrays
    np.cumsum(count, out=indptr[1:])
    fill_neighbours(edges, indptr, neighbours, multiplicity)
    if weight is not None:
        weights[:] = weight.reshape(-1)


@contextmanager
def _shared_array(length: int, dtype: np.dtype[Any]) -> Iterator[tuple[int, Array]]:
    """Open an unnamed file of ``length`` zeros and map it; yields its descriptor and the array."""
    # Memory without a file: nothing is written to disk, and nothing remains if both processes die.
    if sys.platform == "linux":
        file = os.memfd_create("outgrow-metis")
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    try:
        os.ftruncate(file, length * dtype.itemsize)
        yield file, np.frombuffer(mmap.mmap(file, 0), dtype=dtype)
    finally:
        os.close(file)


def _run_metis_child(file: int, options: dict[str, Any]) -> None:
    result = subprocess.run(
        # -P keeps the folder of the script off the path, where names of our modules would hide others.
        [sys.executable, "-P", str(_CHILD), json.dumps({"file": file, "parent": os.getpid(), **options})],
        # The child imports what this process can, however its path was set.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        pass_fds=(file,),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if result.returncode:
        # METIS writes its reason to standard output, Python to standard error; the last line says most.
        last_lines = [text.strip().splitlines()[-1] for text in (result.stdout, result.stderr) if text.strip()]
        raise _metis_error("a partition from METIS", "; ".join((_describe_exit(result.returncode), *last_lines)))


def _describe_exit(code: int) -> str:
    """Describe how a process ended."""
    if code > 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}, which is mostly memory that has run out" if name == "SIGKILL" else name


def _require_memory(needed: int, available: int) -> None:
    if needed > available:
        raise _metis_error(f"about {needed:,} bytes of memory for METIS", f"{available:,} bytes")


def _metis_error(needed: str, got: str) -> InputError:
    return InputError(
        "METIS cannot partition this graph",
        needed=needed,
        got=got,
        repair="choose the method fennel, or a machine with more memory",
    )
