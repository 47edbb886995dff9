"""Whether a graph is still what its store holds. Stores are mapped copy-on-write: a change stays in this process."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from outgrow.graph.graph import Graph
from outgrow.ops.sparse import SparseRows

_MAPS = Path("/proc/self/smaps")


def is_as_stored(graph: Graph) -> bool:
    """Whether a graph comes from a store, and none of its numbers were changed since.

    The system tells which pages of a mapped file were written to. Where it does not (not Linux), torch tells which
    tensors were changed in place; what NumPy changed behind its back is not seen then.
    """
    if graph.store is None:
        return False
    if _MAPS.exists():
        return not _has_written_pages(graph.store)
    return all(tensor._version == 0 for tensor in _tensors(graph))


def _has_written_pages(store: Path) -> bool:
    inside = False
    for line in _MAPS.read_text().splitlines():
        name, _, rest = line.partition(":")
        if "-" in name.split(" ")[0]:  # the head of a mapping: addresses, rights, offset, device, inode, path
            inside = Path(line.split(maxsplit=5)[-1]).parent == store
        elif inside and name == "Anonymous" and int(rest.split()[0]):
            return True
    return False


def _tensors(graph: Graph) -> list[Tensor]:
    topology, features, split = graph.topology, graph.features, graph.split
    rows = (features.indptr, features.indices, features.values) if isinstance(features, SparseRows) else (features,)
    held = (topology.indptr, topology.indices, topology.relation, topology.weight, *rows, graph.labels)
    return [tensor for tensor in (*held, split.train, split.val, split.test) if tensor is not None]
