"""Reading and writing of stores: open one memory-mapped, write a graph as one, detect changes in memory."""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.errors import InputError, StoreError
from outgrow.core.graph_schema import are_columns_of
from outgrow.graph.graph import Graph, Split
from outgrow.graph.graph_part import GraphPart, require_all_features
from outgrow.graph.store.array_schemas import check_array_schemas
from outgrow.graph.store.arrays import (
    PARTS,
    graph_arrays,
    held_out_links_of_arrays,
    ids_of_arrays,
    iterate_row_blocks,
    stored_values,
    write_array,
)
from outgrow.graph.store.manifest import (
    BFLOAT16,
    FILE,
    HEADER_BYTES,
    REPAIR,
    TYPE_FEATURES,
    TYPE_LABELS,
    ArrayEntry,
    Manifest,
    TypeLabelEntry,
    read_manifest,
)
from outgrow.graph.store.mapped_files import MappedFiles
from outgrow.graph.store.verify import verify_graph
from outgrow.graph.store.writer import PARTIAL, open_store_writer
from outgrow.graph.topology import Topology
from outgrow.graph.type_labels import TypeLabels
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.owned_rows import NodeFeatures, OwnedRows
from outgrow.ops.sampling.time_order import TimeOrder
from outgrow.ops.sparse import PartialRows, SparseRows

# Not named by Python 3.11; the value is that of Linux on x86 and ARM.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000) if sys.platform == "linux" else 0


def is_store(path: Path) -> bool:
    """Whether a path is a store directory, broken or not. An unfinished store does not count."""
    return os.path.isfile(Path(path) / FILE) and not Path(path).absolute().name.endswith(PARTIAL)


def array_path(store: Path, name: str) -> Path:
    """Return the path of the .npy file of an array."""
    return store / f"{name}.npy"


def write_store(graph: Graph, dest: Path, *, overwrite: bool = False) -> None:
    """Write a graph as a store.

    The graph is checked first. The store is written next to ``dest`` and renamed, so a crash leaves the old
    store or none.

    Args:
        graph: The graph to write.
        dest: Directory of the new store.
        overwrite: Replace an existing store.

    Raises:
        InputError: The graph is broken or a part of one, ``dest`` exists, or the disk is full.
    """
    require_all_features(graph.part, graph.name, "a store")
    verify_graph(graph)
    arrays = graph_arrays(graph)
    with open_store_writer(dest, overwrite=overwrite) as writer:
        writer.require_free_space(sum(HEADER_BYTES + values.nbytes for values in arrays.values()))
        for name, values in arrays.items():
            write_array(writer, name, values)
        writer.finish_store(describe_store(graph))


def describe_store(graph: Graph) -> Manifest:
    """Return the manifest of a whole graph's store, without its arrays."""
    return Manifest(
        name=graph.name,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        num_features=graph.num_features,
        num_classes=graph.num_classes,
        arrays={},
        class_names=graph.class_names,
        relation_names=graph.relation_names,
        node_types=graph.node_types,
        num_splits=len(graph.splits),
        origin=graph.origin,
        type_labels=tuple(
            TypeLabelEntry(name=each.name, num_classes=each.num_classes, class_names=each.class_names)
            for each in graph.type_labels
        ),
        edge_feature_sizes=graph.topology.feature_sizes,
        edge_columns=graph.topology.feature_columns,
        times_are_dates=graph.topology.times_are_dates,
    )


def open_store(path: Path, *, verify: bool = False) -> Graph:
    """Open a store, memory-mapped: whatever its size, only headers and a few values are read.

    Presence, size, type and shape of every array are always checked. Arrays are mapped copy-on-write:
    changing a tensor does not change its file.

    Args:
        path: The store directory.
        verify: Read everything and check checksums, ranges, splits, labels, and that features are finite.

    Raises:
        StoreError: The store is broken, or has a format that this version does not read.
    """
    path = Path(path)
    manifest = read_manifest(path)
    check_array_schemas(path, manifest)
    _check_edge_columns(path, manifest)
    files: dict[Path, mmap.mmap] = {}
    arrays = {name: _map_array(array_path(path, name), entry, files) for name, entry in manifest.arrays.items()}
    if verify:
        for name, entry in manifest.arrays.items():
            _verify_checksum(array_path(path, name), entry, arrays[name])
    tensors = {name: _array_to_tensor(values, manifest.arrays[name]) for name, values in arrays.items()}
    graph = _graph_from_arrays(manifest, tensors, MappedFiles(files))
    if "time_order" in arrays:
        # One sort for all workers, which share the pages.
        graph.topology.adopt_time_order(TimeOrder(arrays["time_order"], arrays["ordered_time"]))
    indptr = graph.topology.indptr
    # Reading two values is enough to catch a file of zeros, which a crash can leave.
    if int(indptr[0]) != 0 or int(indptr[-1]) != manifest.num_edges:
        got = f"{int(indptr[0])} to {int(indptr[-1])}"
        raise _broken_store_error(array_path(path, "indptr"), f"row ends from 0 to {manifest.num_edges}", got)
    if verify:
        _verify_contents(path, graph)
    # The record is frozen, and only this function may say that all arrays come from the store.
    object.__setattr__(graph, "store", path.resolve())
    return graph


def _check_edge_columns(path: Path, manifest: Manifest) -> None:
    columns, entry = manifest.edge_columns, manifest.arrays.get("edge_features")
    width = 0 if entry is None else entry.shape[1]
    if columns and not are_columns_of(columns, width, manifest.edge_feature_sizes):
        needed = f"names of {width} columns of features of edges"
        raise _broken_store_error(path / FILE, needed, f"{len(columns)} names")


def _verify_contents(path: Path, graph: Graph) -> None:
    try:
        verify_graph(graph)
    except InputError as error:
        raise StoreError(
            f"{path} is broken: {error.what}", needed=error.needed, got=error.got, repair=error.repair
        ) from error


def array_checksum(tensor: Tensor) -> str:
    """Return the checksum that an array has in the manifest of a store."""
    return _checksum(stored_values(tensor))


def _checksum(values: NDArray[Any]) -> str:
    total = hashlib.sha256()
    # In blocks, so that pages which were read can be evicted again.
    for block in iterate_row_blocks(values):
        total.update(np.ascontiguousarray(block, dtype=values.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _map_array(path: Path, entry: ArrayEntry, files: dict[Path, mmap.mmap]) -> NDArray[Any]:
    """Map an array of a store, and add the mapping to ``files``."""
    count = math.prod(entry.shape)
    try:
        if not path.is_file():
            raise FileNotFoundError
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
            size = path.stat().st_size
            # The size first: it is the cheapest sign of a store that was cut off or copied in part.
            if size != entry.size:
                raise _broken_store_error(path, f"{entry.size} bytes", f"{size} bytes")
            # Python integers: a shape with huge numbers cannot overflow here, as it would in NumPy.
            if HEADER_BYTES + count * np.dtype(entry.storage_dtype).itemsize != size or max(entry.shape) > max(1, size):
                raise _broken_store_error(path, f"the bytes of shape {list(entry.shape)}", f"{size} bytes")
            if header != entry.encode_header():
                raise _broken_store_error(
                    path, f"an array of {entry.dtype} and shape {list(entry.shape)}", "another header"
                )
            # An empty array has nothing to map.
            if size == HEADER_BYTES:
                return np.empty(entry.shape, dtype=entry.storage_dtype)
            # A private mapping: tensors are writable without a copy, and no write reaches the file. Without
            # reserve, the system does not demand swap space for pages that may never be written.
            pages = files[path] = mmap.mmap(
                file.fileno(), 0, flags=mmap.MAP_PRIVATE | _NO_RESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE
            )
    except FileNotFoundError as error:
        raise _broken_store_error(path, "the file", "nothing at that path") from error
    return np.frombuffer(pages, dtype=entry.storage_dtype, count=count, offset=HEADER_BYTES).reshape(entry.shape)


def _array_to_tensor(values: NDArray[Any], entry: ArrayEntry) -> Tensor:
    tensor = torch.from_numpy(values)
    return tensor.view(torch.bfloat16) if entry.dtype == BFLOAT16 else tensor


def _verify_checksum(path: Path, entry: ArrayEntry, values: NDArray[Any]) -> None:
    found = _checksum(values)
    if found != entry.sha256:
        raise _broken_store_error(path, f"data of checksum {entry.sha256[:16]}", found[:16])


def _features_from_arrays(manifest: Manifest, arrays: dict[str, Tensor]) -> NodeFeatures | None:
    nodes = arrays.get("own_nodes")
    features: Tensor | PartialRows | None = arrays.get("features")
    if f"{TYPE_FEATURES}0" in arrays:
        kinds = [kind for kind in manifest.node_types if kind.num_columns]
        ends = torch.tensor([[kind.first, kind.last] for kind in kinds])
        # Own nodes ascend as ids do, so those of a type are a range among them, too.
        rows = (ends if nodes is None else torch.searchsorted(nodes, ends)).tolist()
        features = BlockRows(
            blocks=tuple(arrays[f"{TYPE_FEATURES}{number}"] for number in range(len(kinds))),
            rows=tuple(slice(first, last) for first, last in rows),
            num_rows=manifest.num_nodes if nodes is None else len(nodes),
        )
    elif "feature_indptr" in arrays:
        features = SparseRows(
            indptr=arrays["feature_indptr"],
            indices=arrays["feature_indices"],
            values=arrays["feature_values"],
            num_columns=manifest.num_features,
        )
    if nodes is None or features is None:
        return features
    return OwnedRows(rows=features, nodes=nodes, num_rows=manifest.num_nodes)


def _part_from_arrays(manifest: Manifest, arrays: dict[str, Tensor]) -> GraphPart | None:
    entry = manifest.part
    if entry is None:
        return None
    return GraphPart(
        number=entry.number,
        num_parts=entry.num_parts,
        method=entry.method,
        key=entry.key,
        node_part=arrays["node_part"],
        checksums={manifest.arrays[name].sha256: whole for name, whole in entry.whole.items()},
    )


def _graph_from_arrays(manifest: Manifest, arrays: dict[str, Tensor], files: MappedFiles) -> Graph:
    return Graph(
        name=manifest.name,
        topology=Topology(
            indptr=arrays["indptr"],
            indices=arrays["indices"],
            relation=arrays.get("relation"),
            weight=arrays.get("weight"),
            edge_features=arrays.get("edge_features"),
            feature_sizes=manifest.edge_feature_sizes,
            feature_columns=manifest.edge_columns,
            edge_time=arrays.get("edge_time"),
            node_time=arrays.get("node_time"),
            times_are_dates=manifest.times_are_dates,
        ),
        features=_features_from_arrays(manifest, arrays),
        labels=arrays.get("labels"),
        split=Split(train=arrays["train"], val=arrays["val"], test=arrays["test"]),
        num_classes=manifest.num_classes,
        class_names=manifest.class_names,
        relation_names=manifest.relation_names,
        node_types=manifest.node_types,
        ids=ids_of_arrays(arrays),
        splits=tuple(Split(**{name: arrays[f"{name}_{at}"] for name in PARTS}) for at in range(manifest.num_splits)),
        held_out_links=held_out_links_of_arrays(arrays),
        type_labels=tuple(
            TypeLabels(labels=arrays[f"{TYPE_LABELS}{number}"], **vars(entry))
            for number, entry in enumerate(manifest.type_labels)
        ),
        part=_part_from_arrays(manifest, arrays),
        origin=manifest.origin,
        files=files,
    )


def _broken_store_error(path: Path, needed: str, got: str) -> StoreError:
    return StoreError(f"{path} is broken", needed=needed, got=got, repair=REPAIR)


_MAPS = Path("/proc/self/smaps")


def matches_store(graph: Graph) -> bool:
    """Whether a graph comes from a store and none of its values have changed since.

    On Linux the kernel reports which pages of a mapped file were written to. Elsewhere torch reports which
    tensors were changed in place; changes made through NumPy are then missed.
    """
    if graph.store is None:
        return False
    # A private mapping copies a page when it is first written: such pages are anonymous memory.
    if _MAPS.exists():
        return not _has_written_pages(graph.store)
    # Version counters of torch count changes in place, but not those made through NumPy.
    return all(tensor._version == 0 for tensor in graph_arrays(graph).values())


def find_feature_file(graph: Graph) -> Path | None:
    """Return the feature file of the graph's store; None if the graph differs from its store or has none."""
    graph = graph.whole
    if graph.store is None or graph.sparse or not matches_store(graph):
        return None
    return array_path(graph.store, "features")


def _has_written_pages(store: Path) -> bool:
    inside = False
    for line in _MAPS.read_text().splitlines():
        name, _, rest = line.partition(":")
        if "-" in name.split(" ")[0]:  # the head of a mapping: addresses, rights, offset, device, inode, path
            inside = Path(line.split(maxsplit=5)[-1]).parent == store
        elif inside and name == "Anonymous" and int(rest.split()[0]):
            return True
    return False
