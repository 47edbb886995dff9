"""Partitioning methods and their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray

from outgrow.core.validation import validate_choice, validate_types
from outgrow.graph.partition.fennel import FennelPartitioner
from outgrow.graph.partition.metis import run_metis
from outgrow.graph.partition.partition import Partition, balanced_range_ends, range_of_each
from outgrow.graph.partition.partitioner import (
    Partitioner,
    SeedBalancingPartitioner,
    fill_empty_parts,
    require_in_range,
)
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy
from outgrow.ops.rng import fold_in, permute_range

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class MetisPartitioner(SeedBalancingPartitioner):
    """METIS, which minimises the edges between parts.

    It balances one weight per node, and with seeds their number as a second one. For ``both`` the weight is the
    node's in-edges plus the mean number of in-edges, so that nodes and edges weigh the same in total; neither count
    is then balanced exactly.

    Attributes:
        balance: What to balance: ``nodes``, in-edges of the nodes (``edges``), or ``both`` together.
        imbalance: How much heavier than the mean a part may be, from 0.001. METIS may exceed it, especially
            on small graphs and graphs with heavy nodes.
        seed: Seed of METIS.
        memory_bytes: Memory limit; None for the memory that the system has available.
    """

    name: ClassVar[str] = "metis"
    balance: str = "nodes"
    imbalance: float = 0.03
    seed: int = 0
    memory_bytes: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _require_balance(self.balance, "nodes", "edges", "both")
        require_in_range("imbalance", self.imbalance, 0.001, 1000)
        require_in_range("seed", self.seed, 0, 2**31 - 1)

    def _partition_nodes(self, topology: Topology, num_parts: int) -> Partition:
        if num_parts == 1:
            return Partition.from_assignment(torch.zeros(topology.num_nodes, dtype=torch.int16), 1)
        degree = np.diff(as_numpy(topology.indptr))
        weight = None
        if self.balance != "nodes" and topology.num_edges:
            # Rounded up: METIS takes whole numbers, and a node without in-edges must weigh something.
            share = -(-topology.num_edges // topology.num_nodes) if self.balance == "both" else 0
            weight = degree + share
        if self.seeds is not None:
            ones = np.ones(topology.num_nodes, dtype=np.int64)
            weight = np.stack([ones if weight is None else weight, self._mark_seeds(topology.num_nodes)], axis=1)
        part = run_metis(
            topology,
            num_parts,
            weight,
            imbalance=self.imbalance,
            seed=self.seed,
            memory_bytes=self.memory_bytes,
        )
        # METIS may return empty parts, which would leave a worker without nodes.
        fill_empty_parts(part, num_parts, degree)
        return Partition.from_assignment(torch.from_numpy(part), num_parts)


@dataclass(frozen=True, kw_only=True)
class RangePartitioner(Partitioner):
    """Contiguous ranges of node ids. The quality depends on the order of the nodes.

    Attributes:
        balance: What to balance: ``nodes``, or in-edges of the nodes (``edges``).
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
    """Random assignment of nodes, the same number to each part.

    Attributes:
        seed: Seed of the assignment.
    """

    name: ClassVar[str] = "hash"
    seed: int = 0

    def _partition_nodes(self, topology: Topology, num_parts: int) -> Partition:
        # A permutation rather than a hash of the id: part sizes then differ by 1 at most.
        rank = permute_range(0, topology.num_nodes, topology.num_nodes, fold_in(self.seed, topology.num_nodes))
        return Partition.from_assignment(torch.from_numpy(rank % num_parts), num_parts)


@dataclass(frozen=True, kw_only=True)
class ChunkedPartitioner(Partitioner):
    """Two-level partition: parts by one method, each cut into chunks of about equal computation.

    Chunks are contiguous ranges of the nodes of a part; computation is counted as nodes plus in-edges. A part
    with fewer nodes than chunks has empty chunks. Wang et al.: HongTu: scalable full-graph GNN training on
    multiple GPUs, SIGMOD 2023.

    Attributes:
        chunks: Number of chunks of each part.
        first: The method that makes the parts.
    """

    name: ClassVar[str] = "two-level"
    chunks: int = 4
    first: Partitioner = field(default_factory=MetisPartitioner)

    def __post_init__(self) -> None:
        require_in_range("chunks", self.chunks, 1, 2**31 - 1)

    def _partition_nodes(self, topology: Topology, num_parts: int) -> Partition:
        parts = self.first.partition_nodes(topology, num_parts)
        # Plus 1: a node without in-edges still costs the dense layers.
        cost = np.diff(as_numpy(topology.indptr)) + 1
        chunk = np.empty(topology.num_nodes, dtype=np.int32)
        for part in range(num_parts):
            nodes = parts.nodes_of_part(part).numpy()
            before = np.concatenate(([0], np.cumsum(cost[nodes])))
            chunk[nodes] = range_of_each(balanced_range_ends(before, min(self.chunks, len(nodes))))
        return Partition.from_assignment(parts.part, num_parts, chunk=torch.from_numpy(chunk), num_chunks=self.chunks)


def _require_balance(given: str, *choices: str) -> None:
    validate_choice("balance", given, {choice: choice for choice in choices})


METHODS: Mapping[str, Partitioner] = MappingProxyType(
    {
        "metis": MetisPartitioner(),
        "metis-edges": MetisPartitioner(balance="edges"),
        "metis-both": MetisPartitioner(balance="both"),
        "fennel": FennelPartitioner(),
        "range": RangePartitioner(),
        "range-edges": RangePartitioner(balance="edges"),
        "hash": HashPartitioner(),
        "two-level": ChunkedPartitioner(first=MetisPartitioner(balance="both")),
    }
)

# Strategies that train no chunks would ignore the second level.
WITHOUT_CHUNKS: Mapping[str, Partitioner] = MappingProxyType(
    {name: method for name, method in METHODS.items() if name != "two-level"}
)


def make_partitioner(name: str, options: Mapping[str, object] | None = None) -> Partitioner:
    """Return the method of a name, such as ``metis``, with the given options.

    Args:
        name: One of `METHODS`.
        options: Values of the options that differ from the defaults.

    Raises:
        InputError: An unknown name or option (the message suggests the nearest), or an invalid value.
    """
    method = validate_choice("partition method", name, METHODS)
    given = dict(options or {})
    hints = get_type_hints(type(method))
    for option in given:
        # Options that are not shown are set by other means: nodes to train on come with a graph.
        validate_choice(f"option of {name}", option, {each.name: each for each in fields(method) if each.repr})
    validate_types(given, hints)
    return replace(method, **given)
