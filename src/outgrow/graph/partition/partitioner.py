"""`Partitioner`, the interface of partitioning methods, and what they share."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.graph.partition.partition import Partition
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Partitioner(ABC):
    """A method to partition a graph. The same options give the same partition of the same graph.

    Attributes:
        name: Name of the method.
    """

    name: ClassVar[str]

    @property
    def cache_key(self) -> str:
        """Name of the method with all options that affect the partition."""
        # Options that do not compare, such as memory limits, leave the partition unchanged.
        named = ((each.name, getattr(self, each.name)) for each in fields(self) if each.compare)
        texts = (
            f"{name}={value.cache_key if isinstance(value, Partitioner) else value}"
            for name, value in named
            if value != ""
        )
        return "-".join((self.name, *texts))

    def partition_nodes(self, topology: Topology, num_parts: int) -> Partition:
        """Partition the nodes.

        Args:
            topology: ``V`` nodes and their in-edges.
            num_parts: 1 to ``V``.

        Returns:
            The partition; no part is empty.

        Raises:
            InputError: More parts than nodes, or a graph that the method cannot partition.
        """
        if not 1 <= num_parts <= topology.num_nodes:
            raise InputError(
                "a graph is cut into at most as many parts as it has nodes",
                needed=f"1 to {topology.num_nodes:,} parts",
                got=f"{num_parts:,} parts",
                repair="choose a number of parts in that range" if topology.num_nodes else "choose a graph with nodes",
            )
        return self._partition_nodes(topology, num_parts)

    def with_seeds(self, seeds: Tensor) -> Partitioner:
        """Return the method that balances these nodes to train on, ``[n]`` int64; most methods do not."""
        return self

    @abstractmethod
    def _partition_nodes(self, topology: Topology, num_parts: int) -> Partition: ...


@dataclass(frozen=True, kw_only=True)
class SeedBalancingPartitioner(Partitioner, ABC):
    """A method that can balance nodes to train on, as mini-batches need.

    Attributes:
        signature: Name for the seeds, the same for the same ones; empty for none.
        seeds: ``[n]`` int64, nodes to train on, which are balanced too; None for none.
    """

    signature: str = field(default="", repr=False)
    seeds: Tensor | None = field(default=None, compare=False, repr=False)

    def with_seeds(self, seeds: Tensor) -> Self:
        """Return the method that balances these nodes to train on, ``[n]`` int64, too."""
        if not len(seeds):
            return self
        digest = hashlib.sha256(as_numpy(seeds.long()).tobytes()).hexdigest()[:16]
        return replace(self, seeds=seeds, signature=digest)

    def _mark_seeds(self, num_nodes: int) -> NDArray[np.uint8]:
        """Return ``[V]``: 1 for seeds, else 0."""
        is_seed = np.zeros(num_nodes, dtype=np.uint8)
        if self.seeds is not None:
            is_seed[as_numpy(self.seeds)] = 1
        return is_seed


def fill_empty_parts(part: Array, num_parts: int, degree: Array) -> None:
    """Give each empty part one node, of those with the fewest in-edges; no other part becomes empty."""
    sizes = np.bincount(part, minlength=num_parts)
    empty = np.flatnonzero(sizes == 0)
    if not len(empty):
        return
    by_degree = np.argsort(degree, kind="stable")
    # The heaviest node of each part stays, so that none that had a node becomes empty.
    stays = np.unique(part[by_degree[::-1]], return_index=True)[1]
    # Positions of the reversed order, counted from the front again.
    free = np.delete(by_degree, len(part) - 1 - stays)
    part[free[: len(empty)]] = empty


def require_in_range(name: str, value: float, least: float, most: float) -> None:
    """Check an option of a method.

    Raises:
        InputError: It is out of range.
    """
    if not least <= value <= most:
        raise InputError(
            f"option {name} is out of range",
            needed=f"{least:,} to {most:,}",
            got=f"{value:,}",
            repair=f"correct the value of {name}",
        )
