"""`GraphPart`: which part of a graph its features are of, where a store has only the rows of its own nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from outgrow.core.errors import InputError


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphPart:
    """One part of a partitioned graph: topology, labels and splits are of all nodes, features of its own nodes alone.

    Attributes:
        number: Number of the part, from 0.
        num_parts: ``P``, number of parts, and of the workers that train on them.
        method: How the graph was partitioned: see `Partitioner.cache_key`.
        key: Checksum of the whole graph and of the partition, equal for all of its parts.
        node_part: ``[V]`` int16 or int32, the part of each node.
        checksums: Checksum of an array of the whole graph, by that of the same array in this part.
    """

    number: int
    num_parts: int
    method: str
    key: str
    node_part: Tensor
    checksums: Mapping[str, str]


def require_all_features(part: GraphPart | None, graph: str, purpose: str) -> None:
    """Check that a graph has the features of all of its nodes.

    Args:
        part: The part of a graph; None for a whole one.
        graph: Name of the graph.
        purpose: What needs the features, such as "prediction".

    Raises:
        InputError: It has those of a part alone.
    """
    if part is not None:
        raise InputError(
            f"{purpose} needs the features of all nodes",
            needed=f"the whole graph {graph!r}",
            got=f"part {part.number} of {part.num_parts}, which has the features of its own nodes alone",
            repair="give the store that the parts were made of",
        )


def require_parts_of_workers(part: GraphPart | None, graph: str, num_workers: int) -> None:
    """Check that there is a worker for each part of a graph.

    Raises:
        InputError: There are more parts than workers, or fewer.
    """
    if part is not None and part.num_parts != num_workers:
        raise InputError(
            f"{graph!r} is cut into {part.num_parts} parts, and each worker opens one",
            needed=f"{part.num_parts} workers",
            got=f"{num_workers} worker{'s' * (num_workers > 1)}",
            repair=f"train on {part.num_parts} workers, or cut the graph again: "
            f"outgrow partition STORE --parts {num_workers} --out-parts DIR"
            if num_workers > 1
            else f"train on {part.num_parts} workers, or on the store that the parts were made of",
        )
