"""Counters of what the workers gather and compute over several batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.graph.graph import Graph
from outgrow.ops.owned_rows import OwnedRows, held_rows
from outgrow.ops.sparse import PartialRows, SparseRows
from outgrow.planning.batch_stats import GatherStats, NeighborhoodStats
from outgrow.planning.graph_stats.chunk_waves import Matrix


class GatherCounter:
    """Counter of the raw feature rows that workers gather over several batches. Final.

    Args:
        owner: ``[V]`` the worker of each node.
        parts: Number of workers ``P``.
        row_entries: ``[V]`` stored entries of each feature row.
    """

    def __init__(self, owner: Tensor, parts: int, row_entries: Tensor) -> None:
        self.owner = owner
        self.parts = parts
        self.row_entries = row_entries
        self.rows = 0
        self.count = 0
        self.entries = 0.0
        self.remote_rows = np.zeros((parts, parts))

    def add_rows(self, part: int, nodes: Tensor) -> None:
        """Add the rows that a worker gathers for one batch."""
        owner = self.owner[nodes]
        self.rows += len(nodes)
        self.count += 1
        self.remote_rows[part] += count_owners(owner, self.parts)
        # Hot nodes tend to have longer sparse rows, so the entries of remote rows are counted, not averaged.
        self.entries += float(self.row_entries[nodes[owner != part]].sum())

    def mean_stats(self) -> GatherStats:
        """Return means per batch, over all workers together."""
        batches = max(1, self.count // self.parts)
        np.fill_diagonal(self.remote_rows, 0)
        return GatherStats(
            self.rows / batches, self.remote_rows / batches, self.entries / max(1.0, self.remote_rows.sum())
        )


class NeighborhoodCounter:
    """Counter of the rows and edges that workers compute over several batches. Final.

    Args:
        parts: Number of workers.
        layers: Number of layers of the model.
    """

    def __init__(self, parts: int, layers: int) -> None:
        self.rows = np.zeros((parts, layers + 1))
        self.edges = np.zeros((parts, layers))
        self.count = np.zeros(parts)

    def add_batch(self, part: int, groups: Sequence[Sequence[Block]]) -> None:
        """Add what a worker computes for one batch, over all its time steps."""
        self.count[part] += 1
        for blocks in groups:
            self.rows[part] += [*(len(block.src_nodes) for block in blocks), blocks[-1].edges.num_dst]
            self.edges[part] += [block.edges.num_edges for block in blocks]

    def add_split_batch(self, owner: Tensor, blocks: Sequence[Block]) -> None:
        """Add what all workers compute for one batch, each for its own nodes."""
        parts = len(self.count)
        self.count += 1
        levels = [*(block.src_nodes for block in blocks), blocks[-1].dst_nodes]
        for level, nodes in enumerate(levels):
            self.rows[:, level] += torch.bincount(owner[nodes], minlength=parts).numpy()
        for level, block in enumerate(blocks):
            degree = block.edges.indptr.diff().double()
            self.edges[:, level] += torch.bincount(owner[block.dst_nodes], degree, minlength=parts).numpy()

    def mean_stats(self) -> NeighborhoodStats:
        """Return means per batch, for each worker."""
        count = np.maximum(1, self.count)[:, None]
        return NeighborhoodStats(self.rows / count, self.edges / count)


def choose_evenly_spaced(count: int, most: int) -> list[int]:
    """Return at most ``most`` evenly spaced numbers below ``count``."""
    chosen: list[int] = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()
    return chosen


def count_row_entries(graph: Graph) -> Tensor:
    """Return ``[V]``: the number of stored entries in each feature row."""
    features = graph.features
    assert features is not None
    rows = held_rows(features)
    if isinstance(rows, Tensor):
        return torch.tensor(features.shape[1]).expand(graph.num_nodes)
    own = _count_entries(rows)
    if not isinstance(features, OwnedRows):
        return own
    # A part knows the rows of its own nodes, whose mean stands for the others.
    mean = round(float(own.double().mean())) if len(own) else 0
    return torch.full((graph.num_nodes,), mean).index_copy_(0, features.nodes, own)


def _count_entries(features: PartialRows) -> Tensor:
    if isinstance(features, SparseRows):
        return features.indptr.diff()
    entries = torch.zeros(len(features), dtype=torch.int64)
    for rows, (first, last) in zip(features.rows, features.columns, strict=True):
        entries[rows] = last - first
    return entries


def count_owners(owner: Tensor, parts: int) -> Matrix:
    """Return ``[P]`` int64: how many of some nodes each worker owns, from their owners ``[n]``."""
    return torch.bincount(owner, minlength=parts).numpy()
