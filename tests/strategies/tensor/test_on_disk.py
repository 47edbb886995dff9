"""`tensor` with edges and slices in files: how much of them, and for which models; and what may be apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.engine.layer_plan import plan_layers
from outgrow.engine.shard import FullGraphShard
from outgrow.nn import GAT, GCN, GGCN, RGCN, SAGE, Decoupled, DecoupledGAT, FiLM, Model
from outgrow.ops import csc
from outgrow.strategies.base import Problem
from outgrow.strategies.tensor import layout, row_files
from outgrow.strategies.tensor.layout import _choose_beside_gpu, _choose_disk_level
from outgrow.strategies.tensor.memory import (
    DISK_LEVELS,
    MemoryNeeds,
    candidate_chunks,
    estimate_memory_needs,
    measure_graph_sizes,
)
from outgrow.strategies.tensor.strategy import TensorParallel
from planted import planted

MIB = 1 << 20


def problem_of(model: Model) -> Problem:
    torch.manual_seed(1)
    world = planted()
    problem = world.problem()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return Problem(
        shard=FullGraphShard(world.topology),
        features=world.features,
        targets=problem.targets,
        model=model.double(),
        seed=4,
    )


def level(budget_mib: int, asked: tuple[str, ...] = DISK_LEVELS) -> tuple[str, int]:
    needs = {
        chunks: MemoryNeeds(*(share * MIB // 10 for share in (3000, 2000 + more, 1000 + more, 500 + more)))
        for chunks, more in ((4, 400), (5, 200), (6, 0))
    }
    return _choose_disk_level(f"{budget_mib}MiB", asked, needs, {})


def test_as_little_in_files_and_as_few_chunks_as_fit() -> None:
    found = [level(budget) for budget in (300, 299, 240, 239, 219, 200, 199, 140, 139, 99, 50)]
    assert found == [
        ("nothing", 4),
        ("edges", 4),
        ("edges", 4),
        ("edges", 5),
        ("edges", 6),
        ("edges", 6),
        ("slices", 4),
        ("slices", 4),
        ("slices", 5),
        ("rows", 4),
        ("rows", 6),
    ]
    assert level(1000, ("slices",)) == ("slices", 4)
    for asked, needed in ((DISK_LEVELS, 50), (("edges",), 200), (("nothing",), 300)):
        with pytest.raises(InputError) as caught:
            level(49, asked)
        assert f"{needed} MiB" in caught.value.needed
        assert f"--memory {needed}MiB" in caught.value.repair


@pytest.mark.parametrize(
    ("used", "chosen"), [(1, ("nothing", 4)), (2, ("edges", 4)), (120, ("slices", 4)), (999, ("rows", 6))]
)
def test_what_is_free_on_a_gpu_is_the_limit(
    used: int, chosen: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = {
        4: MemoryNeeds(301 * MIB, 250 * MIB, 150 * MIB, 100 * MIB),
        6: MemoryNeeds(301 * MIB, 249 * MIB, 140 * MIB, 50 * MIB),
    }
    monkeypatch.setattr(layout, "used_device_bytes", lambda device: 2 * MIB)
    monkeypatch.setattr(layout, "free_device_bytes", lambda device: (300 - used) * MIB)
    facts: dict[str, object] = {}
    shard = problem_of(GCN(8, 4, 2)).shard
    assert _choose_beside_gpu(shard, DISK_LEVELS, needs, facts) == chosen
    assert (facts["in_files"], facts["chunks"]) == chosen


def test_a_gpu_copies_what_any_chunk_reads() -> None:
    problem = problem_of(GCN(8, 4, 2))
    plans = plan_layers(problem.model, problem.all_features, cache=True)
    sizes = measure_graph_sizes(problem.shard, problem.all_features, 8)
    alone, beside = (
        estimate_memory_needs(sizes, plans, base=0, number_bytes=8, chunks=2, on_gpu=on_gpu) for on_gpu in (False, True)
    )
    assert beside.in_memory == alone.in_memory
    assert beside.edges_in_files > alone.edges_in_files
    # Features stay on it.
    assert beside.rows_in_files - alone.rows_in_files > sizes.feature_bytes


def test_chunks_to_choose_among() -> None:
    assert candidate_chunks(7, 2) == [7]
    assert candidate_chunks(None, 1)[0] == 1
    assert candidate_chunks(None, 2)[:2] == [4, 5]


def test_coefficients_of_all_edges_are_not_in_files() -> None:
    problem = problem_of(DecoupledGAT(8, 4, 2))
    with pytest.raises(InputError, match="attention from scores") as caught:
        TensorParallel(on_disk="edges", attention="coefficients").prepare(problem)
    assert "coefficients" in caught.value.got


@pytest.mark.parametrize(
    "make",
    [
        lambda: GCN(8, 4, 2),
        lambda: Decoupled(8, 4, 2),
        lambda: GAT(8, 4, 2, heads=2),
        lambda: SAGE(8, 4, 2, pool="max"),
        lambda: GGCN(8, 4, 2),
        lambda: FiLM(8, 4, 2),
    ],
)
def test_one_worker_from_files(make: Callable[[], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    # Rows of a small graph are in files as well.
    monkeypatch.setattr(row_files, "_LEAST_BYTES", 0)
    ways = ({}, *({"on_disk": level, "chunks": 3} for level in ("edges", "slices", "rows")))
    steps = [
        step.loss
        for options in ways
        for step in TensorParallel(**options).prepare(problem_of(make())).steps(1)  # type: ignore[arg-type]
    ]
    assert steps[1:] == pytest.approx([steps[0]] * 3, rel=1e-12)


@pytest.mark.parametrize("make", [lambda: GCN(8, 4, 2), lambda: Decoupled(8, 4, 2), lambda: GAT(8, 4, 2, heads=2)])
def test_edges_in_files_are_not_sorted_in_memory(make: Callable[[], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(make())
    sorted_edges = []
    transpose = csc.transpose_csc

    def count(indptr: torch.Tensor, indices: torch.Tensor, *sizes: int) -> tuple[torch.Tensor, ...]:
        sorted_edges.append(len(indices))
        return transpose(indptr, indices, *sizes)

    monkeypatch.setattr(csc, "transpose_csc", count)
    assert len(list(TensorParallel(on_disk="edges", chunks=3).prepare(problem).steps(1))) == 1
    assert max(sorted_edges, default=0) < problem.shard.topology.num_edges


def test_aggregation_with_trained_weights_is_not_apart_from_the_rest() -> None:
    model = RGCN(8, 4, 2, num_relations=2)
    TensorParallel().validate_model(model)
    TensorParallel(nn_device="cpu").validate_model(GAT(8, 4, 2, heads=2))
    for refused, conv in ((model, "RGCNConv"), (GAT(8, 4, 2, heads=2, edge_weights=True), "GATConv")):
        with pytest.raises(InputError, match="parameters on the CPU") as caught:
            TensorParallel(nn_device="cpu").validate_model(refused)
        assert conv in caught.value.got


def test_what_is_held_in_any_case_needs_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "_LEAST_BYTES", 0)
    copied = []
    copy = row_files._copy_with_strides

    def note(rows: torch.Tensor, *given: Any) -> Any:
        copied.append(rows.untyped_storage().data_ptr())
        return copy(rows, *given)

    monkeypatch.setattr(row_files, "_copy_with_strides", note)
    execution = TensorParallel(on_disk="rows", chunks=3).prepare(problem_of(GCN(8, 4, 2)))
    constants = execution.model_pass.constants  # type: ignore[attr-defined]
    assert constants
    assert len(list(execution.steps(1))) == 1
    assert copied
    assert not {each.untyped_storage().data_ptr() for each in constants} & set(copied)
