"""Link steps of models whose layers read no neighbour: rows of the nodes that a step asks about, and no others.

Nothing of a node depends on another one before the loss. So there are no chunks and no tables: vectors of the nodes of
the links and negatives of a step are read, and their gradients are kept in memory until the optimizer has used them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import torch
from torch import Tensor

from outgrow.engine.features.inputs import cast_features, move_features_to_device
from outgrow.engine.link_objective import LinkObjective
from outgrow.engine.nodewise import compute_node_rows, loss_of_read_rows
from outgrow.engine.problem import Problem
from outgrow.nn.layer import Features
from outgrow.ops import memory_pool
from outgrow.ops.rng import fold_in
from outgrow.ops.sparse import index_rows, slice_rows
from outgrow.strategies.base import Step

_BLOCK_BYTES = 32 << 20
"""Bytes of a row of every layer, of the nodes that inference computes at a time."""


class NodewiseExecution:
    """Steps of links from rows of some nodes. Final.

    Args:
        problem: The training problem: see `outgrow.engine.nodewise.predicts_links_by_node`.
    """

    in_memory = False

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        objective = problem.objective
        assert isinstance(objective, LinkObjective)
        self.objective = objective

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        """Yield the steps of an epoch from step ``first`` on."""
        for number in range(first, self.problem.num_steps):
            yield self._run_step(epoch, number)

    def _run_step(self, epoch: int, number: int) -> Step:
        problem = self.problem
        comm, timeline = problem.shard.comm, problem.timeline
        links = self.objective.for_step(problem.seed, epoch, number)
        if not links.num_targets:
            return Step(loss=0.0, num_seeds=0)
        key = fold_in(problem.seed, epoch, number)
        with timeline.span("forward"):
            loss = loss_of_read_rows(problem.model, problem.shard, links, self._select_features, key)
        with timeline.span("backward"):
            torch.autograd.backward(loss)
        comm.all_reduce_gradients(problem.model)
        return Step(loss=comm.all_reduce(loss.detach().double().cpu()).item(), num_seeds=links.num_targets)

    def _select_features(self, rows: Tensor) -> Features:
        return self._prepare_features(index_rows(self.problem.all_features, self.problem.shard.owned_nodes[rows]))

    def _prepare_features(self, given: Features) -> Features:
        return move_features_to_device(cast_features(self.problem.model, given), self.problem.shard.comm)

    @torch.no_grad()
    def inference(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the output of blocks of own nodes, in memory, with the first own row."""
        problem = self.problem
        widths = [each.spec.in_features + each.spec.out_features for each in problem.model.layers_list()]
        own, size = problem.shard.owned_nodes, max(1, _BLOCK_BYTES // (sum(widths) * problem.number_bytes))
        features = problem.shard.select_owned(problem.features)
        for first in range(0, max(1, len(own)), size):
            last = min(first + size, len(own))
            x, nodes = self._prepare_features(slice_rows(features, first, last)), own[first:last]
            yield first, compute_node_rows(problem.model, x, nodes.to(problem.shard.comm.device), None).cpu()

    def close(self) -> None:
        """Release idle memory."""
        memory_pool.release_idle_memory()
