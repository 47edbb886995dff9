"""Cold nodes, features, layers above."""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.core.ledger import Kind, Link
from outgrow.nn.layer import Features, Layer
from outgrow.nn.model import Model, both_sides, layer_key
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.orchestrate.hot_embeddings import HotRows, HotTable, reused
from outgrow.strategies.orchestrate.sampling import Draw


class Device:
    """Computes batches. Final.

    Args:
        model: The model.
        bottom: Its bottom layer, as hot nodes go through it.
        comm: Whose device and ledger.
        bound: How many updates old what is reused may be.
    """

    def __init__(self, model: Model, bottom: Layer, comm: Comm, bound: int) -> None:
        self.model, self.bottom, self.comm, self.bound = model, bottom, comm, bound

    def logits(self, draw: Draw, x: Features, hot: HotTable | None, key: int) -> Tensor:
        """``[n, C]`` of the seeds of a batch.

        Args:
            draw: Their neighbourhood.
            x: ``[Vs, D]`` features of the sources of its cold nodes, on the device.
            hot: What the CPU has made of its hot nodes; None if it has none.
            key: Of (seed, epoch, step).
        """
        above = [block.to(self.comm.device) for block in draw.above]
        return self.model.above(above, self._bottom_rows(draw, x, hot, key), key)

    def _bottom_rows(self, draw: Draw, x: Features, hot: HotTable | None, key: int) -> Tensor:
        """``[Vs, O]`` of the sources of the second layer."""
        if draw.cold_to is None:
            return self._cold(draw, x, key)
        assert hot is not None
        rows = hot.take(draw.hot)
        self._require_fresh(rows, draw.step)
        self.comm.ledger.count("cache_hits", len(draw.hot))
        warm = reused(self.bottom, rows, layer_key(key, 0))
        to = torch.cat([draw.cold_to, draw.hot_to]).to(warm.device)
        if not len(draw.cold_to):
            return warm
        both = torch.cat([self._cold(draw, x, key), warm])
        return torch.zeros_like(both).index_copy(0, to, both)

    def _cold(self, draw: Draw, x: Features, key: int) -> Tensor:
        self.comm.ledger.count("cache_misses", draw.cold.edges.num_dst)
        block = draw.cold.to(self.comm.device)
        x_src, x_dst = both_sides(self.model.input(x, block.src_nodes, key), block.edges.num_dst)
        cold: Tensor = self.model.stages()[0](block.keyed(layer_key(key, 0)), x_src, x_dst)
        return cold

    def _require_fresh(self, rows: HotRows, step: int) -> None:
        """No embedding is older than it may be."""
        if rows.embedding is None:
            return
        oldest = step - int(rows.versions.min())
        assert oldest <= self.bound, f"an embedding is {oldest} updates old, of {self.bound} at most"
        self.comm.ledger.largest("staleness_max", oldest)


def to_device_counted(rows: Features, comm: Comm) -> Features:
    """Feature rows on the device. What crosses is counted, also where the CPU is the device: as it would on a GPU."""
    comm.ledger.move(Link.HOST_TO_DEVICE, Kind.FEATURES, rows.nbytes)
    return rows.to(comm.device)
