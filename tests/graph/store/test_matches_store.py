"""Whether a graph is still what its store holds."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from outgrow.graph.graph import Graph, Split
from outgrow.graph.store import reader
from outgrow.graph.store.reader import matches_store, open_store, write_store
from support import normal, random_topology


@pytest.fixture
def stored(tmp_path: Path) -> Graph:
    nodes = torch.arange(40)
    split = Split(train=nodes[:20], val=nodes[20:30], test=nodes[30:])
    topology = random_topology(40, 250)
    graph = Graph(
        name="g", topology=topology, features=normal(40, 6).float(), labels=nodes.int() % 3, split=split, num_classes=3
    )
    assert not matches_store(graph)
    write_store(graph, tmp_path / "store")
    return open_store(tmp_path / "store")


@pytest.fixture(params=[True, False], ids=["pages", "versions"])
def by_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param and not reader._MAPS.exists():
        pytest.skip("the system does not tell which pages were written to")
    if not request.param:
        monkeypatch.setattr(reader, "_MAPS", Path("/nonexistent"))
    return bool(request.param)


def test_reading_changes_nothing(stored: Graph, by_pages: bool) -> None:
    assert isinstance(stored.features, torch.Tensor)
    assert stored.features.sum() != 0
    assert stored.topology.degree.sum() == stored.num_edges
    assert matches_store(stored)


@pytest.mark.parametrize("part", ["features", "labels", "indices"])
def test_a_tensor_that_was_changed_in_place(stored: Graph, by_pages: bool, part: str) -> None:
    tensor = stored.topology.indices if part == "indices" else getattr(stored, part)
    tensor[3] = tensor[4] + 1
    assert not matches_store(stored)


def test_a_change_behind_torch_is_seen_in_the_pages(stored: Graph) -> None:
    if not reader._MAPS.exists():
        pytest.skip("the system does not tell which pages were written to")
    assert isinstance(stored.features, torch.Tensor)
    stored.features.numpy()[5] = 7
    assert not matches_store(stored)


def test_a_changed_copy_of_the_graph(stored: Graph, by_pages: bool) -> None:
    assert not matches_store(replace(stored, name="other"))
    assert matches_store(stored)
