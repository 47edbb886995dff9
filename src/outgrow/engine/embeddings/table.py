"""`EmbeddingTable`: the rows of one `NodeEmbedding` that a worker owns, with their gradients and optimizer state.

Passes over whole graphs look up rows of own nodes only: whole layers exchange what they compute of them. Mini-batches
need rows of other workers' nodes: `fetch_rows` brings them before a batch is computed, each once, and
`complete_gradients` returns their gradients to their owners afterwards. Rows are never summed over all workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.embeddings.row_gradients import (
    DenseGradients,
    RowGradients,
    SparseGradients,
    are_ascending_rows,
    is_row_range,
    sum_by_row,
)
from outgrow.engine.embeddings.row_optimizers import RowOptimizer
from outgrow.engine.embeddings.row_sections import RowSection, SectionGroup, SectionMaker, SeparateSections
from outgrow.engine.shard import GraphShard, PartitionShard
from outgrow.nn.node_embedding import NodeEmbedding, rows_in_ranges
from outgrow.ops.backend import once_differentiable
from outgrow.ops.rows.gather import group_by_owner
from outgrow.ops.rows.positions import find_positions
from outgrow.ops.subgraph import are_consecutive
from outgrow.runtime.distributed.async_exchange import SplitSizes

VALUES, BEST = "values", "best"
"""Names of sections: the rows as they are now, and those of the best epoch."""
BLOCK_BYTES = 4 << 20
"""Bytes of the rows that are updated at a time: they and their states stay in a cache."""


class EmbeddingTable:
    """Rows of the nodes that a worker owns. Final.

    Args:
        name: Name of the module in its model.
        embedding: The module.
        shard: The worker's shard of the graph.
        optimizer: Updates rows.
        maker: Makes what rows are kept in.
        gathers_batches: Whether steps look up rows of some nodes: of a batch, after `fetch_rows`, or of those that the
            loss reads. Their gradients are in memory. Else rows of all own nodes are looked up.
        in_batches: Whether steps are mini-batches, whose rows all count as having a gradient. In whole graphs zeros
            count as none: which rows a strategy looks up must make no difference.

    Attributes:
        nodes: ``[m]`` int64, ascending: own nodes that have a row.
        values: The rows.
        gradients: Their gradients since the last update.
        num_steps: Number of updates so far.
    """

    def __init__(
        self,
        name: str,
        embedding: NodeEmbedding,
        shard: GraphShard,
        optimizer: RowOptimizer,
        maker: SectionMaker,
        *,
        gathers_batches: bool,
        in_batches: bool,
    ) -> None:
        self.name = name
        self.embedding = embedding
        self.shard = shard
        self.comm = shard.comm
        self.optimizer = optimizer
        self.num_steps = 0
        self.gathers_batches = gathers_batches
        owned = shard.owned_nodes
        self.ranges = embedding.embedded_ranges(shard.topology.num_nodes)
        # Without a copy, where all have one: nodes may be many.
        self.nodes = owned if embedding.ranges is None else owned[rows_in_ranges(owned, self.ranges) >= 0]
        # Those of nodes that follow one another are found without a search.
        self._first = int(self.nodes[0]) if len(self.nodes) else 0
        self._consecutive = are_consecutive(self.nodes)
        self._maker = maker
        self.group = self._make_group([VALUES, *optimizer.state_names])
        self.values, *self.states = self.group.sections
        self.best: RowSection | None = None
        self._bad_row: int | None = None
        # An update of all rows needs no look at which have a gradient.
        drops_zeros = not in_batches and not optimizer.updates_all_rows
        self.gradients: RowGradients = (
            SparseGradients(embedding.dim, embedding.dtype, self.comm.device, drops_zeros=drops_zeros)
            if gathers_batches
            else DenseGradients(self.add_section("gradients"), drops_zeros=drops_zeros)
        )
        self._batch: _FetchedRows | None = None
        self._anchor = torch.zeros((), requires_grad=True)

    def keep_best(self) -> None:
        """Keep a copy of the rows as they are now."""
        self.best = self.best or self.add_section(BEST)
        self._copy_rows(self.values, self.best)

    def restore_best(self) -> None:
        """Set the rows to the copy that was kept last, if there is one."""
        if self.best is not None:
            self._copy_rows(self.best, self.values)

    @property
    def sections(self) -> dict[str, RowSection]:
        """What checkpoints keep, by name: the rows, what the optimizer keeps of them, and those of the best epoch."""
        states = zip(self.optimizer.state_names, self.states, strict=True)
        return {VALUES: self.values, **dict(states), **({} if self.best is None else {BEST: self.best})}

    def read_sections(self, first: int, last: int) -> Tensor:
        """Return ``[n, W]``: rows of all ``sections``, side by side."""
        joined = self.group.read_joined(first, last)
        return joined if self.best is None else torch.cat([joined, self.best.read_range(first, last)], 1)

    def write_sections(self, first: int, names: Sequence[str], rows_NW: Tensor) -> None:
        """Write rows from ``first`` on of the sections of these names, side by side, among them those of an update."""
        own = [VALUES, *self.optimizer.state_names]
        width = self.embedding.dim
        if [*names[: len(own)]] == own:
            joined = rows_NW[:, : len(own) * width]
        else:
            joined = torch.cat([rows_NW[:, names.index(each) * width :][:, :width] for each in own], 1)
        self.group.write_joined(first, joined)
        if self.best is not None and BEST in names:
            self.best.write_range(first, rows_NW[:, names.index(BEST) * width :][:, :width].contiguous())

    def _copy_rows(self, source: RowSection, target: RowSection) -> None:
        for first, last in self.blocks():
            target.write_range(first, source.read_range(first, last))

    def add_section(self, name: str) -> RowSection:
        """Return a new section of all rows, of zeros."""
        dtype = self.embedding.dtype
        return self._maker.make(self._file_name(name), len(self.nodes), self.embedding.dim, dtype)

    def _make_group(self, names: list[str]) -> SectionGroup:
        if not self.gathers_batches:
            # Passes over all rows read vectors alone, and no more than these of a file of their own.
            return SeparateSections([self.add_section(each) for each in names])
        size = len(self.nodes), self.embedding.dim
        return self._maker.make_group(self._file_name("joined"), len(names), *size, self.embedding.dtype)

    def _file_name(self, section: str) -> str:
        return f"{self.name}-{section}".replace(".", "-")

    @property
    def block_rows(self) -> int:
        """Number of rows in a block."""
        return max(1, BLOCK_BYTES // (self.embedding.dim * self.embedding.dtype.itemsize))

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the last row, plus 1, of each block of own rows."""
        for first in range(0, len(self.nodes), self.block_rows):
            yield first, min(first + self.block_rows, len(self.nodes))

    def draw_rows(self) -> None:
        """Begin with the rows of the module: those that it was trained to, or drawn ones."""
        weight = self.embedding.weight
        for first, last in self.blocks():
            nodes = self.nodes[first:last]
            if weight is None:
                rows = self.embedding.draw_rows(nodes)
            else:
                rows = weight[rows_in_ranges(nodes, self.ranges).to(weight.device)]
            # Zeros of the others too: joined sections would have to be read for less.
            zeros = torch.zeros(last - first, len(self.states) * rows.shape[1], dtype=rows.dtype)
            self.group.write_joined(first, torch.cat([rows, zeros], 1).to(self.comm.device))

    def local_rows(self, nodes_N: Tensor) -> Tensor:
        """Return ``[N]`` int64: the rows of own nodes; -1 for nodes without one."""
        nodes = nodes_N.cpu()
        if self._consecutive:
            rows = nodes - self._first
            return torch.where((rows >= 0) & (rows < len(self.nodes)), rows, -1)
        return find_positions(self.nodes, nodes)

    def lookup(self, nodes_N: Tensor) -> Tensor:
        """Return ``[N, dim]``, differentiable; zeros for nodes without a row. See `EmbeddingRows`."""
        source = self if self._batch is None else self._batch
        rows = source.local_rows(nodes_N)
        out: Tensor = _LookupRows.apply(self._anchor, source, rows)  # type: ignore[no-untyped-call]
        return out

    def add_gradient(self, rows_N: Tensor, grad_NF: Tensor) -> None:
        """Add gradients of own rows; those of row -1 are dropped."""
        self.gradients.add(rows_N, grad_NF)

    def read_rows(self, rows_N: Tensor) -> Tensor:
        """Return a copy of own rows, ``[N, dim]``, in any order; zeros for -1."""
        if is_row_range(rows_N):
            first = int(rows_N[0])
            return self.values.read_range(first, first + len(rows_N)).clone()
        if are_ascending_rows(rows_N):
            return self.values.read_rows(rows_N)
        found = rows_N >= 0
        distinct, positions = torch.unique(rows_N[found], return_inverse=True)
        read = self.values.read_rows(distinct)
        out = read.new_zeros(len(rows_N), read.shape[1])
        out[found.to(out.device)] = read[positions.to(out.device)]
        return out

    def fetch_rows(self, nodes_N: Tensor) -> None:
        """Bring the rows of these nodes, whoever owns them, for the lookups that follow. All workers together.

        Args:
            nodes_N: ``[N]`` int64, in any order.
        """
        nodes = torch.unique(nodes_N.cpu())
        nodes = nodes[rows_in_ranges(nodes, self.ranges) >= 0]
        if not isinstance(self.shard, PartitionShard):
            rows = self.local_rows(nodes)
            self._batch = _FetchedRows(nodes, self.values.read_rows(rows), rows, None)
            return
        grouped, counts = group_by_owner(nodes, self.shard.owner, self.comm.size)
        nodes = nodes[grouped]
        asked_counts = self.comm.all_to_all_counts(torch.tensor(counts), Kind.METRICS).flatten().tolist()
        sizes = SplitSizes(tuple(counts), tuple(asked_counts))
        asked = self.local_rows(self.comm.all_to_all(nodes, sizes, Kind.IDS).wait())
        rows = self.comm.all_to_all(self.read_rows(asked), sizes.reverse, Kind.FEATURES).wait()
        order = nodes.argsort()
        self._batch = _FetchedRows(nodes[order], rows[order.to(rows.device)], asked, (sizes, order))

    def complete_gradients(self) -> None:
        """Return the gradients of fetched rows to their owners; nothing to do in whole graphs. All workers together."""
        batch, self._batch = self._batch, None
        if batch is None:
            return
        if batch.exchange is None:
            self.gradients.add(batch.own_rows, batch.grad)
            return
        sizes, order = batch.exchange
        given = torch.empty_like(batch.grad)
        given[order.to(given.device)] = batch.grad
        grads = self.comm.all_to_all(given, sizes, Kind.GRADIENTS).wait()
        # In the order of workers, so that a sum of several gradients of a row is the same in every run.
        self.gradients.add(batch.own_rows, grads)

    def drop_batch(self) -> None:
        """Forget fetched rows, after an inference."""
        self._batch = None

    @torch.no_grad()
    def update(self, *, lr: float, scale: float = 1.0) -> None:
        """Update own rows by their gradients, and clear these.

        Args:
            lr: Learning rate of this step.
            scale: What gradients are multiplied with.
        """
        self.num_steps += 1
        dense = self.optimizer.updates_all_rows
        for rows, grad in self.gradients.blocks(len(self.nodes), self.block_rows, all_rows=dense):
            if scale != 1:
                grad = grad * scale  # noqa: PLW2901 - views of a section must not be changed
            values, *states = self.group.read(rows)
            self.optimizer.update_rows(values, grad, states, self.num_steps, lr)
            self.group.write(rows, [values, *states])
            if self._maker.io_pool is not None and self._bad_row is None and not values.isfinite().all():
                bad = (~values.isfinite().all(1)).nonzero()[0, 0]
                self._bad_row = rows.start + int(bad) if isinstance(rows, slice) else int(rows[bad])
        self.gradients.clear()

    def find_non_finite(self) -> int | None:
        """Return the first own node whose row is not finite; None if all are."""
        if self._maker.io_pool is not None:
            # Looked at when they were written: files are not read for it once more.
            return None if self._bad_row is None else int(self.nodes[self._bad_row])
        for first, last in self.blocks():
            bad = ~self.values.read_range(first, last).isfinite().all(1)
            if bad.any():
                return int(self.nodes[first + int(bad.nonzero()[0, 0])])
        return None

    def close(self) -> None:
        """Release all rows."""
        self.embedding.rows = None
        self.group.close()
        if self.best is not None:
            self.best.close()
        self.gradients.close()


class _FetchedRows:
    """Rows of the nodes of a batch, whoever owns them, and their gradients.

    Args:
        nodes: ``[N]`` int64, ascending.
        values: ``[N, F]``.
        own_rows: Own rows that gradients come back for, ``[k]`` int64.
        exchange: Numbers of rows exchanged with each worker, and the position of each exchanged row; None for one
            worker.
    """

    def __init__(
        self, nodes: Tensor, values: Tensor, own_rows: Tensor, exchange: tuple[SplitSizes, Tensor] | None
    ) -> None:
        self.nodes = nodes
        self.values = values
        self.own_rows = own_rows
        self.exchange = exchange
        self.grad = torch.zeros_like(values)

    def local_rows(self, nodes_N: Tensor) -> Tensor:
        """Return ``[N]`` int64: positions of nodes; -1 for nodes without a row."""
        return find_positions(self.nodes, nodes_N.cpu())

    def read_rows(self, rows_N: Tensor) -> Tensor:
        """Return a copy of rows, ``[N, F]``; zeros for -1."""
        at = rows_N.to(self.values.device)
        if not len(self.nodes):
            return self.values.new_zeros(len(at), self.values.shape[1])
        out = self.values.index_select(0, at.clamp(min=0))
        return out if not (rows_N < 0).any() else out * (at >= 0)[:, None]

    def add_gradient(self, rows_N: Tensor, grad_NF: Tensor) -> None:
        """Add gradients of rows; those of row -1 are dropped."""
        rows, grads = sum_by_row(rows_N, grad_NF)
        self.grad.index_add_(0, rows.to(self.grad.device), grads)


class _LookupRows(torch.autograd.Function):
    """Rows of a table or of a batch; their gradients go there, not to a tensor of autograd."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, source: Any, rows_N: Tensor) -> Tensor:
        ctx.source = source
        ctx.rows = rows_N
        found: Tensor = source.read_rows(rows_N)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[None, None, None]:
        ctx.source.add_gradient(ctx.rows, grad_NF)
        return None, None, None
