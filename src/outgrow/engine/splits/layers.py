"""One layer of a split mini-batch, computed by all workers together.

Every node is computed by the worker that owns it. The rows of its sources come from the workers that own these, in one
message for each pair of workers, and their gradients go back in one: the source-to-destination scatter of GSplit
(Polisetty et al. 2023, section 3.3). Of a sum with fixed weights parts may come instead.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.delivery import Delivery
from outgrow.engine.splits.sums import SummedHop
from outgrow.graph.split_sampler import SplitHop
from outgrow.nn.layer import Features, Layer, Rows
from outgrow.nn.model import both_sides
from outgrow.runtime.comm import Comm
from outgrow.runtime.voyage import Route


class Hop(NamedTuple):
    """A worker's part of one layer of a batch.

    Attributes:
        drawn: As it was drawn.
        summed: Who takes which parts of its sums; None where they are taken where the destinations are.
    """

    drawn: SplitHop
    summed: SummedHop | None = None

    @property
    def remote_rows(self) -> int:
        """Rows that come from others."""
        return sum(self.drawn.wanted) if self.summed is None else self.summed.remote_rows

    def to(self, device: torch.device) -> Hop:
        """The same on a device."""
        return Hop(self.drawn.to(device), None if self.summed is None else self.summed.to(device))


def cooperative(layer: Layer, hop: Hop, x: Features, key: int | None, comm: Comm, kind: Kind) -> Tensor:
    """``[Vd, O]``: a layer's output for a worker's own destinations. All workers together. Differentiable.

    Args:
        layer: The layer.
        hop: The worker's part of it, on its device.
        x: ``[num_own, D]`` input of its own nodes.
        key: Key of the draws of this layer in this step; None draws nothing.
        comm: The line to the other workers.
        kind: What the rows of sources are.
    """
    block = hop.drawn.block.keyed(key)
    x, x_dst = both_sides(x, len(block.dst_nodes))
    source, target = layer.ends(x, x_dst)
    if hop.summed is not None:
        assert source.columns is not None
        return layer.update(x_dst, hop.summed.aggregate(source.columns, comm, kind), block)
    if comm.size > 1:
        drawn = hop.drawn
        delivery = Delivery(comm, Route(drawn.asked_sizes, drawn.wanted), drawn.asked, drawn.num_own)
        source = _beside(source, delivery, kind)
    return layer.update(x_dst, layer.aggregate(block, source, target), block)


def _beside(source: Rows, delivery: Delivery, kind: Kind) -> Rows:
    """The rows of own sources, then those of others, which come as one matrix."""
    columns, score = source
    assert columns is not None
    if score is None:
        return Rows(torch.cat([columns, delivery.send(columns, kind).wait()]), None)
    width = columns.shape[1] * columns.shape[2]
    others = delivery.send(torch.cat([columns.flatten(1), score], 1), kind).wait()
    theirs = others[:, :width].reshape(-1, *columns.shape[1:])
    return Rows(torch.cat([columns, theirs]), torch.cat([score, others[:, width:]]))
