"""Labels of the nodes to train on, for a worker that computes seeds which others own."""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.share import Share


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
