"""The device's part: the bottom layer of cold nodes, and all layers above."""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.core.ledger import Kind, Link
from outgrow.engine.features.inputs import copy_to_device
from outgrow.engine.link_batches import empty_rows
from outgrow.nn.layer import Features, Layer
from outgrow.nn.model import Model, layer_key, src_and_dst_rows
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.orchestrate.hot_embeddings import HotEmbeddings, HotEmbeddingTable, compute_hot_output
from outgrow.strategies.orchestrate.hot_gradient import HotGradient
from outgrow.strategies.orchestrate.parameter_history import ParameterVersion
from outgrow.strategies.orchestrate.sampling import SampledBatch


class DeviceSide:
    """Computes batches on the device. Final.

    Args:
        model: The model.
        bottom: The bottom layer in the form that hot nodes use.
        comm: Communicator; gives the device and the ledger.
        max_staleness: Largest permitted age of a reused embedding, in parameter updates.
        hot_gradient: Computes the gradient from hot nodes on the CPU; None to compute it on the device if there are
            aggregates.
    """

    def __init__(
        self, model: Model, bottom: Layer, comm: Comm, max_staleness: int, hot_gradient: HotGradient | None = None
    ) -> None:
        self.model = model
        self.bottom = bottom
        self.comm = comm
        self.max_staleness = max_staleness
        self.hot_gradient = hot_gradient
        self._reused: tuple[HotEmbeddings, HotEmbeddingTable] | None = None

    def compute_logits(self, batch: SampledBatch, x: Features, hot: HotEmbeddingTable | None, key: int) -> Tensor:
        """Compute logits of the seeds of a batch, ``[n, C]``.

        Args:
            batch: The sampled batch.
            x: ``[Vs, D]`` features of the sources of its cold nodes, on the device.
            hot: Results of the CPU for its hot nodes; None if it has none.
            key: Random key of (seed, epoch, step).
        """
        self._reused = None
        if not len(batch.seeds):
            return empty_rows(self.model, self.comm.device)
        above = [block.to(self.comm.device) for block in batch.upper_blocks]
        return self.model.forward_from_second(above, self._bottom_rows(batch, x, hot, key), key)

    def add_hot_gradient(self, version: ParameterVersion) -> None:
        """Add the CPU's part to the gradients of the last batch, after its backward pass.

        Args:
            version: The current parameters.
        """
        reused, self._reused = self._reused, None
        if self.hot_gradient is None or reused is None:
            return
        rows, hot = reused
        assert rows.embedding is not None
        # None if the loss depends on no hot node.
        if rows.embedding.grad is not None:
            with self.comm.timeline.span("hot gradient"):
                self.hot_gradient.add(rows, rows.embedding.grad, version, hot)

    def _bottom_rows(self, batch: SampledBatch, x: Features, hot: HotEmbeddingTable | None, key: int) -> Tensor:
        """Return the output of the bottom layer for the sources of the second layer, ``[Vs, O]``."""
        if batch.cold_positions is None:
            return self._cold_rows(batch, x, key)
        assert hot is not None
        rows = hot.select_nodes(batch.hot_nodes)
        self._validate_freshness(rows, batch.step)
        self.comm.ledger.add_count("cache_hits", len(batch.hot_nodes))
        if self.hot_gradient is not None:
            assert rows.embedding is not None
            # A leaf, of which the CPU gets the gradient; no gradient is computed from the aggregates here.
            rows = rows._replace(embedding=rows.embedding.requires_grad_())
            self._reused = rows, hot
            rows = rows._replace(aggregate=None, target=None)
        hot_rows = compute_hot_output(self.bottom, rows, layer_key(key, 0), batch.step)
        to = torch.cat([batch.cold_positions, batch.hot_positions]).to(hot_rows.device)
        # All nodes are hot, and hot positions are in order.
        if not len(batch.cold_positions):
            return hot_rows
        both = torch.cat([self._cold_rows(batch, x, key), hot_rows])
        # Every position is written exactly once, so this is a permutation; ``index_copy`` carries the
        # gradient.
        return torch.zeros_like(both).index_copy(0, to, both)

    def _cold_rows(self, batch: SampledBatch, x: Features, key: int) -> Tensor:
        self.comm.ledger.add_count("cache_misses", batch.cold_block.edges.num_dst)
        block = batch.cold_block.to(self.comm.device)
        x_src, x_dst = src_and_dst_rows(self.model.encode_input(x, block.src_nodes, key), block.edges.num_dst)
        cold: Tensor = self.model.layers_list()[0](block.with_rng_key(layer_key(key, 0)), x_src, x_dst)
        return cold

    def _validate_freshness(self, rows: HotEmbeddings, step: int) -> None:
        """Check that no embedding is older than permitted."""
        if rows.embedding is None:
            return
        # Versions count updates as steps do, so the difference is the age (NeutronOrch bounds it by 2n - 1).
        oldest = step - int(rows.versions.min())
        assert oldest <= self.max_staleness, f"an embedding is {oldest} updates old, of {self.max_staleness} at most"
        self.comm.ledger.update_max("staleness_max", oldest)


def to_device_counted(rows: Features, comm: Comm) -> Features:
    """Move feature rows to the device and count their bytes, on a CPU as on a GPU."""
    comm.ledger.add_bytes(Link.HOST_TO_DEVICE, Kind.FEATURES, rows.nbytes)
    return copy_to_device(rows, comm.device)
