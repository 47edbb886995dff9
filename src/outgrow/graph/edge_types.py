"""Types of relations: between which types of nodes their edges go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.graph_types import EdgeType
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy

_BETWEEN = "__"
_ONLY_RELATION = "to"
_EDGES_AT_ONCE = 1 << 22


def find_edge_types(
    topology: Topology, relation_names: Sequence[str], type_names: Sequence[str], borders: Sequence[int]
) -> tuple[EdgeType, ...]:
    """Return the type of each relation: by its name, ``source__relation__destination``, else by its edges.

    Args:
        topology: In-edges of all nodes.
        relation_names: Name of each relation; none if edges have no relation, which counts as one, ``to``.
        type_names: Name of each node type.
        borders: The first node of each type, and the number of nodes.

    Raises:
        InputError: The edges of a relation are between nodes of several types.
    """
    names = tuple(relation_names) or (_ONLY_RELATION,)
    named = [_split_name(name, type_names) for name in names]
    if all(named):
        return tuple(each for each in named if each is not None)
    if len(type_names) == 1:
        return tuple(each or (type_names[0], name, type_names[0]) for each, name in zip(named, names, strict=True))
    counts = _count_type_pairs(topology, len(names), borders)
    return tuple(
        each or _only_pair(name, counts[number], type_names)
        for number, (each, name) in enumerate(zip(named, names, strict=True))
    )


def count_relation_edges(topology: Topology, num_relations: int) -> tuple[int, ...]:
    """Return the number of edges of each relation, by one pass over these; of all edges if they have none.

    Args:
        topology: In-edges of all nodes.
        num_relations: ``R``.
    """
    if topology.relation is None:
        return (topology.num_edges,)
    relations = as_numpy(topology.relation)
    counts = np.zeros(num_relations, dtype=np.int64)
    for first in range(0, len(relations), _EDGES_AT_ONCE):
        counts += np.bincount(relations[first : first + _EDGES_AT_ONCE], minlength=num_relations)
    return tuple(counts.tolist())


def _split_name(name: str, type_names: Sequence[str]) -> EdgeType | None:
    """Return the parts of the name of a relation; None unless it begins and ends with names of types."""
    for source in type_names:
        for target in type_names:
            head, tail = f"{source}{_BETWEEN}", f"{_BETWEEN}{target}"
            if name.startswith(head) and name.endswith(tail) and len(name) > len(head) + len(tail):
                return source, name[len(head) : -len(tail)], target
    return None


def _count_type_pairs(topology: Topology, num_relations: int, borders: Sequence[int]) -> NDArray[np.int64]:
    """Return ``[R, T, T]``: the edges of each relation from each type to each."""
    ends, sources = as_numpy(topology.indptr), as_numpy(topology.indices)
    relations = None if topology.relation is None else as_numpy(topology.relation)
    inner, num_types = np.asarray(borders[1:-1]), len(borders) - 1
    counts = np.zeros(num_relations * num_types * num_types, dtype=np.int64)
    # In pieces: edges may be mapped from a file that is larger than memory.
    for first in range(0, len(sources), _EDGES_AT_ONCE):
        last = min(first + _EDGES_AT_ONCE, len(sources))
        source = np.searchsorted(inner, sources[first:last], side="right")
        # In-edges of a type are one range, as its nodes are.
        target = np.searchsorted(ends[np.asarray(borders[1:-1])], np.arange(first, last), side="right")
        relation = 0 if relations is None else relations[first:last].astype(np.int64)
        counts += np.bincount((relation * num_types + source) * num_types + target, minlength=len(counts))
    return counts.reshape(num_relations, num_types, num_types)


def _only_pair(name: str, counts: NDArray[np.int64], type_names: Sequence[str]) -> EdgeType:
    sources, targets = np.nonzero(counts)
    if len(sources) > 1:
        pairs = [f"{type_names[int(s)]} to {type_names[int(t)]}" for s, t in zip(sources, targets, strict=True)]
        raise InputError(
            f"the relation {name!r} has no type of its own",
            needed="edges of a relation from nodes of one type to nodes of one type, for modules per type",
            got=f"edges from {', '.join(pairs)}",
            repair="give the edges of each pair of types a relation of their own",
        )
    if not len(sources):
        raise InputError(
            f"the relation {name!r} has no edges, and its name says no types",
            needed="edges, or a name such as author__writes__paper",
            got="neither",
            repair="leave the relation out, or name it by the types of its nodes",
        )
    first, last = int(sources[0]), int(targets[0])
    return type_names[first], name, type_names[last]
