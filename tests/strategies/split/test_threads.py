"""Batches of `split` that several threads prepare at the same time: they are those of one thread, bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Step
from outgrow.strategies.split import strategy
from outgrow.strategies.split.sampler import SplitSampler
from outgrow.strategies.split.strategy import SplitParallel, _SplitExecution
from pool import run_workers
from strategies.split.test_strategy import EPOCH, STEPS, problem_of
from suites.hits import Hits
from thread_group import run_in_threads

THREADS = (1, 2, 3)


class Record(NamedTuple):
    """What a worker has in an epoch.

    Attributes:
        losses: Of all workers, by step.
        batches: Number, seeds and, for each layer, nodes and edges of each batch, in the order of training.
        gradients: Their sum over the epoch.
    """

    losses: list[float]
    batches: list[list[Tensor]]
    gradients: list[Tensor]

    def same_bits(self, other: Record) -> bool:
        """Whether nothing differs."""
        mine, theirs = ([*each.gradients, *chain.from_iterable(each.batches)] for each in (self, other))
        return self.losses == other.losses and len(mine) == len(theirs) and all(map(torch.equal, mine, theirs))


def record_epoch(place: WorkerContext | None, threads: int) -> Record:
    """Train an epoch without an optimizer, with so many threads that prepare batches."""
    problem = problem_of(SingleProcessComm() if place is None else place.comm)
    batches, train_step = list[list[Tensor]](), _SplitExecution._train_step

    def noted(self: _SplitExecution, epoch: int, batch: Any) -> Step:
        if self.problem is problem:
            blocks = [hop.sampled.block for hop in batch.blocks]
            layers = [(block.src_nodes, block.edges.indptr, block.edges.indices) for block in blocks]
            batches.append([torch.tensor(batch.step), batch.seeds, *chain.from_iterable(layers)])
        return train_step(self, epoch, batch)

    execution = SplitParallel(sampling_threads=threads, prefetch=STEPS).prepare(problem)
    assert len(execution.sampling_threads) == threads
    execution._train_step = noted.__get__(execution)  # of this worker alone: others may be threads of this process
    losses = [step.loss for step in execution.steps(EPOCH)]
    execution.close()
    return Record(losses, batches, [each.grad.clone() for each in problem.model.parameters() if each.grad is not None])


def records_of(place: WorkerContext) -> dict[int, Record]:
    return {threads: record_epoch(place, threads) for threads in THREADS}


@cache
def records(workers: int) -> list[dict[int, Record]]:
    """What each worker has, by the number of threads."""
    if workers == 1:
        return [{threads: record_epoch(None, threads) for threads in THREADS}]
    return run_workers(records_of, workers)


@pytest.mark.parametrize("threads", THREADS[1:])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_losses_batches_and_gradients_are_those_of_one_thread(workers: int, threads: int) -> None:
    for by_threads in records(workers):
        assert [int(batch[0]) for batch in by_threads[1].batches] == [*range(STEPS)]
        assert by_threads[threads].same_bits(by_threads[1])


@contextmanager
def threads_draw_by_seeds_of_their_own() -> Iterator[Hits]:
    """Each thread but the first draws neighbours by another seed."""
    hits, right = Hits(), strategy.sample_cooperatively

    def sample(sampler: SplitSampler, comm: Comm, seeds: Tensor, epoch: int, step: int) -> Any:
        first = threading.current_thread().name == "outgrow-ahead-1"
        hits.note(not first)
        return right(sampler, comm, seeds, epoch if first else epoch + 1, step)

    with patch.object(strategy, "sample_cooperatively", sample):
        yield hits


@contextmanager
def threads_give_their_last_batch_first() -> Iterator[Hits]:
    """A thread prepares its batches in the reverse order, and they are trained on as they come."""
    hits, right = Hits(), strategy.BackgroundWorker

    def reversed_worker(work: Callable[[int], Any], items: range, **options: Any) -> Any:
        hits.note(len(items) > 1)
        return right(work, items[::-1], **options)

    with patch.object(strategy, "BackgroundWorker", reversed_worker):
        yield hits


MUTANTS: dict[str, Callable[[], AbstractContextManager[Hits]]] = {
    each.__name__: each for each in (threads_draw_by_seeds_of_their_own, threads_give_their_last_batch_first)
}


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    right = run_in_threads(partial(record_epoch, threads=1), 2)
    assert all(map(Record.same_bits, run_in_threads(partial(record_epoch, threads=2), 2), right))
    with MUTANTS[name]() as hits:
        mutated = run_in_threads(partial(record_epoch, threads=2), 2)
    assert hits.count
    assert not any(map(Record.same_bits, mutated, right))
