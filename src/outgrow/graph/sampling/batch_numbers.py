"""Numbers of the rows of a batch: of its nodes, or of its pairs of a node and a time.

Both classes serve one caller at a time, and are used again for later batches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.graph.sampling.edge_sampler import SampledEdges
from outgrow.graph.sampling.layer_sampling import LARGEST, LayerSampling, invalid_seed_error
from outgrow.ops.sampling.bitset import empty_bitset
from outgrow.ops.sampling.renumber import group_new_by_owner, renumber_seeds, renumber_sources
from outgrow.ops.sampling.renumber_pairs import PairRows, PairTable
from outgrow.ops.sampling.uniform import Array, Ids


class BatchRows(NamedTuple):
    """Rows of a batch that have a number, in the order of their numbers.

    Attributes:
        nodes: ``[n]`` int64.
        times: ``[n]`` int64, the time that each row is drawn for; None if a row is drawn of all in-edges.
    """

    nodes: Ids
    times: Ids | None = None

    def slice_from(self, first: int) -> BatchRows:
        """Return the rows from a number on."""
        return BatchRows(self.nodes[first:], None if self.times is None else self.times[first:])

    def slice_to(self, last: int) -> BatchRows:
        """Return the rows before a number."""
        return BatchRows(self.nodes[:last], None if self.times is None else self.times[:last])


class SplitRows(NamedTuple):
    """Rows of a batch, split by the workers that own their nodes.

    Attributes:
        own: The rows that have a number now.
        others: Rows of other workers, by owner; they have no number, since a later hop may need them again.
        sizes: How many of these each worker owns.
        remap: ``[N]`` of the new rows: the number of an own one; else ``-1 -`` its position in ``others``.
    """

    own: BatchRows
    others: BatchRows
    sizes: tuple[int, ...]
    remap: NDArray[np.int32]


class NodeNumbers:
    """Numbers of nodes: a table of all nodes of the graph. Final.

    Args:
        sampling: Samples the layers.
    """

    def __init__(self, sampling: LayerSampling) -> None:
        self._sampling = sampling
        self._bits = empty_bitset(sampling.bitset_size)
        self._table = np.zeros(sampling.num_nodes, dtype=np.int32)
        self._base = 1

    def start_batch(self, seeds: Ids) -> BatchRows:
        """Number the seeds from 0, and return them as the rows that have a number.

        Raises:
            InputError: A seed is not a node of the graph, or is repeated.
        """
        numbered = renumber_seeds(seeds, self._table, self._base)
        if numbered < len(seeds):
            raise invalid_seed_error(seeds[numbered], numbered, len(self._table))
        return BatchRows(seeds)

    def sample_hop(self, layer: int, rows: BatchRows, epoch: int, step: int) -> SampledEdges:
        """Sample the in-edges of rows for a layer: see `LayerSampling.sample_layer`."""
        return self._sampling.sample_layer(layer, rows.nodes, epoch, step, self._bits)

    def number_sources(
        self, layer: int, sampled: SampledEdges, expanded: BatchRows, known: BatchRows
    ) -> tuple[BatchRows, NDArray[np.int32]]:
        """Number the sources of sampled in-edges.

        Args:
            layer: Number of the layer.
            sampled: The in-edges.
            expanded: The rows whose in-edges these are.
            known: All rows that have a number.

        Returns:
            The rows that have a number now, and ``[E]``, the number of each edge's source.
        """
        return self._add_nodes(*self._sampling.locate_sources(layer, sampled), known)

    def add_rows(self, more: BatchRows, known: BatchRows) -> tuple[BatchRows, NDArray[np.int32]]:
        """Number rows, some of which may be known or repeated; return as `number_sources` does."""
        return self._add_nodes(np.arange(len(more.nodes)), more.nodes, known)

    def _add_nodes(self, edges: Ids, indices: Array, known: BatchRows) -> tuple[BatchRows, NDArray[np.int32]]:
        count, pool = len(known.nodes), self._sampling.pool
        local = pool.empty_array(len(edges), np.int32)
        # Room for the worst case, in which every edge has a new source.
        grown = pool.empty_array(count + len(edges), np.int64)
        grown[:count] = known.nodes
        count = renumber_sources(edges, indices, self._table, self._base, grown, count, local)
        return BatchRows(grown[:count]), local

    def split_by_owner(self, rows: BatchRows, first: int, owner: Array, rank: int, size: int) -> SplitRows:
        """Split rows that have a number into own ones and those of other workers.

        Args:
            rows: The rows; overwritten.
            first: How many were known before, all own.
            owner: ``[V]`` worker of each node.
            rank: The worker whose rows are own.
            size: Number of workers.
        """
        new = group_new_by_owner(rows.nodes, first, owner, rank, size, self._table, self._base)
        return SplitRows(BatchRows(rows.nodes[: new.num_own]), BatchRows(new.others), new.sizes, new.remap)

    def row_degrees(self, layer: int, rows: BatchRows) -> Tensor:
        """Return ``[n]``: degrees of rows in the view of a layer."""
        return self._sampling.node_degrees(layer, rows.nodes)

    def end_batch(self, known: BatchRows) -> None:
        """Forget the numbers of a batch."""
        # A larger base makes all entries of this batch count as unset, without a pass over the table.
        self._base += len(known.nodes)
        # Cleared only before the numbers of the next batch could overflow.
        if self._base > LARGEST - len(self._table):
            self.forget_all()

    def forget_all(self) -> None:
        """Forget all numbers, of a batch that was left as well."""
        self._table[:] = 0
        self._base = 1


class PairNumbers:
    """Numbers of pairs of a node and the time of the seed that it is drawn for: a hash table. Final.

    The methods are those of `NodeNumbers`.

    Args:
        sampling: Samples the layers, by time.
    """

    def __init__(self, sampling: LayerSampling) -> None:
        self._sampling = sampling
        self._bits = empty_bitset(sampling.bitset_size)
        self._table = PairTable()

    def start_batch(self, seeds: Ids) -> BatchRows:
        """Number the seeds from 0, each with its own time."""
        outside = np.flatnonzero((seeds < 0) | (seeds >= self._sampling.num_nodes))
        if len(outside):
            raise invalid_seed_error(seeds[outside[0]], int(outside[0]), self._sampling.num_nodes)
        return self._number_rows(PairRows(seeds, self._sampling.seed_times(seeds)))

    def _number_rows(self, pairs: PairRows) -> BatchRows:
        """Forget all numbers, and number pairs from 0."""
        numbered = self._table.number_rows(pairs)
        if numbered < len(pairs.nodes):
            raise invalid_seed_error(pairs.nodes[numbered], numbered, self._sampling.num_nodes)
        return BatchRows(*pairs)

    def sample_hop(self, layer: int, rows: BatchRows, epoch: int, step: int) -> SampledEdges:
        """Sample the in-edges of rows before their times."""
        return self._sampling.sample_before(layer, to_pairs(rows), epoch, step, self._bits)

    def number_sources(
        self, layer: int, sampled: SampledEdges, expanded: BatchRows, known: BatchRows
    ) -> tuple[BatchRows, NDArray[np.int32]]:
        """Number the sources of sampled in-edges, which have the times of their destinations."""
        assert sampled.found is not None
        times = np.repeat(to_pairs(expanded).times, np.diff(sampled.indptr))
        return self.add_rows(BatchRows(sampled.found.sources, times), known)

    def add_rows(self, more: BatchRows, known: BatchRows) -> tuple[BatchRows, NDArray[np.int32]]:
        """Number rows, some of which may be known or repeated."""
        rows, local = self._table.add_sources(*to_pairs(more), to_pairs(known))
        return BatchRows(*rows), local

    def split_by_owner(self, rows: BatchRows, first: int, owner: Array, rank: int, size: int) -> SplitRows:
        """Split rows that have a number into own ones and those of other workers."""
        new = to_pairs(rows.slice_from(first))
        owners = owner[new.nodes]
        is_own = owners == rank
        # By owner, and in the order of the batch among the rows of one.
        others = np.flatnonzero(~is_own)
        others = others[np.argsort(owners[others], kind="stable")]
        remap = np.empty(len(owners), np.int32)
        remap[is_own] = first + np.arange(np.count_nonzero(is_own))
        remap[others] = -1 - np.arange(len(others))
        kept = np.concatenate([np.arange(first), first + np.flatnonzero(is_own)])
        own = self._number_rows(PairRows(*(each[kept] for each in to_pairs(rows))))
        sizes = tuple(np.bincount(owners[others], minlength=size).tolist())
        return SplitRows(own, BatchRows(new.nodes[others], new.times[others]), sizes, remap)

    def row_degrees(self, layer: int, rows: BatchRows) -> Tensor:
        """Return ``[n]``: degrees of rows in the view of a layer, of in-edges before their times."""
        return self._sampling.degrees_before(layer, to_pairs(rows))

    def end_batch(self, known: BatchRows) -> None:
        """Do nothing: the next batch forgets the numbers."""

    def forget_all(self) -> None:
        """Do nothing: the next batch forgets the numbers."""


def to_pairs(rows: BatchRows) -> PairRows:
    """Return rows that have times."""
    assert rows.times is not None
    return PairRows(rows.nodes, rows.times)


def make_batch_numbers(sampling: LayerSampling) -> NodeNumbers | PairNumbers:
    """Return numbers for batches of a sampling."""
    return PairNumbers(sampling) if sampling.is_temporal else NodeNumbers(sampling)
