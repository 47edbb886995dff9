"""Rows in the order of waves: what chunks write and waves read, and what waves write and chunks read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.ledger import Kind, Ledger, Link
from outgrow.ops.rows.row_encoding import RowEncoding
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.runtime.storage.row_file import IoPool
from outgrow.runtime.storage.segment_file import SegmentFile
from outgrow.strategies.offload.row_layouts import ChunkRows, WaveChunkIndex, WaveOrderedGradients, WaveOrderedRows
from outgrow.strategies.offload.wave import RowList
from support import normal

Room = Callable[[NDArray[np.int64] | list[int]], SegmentFile]
IN, OUT = Link.HOST_TO_DEVICE, Link.DEVICE_TO_HOST
ROWS, WIDTH = 12, 3
waves = st.lists(st.lists(st.integers(0, ROWS - 1), unique=True).map(sorted), max_size=5)
cuts = st.lists(st.integers(0, ROWS), max_size=4).map(lambda ends: list(pairwise([0, *sorted(ends), ROWS])))


def lists_of(rows: Sequence[Sequence[int]], chunks: Sequence[tuple[int, int]]) -> WaveChunkIndex:
    return WaveChunkIndex.from_waves([torch.tensor(each, dtype=torch.int64) for each in rows], chunks)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    """Makes files for segments of some numbers of rows, all of which are closed in the end."""
    folder, numbers = tmp_path_factory.mktemp("segments"), count()
    with ExitStack() as stack:
        disk = IoPool()
        stack.callback(disk.close)

        def make_segments(counts: NDArray[np.int64] | list[int]) -> SegmentFile:
            path, rows = folder / str(next(numbers)), np.array(counts).reshape(-1)
            made = SegmentFile(disk, path, rows, WIDTH, RowEncoding(torch.float64), direct=False)
            stack.callback(made.close)
            return made

        yield make_segments


def pieces(room: Room, chunks: Sequence[tuple[int, int]], ledger: Ledger) -> ChunkRows:
    return ChunkRows(
        room([last - first for first, last in chunks]), chunks, Kind.ACTIVATIONS, SingleProcessComm(ledger)
    )


def held_at(at: Tensor) -> RowList:
    none = torch.empty(len(at), dtype=torch.int64)
    return RowList((len(at),), none, none, at.int(), torch.zeros(len(at), dtype=torch.uint8))


@settings(deadline=None)
@given(rows=waves, chunks=cuts, own=st.booleans())
def test_a_wave_gets_what_chunks_have_written(
    room: Room, rows: list[list[int]], chunks: list[tuple[int, int]], own: bool
) -> None:
    lists, ledger, values = lists_of(rows, chunks), Ledger(), normal(ROWS, WIDTH)
    inbox = WaveOrderedRows(
        room(lists.counts), lists, pieces(room, chunks, ledger) if own else None, SingleProcessComm(ledger)
    )
    for first, last in chunks:
        inbox.write_rows(first, values[first:last])
    for wave, wanted in enumerate(rows):
        at = torch.randperm(ROWS)[: len(wanted)]
        out = torch.full((ROWS, WIDTH), -1.0, dtype=torch.float64)
        expected = out.clone()
        expected[at] = values[wanted]
        held = held_at(at)
        inbox.read_wave(held, held.slot, out, wave)
        assert torch.equal(out, expected)
    if own:
        for first, last in chunks:
            assert torch.equal(inbox.read_range(first, last), values[first:last])
    inbox.close()
    read = sum(map(len, rows)) + ROWS * own
    assert ledger.bytes_by_link[OUT, Kind.ACTIVATIONS] == ROWS * WIDTH * 8
    assert ledger.bytes_by_link.get((IN, Kind.ACTIVATIONS), 0) == read * WIDTH * 8


@settings(deadline=None)
@given(rows=waves, chunks=cuts)
def test_a_chunk_gets_the_sum_of_what_waves_have_written(
    room: Room, rows: list[list[int]], chunks: list[tuple[int, int]]
) -> None:
    lists, ledger = lists_of(rows, chunks), Ledger()
    outbox = WaveOrderedGradients(room(lists.counts), lists, SingleProcessComm(ledger))
    for step in range(2):  # nothing is left of the first
        expected = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
        for wave, left in enumerate(rows):
            values = normal(len(left), WIDTH, seed=7 * wave + step)
            expected[left] += values
            outbox.write_wave(wave, values)
        for first, last in chunks:
            assert torch.equal(outbox.read_range(first, last), expected[first:last])
    outbox.close()
    assert ledger.bytes_by_link.get((OUT, Kind.GRADIENTS), 0) == 2 * sum(map(len, rows)) * WIDTH * 8
    assert ledger.bytes_by_link[IN, Kind.GRADIENTS] == 2 * ROWS * WIDTH * 8


def test_segments_are_what_chunks_and_waves_have_in_common() -> None:
    lists = lists_of([[1, 4, 5, 9], [], [5]], [(6, ROWS), (0, 5), (5, 5), (5, 6)])
    assert lists.counts.tolist() == [[2, 1, 1], [0, 0, 0], [0, 1, 0]]
    assert list(lists.segments_of_wave(2)) == [6, 7, 8]
    of_chunks = [
        [(list(segments), rows.tolist()) for segments, rows in lists.segments_of_chunk(*ends)] for ends in CHUNKS
    ]
    assert of_chunks == [[([0, 3, 6], [1, 4])], [([1, 4], [0]), ([7], [0])], [([2, 5, 8], [3])], []]


CHUNKS = ((0, 5), (5, 6), (6, ROWS), (5, 5))


@given(waves, cuts)
def test_a_chunk_takes_about_as_many_rows_at_a_time_as_it_has(
    rows: list[list[int]], chunks: list[tuple[int, int]]
) -> None:
    lists = lists_of(rows, chunks)
    for first, last in chunks:
        sizes = [len(each) for _, each in lists.segments_of_chunk(first, last)]
        assert all(0 < size <= last - first for size in sizes)
        assert sum(sizes) == sum(first <= row < last for each in rows for row in each)
        assert all(one + other > last - first or other < last - first for one, other in pairwise(sizes))


def test_rows_are_those_of_the_last_writing(room: Room) -> None:
    ledger = Ledger()
    kept = pieces(room, [(4, 6), (0, 4), (6, 6)], ledger)
    old, new = normal(4, WIDTH), normal(4, WIDTH, seed=1)
    for first, values in ((0, old), (4, old[:2]), (6, old[:0]), (0, new)):
        kept.write_rows(first, values)
    assert torch.equal(kept.read_range(0, 4), new)
    assert torch.equal(kept.read_range(4, 6), old[:2])
    assert kept.read_range(6, 6).shape == (0, WIDTH)
    assert ledger.bytes_by_link == {(OUT, Kind.ACTIVATIONS): 10 * WIDTH * 8, (IN, Kind.ACTIVATIONS): 6 * WIDTH * 8}


def test_closing_closes_all_files(room: Room) -> None:
    chunks, files = [(0, 1)], [room([1]) for _ in range(3)]
    lists = lists_of([[0]], chunks)
    WaveOrderedRows(
        files[0], lists, ChunkRows(files[1], chunks, Kind.ACTIVATIONS, SingleProcessComm()), SingleProcessComm()
    ).close()
    WaveOrderedGradients(files[2], lists, SingleProcessComm()).close()
    for each in files:
        with pytest.raises(ValueError, match="closed file"):
            each.read_segments([0], torch.zeros(1, WIDTH, dtype=torch.float64))


@pytest.mark.parametrize("rows", [[], [[]]])
def test_without_rows(room: Room, rows: list[list[int]]) -> None:
    lists = lists_of(rows, [(0, 0)])
    inbox = WaveOrderedRows(room(lists.counts), lists, None, SingleProcessComm())
    inbox.write_rows(0, torch.empty(0, WIDTH, dtype=torch.float64))
    assert (inbox.width, inbox.dtype) == (WIDTH, torch.float64)
