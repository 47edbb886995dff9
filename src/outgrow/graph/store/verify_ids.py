"""Full check of the ids of a graph, which may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.id_order import Repetitions, iterate_runs, list_ranges
from outgrow.graph.node_ids import NodeIds, TextArrays, duplicate_ids_error

_BLOCK = 1 << 18
_REPAIR = "build the graph again from its source"


def verify_ids(ids: NodeIds, num_nodes: int, borders: Sequence[int]) -> None:
    """Check that each node has one id, texts are UTF-8, and that the order by which ids are found is right.

    Args:
        ids: The ids.
        num_nodes: ``V``.
        borders: ``[T + 1]``, first node of each type and ``V``; empty for one type.

    Raises:
        InputError: Something is wrong, with the first place, or nodes of one type have the same id.
    """
    if len(ids) != num_nodes or (ids.values is not None and len(ids.values) != num_nodes):
        raise _ids_error(f"{num_nodes} ids, one for each node", str(len(ids)))
    if ids.are_text:
        _check_texts(ids.texts, num_nodes)
    order = ids.order.numpy()
    _check_permutation(order, borders)
    repeated = Repetitions()
    for first, last in list_ranges(borders, num_nodes):
        for nodes, keys in _read_in_order(ids, order, first, last):
            if (keys[1:] < keys[:-1]).any():
                raise _ids_error("an order in which ids, or hashes of texts, ascend", f"others after node {nodes[0]}")
            for start, end in iterate_runs(keys):
                run = nodes[start:end]
                repeated.add_nodes(ids.texts.list_repeated(run) if ids.are_text else run[1:].tolist())
    if repeated.count:
        raise duplicate_ids_error(repeated.count, [str(ids[node]) for node in repeated.nodes])


def _check_texts(texts: TextArrays, num_nodes: int) -> None:
    import pyarrow as pa

    offsets, total = texts.offsets, len(texts.data)
    if len(offsets) != num_nodes + 1 or int(offsets[0]) != 0 or int(offsets[-1]) != total:
        raise _ids_error(f"{num_nodes + 1} ends of ids from 0 to {total}", f"{len(offsets)} ends")
    for first in range(0, num_nodes, _BLOCK):
        part = offsets[first : first + _BLOCK + 1]
        if (part[1:] < part[:-1]).any():
            raise _ids_error("ends of ids that never fall", f"a fall after node {first}")
        # One that falls and rises again would lead outside of the data.
        if int(part[0]) < 0 or int(part[-1]) > total:
            raise _ids_error(f"ends of ids up to {total}", f"another after node {first}")
        try:
            TextArrays(part, texts.data).to_arrow().validate(full=True)
        except pa.ArrowInvalid as error:
            raise _ids_error("ids in UTF-8", f"others after node {first}: {str(error)[:100]}") from error


def _check_permutation(order: NDArray[Any], borders: Sequence[int]) -> None:
    seen = np.zeros(len(order), bool)
    for first, last in list_ranges(borders, len(order)):
        for at in range(first, last, _BLOCK):
            part = order[at : min(at + _BLOCK, last)]
            if int(part.min()) < first or int(part.max()) >= last:
                raise _ids_error(f"an order of the nodes {first} to {last - 1}", f"another node after place {at}")
            seen[part] = True
    if not seen.all():
        raise _ids_error("an order with every node", f"no node {int(np.argmin(seen))}")


def _read_in_order(
    ids: NodeIds, order: NDArray[Any], first: int, last: int
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield the nodes of a type in order, in blocks, each with the last one before it, and their ids or hashes."""
    import pyarrow as pa

    at = first
    while at < last:
        end = min(at + _BLOCK, last)
        if ids.values is not None:
            before = max(first, at - 1)
            yield order[before:end], ids.values.numpy()[order[before:end]]
            at = end
            continue
        assert ids.hashes is not None
        hashes = ids.hashes.numpy().view(np.uint64)
        # Whole runs of one hash: texts of one run are compared with each other.
        while end < last and hashes[end] == hashes[end - 1]:
            end += 1
        nodes = order[at:end]
        texts = TextArrays.from_arrow(ids.texts.to_arrow().take(pa.array(nodes)))
        found = texts.hash_range(0, len(texts))
        wrong = np.flatnonzero(found != hashes[at:end])
        if len(wrong):
            raise _ids_error("the hash of each id", f"another of node {nodes[wrong[0]]}")
        if at > first and hashes[at] < hashes[at - 1]:
            raise _ids_error("an order in which hashes of texts ascend", f"another at node {nodes[0]}")
        yield nodes, found
        at = end


def _ids_error(needed: str, got: str) -> InputError:
    return InputError("the ids of the nodes are broken", needed=needed, got=got, repair=_REPAIR)
