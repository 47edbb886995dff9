"""The strategy `offload` on one worker: its epochs one after another, its threads and files, and what it tells."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.ledger import Link
from outgrow.nn import SAGE
from outgrow.strategies.base import Execution, Problem, Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.offload.passes import OffloadEpoch
from outgrow.strategies.offload.row_layouts import ChunkRows, WaveOrderedGradients, WaveOrderedRows
from outgrow.strategies.offload.strategy import Offload
from planted import NODES, Planted, planted
from suites.offload_mutants import early_loads

Epochs = list[tuple[float, list[Tensor]]]


@pytest.fixture(scope="module")
def world() -> Planted:
    return planted()


@contextmanager
def prepared(strategy: Strategy, problem: Problem) -> Iterator[Execution]:
    execution = strategy.prepare(problem)
    try:
        yield execution
    finally:
        execution.close()


def problem_of(world: Planted, kind: str) -> Problem:
    """Also with a model whose first aggregate is constant."""
    if kind != "cache_first_aggregate":
        return world.problem(seed=5, kind=kind)
    torch.manual_seed(1)
    return replace(world.problem(seed=5), model=SAGE(8, 12, 2, layers=3, dropout=0.2).double())


def epochs_of(problem: Problem, strategy: Strategy) -> Epochs:
    """Loss and gradients of three epochs that follow one another, between which the parameters change."""
    found: Epochs = []
    with prepared(strategy, problem) as execution:
        for epoch in (1, 2, 3):
            for step in execution.steps(epoch):
                gradients = [p.grad.clone() for p in problem.model.parameters() if p.grad is not None]
                found.append((step.loss, gradients))
                with torch.no_grad():
                    for parameter, gradient in zip(problem.model.parameters(), gradients, strict=True):
                        parameter.sub_(gradient, alpha=0.1)
                problem.model.zero_grad()
    return found


def same_bits(one: Epochs, other: Epochs) -> bool:
    pairs = [
        (a, b) for (_, ours), (_, theirs) in zip(one, other, strict=True) for a, b in zip(ours, theirs, strict=True)
    ]
    return [loss for loss, _ in one] == [loss for loss, _ in other] and all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat", "constant"])
@pytest.mark.parametrize("options", [{"chunks": 3}, {"chunks": 1}, {"chunks": 9, "cache": False}], ids=str)
def test_every_epoch_has_the_gradient_of_full(world: Planted, kind: str, options: dict[str, Any], disk: Path) -> None:
    found = epochs_of(problem_of(world, kind), Offload(scratch_dir=str(disk), **options))
    expected = epochs_of(problem_of(world, kind), Full())
    assert len(found) == 3
    for (loss, gradients), (right_loss, right) in zip(found, expected, strict=True):
        assert loss == pytest.approx(right_loss, rel=1e-12)
        for mine, theirs in zip(gradients, right, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@contextmanager
def late_stores() -> Iterator[None]:
    """Rows are written as late as overlap allows, or nearly."""

    def late(right: Callable[..., None]) -> Callable[..., None]:
        def write(*given: Any) -> None:
            time.sleep(0.03)
            right(*given)

        return write

    with ExitStack() as stack:
        for kind, name in (
            (ChunkRows, "write_rows"),
            (WaveOrderedRows, "write_rows"),
            (WaveOrderedGradients, "write_wave"),
        ):
            stack.enter_context(patch.object(kind, name, late(getattr(kind, name))))
        yield


@pytest.mark.parametrize("schedule", [early_loads, late_stores])
@pytest.mark.parametrize("kind", ["gat", "constant"])
@pytest.mark.parametrize("chunks", [1, 4])
def test_no_schedule_changes_a_bit(world: Planted, kind: str, chunks: int, schedule: Any, disk: Path) -> None:
    plain, again, in_turn = (
        epochs_of(problem_of(world, kind), Offload(chunks=chunks, overlap=overlap, scratch_dir=str(disk)))
        for overlap in (True, True, False)
    )
    with schedule():
        found = epochs_of(problem_of(world, kind), Offload(chunks=chunks, scratch_dir=str(disk)))
    assert same_bits(found, plain)
    assert same_bits(again, plain)
    assert same_bits(in_turn, plain)


def test_evaluation_between_epochs(world: Planted, disk: Path) -> None:
    logits = []
    for strategy in (Full(), Offload(chunks=4, scratch_dir=str(disk))):
        problem = problem_of(world, "gat")
        with prepared(strategy, problem) as execution:
            list(execution.steps(1))
            logits.append(torch.full((NODES, 2), torch.nan, dtype=torch.float64))
            for first, rows in execution.inference():
                logits[-1][first : first + len(rows)] = rows
            (step,) = execution.steps(2)
            assert step.num_seeds == problem.num_train
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-12, atol=1e-12)


def test_a_step_that_was_taken_is_not_repeated(world: Planted, disk: Path) -> None:
    with prepared(Offload(chunks=2, scratch_dir=str(disk)), world.problem()) as execution:
        assert list(execution.steps(1, first=1)) == []
        assert not execution.in_memory


def test_enough_memory_is_the_same_as_full_to_the_last_bit(world: Planted, tmp_path: Path) -> None:
    for memory in (None, "64GiB"):
        problem = problem_of(world, "gat")
        missing = str(tmp_path / "not needed")
        assert same_bits(
            epochs_of(problem, Offload(scratch_dir=missing, memory=memory)), epochs_of(problem_of(world, "gat"), Full())
        )
        assert problem.run_facts["chunks"] == 0
        assert not problem.shard.comm.ledger.bytes_by_link


def test_as_few_chunks_as_fit(world: Planted, disk: Path) -> None:
    with pytest.raises(InputError) as caught:
        Offload(memory="1MiB", scratch_dir=str(disk)).prepare(world.problem())
    assert "1 MiB" in caught.value.got
    needed = int(caught.value.needed.split(" MiB")[0].replace(",", ""))
    problem = world.problem()
    with patch("outgrow.strategies.offload.strategy._fits_in_memory", return_value=False):
        execution = Offload(memory=f"{needed}MiB", scratch_dir=str(disk)).prepare(problem)
    execution.close()
    assert isinstance(problem.run_facts["chunks"], int)
    assert problem.run_facts["chunks"] >= 1
    assert problem.run_facts["memory_bytes"] == needed << 20


def test_chunks_that_do_not_fit(world: Planted, disk: Path) -> None:
    with pytest.raises(InputError, match="2 chunks do not fit") as caught:
        Offload(memory="1MiB", chunks=2, scratch_dir=str(disk)).prepare(world.problem())
    assert "MiB" in caught.value.repair


def of_offload() -> set[threading.Thread]:
    names = ("outgrow-store", "outgrow-disk", "outgrow-ahead")
    return {thread for thread in threading.enumerate() if thread.name.startswith(names)}


@pytest.mark.parametrize("where", ["forward", "backward", "prepare_constants"])
def test_threads_and_files_end_with_an_error(world: Planted, where: str, disk: Path) -> None:
    before = of_offload()
    with pytest.raises(ArithmeticError), patch.object(OffloadEpoch, where, side_effect=ArithmeticError):
        epochs_of(world.problem(), Offload(chunks=3, scratch_dir=str(disk)))
    assert of_offload() <= before
    assert not list(disk.iterdir())


def no_disk(*given: Any) -> None:
    raise OSError("no disk")


def test_an_error_of_a_thread_is_the_error_of_the_epoch(world: Planted, disk: Path) -> None:
    before = of_offload()
    for kind, method in (
        (WaveOrderedRows, "read_wave"),
        (WaveOrderedRows, "write_rows"),
        (ChunkRows, "write_rows"),
        (WaveOrderedGradients, "write_wave"),
        (WaveOrderedGradients, "read_range"),
    ):
        with pytest.raises(OSError, match="no disk"), patch.object(kind, method, no_disk):
            epochs_of(world.problem(), Offload(chunks=5, scratch_dir=str(disk)))
        gc.collect()  # the frames of the error held on to what was under way
        assert of_offload() <= before


def test_what_it_tells(world: Planted, disk: Path) -> None:
    problem = problem_of(world, "gat")
    epochs_of(problem, Offload(chunks=3, scratch_dir=str(disk)))
    facts, ledger = problem.run_facts, problem.shard.comm.ledger
    assert facts["chunks"] == 3
    assert isinstance(facts["preprocessing_seconds"], float)
    assert facts["preprocessing_seconds"] > 0
    assert {"compute", "load", "store"} <= problem.timeline.seconds.keys()
    forward, again, last = 3 * [world.topology.with_self_loops.num_edges]
    assert ledger.counters["edges_aggregated"] == 3 * (forward + again + last)
    assert ledger.counters["disk_written_bytes"] >= sum(
        count for (link, _), count in ledger.bytes_by_link.items() if link == Link.DEVICE_TO_HOST
    )
    assert ledger.counters["disk_read_bytes"] > 0 < ledger.counters["disk_reads"]


@pytest.mark.parametrize("kind", ["gcn", "gat", "constant"])
def test_past_the_copies_of_the_system(world: Planted, kind: str, disk: Path) -> None:
    """Where what is kept does not fit into free memory, the system keeps no copy of it: the same bits."""
    plain, problem = (
        epochs_of(problem_of(world, kind), Offload(chunks=3, scratch_dir=str(disk))),
        problem_of(world, kind),
    )
    with patch("outgrow.strategies.offload.storage.available_bytes", lambda: 0):
        found = epochs_of(problem, Offload(chunks=3, scratch_dir=str(disk)))
    assert problem.run_facts["direct"]
    assert same_bits(found, plain)


def test_room_is_asked_for_before_anything_is_written(world: Planted, disk: Path) -> None:
    """And for more of it where rows are kept for several waves."""
    asked = list[int]()
    for chunks in (1, 7):
        problem = problem_of(world, "gat")
        with patch(
            "outgrow.strategies.offload.storage.validate_free_space", lambda folder, needed: asked.append(needed)
        ):
            epochs_of(problem, Offload(chunks=chunks, scratch_dir=str(disk)))
        assert asked[-1] == problem.run_facts["scratch_bytes"]
    assert asked[0] < asked[1]
    refused = InputError("no room", needed="more", got="less", repair="another disk")
    with (
        pytest.raises(InputError, match="no room"),
        patch("outgrow.strategies.offload.storage.validate_free_space", side_effect=refused),
    ):
        epochs_of(problem_of(world, "gat"), Offload(chunks=3, scratch_dir=str(disk)))
    assert not list(disk.iterdir())
