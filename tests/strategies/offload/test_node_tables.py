"""Rows in the HOST tier: which are read and written, of which type, and what is counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.own_features import COLUMNS, as_dense, dense, sparse
from outgrow.core.ledger import Kind, Ledger, Link
from outgrow.nn import GCN, SAGE
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.runtime.storage.row_file import IoPool, RowFile
from outgrow.runtime.storage.row_storage import InMemoryRows, RowStorage
from outgrow.strategies.offload.node_tables import FeatureRows, NodeRows
from outgrow.strategies.offload.wave import RowList
from support import normal

IN, OUT = Link.HOST_TO_DEVICE, Link.DEVICE_TO_HOST
OWN = torch.tensor([1, 4, 5, 6, 30])


def held_of(rows: Sequence[Sequence[int]], at: Sequence[int], nodes: Sequence[int] | None = None) -> RowList:
    """Some rows of each worker at their places."""
    row = torch.tensor([number for of_one in rows for number in of_one], dtype=torch.int64)
    node = row if nodes is None else torch.tensor(nodes, dtype=torch.int64)
    counts = tuple(len(of_one) for of_one in rows)
    return RowList(counts, row, node, torch.tensor(at, dtype=torch.int32), torch.zeros(len(row), dtype=torch.uint8))


def read(table: NodeRows | FeatureRows, held: RowList, out: Tensor) -> None:
    table.read_wave(held, held.slot, out, 0)


def table_of(*values: Tensor, rank: int = 0, kind: Kind = Kind.ACTIVATIONS) -> tuple[NodeRows, Ledger]:
    ledger = Ledger()
    comm = SingleProcessComm(ledger)
    comm.rank = rank
    return NodeRows({worker: InMemoryRows(each) for worker, each in enumerate(values)}, kind, comm), ledger


def test_rows_of_all_workers_go_to_their_places() -> None:
    values = [normal(4, 3), normal(5, 3, seed=1), normal(3, 3, seed=2)]
    table, ledger = table_of(*values, rank=1)
    out = torch.zeros(8, 3, dtype=torch.float64)
    read(table, held_of([[0, 3], [], [1]], [5, 2, 7]), out)
    expected = torch.zeros(8, 3, dtype=torch.float64)
    expected[5], expected[2], expected[7] = values[0][0], values[0][3], values[2][1]
    assert torch.equal(out, expected)
    assert ledger.bytes_by_link == {(IN, Kind.ACTIVATIONS): 3 * 3 * 8}


def test_a_table_is_as_wide_as_the_own_rows() -> None:
    """Where rows are shared, there are none of the others."""
    table, _ = table_of(torch.empty(0, 0), normal(5, 7, dtype=torch.float32), rank=1)
    assert (table.width, table.dtype) == (7, torch.float32)
    out = torch.zeros(2, 7)
    read(table, held_of([[], [4]], [1]), out)
    assert out[1].ne(0).all()


def test_ranges_of_own_rows_are_read_and_written() -> None:
    values = normal(6, 4, dtype=torch.float32)
    table, ledger = table_of(normal(9, 4), values.clone(), rank=1, kind=Kind.GRADIENTS)
    assert torch.equal(table.read_range(2, 5), values[2:5])
    new = normal(2, 4, seed=3, dtype=torch.float32)
    table.write_rows(4, new)
    assert torch.equal(table.read_range(0, 6), torch.cat([values[:4], new]))
    assert table.read_range(3, 3).shape == (0, 4)
    assert ledger.bytes_by_link == {(IN, Kind.GRADIENTS): 9 * 16, (OUT, Kind.GRADIENTS): 2 * 16}


def test_gradients_are_added_to_the_rows_of_one() -> None:
    own, theirs, values = normal(4, 2), normal(4, 2, seed=1), normal(3, 2, seed=2)
    table, ledger = table_of(own.clone(), theirs.clone())
    table.add_rows(held_of([[0, 2, 3]], [9, 9, 9]), values, 1)
    expected = theirs.clone()
    expected[[0, 2, 3]] += values
    out = torch.zeros(8, 2, dtype=torch.float64)
    read(table, held_of([range(4), range(4)], range(8)), out)
    assert torch.equal(out, torch.cat([own, expected]))
    assert ledger.bytes_by_link[OUT, Kind.ACTIVATIONS] == 3 * 2 * 8


@pytest.mark.parametrize("num_rows", [0, 1, 70_000])
def test_own_rows_are_cleared_and_no_others(num_rows: int) -> None:
    own, theirs = torch.ones(num_rows, 5), torch.ones(9, 5)
    table, ledger = table_of(own, theirs)
    table.clear_rows()
    assert not own.any()
    assert theirs.all()
    assert not ledger.bytes_by_link


def test_closing_closes_the_rows_of_all(tmp_path: Path) -> None:
    disk = IoPool()
    rows = [RowFile.create(disk, tmp_path / name, 3, 2, torch.float32) for name in "ab"]
    NodeRows(dict(enumerate(rows)), Kind.FEATURES, SingleProcessComm()).close()
    for each in rows:
        with pytest.raises(ValueError):
            each.read_range(0, 1, torch.empty(1, 2))
    disk.close()


@contextmanager
def host(where: str, values: Tensor, folder: Path) -> Iterator[RowStorage]:
    """Features in memory or on a disk."""
    if where == "memory":
        yield InMemoryRows(values)
        return
    disk = IoPool()
    rows = RowFile.create(disk, folder / "features", *values.shape, values.dtype)
    rows.write_range(0, values)
    yield rows
    disk.close()


def features_of(model: Model, features: Features, rows: RowStorage | None) -> tuple[FeatureRows, Ledger]:
    ledger = Ledger()
    return FeatureRows(model, features, rows, OWN, SingleProcessComm(ledger)), ledger


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (torch.float32, torch.float32),
        (torch.float64, torch.float32),
        (torch.float32, torch.float64),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float64),
    ],
)
def test_features_come_as_the_model_computes_with_them(
    given: torch.dtype, wanted: torch.dtype, where: str, tmp_path: Path
) -> None:
    """Counted as they are in HOST."""
    values, model = dense(given), GCN(COLUMNS, 3, 2, input_dropout=0.5).to(wanted)
    with host(where, values, tmp_path) as rows:
        table, ledger = features_of(model, values, rows)
        assert (table.width, table.dtype) == (COLUMNS, wanted)
        piece = table.read_range(1, 4)
        assert torch.equal(as_dense(piece), values[OWN[1:4]].to(wanted))
        out = torch.zeros(6, COLUMNS, dtype=wanted)
        read(table, held_of([[0, 1], [0]], [4, 0, 3], [7, 39, 2]), out)
        expected = torch.zeros(6, COLUMNS, dtype=wanted)
        expected[[4, 0, 3]] = values[[7, 39, 2]].to(wanted)
        assert torch.equal(out, expected)
        assert ledger.bytes_by_link == {(IN, Kind.FEATURES): 6 * COLUMNS * given.itemsize}
        table.close()


def test_half_precision_stays_where_the_first_layer_widens_it() -> None:
    values = dense(torch.float16)
    table, _ = features_of(SAGE(COLUMNS, 6, 2), values, InMemoryRows(values))
    assert table.dtype == torch.float16
    assert torch.equal(as_dense(table.read_range(0, 5)), values[OWN])


@pytest.mark.parametrize("wanted", [torch.float32, torch.float64])
def test_pieces_of_sparse_features(wanted: torch.dtype) -> None:
    """Counted with their columns and row ends."""
    values = sparse(torch.float32)
    table, ledger = features_of(GCN(COLUMNS, 3, 2).to(wanted), values, None)
    piece = table.read_range(1, 4)
    assert piece.dtype == wanted
    assert torch.equal(as_dense(piece), as_dense(values)[OWN[1:4]])
    stored = sum(int(v) % 4 for v in OWN[1:4])
    assert ledger.bytes_by_link == {(IN, Kind.FEATURES): stored * (4 + 4) + 4 * 8}
    assert len(table.read_range(2, 2)) == 0
    table.close()
