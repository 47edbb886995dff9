"""Two other ways to deal out the seeds of mini-batches, as strategies that train: to compare `sampled`, `migrate` with.

    og.train(graph, model, strategy=ModelCentric(), workers=4, batch_size=4096, fanout=(10, 10, 10))

They have no names on the command line. Their classes travel to the workers by value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass

import cloudpickle
import torch
from torch import Tensor

from outgrow.engine.journey import Tour, models_of
from outgrow.engine.micro_batches import Ahead, Loss, MicroBatches, sampler_of
from outgrow.engine.rows import RowStore, row_type
from outgrow.engine.share import Part
from outgrow.ops import buffers
from outgrow.ops.keyed import derive, keyed_order
from outgrow.strategies.base import Execution, Problem, Step, Strategy, whole_inference

_Mine = Callable[[Tensor], Tour]
_LOCAL = -2  # no step has this number


@dataclass(frozen=True, kw_only=True)
class ModelCentric(Strategy):
    """Each worker takes an equal share of the seeds of a batch at random, wherever they live, as DGL does.

    Attributes:
        partition: How nodes and their features are dealt out to workers.
        threads: Threads of a worker that draw batches; None for half as many as compute.
        ahead: Batches that are drawn, or being drawn, besides the one that is computed.
    """

    name = "model-centric"
    exact = True
    takes_batches = True

    partition: str = "metis"
    threads: int | None = None
    ahead: int = 4

    def options(self) -> dict[str, object]:
        """See `Strategy.options`."""
        return asdict(self)

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`."""
        return _ModelCentricExecution(problem, Ahead.of(self.threads, self.ahead))


@dataclass(frozen=True, kw_only=True)
class LocalShuffles(Strategy):
    """Each worker draws its seeds from a permutation of its own nodes: HopGNN's baseline LO, which is biased.

    Attributes:
        partition: How nodes, their features and their seeds are dealt out to workers.
        threads: Threads of a worker that draw batches; None for half as many as compute.
        ahead: Batches that are drawn, or being drawn, besides the one that is computed.
    """

    name = "local-shuffles"
    exact = False
    takes_batches = True

    partition: str = "metis"
    threads: int | None = None
    ahead: int = 4

    def options(self) -> dict[str, object]:
        """See `Strategy.options`."""
        return asdict(self)

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`."""
        return _LocalExecution(problem, Ahead.of(self.threads, self.ahead))


class _ModelCentricExecution:
    in_memory = True

    def __init__(self, problem: Problem, ahead: Ahead) -> None:
        self.problem, self.comm = problem, problem.share.comm
        self.labels = problem.seed_labels  # fetched now, by all workers together
        self.work = _work(problem, self._loss, ahead)

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        yield from _steps(self.work, epoch, self.problem.seeds(epoch), self._mine, first)

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        return whole_inference(self.problem)

    def close(self) -> None:
        buffers.clear()

    def _mine(self, seeds: Tensor) -> Tour:
        return Tour.at_once(seeds[models_of(len(seeds), self.comm.size) == self.comm.rank])

    def _loss(self, logits: Tensor, seeds: Tensor, num_seeds: int) -> Tensor:
        return self.problem.batch_loss(logits, self.labels.of(seeds), num_seeds)


class _LocalExecution:
    in_memory = True

    def __init__(self, problem: Problem, ahead: Ahead) -> None:
        self.problem, self.share = problem, problem.share
        self.work = _work(problem, self._loss, ahead)

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        problem, nodes = self.problem, self.problem.labelled.nodes
        homes = self.share.owner[nodes] if isinstance(self.share, Part) else torch.zeros_like(nodes)
        pools = [nodes[homes == rank] for rank in range(self.share.comm.size)]
        dealt = local_batches(pools, problem.batches.size, problem.seed, epoch)
        yield from _steps(self.work, epoch, [torch.cat(each) for each in dealt], self._mine, first)

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        return whole_inference(self.problem)

    def close(self) -> None:
        buffers.clear()

    def _mine(self, seeds: Tensor) -> Tour:
        return Tour.at_once(self.share.mine(seeds))

    def _loss(self, logits: Tensor, seeds: Tensor, num_seeds: int) -> Tensor:
        return self.problem.batch_loss(logits, self.problem.own_labels(seeds), num_seeds)


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
    orders = [pool[keyed_order(pool, derive(seed, epoch, _LOCAL, rank))] for rank, pool in enumerate(pools)]
    return [[order[first : first + share] for order in orders] for first in range(0, largest, share)]


def _work(problem: Problem, loss: Loss, ahead: Ahead) -> MicroBatches:
    share = problem.share
    sampler = sampler_of(share.topology, problem.model, problem.batches, problem.seed)
    rows = RowStore(share, problem.features, row_type(problem.model, problem.features))
    return MicroBatches(problem.model, share.comm, sampler, rows, loss, ahead=ahead)


def _steps(work: MicroBatches, epoch: int, batches: Sequence[Tensor], mine: _Mine, first: int) -> Generator[Step]:
    with closing(work.steps(epoch, batches, mine, first)) as steps:
        for loss, num_seeds in steps:
            yield Step(loss=loss, num_seeds=num_seeds)


cloudpickle.register_pickle_by_value(sys.modules[__name__])
