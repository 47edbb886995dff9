"""Results of the CPU for hot nodes, and the output that the device computes from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from outgrow.core.ledger import Kind, Link
from outgrow.engine.features.assembly import make_matrix_builder
from outgrow.nn.layer import Features, Layer
from outgrow.ops.rng import dropout
from outgrow.ops.sparse import index_rows
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.orchestrate.hot_inputs import HotInputs

T = TypeVar("T", Tensor | None, Features | None)


class ReuseSpec(NamedTuple):
    """Which results of hot nodes are computed for the next super-batch; see `HotEmbeddings` for their use.

    Attributes:
        embedding: Whether the output of the bottom layer is kept; else it is computed from the aggregate.
        aggregate: Whether the aggregate is kept.
        target: Whether the input of the nodes is kept: if there is an aggregate and the layer reads the
            input.
        on_host: Whether aggregates and inputs stay in host memory, where the CPU computes the gradient from them.
        sources: Whether edges and features of sources stay there, where parameters precede the aggregate.
    """

    embedding: bool
    aggregate: bool
    target: bool
    on_host: bool = False
    sources: bool = False


class HotEmbeddings(NamedTuple):
    """Results of hot nodes in the bottom layer, computed with parameters of one version or several.

    Attributes:
        nodes: ``[h]`` int64.
        versions: ``[h]`` int64, number of updates of the epoch that the parameters include.
        embedding: ``[h, O]`` output without dropout; None if it is computed from the aggregate.
        aggregate: ``[h, C, F]``, for the gradient or for the output; None if neither is needed.
        target: ``[h, D]`` input of the nodes; None if nothing reads it.
        inputs: What the embeddings were computed from, in host memory; None if nothing reads it.
    """

    nodes: Tensor
    versions: Tensor
    embedding: Tensor | None
    aggregate: Tensor | None
    target: Features | None
    inputs: HotInputs | None = None

    def move_to_device(self, comm: Comm, *, embedding_only: bool = False) -> HotEmbeddings:
        """Return the rows, or the embeddings of them, on the device; count their bytes, on a CPU as on a GPU."""

        def move_part(part: T, kind: Kind) -> T:
            if part is None:
                return part
            if len(part):
                comm.ledger.add_bytes(Link.HOST_TO_DEVICE, kind, part.nbytes)
            return part.to(comm.device)

        if embedding_only:
            return self._replace(embedding=move_part(self.embedding, Kind.ACTIVATIONS))
        return self._replace(
            embedding=move_part(self.embedding, Kind.ACTIVATIONS),
            aggregate=move_part(self.aggregate, Kind.ACTIVATIONS),
            target=move_part(self.target, Kind.FEATURES),
        )


def concat_embeddings(parts: Sequence[HotEmbeddings]) -> HotEmbeddings:
    """Concatenate embeddings in this order, without `HotEmbeddings.inputs`."""
    first = parts[0]
    return HotEmbeddings(
        torch.cat([part.nodes for part in parts]),
        torch.cat([part.versions for part in parts]),
        None if first.embedding is None else torch.cat([part.embedding for part in parts]),  # type: ignore[misc]
        None if first.aggregate is None else torch.cat([part.aggregate for part in parts]),  # type: ignore[misc]
        None if first.target is None else _concat_features([part.target for part in parts if part.target is not None]),
    )


def _concat_features(parts: Sequence[Features]) -> Features:
    sizes = [len(part) for part in parts]
    like = next((part for part in parts if len(part)), parts[0])
    draft = make_matrix_builder(sum(sizes), like, like.dtype)
    for part, places in zip(parts, torch.split(torch.arange(sum(sizes), device=like.device), sizes), strict=True):
        draft.write_rows(part, None, places)
    return draft.build_matrix()


class HotEmbeddingTable:
    """The results of the hot nodes of a super-batch, by node. Final.

    Args:
        parts: All slices, on the device but for what stays in host memory; referenced for the lifetime of the table.
        num_nodes: ``V``.
    """

    def __init__(self, parts: Sequence[HotEmbeddings], num_nodes: int) -> None:
        # Allocated on the load stream: if freed early, that stream could reuse memory that kernels still
        # read.
        self.parts = parts
        self.rows = concat_embeddings(parts)
        rows = self.rows
        # A table for all nodes, since every batch of the super-batch looks rows up.
        self._slot = torch.full((num_nodes,), -1, dtype=torch.int32)
        self._slot[rows.nodes] = torch.arange(len(rows.nodes), dtype=torch.int32)

    def select_nodes(self, nodes: Tensor) -> HotEmbeddings:
        """Return the rows of some nodes ``[n]``, all of which must be in the table."""
        slots = self._slot[nodes].long()
        assert int(slots.min()) >= 0
        rows = self.rows
        return HotEmbeddings(
            nodes,
            rows.versions[slots],
            None if rows.embedding is None else rows.embedding[slots.to(rows.embedding.device)],
            None if rows.aggregate is None else rows.aggregate[slots.to(rows.aggregate.device)],
            None if rows.target is None else index_rows(rows.target, slots.to(rows.target.device)),
        )

    def select_inputs(self, nodes: Tensor) -> Iterator[tuple[Tensor, HotInputs]]:
        """Yield, for each slice that has some of the nodes, where these are among ``nodes`` and their inputs.

        All nodes must be in the table, which must have inputs.
        """
        slots = self._slot[nodes].long()
        first = 0
        for part in self.parts:
            last = first + len(part.nodes)
            places = ((slots >= first) & (slots < last)).nonzero()[:, 0]
            if len(places):
                assert part.inputs is not None
                yield places, part.inputs.select_nodes(slots[places] - first)
            first = last


def gradient_weights(rows: HotEmbeddings, updates: int, dtype: torch.dtype) -> Tensor:
    """Return what the gradient of each node counts, ``[h, 1]``: one over its age in updates, plus one.

    The loss does not yet show what the last updates did to an old row, so that its full gradient overshoots. Zhang,
    Gupta, Lian & Liu, Staleness-aware async-SGD for distributed deep learning, IJCAI 2016, divide the learning rate by
    the age.

    Args:
        rows: The nodes.
        updates: Updates of the epoch that the current parameters include.
        dtype: Type of the weights.
    """
    return (1 / (1 + updates - rows.versions).to(dtype))[:, None]


def compute_hot_output(layer: Layer, rows: HotEmbeddings, key: int | None, updates: int) -> Tensor:
    """Return the output of hot nodes with dropout, ``[h, O]``.

    With embeddings and aggregates, the values are those of the embeddings and the gradient is that of the
    output under the current parameters, weighted by `gradient_weights`: parameters used by `Layer.update` get a
    gradient, those before it none.

    Args:
        layer: The bottom layer.
        rows: Results of the nodes, on the device.
        key: Random key of the layer in this step; None for no dropout.
        updates: Updates of the epoch that the current parameters include.
    """
    if rows.aggregate is None:
        assert rows.embedding is not None
        return _apply_dropout(layer, rows.embedding, rows.nodes, key)
    nodes = rows.nodes.to(rows.aggregate.device)
    target = rows.aggregate.new_empty(len(nodes), 0) if rows.target is None else rows.target
    if rows.embedding is None:
        # The aggregate does not age: the current parameters give the exact output.
        return layer.update_nodes(target, rows.aggregate, nodes, key)
    fresh = layer.update_nodes(target, rows.aggregate, nodes, None)
    weight_h1 = gradient_weights(rows, updates, fresh.dtype).to(fresh.device)
    # The difference is zero: it leaves the value alone and adds the gradient of the fresh output.
    return _apply_dropout(layer, rows.embedding + weight_h1 * (fresh - fresh.detach()), nodes, key)


def _apply_dropout(layer: Layer, y_VO: Tensor, nodes_V: Tensor, key: int | None) -> Tensor:
    """Apply the dropout at the end of a layer."""
    return y_VO if key is None else dropout(y_VO, nodes_V.to(y_VO.device), key, layer.epilogue.dropout)
