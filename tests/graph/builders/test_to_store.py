import errno

import numpy as np
import pytest
from scipy.sparse import random_array

from graph.bad_input import BAD_EDGES, BAD_TABLES
from graph.handmade import Edge, Listed, same, source
from outgrow.core.errors import InputError
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.readers.source import LazyMatrix, NodeTableSource
from outgrow.graph.store import writer
from outgrow.graph.store.reader import is_store, open_store


class Counted(LazyMatrix):
    """Rows of their numbers."""

    largest = 0

    @property
    def shape(self):
        return 200_000, 16

    @property
    def dtype(self):
        return np.dtype(np.float32)

    def read_rows(self, first, last):
        self.largest = max(self.largest, last - first)
        return np.repeat(np.arange(first, last, dtype=np.float32)[:, None], 16, axis=1)


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_converted_store_is_the_graph_in_memory(tmp_path, undirected, sparse):
    changes = {"features": random_array((40, 9), density=0.3, rng=5, format="csr")} if sparse else {}
    made = convert_to_store(source(**changes), tmp_path / "store", undirected=undirected, memory_bytes=2048)
    same(made, assemble_graph(source(**changes), undirected=undirected))
    same(open_store(tmp_path / "store", verify=True), made)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_memory_does_not_change_a_byte(tmp_path):
    for name, memory in (("little", 1024), ("much", 1 << 26)):
        convert_to_store(source(), tmp_path / name, undirected=True, memory_bytes=memory)
    for path in (tmp_path / "little").iterdir():
        assert path.read_bytes() == (tmp_path / "much" / path.name).read_bytes(), path.name


def test_rows_made_on_demand_are_read_in_slices(tmp_path):
    rows = Counted()
    made = convert_to_store(Listed([Edge(0, 1)], NodeTableSource(features=rows)), tmp_path / "store")
    assert rows.largest < len(rows) // 2
    assert made.features[:, 3].tolist() == list(range(len(rows)))


def test_progress_is_told(tmp_path):
    told = []
    convert_to_store(source(), tmp_path / "store", memory_bytes=2048, progress=lambda *what: told.append(what))
    assert list(dict.fromkeys(phase for phase, _, _ in told)) == ["read", "sort", "features"]
    assert ("read", 300, None) in told
    assert ("sort", 300, 300) in told
    assert told[-1] == ("features", 40, 40)


@pytest.mark.parametrize(("changes", "what"), [bad[:2] for bad in BAD_TABLES])
def test_bad_tables_leave_nothing_behind(tmp_path, changes, what):
    with pytest.raises(InputError, match=what):
        convert_to_store(source(**changes), tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("edges", "what"), [bad[:2] for bad in BAD_EDGES])
def test_bad_edges_leave_the_old_store(tmp_path, edges, what):
    old = convert_to_store(source(), tmp_path / "store")
    with pytest.raises(InputError, match=what):
        convert_to_store(source(edges), tmp_path / "store", overwrite=True, memory_bytes=1024)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    same(open_store(tmp_path / "store", verify=True), old)


def test_too_little_memory_is_refused(tmp_path):
    with pytest.raises(InputError, match="too little memory"):
        convert_to_store(source(), tmp_path / "store", memory_bytes=10)


@pytest.mark.parametrize("writes", [0, 1, 5, 12])
def test_a_full_disk_leaves_the_old_store(tmp_path, monkeypatch, writes):
    old = convert_to_store(source(), tmp_path / "store")
    count = iter(range(1000))
    write = writer.write_fully

    def fills_up(file, data):
        if next(count) >= writes:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, data)

    monkeypatch.setattr(writer, "write_fully", fills_up)
    with pytest.raises(InputError, match="disk is full") as caught:
        convert_to_store(source(), tmp_path / "store", overwrite=True)
    assert str(tmp_path / "store") in caught.value.what
    assert "bytes" in caught.value.needed
    assert "bytes available" in caught.value.got
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    same(open_store(tmp_path / "store", verify=True), old)


def test_a_store_that_cannot_fit_is_refused_before_it_is_written(tmp_path, monkeypatch):
    class Usage:
        free = 1000

    monkeypatch.setattr(writer.shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(InputError, match="disk is full") as caught:
        convert_to_store(source(), tmp_path / "store")
    assert "1,000 bytes available" in caught.value.got
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    def interrupts(phase, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_to_store(source(), tmp_path / "store", progress=interrupts)
    assert list(tmp_path.iterdir()) == []
    assert not is_store(tmp_path / "store")
