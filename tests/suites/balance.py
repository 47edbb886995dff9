"""Runs of `orchestrate` that balance the CPU and the device in given time, and the same without a balancer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from outgrow.engine.batches import BatchConfig
from outgrow.engine.features.cache import DeviceCache
from outgrow.engine.features.store import CachedFeatureStore
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.base import Problem
from outgrow.strategies.orchestrate import load_balancer
from outgrow.strategies.orchestrate import loop as loop_module
from outgrow.strategies.orchestrate.load_balancer import HotNodeCounts, LoadBalancer
from outgrow.strategies.orchestrate.loop import SuperBatchLoop
from outgrow.strategies.orchestrate.strategy import Orchestrate
from suites.orchestrated import Trained, model_of, problem_of, trained

SINGLE = BatchConfig(size=1, fanout=(3, 2))
"""Epochs of many batches."""
TICK = 1 / 64
"""Seconds of a batch, and of waiting for the CPU, where time is given."""


class GivenTime:
    """A clock that goes on by a given time for each batch, and while the device waits for the CPU.

    Args:
        hot_seconds: For each node that the CPU computes, the seconds that the device waits.
        cold_seconds: Seconds of a batch for each node that it does not compute.
    """

    def __init__(self, hot_seconds: float = 0.0, cold_seconds: float = 0.0) -> None:
        self.now, self.hot_seconds, self.cold_seconds = 0.0, hot_seconds, cold_seconds

    def perf_counter(self) -> float:
        return self.now

    @contextmanager
    def passing(self) -> Iterator[None]:
        right_wait, right_step = SuperBatchLoop._wait_for_host, SuperBatchLoop._train_step

        def wait(loop: SuperBatchLoop, *given: Any) -> Any:
            found, before = right_wait(loop, *given), self.now
            rows = sum(len(each.nodes) for each in found.parts)
            self.now += self.hot_seconds * rows
            loop.wait_seconds += self.now - before
            return found

        def step(loop: SuperBatchLoop, sampler: Any, batch: Any, *given: Any) -> Any:
            self.now += TICK + self.cold_seconds * batch.cold_block.edges.num_dst
            return right_step(loop, sampler, batch, *given)

        with (
            patch.object(SuperBatchLoop, "_wait_for_host", wait),
            patch.object(SuperBatchLoop, "_train_step", step),
            patch.object(load_balancer, "time", self),
            patch.object(loop_module, "time", self),
        ):
            yield


def balanced(
    options: Orchestrate, clock: GivenTime, epochs: int, comm: Comm | None = None
) -> tuple[Problem, list[dict[str, Any]], list[float]]:
    """A run in given time: the problem, the facts of its epochs, its losses."""
    problem = problem_of(model_of("sage"), comm=comm, batches=SINGLE)
    with clock.passing():
        losses = trained(problem, options, epochs).losses
    facts = problem.run_facts["hot_nodes"]
    assert isinstance(facts, list)
    assert problem.shard.comm.ledger.counters["staleness_max"] <= 2 * options.super_batch - 1
    return problem, facts, losses


def replayed(options: Orchestrate, facts: list[dict[str, Any]], comm: Comm | None = None) -> Trained:
    """A run without a cache, whose hot nodes are those that the facts of another say."""
    problem, right = problem_of(model_of("sage"), comm=comm, batches=SINGLE), LoadBalancer.fix_hot_nodes

    def fix(self: LoadBalancer, number: int) -> torch.Tensor:
        changes = facts[self._log[-1].epoch - 1]["super_batches"]
        held = [counts for first, *counts in changes if first <= number][-1]
        self.tuner = replace(self.tuner, counts=HotNodeCounts(*held))
        return right(self, number)

    with (
        patch.object(LoadBalancer, "fix_hot_nodes", fix),
        patch.object(LoadBalancer, "rebalance"),
        patch.object(CachedFeatureStore, "extend_cache"),
    ):
        return trained(problem, options, len(facts))


def cached_rows_misplaced(cache: DeviceCache, rows: Any, nodes: torch.Tensor) -> DeviceCache:
    """A cache that grows by rows of other nodes."""
    return right_add_rows(cache, rows.roll(1, 0), nodes)


right_add_rows = DeviceCache.add_rows
