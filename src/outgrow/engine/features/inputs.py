"""Dtype and device of inputs; labels of foreign seeds."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.ledger import Kind, Link
from outgrow.engine.shard import Share
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.ops.kernels.numerics import computed, is_half
from outgrow.runtime.distributed.comm import Comm


class Input(NamedTuple):
    """Features of one worker's nodes, on its device.

    Attributes:
        own: ``[n, D]`` of the own nodes.
        source: ``[n + h, D]`` of these and of the halo, where the first layer passes features on as they are; else
            ``own``.
    """

    own: Features
    source: Features


def input_of(model: Model, share: Share, features: Features) -> Input:
    """The features that a worker needs; those of the halo are fetched from their owners, once.

    Args:
        model: The model.
        share: What the worker holds of the graph.
        features: ``[V, D]``, as the graph has them; memory-mapped where they are many.
    """
    own = features_for(model, share.rows(features)).to(share.comm.device)
    if not model.passes_features_on:
        return Input(own, own)
    assert isinstance(own, Tensor)
    source = share.beside(own, Kind.FEATURES)
    return Input(source[: len(own)], source)


def to_device(rows: Features, comm: Comm) -> Features:
    """Feature rows of a batch on a worker's device; bytes that cross for it are counted."""
    if comm.device != rows.device:
        comm.ledger.move(Link.HOST_TO_DEVICE, Kind.FEATURES, rows.nbytes)
    return rows.to(comm.device)


def features_for(model: Model, features: Features) -> Features:
    """Features as a model computes with them: of the type of its parameters.

    Constant features in half precision stay so where the first layer widens them row by row.
    """
    return features if stay_half(model, features) else features.to(next(model.parameters()).dtype)


def stay_half(model: Model, features: Features) -> bool:
    """Whether features in half precision stay so."""
    fits = computed(features.dtype) == next(model.parameters()).dtype and isinstance(features, Tensor)
    return is_half(features.dtype) and fits and model.reads.takes_half and model.input_dropout == 0


class SeedLabels:
    """Labels of all nodes to train on, whoever owns them; fetched once, by all workers together. Final.

    Args:
        share: What the worker holds of the graph.
        labels: ``[n, ...]`` of its own nodes.
        nodes: ``[m]`` int64, the nodes to train on, over all workers.
    """

    def __init__(self, share: Share, labels: Tensor, nodes: Tensor) -> None:
        ascending = nodes.sort().values
        mine = share.mine(ascending)
        others = share.subscribe(ascending[~torch.isin(ascending, mine)])
        fetched = others.fetch(labels, Kind.FEATURES).wait()
        known = torch.cat([mine, others.nodes])
        order = known.argsort()
        self._nodes, self._labels = known[order], torch.cat([labels[share.places(mine)], fetched])[order]

    def of(self, seeds: Tensor) -> Tensor:
        """``[s, ...]``: labels of these nodes to train on, in the order given.

        Args:
            seeds: ``[s]`` int64, any of them.
        """
        return self._labels[torch.searchsorted(self._nodes, seeds)]
