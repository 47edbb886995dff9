"""Two other ways to deal out the seeds of mini-batches, as strategies that train: to compare `sampled`, `migrate` with.

    og.train(graph, model, strategy=ModelCentric(), workers=4, batch_size=4096, fanout=(10, 10, 10))

They have no names on the command line. Their classes travel to the workers by value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import cloudpickle
import torch
from torch import Tensor

from outgrow.engine.features.remote import RemoteFeatureStore, input_dtype
from outgrow.engine.minibatch_loop import PrefetchConfig, make_sampler
from outgrow.engine.model_migration import MicroBatchPlan
from outgrow.engine.shard import PartitionShard
from outgrow.ops.rng import fold_in, keyed_permutation
from outgrow.strategies.base import Execution, MiniBatchExecution, Problem, Strategy
from outgrow.strategies.migrate.schedule import assign_models

_AHEAD = 4
_LOCAL = -2  # no step has this number


@dataclass(frozen=True, kw_only=True)
class ModelCentric(Strategy):
    """Each worker takes an equal share of the seeds of a batch at random, wherever they live, as DGL does.

    Attributes:
        partition: How nodes and their features are dealt out to workers.
    """

    name = "model-centric"
    exact = True
    uses_minibatches = True

    partition: str = "metis"

    def options(self) -> dict[str, object]:
        """See `Strategy.options`."""
        return asdict(self)

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`."""
        comm = problem.shard.comm
        labels = problem.seed_labels  # fetched now, by all workers together
        return _execution(
            problem, lambda seeds: seeds[assign_models(len(seeds), comm.size) == comm.rank], labels.lookup
        )


@dataclass(frozen=True, kw_only=True)
class LocalShuffles(Strategy):
    """Each worker draws its seeds from a permutation of its own nodes: HopGNN's baseline LO, which is biased.

    Attributes:
        partition: How nodes, their features and their seeds are dealt out to workers.
    """

    name = "local-shuffles"
    exact = False
    uses_minibatches = True

    partition: str = "metis"

    def options(self) -> dict[str, object]:
        """See `Strategy.options`."""
        return asdict(self)

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`."""
        share, nodes = problem.shard, problem.node_targets.nodes
        homes = share.owner[nodes] if isinstance(share, PartitionShard) else torch.zeros_like(nodes)
        pools = [nodes[homes == rank] for rank in range(share.comm.size)]

        def batches(epoch: int) -> list[Tensor]:
            return [torch.cat(each) for each in local_batches(pools, problem.batches.size, problem.seed, epoch)]

        return _execution(problem, share.filter_owned, problem.own_labels, batches)


def local_batches(pools: Sequence[Tensor], batch_size: int | None, seed: int, epoch: int) -> list[list[Tensor]]:
    """For each step the seeds of each worker: equal shares of a batch, until a worker has no nodes left.

    Args:
        pools: ``[n]`` int64 each, the nodes to train on of each worker.
        batch_size: Seeds of a step over all workers; a share is rounded up. None for all nodes at once.
        seed: Seed of the run.
        epoch: Number of the epoch.
    """
    largest = max(map(len, pools))
    share = max(1, largest if batch_size is None else -(-batch_size // len(pools)))
    orders = [pool[keyed_permutation(pool, fold_in(seed, epoch, _LOCAL, rank))] for rank, pool in enumerate(pools)]
    return [[order[first : first + share] for order in orders] for first in range(0, largest, share)]


def _execution(
    problem: Problem,
    mine: Callable[[Tensor], Tensor],
    labels: Callable[[Tensor], Tensor],
    batches: Callable[[int], Sequence[Tensor]] | None = None,
) -> Execution:
    share = problem.shard
    return MiniBatchExecution(
        problem,
        make_sampler(share.topology, problem.model, problem.batches, problem.seed),
        RemoteFeatureStore(share, problem.features, input_dtype(problem.model, problem.features)),
        lambda seeds: MicroBatchPlan.in_one_step(mine(seeds)),
        labels=labels,
        prefetch=PrefetchConfig.from_options(None, _AHEAD),
        batches=batches,
    )


cloudpickle.register_pickle_by_value(sys.modules[__name__])
