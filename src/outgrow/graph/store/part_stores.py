"""Stores of the parts of a graph: one for each host, with the features of the nodes that it owns alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.graph.graph import Graph
from outgrow.graph.graph_part import require_all_features
from outgrow.graph.partition.partition import Partition
from outgrow.graph.store.arrays import feature_arrays, graph_arrays, stored_values, write_array
from outgrow.graph.store.fingerprint import fingerprint_graph
from outgrow.graph.store.manifest import BFLOAT16, HEADER_BYTES, TYPE_FEATURES, PartEntry, read_manifest
from outgrow.graph.store.reader import array_checksum, describe_store, is_store, matches_store
from outgrow.graph.store.verify import verify_graph
from outgrow.graph.store.writer import StoreWriter, open_store_writer
from outgrow.ops.sparse import PartialRows, index_rows

_PREFIX = "part-"
_BLOCK_BYTES = 1 << 24


def write_part_stores(
    graph: Graph, partition: Partition, method: str, folder: Path, *, overwrite: bool = False
) -> list[Path]:
    """Write a store for each part of a graph, ``part-0``, ``part-1``, ...

    Each has the topology, labels and splits of all nodes, since neighbours are sampled over several hops and batches
    are drawn of all seeds; of features it has the rows of its own nodes alone, in compact arrays.

    Args:
        graph: The graph, with features.
        partition: The part of each node.
        method: How it was made: see `Partitioner.cache_key`.
        folder: The folder of the stores; made if it does not exist.
        overwrite: Replace stores that are there. Each is replaced at once, all of them one after the other.

    Returns:
        The paths of the stores.

    Raises:
        InputError: The graph is broken, has no features or is a part already; there are fewer than 2 parts; the folder
            has stores already, or those of another number of parts; or the disk is full.
    """
    require_all_features(graph.part, graph.name, "a partition into stores")
    _check_request(graph, partition, folder, overwrite=overwrite)
    verify_graph(graph)
    folder.mkdir(parents=True, exist_ok=True)
    assert graph.features is not None
    whole = _feature_checksums(graph)
    key = hashlib.sha256(
        json.dumps([fingerprint_graph(graph), partition.num_parts, array_checksum(partition.part)]).encode()
    ).hexdigest()
    shared = graph_arrays(replace(graph, features=None)) | {"node_part": partition.part}
    paths = []
    for number in range(partition.num_parts):
        nodes = partition.nodes_of_part(number)
        entry = PartEntry(number=number, num_parts=partition.num_parts, method=method, key=key, whole=whole)
        paths.append(part_store(folder, number))
        with open_store_writer(paths[-1], overwrite=overwrite) as writer:
            share = len(nodes) / max(1, graph.num_nodes)
            rows_bytes = round(share * sum(values.nbytes for values in feature_arrays(graph.features).values()))
            writer.require_free_space(rows_bytes + sum(HEADER_BYTES + each.nbytes for each in shared.values()))
            for name, values in {**shared, "own_nodes": nodes}.items():
                write_array(writer, name, values)
            _write_rows(writer, graph, nodes)
            writer.finish_store(replace(describe_store(graph), part=entry))
    return paths


def part_store(folder: Path, number: int) -> Path:
    """Return the path of the store of a part."""
    return folder / f"{_PREFIX}{number}"


def find_part_stores(path: Path) -> dict[int, Path]:
    """Return the stores of parts in a folder, or beside the store of a part, by number; empty if there are none."""
    folder = path.parent if is_store(path) else path
    found = {each.name.removeprefix(_PREFIX): each for each in folder.glob(f"{_PREFIX}*") if is_store(each)}
    return {int(number): found[number] for number in sorted(found, key=int) if number.isdigit()}


def choose_part_store(path: Path, rank: int, local_ranks: list[int]) -> Path:
    """Return the store that a worker opens, of those on its host.

    Where there are as many as workers on the host, each of these opens one, in order: a host then needs no part but
    those of its workers, whatever their ranks are. Else each opens the part of its rank.

    Args:
        path: The folder of the stores, or one of them.
        rank: The worker.
        local_ranks: The workers of its host, ascending.

    Raises:
        InputError: There is no such store.
    """
    found = find_part_stores(path)
    if len(found) == len(local_ranks):
        return [*found.values()][local_ranks.index(rank)]
    if rank in found:
        return found[rank]
    raise InputError(
        f"worker {rank} finds no part of the graph",
        needed=f"{part_store(path.parent if is_store(path) else path, rank)}, or as many parts as workers on its host, "
        f"which are {len(local_ranks)}",
        got=f"parts {', '.join(map(str, found)) or 'none'}",
        repair="copy the part to this host, or start one worker for each part",
    )


def _feature_checksums(graph: Graph) -> dict[str, str]:
    """Return the checksums of the arrays of a graph's features, by name; those of its store are not computed again."""
    assert graph.features is not None
    arrays = feature_arrays(graph.features)
    if graph.store is not None and matches_store(graph):
        entries = read_manifest(graph.store).arrays
        return {name: entries[name].sha256 for name in arrays}
    return {name: array_checksum(values) for name, values in arrays.items()}


def _check_request(graph: Graph, partition: Partition, folder: Path, *, overwrite: bool) -> None:
    if graph.features is None:
        raise InputError(
            f"{graph.name!r} has no features to give to parts", needed="features", got="none", repair="use the store"
        )
    if partition.num_parts < 2:
        raise InputError(
            "one part is the whole graph", needed="at least 2 parts", got="1 part", repair="give --parts 2 or more"
        )
    found = find_part_stores(folder)
    others = [number for number in found if number >= partition.num_parts]
    if others or (found and not overwrite):
        raise InputError(
            f"{folder} has stores of parts already",
            needed="an empty folder" + "" if others else ", or overwrite for as many parts",
            got=f"parts {', '.join(map(str, found))}",
            repair="choose another folder, or remove these stores" + ("" if others else ", or give --overwrite"),
        )


def _write_rows(writer: StoreWriter, graph: Graph, nodes: Tensor) -> None:
    """Write the rows of some nodes, in blocks: the features may be larger than memory."""
    assert graph.features is not None
    arrays = feature_arrays(graph.features)
    if "feature_indptr" in arrays:
        _write_sparse_rows(writer, arrays, graph.features, nodes)
        return
    firsts = {"features": (0, graph.num_nodes)}
    if graph.features is not arrays.get("features"):
        kinds = [kind for kind in graph.node_types if kind.num_columns]
        firsts = {f"{TYPE_FEATURES}{number}": (kind.first, kind.last) for number, kind in enumerate(kinds)}
    for name, (first, last) in firsts.items():
        values = stored_values(arrays[name])
        named = BFLOAT16 if arrays[name].dtype == torch.bfloat16 else None
        array = writer.create_array(name, values.dtype, values.shape[1:], named)
        own = nodes[(nodes >= first) & (nodes < last)] - first
        for block in _blocks_of_nodes(own, values[:1].nbytes):
            array.append_rows(values[block.numpy()])


def _write_sparse_rows(writer: StoreWriter, arrays: Mapping[str, Tensor], features: object, nodes: Tensor) -> None:
    assert isinstance(features, PartialRows)
    written = {
        name: writer.create_array(name, stored_values(values).dtype, (), None) for name, values in arrays.items()
    }
    ends, row_bytes = torch.zeros(1, dtype=torch.int64), sum(each.nbytes for each in arrays.values()) // len(features)
    written["feature_indptr"].append_rows(ends.numpy())
    for block in _blocks_of_nodes(nodes, row_bytes):
        rows = feature_arrays(index_rows(features, block))
        for name in ("feature_indices", "feature_values"):
            written[name].append_rows(rows[name].numpy())
        own_ends = ends + rows["feature_indptr"][1:]
        written["feature_indptr"].append_rows(own_ends.numpy())
        ends = own_ends[-1:]


def _blocks_of_nodes(nodes: Tensor, row_bytes: int) -> Iterator[Tensor]:
    """Yield nodes in blocks whose rows are of bounded size; none if there are none."""
    step = max(1, _BLOCK_BYTES // max(1, row_bytes))
    yield from (block for block in torch.split(nodes, step) if len(block))
