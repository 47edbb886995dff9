"""Inputs of a shard: type and device of features, and labels of seeds of any worker."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.deprecation import renamed_members
from outgrow.core.ledger import Kind, Link
from outgrow.engine.features.assembly import RowSource
from outgrow.engine.features.stored_rows import StoredRows
from outgrow.engine.shard import GraphShard
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.ops.kernels.numerics import accumulate_dtype, is_half
from outgrow.ops.owned_rows import NodeFeatures, OwnedRows
from outgrow.runtime.distributed.comm import Comm


class ShardInputs(NamedTuple):
    """Features of one worker's nodes, on its device.

    Attributes:
        own: ``[n, D]`` of the own nodes.
        source: ``[n + h, D]`` of these and of the halo, where the first layer passes features on as they are;
            else ``own``.
    """

    own: Features
    source: Features


def fetch_shard_inputs(model: Model, shard: GraphShard, features: NodeFeatures) -> ShardInputs:
    """Return the features that a worker needs; those of the halo are fetched from their owners, once.

    Args:
        model: The model.
        shard: The worker's shard of the graph.
        features: ``[V, D]``, as the graph has them, of own nodes at least; memory-mapped where they are many.
    """
    own = cast_features(model, shard.select_owned(features)).to(shard.comm.device)
    if not isinstance(own, Tensor):
        own = own.keep()
    if not model.source_is_features:
        return ShardInputs(own, own)
    assert isinstance(own, Tensor)
    # Own rows are a view of these, so that they are not stored twice.
    source = shard.with_halo(own, Kind.FEATURES)
    return ShardInputs(source[: len(own)], source)


def move_features_to_device(rows: Features, comm: Comm, kind: Kind = Kind.FEATURES) -> Features:
    """Move rows to a worker's device, and count the bytes moved."""
    if comm.device != rows.device:
        comm.ledger.add_bytes(Link.HOST_TO_DEVICE, kind, rows.nbytes)
    return copy_to_device(rows, comm.device)


def copy_to_device(rows: Features, device: torch.device) -> Features:
    """Return rows on a device; themselves if they are there. To a GPU the current stream of the thread copies them."""
    if device.type == "cuda" and isinstance(rows, Tensor) and not rows.is_cuda:
        # Pageable memory is copied at a fraction of the speed of the link.
        return rows.pin_memory().to(device, non_blocking=True)
    return rows.to(device)


def cast_features(model: Model, features: Features) -> Features:
    """Convert features to the type of a model's parameters.

    Constant features in half precision stay so where the first layer widens them row by row.
    """
    return features if keeps_half(model, features) else features.to(model.dtype)


def keeps_half(model: Model, features: RowSource) -> bool:
    """Whether features in half precision are not converted."""
    rows = features.rows if isinstance(features, OwnedRows) else features
    fits = accumulate_dtype(features.dtype) == model.dtype and isinstance(rows, Tensor | StoredRows)
    return is_half(features.dtype) and fits and model.first_reader.accepts_half and model.input_dropout == 0


@renamed_members(of="lookup")
class TrainingLabels:
    """Labels of all nodes to train on, whoever owns them; fetched once, by all workers together. Final.

    Args:
        shard: The worker's shard of the graph.
        labels: ``[n, ...]`` of its own nodes.
        nodes: ``[m]`` int64, the nodes to train on, over all workers.
    """

    def __init__(self, shard: GraphShard, labels: Tensor, nodes: Tensor) -> None:
        ascending = nodes.sort().values
        own_nodes = shard.filter_owned(ascending)
        # Labels of other workers' nodes count as features: they are data of nodes that cross once.
        others = shard.plan_fetch(ascending[~torch.isin(ascending, own_nodes)])
        fetched = others.fetch_rows(labels, Kind.FEATURES).wait()
        known = torch.cat([own_nodes, others.nodes])
        order = known.argsort()
        self._nodes = known[order]
        self._labels = torch.cat([labels[shard.local_index(own_nodes)], fetched])[order]

    def lookup(self, seeds: Tensor) -> Tensor:
        """Return the labels of these nodes, ``[s, ...]``, in the given order.

        Args:
            seeds: ``[s]`` int64, any nodes to train on.
        """
        # Nodes are sorted, so a search replaces a table with a row for every node of the graph.
        return self._labels[torch.searchsorted(self._nodes, seeds)]
