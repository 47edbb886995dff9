"""Which tables are pinned: those with the most traffic for their size, within the budget, the same on every worker."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outgrow.engine.layer_plan import plan_layers
from outgrow.nn import GAT, GCN, SAGE
from outgrow.nn.model import Model
from outgrow.strategies.offload import storage
from outgrow.strategies.offload.memory import table_bytes
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.offload.table_plan import TableBytes, choose_pinned_tables, list_tables
from planted import Planted, planted
from support import normal

sizes = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 200)), min_size=1, max_size=6)


def tables_of(given: list[tuple[int, int]]) -> list[TableBytes]:
    return [TableBytes(str(number), size, size, moved) for number, (size, moved) in enumerate(given)]


@given(sizes, st.integers(0, 200))
def test_what_is_left_out_does_not_fit(sizes: list[tuple[int, int]], budget: int) -> None:
    tables = tables_of(sizes)
    chosen = choose_pinned_tables(tables, budget)
    taken = sum(table.num_bytes for table in tables if table.name in chosen)
    assert taken <= budget
    assert all(taken + table.num_bytes > budget for table in tables if table.name not in chosen)


@given(st.lists(st.integers(0, 99), min_size=2, max_size=6, unique=True), st.integers(0, 6))
def test_of_equal_tables_those_that_move_most(moved: list[int], count: int) -> None:
    tables = tables_of([(10, each) for each in moved])
    chosen = choose_pinned_tables(tables, 10 * count)
    best = max(map(sum, combinations(moved, min(count, len(moved)))))
    assert sum(table.epoch_bytes for table in tables if table.name in chosen) == best


MODELS: dict[str, Callable[[], Model]] = {
    "gcn": lambda: GCN(8, 12, 2, layers=3, input_dropout=0.2),
    "sage": lambda: SAGE(8, 12, 2, layers=2),
    "gat": lambda: GAT(8, 8, 2, layers=2, heads=2),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("cache", [True, False])
def test_tables_take_no_more_than_was_expected_of_the_disk(kind: str, cache: bool) -> None:
    torch.manual_seed(0)
    plans = plan_layers(MODELS[kind](), normal(9, 8), cache=cache)
    tables = list_tables(plans, 100, 250, 4, 32)
    assert sum(table.disk_bytes for table in tables) <= table_bytes(plans, 100, 250, 4)
    assert len({table.name for table in tables}) == len(tables)
    gradients = [table for table in tables if table.name.startswith("source-gradient")]
    assert all(table.epoch_bytes * 100 == 350 * table.num_bytes for table in gradients)


@pytest.fixture(scope="module")
def world() -> Planted:
    return planted()


def test_the_summary_tells_which(world: Planted, disk: Path) -> None:
    """Nothing, some tables, and all."""
    found = []
    for budget in ("0", "9KiB", "1MiB"):
        problem = world.problem(seed=5, kind="gcn")
        with patch.object(storage, "_reads_pinned_memory", lambda device: True):
            Offload(chunks=3, host_memory=budget, scratch_dir=str(disk)).prepare(problem).close()
        found.append(problem.run_facts["pinned"])
        assert (problem.run_facts["scratch_bytes"] == 0) is (budget == "1MiB")
    assert found[0] == []
    assert {*found[1]} < {*found[2]}
    assert {"features", "source-1", "source-gradient-1"} <= {*found[2]}
