"""A device that refuses memory: all workers begin the step again in twice as many chunks, and find the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from outgrow.core.user_warnings import MemoryWarning
from outgrow.engine.shard import PartitionShard
from outgrow.nn.tasks import NodeClassification
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Problem, Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.offload.passes import OffloadEpoch
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.offload.wave_buffer import SourceBuffer
from outgrow.strategies.offload.wave_file import WaveFile
from planted import NODES, Planted, planted
from thread_group import run_in_threads

WHERE = {
    "load": (SourceBuffer, "load_rows"),
    "block": (WaveFile, "block_for"),
    "gradient": (OffloadEpoch, "_accumulate_source_grads"),
}
"""In the thread that loads, before rows are exchanged, and before gradients are."""


@pytest.fixture(scope="module")
def world() -> Planted:
    return planted()


def rank_of(of_worker: object) -> int:
    """The worker of a buffer or of passes; files of waves are tested on one."""
    comm = getattr(of_worker, "_comm", None) or getattr(getattr(of_worker, "state", None), "comm", None)
    return comm.rank if isinstance(comm, Comm) else 0


@contextmanager
def refused(where: str, calls: set[int], rank: int = 0) -> Iterator[None]:
    """The device of one worker refuses memory at some calls."""
    kind, name = WHERE[where]
    right, count = getattr(kind, name), 0

    def call(self: object, *given: object, **ways: object) -> object:
        nonlocal count
        if rank_of(self) == rank:
            count += 1
            if count in calls:
                raise torch.OutOfMemoryError("no memory")
        return right(self, *given, **ways)

    with patch.object(kind, name, call):
        yield


def gradients(world: Planted, strategy: Strategy, kind: str, place: WorkerContext | None = None) -> tuple[object, ...]:
    """Loss and gradients of an epoch, and the facts."""
    problem = world.problem(seed=5, kind=kind)
    if place is not None:
        owner = (torch.arange(NODES) % place.comm.size).to(torch.int8)
        problem = Problem.from_node_labels(
            PartitionShard(world.topology, owner, place.comm),
            features=world.features,
            labels=world.labels,
            train=torch.arange(0, NODES, 3),
            task=NodeClassification(),
            model=problem.model,
            seed=5,
        )
    execution = strategy.prepare(problem)
    with closing(execution):
        (step,) = execution.steps(1)
        found = [each.grad.clone() for each in problem.model.parameters() if each.grad is not None]
    return step.loss, found, problem.run_facts


def require_same(found: tuple, expected: tuple) -> None:  # type: ignore[type-arg]
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    for mine, right in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["gcn", "gat"])
@pytest.mark.parametrize(("where", "calls"), [("load", {2}), ("block", {1, 9}), ("gradient", {3})], ids=str)
def test_a_step_is_begun_again(world: Planted, kind: str, where: str, calls: set[int], disk: Path) -> None:
    expected = gradients(world, Full(), kind)
    with refused(where, calls), pytest.warns(MemoryWarning, match="out of memory"):
        found = gradients(world, Offload(chunks=3, scratch_dir=str(disk)), kind)
    require_same(found, expected)
    facts = found[2]
    assert (facts["chunks"], facts["out_of_memory_retries"]) == (3 * 2 ** len(calls), len(calls))


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize(("where", "calls"), [("load", {2}), ("gradient", {2, 7})], ids=str)
@pytest.mark.filterwarnings("ignore::outgrow.core.user_warnings.MemoryWarning")
def test_all_workers_begin_it_again(world: Planted, where: str, calls: set[int], sharing: bool, disk: Path) -> None:
    """Whichever of them fails."""
    expected = gradients(world, Full(), "gat")
    strategy = Offload(chunks=2, scratch_dir=str(disk), sharing=sharing)
    with refused(where, calls, rank=1):
        every = run_in_threads(lambda place: gradients(world, strategy, "gat", place), 3)
    for found in every:
        require_same(found, expected)
        facts = found[2]
        assert (facts["chunks"], facts["out_of_memory_retries"]) == (2 * 2 ** len(calls), len(calls))


def test_limited_memory_is_not_exceeded_in_silence(world: Planted, disk: Path) -> None:
    with refused("block", {2}), pytest.raises(torch.OutOfMemoryError):
        gradients(world, Offload(chunks=3, memory="8GiB", scratch_dir=str(disk)), "gcn")


def test_chunks_of_one_node_are_the_end(world: Planted, disk: Path) -> None:
    with (
        refused("block", set(range(1, 10_000))),
        pytest.warns(MemoryWarning),
        pytest.raises(torch.OutOfMemoryError),
    ):
        gradients(world, Offload(chunks=40, scratch_dir=str(disk)), "gcn")
