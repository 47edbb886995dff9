"""`NodeEmbeddings`: the tables of all node embeddings of a model on one worker."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from outgrow.core.errors import InputError, TrainingError
from outgrow.engine.embeddings.row_gradients import squared_norm
from outgrow.engine.embeddings.row_optimizers import RowOptimizer
from outgrow.engine.embeddings.row_sections import SectionMaker
from outgrow.engine.embeddings.table import EmbeddingTable
from outgrow.engine.shard import GraphShard
from outgrow.nn.model import Model
from outgrow.nn.node_embedding import find_embeddings

_CLIP_EPS = 1e-6


class NodeEmbeddings:
    """Tables of the node embeddings of a model, to which they are bound until `close`. Final.

    Args:
        model: The model.
        shard: The worker's shard of the graph.
        optimizer: Updates rows.
        maker: Makes what rows are kept in.
        gathers_batches: See `EmbeddingTable`.
        in_batches: See `EmbeddingTable`.
        draws: Whether tables begin with rows: those of a checkpoint are read soon.
    """

    def __init__(
        self,
        model: Model,
        shard: GraphShard,
        optimizer: RowOptimizer,
        maker: SectionMaker,
        *,
        gathers_batches: bool,
        in_batches: bool,
        draws: bool = True,
    ) -> None:
        self._io_pool = maker.io_pool
        self.on_disk = maker.io_pool is not None
        self.comm = shard.comm
        self.optimizer = optimizer
        self.tables = [
            EmbeddingTable(name, each, shard, optimizer, maker, gathers_batches=gathers_batches, in_batches=in_batches)
            for name, each in find_embeddings(model).items()
        ]
        for table in self.tables:
            if draws:
                table.draw_rows()
            table.embedding.rows = table

    def __bool__(self) -> bool:
        return bool(self.tables)

    def scale_batch(self, factor: float) -> None:
        """Multiply the gradients of the last batch with a factor."""
        for table in self.tables:
            table.gradients.scale_new(factor)

    def squared_norm(self) -> float:
        """Return the sum of the squares of the gradients of all rows, over all workers. All workers together."""
        own = math.fsum(squared_norm(each.gradients, len(each.nodes), each.block_rows) for each in self.tables)
        return float(self.comm.all_reduce(torch.tensor(own, dtype=torch.float64)))

    def clip_factor(self, limit: float, grads: Sequence[Tensor], scale: float) -> float:
        """Return what scales all gradients to a norm of at most ``limit``, as `torch.nn.utils.clip_grad_norm_` does.

        Args:
            limit: Largest norm.
            grads: Gradients of parameters, the same on all workers.
            scale: What gradients of rows are to be multiplied with first.
        """
        squares = [float(each.double().square().sum()) for each in grads]
        norm = math.sqrt(math.fsum(squares) + self.squared_norm() * scale**2)
        return min(1.0, limit / (norm + _CLIP_EPS))

    def require_steps(self, *, ema: float | None, accumulate: int) -> None:
        """Check that rows can be updated in the steps of a loop.

        Raises:
            InputError: Averaged weights, or gradients of several batches of a whole graph, are asked for.
        """
        dense = any(not table.gathers_batches for table in self.tables)
        for option, value, refused, why in (
            ("ema", ema, ema is not None, "vectors of nodes are not averaged"),
            ("accumulate", accumulate, dense and accumulate > 1, "whole graphs update vectors in every step"),
        ):
            if refused:
                raise InputError(
                    f"{option} does not go with a NodeEmbedding here",
                    needed=f"no {option}: {why}",
                    got=f"{option} {value}",
                    repair=f"leave {option} out",
                )

    def update(self, *, lr: float, scale: float = 1.0) -> None:
        """Update the own rows of all tables: see `EmbeddingTable.update`."""
        for table in self.tables:
            table.update(lr=lr, scale=scale)

    def clear_gradients(self) -> None:
        """Forget all gradients."""
        for table in self.tables:
            table.gradients.clear()

    def require_finite(self, step: str) -> None:
        """Check all rows. All workers together.

        Raises:
            TrainingError: A row is not finite.
        """
        for table in self.tables:
            found = [each for each in self.comm.all_gather_object(table.find_non_finite()) if each is not None]
            if found:
                raise TrainingError(
                    f"training diverged in {step}: the vector of node {min(found)} in {table.name} is not finite",
                    needed="vectors that are finite",
                    got="NaN or infinity; checkpoints are those written before",
                    repair="lower the learning rate, or embedding_lr: start a new run or, where there is a checkpoint, "
                    "go on from it with --resume",
                )

    def count_disk(self) -> None:
        """Count in the ledger what was read from files and written to them so far."""
        pool = self._io_pool
        if pool is not None:
            counters = self.comm.ledger.counters
            counters["embedding_read_bytes"], counters["embedding_written_bytes"] = pool.read_bytes, pool.written_bytes

    def close(self) -> None:
        """Release all rows."""
        self.count_disk()
        for table in self.tables:
            table.close()
