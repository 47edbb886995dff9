"""Files of a store that become shorter, or longer, while they are mapped."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from outgrow.core.errors import StoreError
from outgrow.graph.graph import Graph, Split
from outgrow.graph.store.manifest import HEADER_BYTES
from outgrow.graph.store.reader import open_store, write_store
from support import topology_of


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Of a small graph."""
    topology = topology_of(3, [(0, 1), (1, 2), (2, 0)])
    split = Split(train=torch.tensor([0, 2]), val=torch.tensor([1]), test=torch.tensor([], dtype=torch.int64))
    write_store(Graph(name="small", topology=topology, split=split), tmp_path / "store")
    return tmp_path / "store"


def test_the_rest_of_a_page_would_read_as_zeros(store: Path) -> None:
    graph = open_store(store)
    graph.files.require_same_sizes()
    os.truncate(store / "train.npy", HEADER_BYTES + 8)
    assert graph.split.train.tolist() == [0, 0]
    with pytest.raises(StoreError, match=r"train\.npy has another size than when it was opened") as told:
        graph.files.require_same_sizes()
    assert f"{HEADER_BYTES + 16} bytes" in told.value.needed
    assert told.value.got == f"{HEADER_BYTES + 8} bytes"


def test_a_file_that_has_grown(store: Path) -> None:
    graph = open_store(store)
    with (store / "indices.npy").open("ab") as file:
        file.write(b"x")
    with pytest.raises(StoreError, match=r"indices\.npy"):
        graph.files.require_same_sizes()


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_file_that_is_still_there_for_who_has_mapped_it(store: Path, change: str) -> None:
    graph = open_store(store)
    (store / "train.npy").unlink()
    if change == "replaced":
        (store / "train.npy").write_bytes(b"x")
    graph.files.require_same_sizes()
    assert graph.split.train.tolist() == [0, 2]


def test_the_cause_is_told_in_place_of_its_effect(store: Path) -> None:
    graph = open_store(store)

    def fail() -> None:
        with graph.files.check_sizes_on_exit():
            raise ValueError("no such node")

    with pytest.raises(ValueError, match="no such node"):
        fail()
    os.truncate(store / "train.npy", HEADER_BYTES)
    with pytest.raises(StoreError, match="has another size"):
        fail()
    with pytest.raises(StoreError, match="has another size"), graph.files.check_sizes_on_exit():
        pass


def test_a_graph_that_was_changed_in_part_still_needs_its_files(store: Path) -> None:
    graph = open_store(store)
    changed, copy = replace(graph, name="other"), pickle.loads(pickle.dumps(graph))
    os.truncate(store / "train.npy", HEADER_BYTES)
    with pytest.raises(StoreError, match="has another size"):
        changed.files.require_same_sizes()
    copy.files.require_same_sizes()  # it holds the numbers themselves
