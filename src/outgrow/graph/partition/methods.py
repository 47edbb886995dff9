"""Methods: ways to partition the nodes of a graph, and their names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice, validate_types
from outgrow.graph.partition.balanced_ranges import balanced_range_ends, range_of_each
from outgrow.graph.partition.metis import run_metis
from outgrow.graph.partition.partition import Partition
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy
from outgrow.ops.rng import fold_in, permute_range

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Partitioner(ABC):
    """A way to partition. The same options give the same partition of the same graph.

    Attributes:
        name: What it is called.
    """

    name: ClassVar[str]

    @property
    def cache_key(self) -> str:
        """The name with all options that the partition depends on."""
        named = ((each.name, getattr(self, each.name)) for each in fields(self) if each.compare)
        texts = (f"{name}={value.cache_key if isinstance(value, Partitioner) else value}" for name, value in named)
        return "-".join((self.name, *texts))

    def partition_nodes(self, topology: Topology, num_parts: int) -> Partition:
        """Partition the nodes.

        Args:
            topology: ``V`` nodes and their in-edges.
            num_parts: 1 to ``V``.

        Returns:
            The partition; no part is empty.

        Raises:
            InputError: More parts than nodes, or what the method cannot do.
        """
        if not 1 <= num_parts <= topology.num_nodes:
            raise InputError(
                "a graph is cut into at most as many parts as it has nodes",
                needed=f"1 to {topology.num_nodes:,} parts",
                got=f"{num_parts:,} parts",
                repair="choose a number of parts in that range" if topology.num_nodes else "choose a graph with nodes",
            )
        return self._partition_nodes(topology, num_parts)

    @abstractmethod
    def _partition_nodes(self, topology: Topology, num_parts: int) -> Partition: ...


@dataclass(frozen=True, kw_only=True)
class MetisPartitioner(Partitioner):
    """METIS: few edges between parts.

    It balances one number for each node. That of ``both`` is the node's in-edges and the mean number of in-edges, so
    that nodes and edges weigh the same in total; of parts that are even by it, neither count needs to be quite even.

    Attributes:
        balance: What parts have equally much of: ``nodes``, in-edges of their nodes (``edges``), or ``both`` together.
        imbalance: How much heavier than the mean a part may be, from 0.001. METIS may miss it, most of all on small
            graphs and graphs with heavy nodes.
        seed: Seed of its draws.
        memory_bytes: Most memory that it may use; None for what the system has available.
    """

    name: ClassVar[str] = "metis"
    balance: str = "nodes"
    imbalance: float = 0.03
    seed: int = 0
    memory_bytes: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _require_balance(self.balance, "nodes", "edges", "both")
        _require_in_range("imbalance", self.imbalance, 0.001, 1000)
        _require_in_range("seed", self.seed, 0, 2**31 - 1)

    def _partition_nodes(self, topology: Topology, num_parts: int) -> Partition:
        if num_parts == 1:
            return Partition.from_assignment(torch.zeros(topology.num_nodes, dtype=torch.int16), 1)
        degree = np.diff(as_numpy(topology.indptr))
        weight = None
        if self.balance != "nodes" and topology.num_edges:
            share = -(-topology.num_edges // topology.num_nodes) if self.balance == "both" else 0
            weight = degree + share
        part = run_metis(
            topology,
            num_parts,
            weight,
            imbalance=self.imbalance,
            seed=self.seed,
            memory_bytes=self.memory_bytes,
        )
        fill_empty_parts(part, num_parts, degree)
        return Partition.from_assignment(torch.from_numpy(part), num_parts)


@dataclass(frozen=True, kw_only=True)
class RangePartitioner(Partitioner):
    """Contiguous ranges of node ids: as good as the order of the nodes is.

    Attributes:
        balance: What parts have equally much of: ``nodes``, or in-edges of their nodes (``edges``).
    """

    name: ClassVar[str] = "range"
    balance: str = "nodes"

    def __post_init__(self) -> None:
        _require_balance(self.balance, "nodes", "edges")

    def _partition_nodes(self, topology: Topology, num_parts: int) -> Partition:
        before = np.arange(topology.num_nodes + 1) if self.balance == "nodes" else as_numpy(topology.indptr)
        return Partition.from_assignment(
            torch.from_numpy(range_of_each(balanced_range_ends(before, num_parts))), num_parts
        )


@dataclass(frozen=True, kw_only=True)
class HashPartitioner(Partitioner):
    """Nodes dealt out at random, equally many to each part.

    Attributes:
        seed: Key of the draws.
    """

    name: ClassVar[str] = "hash"
    seed: int = 0

    def _partition_nodes(self, topology: Topology, num_parts: int) -> Partition:
        drawn = permute_range(0, topology.num_nodes, topology.num_nodes, fold_in(self.seed, topology.num_nodes))
        return Partition.from_assignment(torch.from_numpy(drawn % num_parts), num_parts)


@dataclass(frozen=True, kw_only=True)
class ChunkedPartitioner(Partitioner):
    """Parts by one method, each cut into chunks: contiguous ranges of its nodes with about equal computation.

    The computation of a chunk is counted as its nodes and their in-edges. A part with fewer nodes than chunks has empty
    chunks. Wang et al.: HongTu: scalable full-graph GNN training on multiple GPUs, SIGMOD 2023.

    Attributes:
        chunks: Chunks of each part.
        first: The method that makes the parts.
    """

    name: ClassVar[str] = "two-level"
    chunks: int = 4
    first: Partitioner = field(default_factory=MetisPartitioner)

    def __post_init__(self) -> None:
        _require_in_range("chunks", self.chunks, 1, 2**31 - 1)

    def _partition_nodes(self, topology: Topology, num_parts: int) -> Partition:
        parts = self.first.partition_nodes(topology, num_parts)
        cost = np.diff(as_numpy(topology.indptr)) + 1
        chunk = np.empty(topology.num_nodes, dtype=np.int32)
        for part in range(num_parts):
            nodes = parts.nodes_of_part(part).numpy()
            before = np.concatenate(([0], np.cumsum(cost[nodes])))
            chunk[nodes] = range_of_each(balanced_range_ends(before, min(self.chunks, len(nodes))))
        return Partition.from_assignment(parts.part, num_parts, chunk=torch.from_numpy(chunk), num_chunks=self.chunks)


def fill_empty_parts(part: Array, num_parts: int, degree: Array) -> None:
    """Give each empty part one node: those with fewest in-edges, but not the last node of another part."""
    sizes = np.bincount(part, minlength=num_parts)
    empty = np.flatnonzero(sizes == 0)
    if not len(empty):
        return
    by_degree = np.argsort(degree, kind="stable")
    stays = np.unique(part[by_degree[::-1]], return_index=True)[1]
    free = np.delete(by_degree, len(part) - 1 - stays)
    part[free[: len(empty)]] = empty


def _require_balance(given: str, *choices: str) -> None:
    validate_choice("balance", given, {choice: choice for choice in choices})


def _require_in_range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InputError(
            f"option {name} is out of range",
            needed=f"{least:,} to {most:,}",
            got=f"{value:,}",
            repair=f"correct the value of {name}",
        )


METHODS: Mapping[str, Partitioner] = MappingProxyType(
    {
        "metis": MetisPartitioner(),
        "metis-edges": MetisPartitioner(balance="edges"),
        "metis-both": MetisPartitioner(balance="both"),
        "range": RangePartitioner(),
        "range-edges": RangePartitioner(balance="edges"),
        "hash": HashPartitioner(),
        "two-level": ChunkedPartitioner(first=MetisPartitioner(balance="both")),
    }
)

WITHOUT_CHUNKS: Mapping[str, Partitioner] = MappingProxyType(
    {name: method for name, method in METHODS.items() if name != "two-level"}
)


def make_partitioner(name: str, options: Mapping[str, object] | None = None) -> Partitioner:
    """The method of a name, such as ``metis``, with options set.

    Args:
        name: One of `METHODS`.
        options: Value of each option that shall differ.

    Raises:
        InputError: An unknown name or option (the nearest are offered), or a value that is wrong.
    """
    method = validate_choice("partition method", name, METHODS)
    given = dict(options or {})
    hints = get_type_hints(type(method))
    for option in given:
        validate_choice(f"option of {name}", option, {each.name: each for each in fields(method)})
    validate_types(given, hints)
    return replace(method, **given)
