"""Caches of `migrate`: what they save, in all time steps, and what is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.engine.batches import BatchConfig
from outgrow.engine.shard import PartitionShard
from outgrow.nn.tasks import NodeClassification
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Problem
from outgrow.strategies.migrate.strategy import Migrate
from planted import NODES, model_of, planted
from thread_group import run_in_threads

WORKERS, SEED = 3, 4


def cached_run(options: Migrate, epoch: int = 1) -> tuple[list[float], Counter[str]]:
    """Losses of an epoch, and what all workers have counted of rows."""

    def run(place: WorkerContext) -> tuple[list[float], dict[str, int]]:
        world = planted()
        problem = Problem.from_node_labels(
            PartitionShard(world.topology, torch.arange(NODES) * 7 % 11 % WORKERS, place.comm),
            features=world.features,
            labels=world.labels,
            train=torch.arange(0, NODES, 3),
            task=NodeClassification(),
            model=model_of("sage", SEED),
            seed=SEED,
            batches=BatchConfig(size=9, fanout=(3, 2)),
        )
        execution = options.prepare(problem)
        # Parameters stay as they are.
        found = [step.loss for step in execution.steps(epoch)]
        execution.close()
        return found, dict(place.comm.ledger.counters)

    results = run_in_threads(run, WORKERS, hosts=WORKERS)
    return results[0][0], sum((Counter(counts) for _, counts in results), Counter())


@pytest.mark.parametrize("by", ["degree", "presampling"])
@pytest.mark.parametrize("pregather", [True, False])
def test_a_cache_serves_all_time_steps(pregather: bool, by: str) -> None:
    """Losses stay, and rows that are in the cache are not fetched."""
    plain = Migrate(move_model=True, merge=False, pregather=pregather)
    losses_without, without = cached_run(plain)
    losses_with, with_cache = cached_run(replace(plain, cache=0.3, cache_by=by))
    assert losses_with == losses_without
    assert with_cache["cache_hits"] > 0
    assert with_cache["remote_rows"] == without["remote_rows"] - with_cache["cache_hits"] == with_cache["cache_misses"]


@pytest.mark.parametrize("time_steps", [1, 3])
def test_presampling_sees_the_rows_of_all_time_steps(time_steps: int) -> None:
    """A cache for all of them misses nothing in the epoch itself, whose seeds are not only the worker's own."""
    options = Migrate(move_model=True, time_steps=time_steps, cache=1.0, cache_by="presampling")
    counted = cached_run(options, epoch=0)[1]
    assert counted["cache_hits"] > 0 == counted["cache_misses"]
    assert cached_run(options, epoch=1)[1]["cache_misses"] > 0


def test_a_cache_on_one_host_is_refused() -> None:
    for workers in (1, 3):
        with pytest.raises(InputError, match="one host has no rows of others"):
            Migrate(cache=0.1).validate_workers(workers, 1)
    Migrate(cache=0.1).validate_workers(2, 2)
    Migrate().validate_workers(1, 1)


@pytest.mark.parametrize("options", [{"cache": 1.5}, {"cache_by": "size"}, {"cache_scope": "rack"}])
def test_wrong_options_of_a_cache(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Migrate(**options)
