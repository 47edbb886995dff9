"""Partitions that are kept with a store: taken again, made anew when they are wrong, and never in the way."""

import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from tests.support import random_topology

from outgrow.graph.graph import Graph
from outgrow.graph.partition.methods import ChunkedPartitioner, HashPartitioner, Partitioner
from outgrow.graph.partition.partition import Partition
from outgrow.graph.partition.partition_cache import FOLDER, load_or_make_partition
from outgrow.graph.store.reader import open_store, write_store
from outgrow.graph.topology import Topology

TOPOLOGY = random_topology(50, 200)
MADE: list[int] = []


@dataclass(frozen=True, kw_only=True)
class Counted(Partitioner):
    name: ClassVar[str] = "counted"
    seed: int = 0

    def _partition_nodes(self, topology: Topology, num_parts: int) -> Partition:
        MADE.append(num_parts)
        return ChunkedPartitioner(chunks=2, first=HashPartitioner(seed=self.seed)).partition_nodes(topology, num_parts)


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    MADE.clear()


def made(store: Path | None, *, times: int, num_parts: int = 3, method: Partitioner | None = None) -> None:
    """Assert that the right partition comes back, and that it was made ``times`` times since the test began."""
    method = method or Counted()
    got = load_or_make_partition(TOPOLOGY, method, num_parts, store=store)
    assert len(MADE) == times
    right = method.partition_nodes(TOPOLOGY, num_parts)
    MADE.pop()
    assert got.part.dtype == right.part.dtype
    assert torch.equal(got.part, right.part)
    assert got.chunk is not None
    assert right.chunk is not None
    assert torch.equal(got.chunk, right.chunk)
    assert (got.num_parts, got.num_chunks) == (num_parts, 2)


def test_it_is_made_once_for_each_method_and_number_of_parts(tmp_path: Path) -> None:
    made(tmp_path, times=1)
    made(tmp_path, times=1)
    made(tmp_path, times=2, num_parts=4)
    made(tmp_path, times=3, method=Counted(seed=1))
    made(tmp_path, times=3)
    files = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
    stems = ("counted-seed=0-3", "counted-seed=0-4", "counted-seed=1-3")
    assert files == sorted(f"{stem}{end}" for stem in stems for end in (".json", ".npy"))


def test_without_a_store_it_is_made_each_time() -> None:
    made(None, times=1)
    made(None, times=2)


def test_parts_without_chunks_are_kept_too(tmp_path: Path) -> None:
    first = load_or_make_partition(TOPOLOGY, HashPartitioner(), 3, store=tmp_path)
    again = load_or_make_partition(TOPOLOGY, HashPartitioner(), 3, store=tmp_path)
    assert torch.equal(first.part, again.part)
    assert again.chunk is None


def torn(data: bytes) -> bytes:
    return data[:-20]


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def nothing(data: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("end", [".json", ".npy"])
@pytest.mark.parametrize("damage", [torn, flipped, nothing])
def test_a_damaged_file_is_made_anew(tmp_path: Path, end: str, damage) -> None:
    made(tmp_path, times=1)
    path = tmp_path / FOLDER / f"counted-seed=0-3{end}"
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    made(tmp_path, times=2)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("text", ["[]", "3", '{"sha256": "x", "num_chunks": 2}', "\udcff"])
def test_a_wrong_record_is_made_anew(tmp_path: Path, text: str) -> None:
    made(tmp_path, times=1)
    path = tmp_path / FOLDER / "counted-seed=0-3.json"
    path.write_text(text, "utf-8", errors="surrogateescape")
    made(tmp_path, times=2)
    assert json.loads(path.read_text("utf-8"))["num_parts"] == 3


def test_that_of_another_graph_is_not_taken(tmp_path: Path) -> None:
    load_or_make_partition(random_topology(50, 201), Counted(), 3, store=tmp_path)
    made(tmp_path, times=2)


def test_a_store_that_cannot_be_written_to_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / FOLDER).touch()
    made(tmp_path, times=1)
    made(tmp_path, times=2)
    made(tmp_path / "gone", times=3)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    (tmp_path / FOLDER).unlink()
    monkeypatch.setattr(Path, "mkdir", refuse)
    made(tmp_path, times=4)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", refuse)
    made(tmp_path, times=1)
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_a_store_with_partitions_is_whole(tmp_path: Path) -> None:
    store = tmp_path / "my.store"
    write_store(Graph(name="g", topology=TOPOLOGY), store)
    made(store, times=1)
    opened = open_store(store, verify=True)
    assert torch.equal(
        load_or_make_partition(opened.topology, Counted(), 3, store=store).part,
        Counted().partition_nodes(TOPOLOGY, 3).part,
    )
    write_store(Graph(name="g", topology=TOPOLOGY), store, overwrite=True)
    assert not (store / FOLDER).exists()
