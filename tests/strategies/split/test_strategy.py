"""The strategy `split`: what its options reach, what it saves, and how its epochs end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.core.ledger import Ledger, merge_ledgers
from outgrow.engine.batches import BatchConfig
from outgrow.engine.shard import FullGraphShard, PartitionShard
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.nn.tasks import NodeClassification
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Problem, Strategy
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.sampler import SplitSampler
from outgrow.strategies.split.strategy import SplitParallel
from planted import NODES, model_of, planted
from pool import run_workers

BATCHES = BatchConfig(size=9, fanout=(3, 2))
SEED, EPOCH, WORKERS, STEPS = 4, 1, 3, 5
STRATEGIES: dict[str, Strategy] = {
    "sampled": Sampled(),
    "split": SplitParallel(),
    "split with a cache": SplitParallel(cache=0.2),
    "split with a sampled cache": SplitParallel(cache="700B", cache_by="presampling", prefetch=1),
    "split without parts": SplitParallel(partial_sums=False, prefetch=2),
    "split in three threads": SplitParallel(sampling_threads=3, prefetch=5),
}


def problem_of(comm: Comm | None = None, batches: BatchConfig = BATCHES) -> Problem:
    """A problem on one worker, or a worker's side of one."""
    world = planted()
    alone = comm is None or comm.size == 1
    share = (
        FullGraphShard(world.topology, comm)
        if alone
        else PartitionShard(world.topology, torch.arange(NODES) // 3 % comm.size, comm)
    )
    return Problem.from_node_labels(
        share,
        features=world.features,
        labels=world.labels,
        train=torch.arange(0, NODES, 3),
        task=NodeClassification(),
        model=model_of("sage", SEED),
        seed=SEED,
        batches=batches,
    )


def losses(steps: Any) -> list[float]:
    return [step.loss for step in steps]


def epochs_of(comm: Comm) -> dict[str, tuple[list[float], Counter[str]]]:
    """The losses of an epoch of each strategy, and what this worker counted in it."""
    found = {}
    for name, strategy in STRATEGIES.items():
        execution = strategy.prepare(problem_of(comm))
        before = comm.ledger.counters.copy()
        epoch = losses(execution.steps(EPOCH))
        execution.close()
        found[name] = epoch, comm.ledger.counters - before
    return found


def on_worker(place: WorkerContext) -> dict[str, tuple[list[float], Counter[str]]]:
    return epochs_of(place.comm)


@cache
def seen(workers: int) -> dict[str, tuple[list[float], Counter[str]]]:
    """The losses that worker 0 has, and the counts of all workers."""
    by_rank = run_workers(on_worker, workers)
    return {
        name: (mine, merge_ledgers(Ledger(counters=each[name][1]) for each in by_rank).counters)
        for name, (mine, _) in by_rank[0].items()
    }


def distinct_inputs() -> int:
    """Nodes whose features the batches of the epoch need."""
    problem = problem_of()
    topology = problem.shard.topology
    sampler = NeighborSampler([topology, topology], (3, 2), SEED)
    batches = enumerate(problem.batches_of_epoch(EPOCH))
    return sum(len(sampler.sample_blocks(seeds, EPOCH, step)[0].src_nodes) for step, seeds in batches)


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name.startswith("split")])
def test_nothing_is_loaded_or_computed_twice(name: str) -> None:
    """That is what the strategy is for; `sampled` on several workers does both."""
    (_, alone), (_, several), (_, apart) = seen(1)["sampled"], seen(WORKERS)[name], seen(WORKERS)["sampled"]
    assert several["rows_loaded"] == alone["rows_loaded"] == distinct_inputs() < apart["rows_loaded"]
    for counter in ("rows_computed", "edges_aggregated", "sampled_edges"):
        assert several[counter] == alone[counter] < apart[counter]
    assert 0 < several["local_edges"] < several["edges_aggregated"]
    assert several["remote_rows"] > 0


@pytest.mark.parametrize("workers", [1, WORKERS])
@pytest.mark.parametrize("name", STRATEGIES)
def test_whoever_computes_the_losses_are_those_of_one_worker(name: str, workers: int) -> None:
    expected, _ = seen(1)["sampled"]
    assert len(expected) == STEPS
    assert seen(workers)[name][0] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("workers", [1, WORKERS])
def test_rows_of_a_cache_are_hit(workers: int) -> None:
    for name in ("split with a cache", "split with a sampled cache"):
        counts = seen(workers)[name][1]
        assert counts["cache_hits"] > 0 < counts["cache_misses"]
        assert counts["cache_hits"] + counts["cache_misses"] == counts["rows_loaded"]
    assert "cache_misses" not in seen(workers)["split"][1]


def test_on_one_worker_nothing_is_remote() -> None:
    counts = seen(1)["split"][1]
    assert counts["remote_rows"] == 0
    assert counts["local_edges"] == counts["edges_aggregated"]


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({"partition": "metiss"}, "partition"),
        ({"cache": "many"}, "many.*not a size"),
        ({"cache": 1.5}, "cannot hold 1.5"),
        ({"cache": -0.1}, "cannot hold -0.1"),
        ({"cache_by": "luck"}, "cache_by"),
        ({"prefetch": 0}, "prefetch"),
        ({"prefetch": "4"}, "prefetch"),
        ({"partial_sums": "no"}, "partial_sums"),
        ({"cache": None}, "cache"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], needed: str) -> None:
    with pytest.raises(InputError, match=needed):
        SplitParallel(**options)


def test_options_are_given_back() -> None:
    given = {
        "partition": "range",
        "sampling_threads": 2,
        "prefetch": 2,
        "memory": "1GiB",
        "cache": "1MiB",
        "cache_by": "presampling",
        "partial_sums": False,
    }
    assert SplitParallel(**given).options() == given


def test_an_epoch_may_begin_at_a_later_step() -> None:
    execution = SplitParallel().prepare(problem_of())
    whole = losses(execution.steps(2))
    assert len(whole) == STEPS
    assert losses(execution.steps(2, first=3)) == whole[3:]
    assert losses(execution.steps(2, first=STEPS)) == []
    assert losses(execution.steps(3)) != whole


def test_an_epoch_of_everything_is_one_step() -> None:
    execution = SplitParallel().prepare(problem_of(batches=BatchConfig()))
    assert len(losses(execution.steps(1))) == 1


Drawing = Generator[Any, Any, Any]


def test_no_more_batches_are_drawn_than_it_says() -> None:
    drawn, right, begun = [], SplitSampler.sample_hops, threading.Semaphore(0)

    def hops(self: SplitSampler, seeds: torch.Tensor, epoch: int, step: int) -> Drawing:
        drawn.append(step)
        begun.release()
        return right(self, seeds, epoch, step)

    with patch.object(SplitSampler, "sample_hops", hops):
        steps = SplitParallel(prefetch=2).prepare(problem_of(batches=replace(BATCHES, size=2))).steps(1)
        for computed in range(1, 6):
            next(steps)
            assert begun.acquire(timeout=10)
            assert computed <= len(drawn) <= computed + 2
        steps.close()


def test_an_error_while_drawing_is_the_error_of_the_epoch() -> None:
    steps = SplitParallel().prepare(problem_of()).steps(1)
    with (
        patch.object(SplitSampler, "sample_hops", side_effect=ValueError("no batch")),
        pytest.raises(ValueError, match="no batch"),
    ):
        next(steps)


def test_an_epoch_may_follow_one_that_was_closed_early() -> None:
    """Closed while a batch is between two of its hops."""
    expected = losses(SplitParallel().prepare(problem_of()).steps(2))
    execution, right = SplitParallel().prepare(problem_of()), SplitSampler.sample_hops
    under_way, go_on = threading.Event(), threading.Event()

    def hops(self: SplitSampler, seeds: torch.Tensor, epoch: int, step: int) -> Drawing:
        talk = right(self, seeds, epoch, step)
        wish = next(talk)
        while True:
            if (epoch, step) == (1, 2):
                under_way.set()
                go_on.wait(2)
            try:
                wish = talk.send((yield wish))
            except StopIteration as end:
                return end.value

    with patch.object(SplitSampler, "sample_hops", hops):
        steps = execution.steps(1)
        next(steps)
        assert under_way.wait(10)
        steps.close()
        try:
            assert losses(execution.steps(2)) == expected
        finally:
            go_on.set()
