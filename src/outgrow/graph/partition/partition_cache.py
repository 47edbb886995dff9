"""Cache of partitions in the folder ``partitions`` of a store."""

from __future__ import annotations

import hashlib
import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outgrow.core.errors import InputError
from outgrow.core.files import atomic_write
from outgrow.graph.partition.partition import Partition
from outgrow.graph.partition.partitioner import Partitioner
from outgrow.graph.topology import Topology

FOLDER = "partitions"
_FORMAT = 1


def load_or_make_partition(topology: Topology, method: Partitioner, num_parts: int, *, store: Path | None) -> Partition:
    """Return the partition of a graph by a method, from the graph's store if it was computed before.

    A new partition is saved in the store, if that can be written to. A file that is incomplete or belongs to
    another graph is replaced.

    Args:
        topology: The graph's edges.
        method: How to partition.
        num_parts: 1 to ``V``.
        store: Directory of the graph's store; None if it has none.

    Raises:
        InputError: The method cannot partition this graph (see `Partitioner.partition_nodes`).
    """
    if store is None:
        return method.partition_nodes(topology, num_parts)
    path = Path(store) / FOLDER / f"{method.cache_key}-{num_parts}"
    about = {
        "format": _FORMAT,
        "method": method.cache_key,
        "num_parts": num_parts,
        "num_nodes": topology.num_nodes,
        "num_edges": topology.num_edges,
    }
    found = _read_partition(path, about)
    if found is None:
        found = method.partition_nodes(topology, num_parts)
        # A cache only: a store on a read-only disk must not stop the run.
        with suppress(OSError):
            _write_partition(path, about, found)
    return found


def has_partition(method: Partitioner, num_parts: int, *, store: Path) -> bool:
    """Whether a graph's store seems to have a partition; its contents are not checked."""
    return _with_suffix(store / FOLDER / f"{method.cache_key}-{num_parts}", ".json").exists()


def _read_partition(path: Path, about: dict[str, Any]) -> Partition | None:
    """Read a partition from a file; None if it is missing, incomplete or of another graph."""
    try:
        record = json.loads(_with_suffix(path, ".json").read_text(encoding="utf-8"))
        # Read whole before it is parsed, so that what was checked is what is used.
        data = _with_suffix(path, ".npy").read_bytes()
        num_chunks = record.pop("num_chunks")
        checksum = record.pop("sha256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    # The checksum ties the two files together: a crash between their renames must not mix old and new.
    if record != about or hashlib.sha256(data).hexdigest() != checksum:
        return None
    rows = torch.from_numpy(np.load(io.BytesIO(data), allow_pickle=False))
    try:
        chunk = rows[1] if len(rows) == 2 else None
        found = Partition.from_assignment(rows[0], about["num_parts"], chunk=chunk, num_chunks=num_chunks)
    except InputError:
        return None
    return found if found.num_nodes == about["num_nodes"] else None


def _write_partition(path: Path, about: dict[str, Any], partition: Partition) -> None:
    rows = [partition.part] if partition.chunk is None else [partition.part, partition.chunk]
    data = io.BytesIO()
    np.save(data, np.stack([row.numpy() for row in rows]))
    checksum = hashlib.sha256(data.getbuffer()).hexdigest()
    record = {**about, "num_chunks": partition.num_chunks, "sha256": checksum}
    path.parent.mkdir(exist_ok=True)
    # The record last: without it the data are not looked at.
    with atomic_write(_with_suffix(path, ".npy")) as temporary:
        temporary.write_bytes(data.getbuffer())
    with atomic_write(_with_suffix(path, ".json")) as temporary:
        temporary.write_bytes((json.dumps(record, indent=1) + "\n").encode())


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
