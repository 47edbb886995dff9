"""Ids in tables become numbers in the order of first occurrence, whatever the batches, the memory and the hashes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.graph.readers.tables import id_table
from outgrow.graph.readers.tables.id_encoder import IdEncoder
from outgrow.ops.id_table import hash_ids

BATCHES = "outgrow.graph.readers.tables.id_encoder._FEWEST_ROWS"
INT64 = st.integers(-(2**63), 2**63 - 1)
# Few of them, so that they occur again; pairs that differ in length, case, a zero byte or the last byte alone.
TEXTS = st.sampled_from(["", "a", "b", "A", "ab", "a\0", "\0", "é", "日本", "x" * 40, "x" * 39 + "y", "007", "7", "-7"])
Ids = Sequence[int] | Sequence[str]


@contextmanager
def all_collide(bits: int) -> Iterator[None]:
    """Hashes that have few values."""

    def hash_few(ids: Any, first: int, out: Any) -> None:
        hash_ids(ids, first, out)
        out &= np.uint64((1 << bits) - 1)
        out *= np.uint64((1 << 63) + 1)

    with patch.object(id_table, "hash_ids", hash_few):
        yield


def number_plainly(ids: Ids) -> list[int]:
    """What `IdEncoder.encode` returns, by a dictionary."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in ids]


def encode_all(encoder: IdEncoder, ids: pa.Array, size: int) -> list[int]:
    """Encode in batches."""
    return [number for at in range(0, len(ids), size) for number in encoder.encode(ids.slice(at, size)).tolist()]


@contextmanager
def make_encoder(budget: int | None) -> Iterator[IdEncoder]:
    """An encoder of a folder and so many bytes of memory, or of memory alone."""
    with tempfile.TemporaryDirectory() as folder:
        yield IdEncoder(None if budget is None else Path(folder), budget)


@settings(max_examples=60)
@given(
    ids=st.lists(INT64 | st.integers(0, 5), max_size=60) | st.lists(TEXTS | st.text(), max_size=60),
    size=st.integers(1, 70),
    budget=st.sampled_from([None, 1, 10_000]),
    bits=st.sampled_from([0, 1, 64]),
)
def test_ids_are_numbered_in_order(ids: Ids, size: int, budget: int | None, bits: int) -> None:
    given = pa.array(ids, pa.int64() if ids and isinstance(ids[0], int) else pa.string())
    with make_encoder(budget) as encoder, nullcontext() if bits == 64 else all_collide(bits):
        assert encode_all(encoder, given, size) == number_plainly(ids)
        assert len(encoder) == len(set(ids))
        assert encoder.find(given).tolist() == number_plainly(ids)
        if ids:
            found = encoder.finish()
            assert list(found) == list(dict.fromkeys(ids))
            assert found.find(given).tolist() == number_plainly(ids)


@settings(max_examples=30)
@given(
    numbers=st.lists(INT64 | st.integers(-9, 9), min_size=1, max_size=30),
    texts=st.lists(TEXTS | st.integers(-9, 9).map(str), min_size=1, max_size=30),
    budget=st.sampled_from([None, 1]),
)
def test_integers_become_texts_once_a_text_comes(numbers: list[int], texts: list[str], budget: int | None) -> None:
    wanted = number_plainly([*map(str, numbers), *texts, *map(str, numbers)])
    with make_encoder(budget) as encoder:
        found = [*encoder.encode(pa.array(numbers)), *encoder.encode(pa.array(texts))]
        assert [*found, *encoder.encode(pa.array(numbers))] == wanted
        assert list(encoder.finish()) == list(dict.fromkeys([*map(str, numbers), *texts]))


@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=40),
    size=st.integers(1, 50),
    budget=st.sampled_from([None, 1]),
)
def test_two_columns_are_numbered_row_by_row(rows: list[tuple[str, str]], size: int, budget: int | None) -> None:
    wanted = number_plainly([text for row in rows for text in row])
    with make_encoder(budget) as encoder:
        found = []
        for at in range(0, len(rows), size):
            src, dst = encoder.encode_columns([pa.array(column) for column in zip(*rows[at : at + size], strict=True)])
            found += [number for pair in zip(src, dst, strict=True) for number in pair]
    assert found == wanted


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_texts_of_all_types(kind: pa.DataType) -> None:
    ids = pa.array(["b", "", "a", "b"], kind)
    assert IdEncoder().encode(ids).tolist() == [0, 1, 2, 0]
    assert IdEncoder().encode(ids.slice(2)).tolist() == [0, 1]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.uint32(), pa.uint64(), pa.int64()])
def test_integers_of_all_types(kind: pa.DataType) -> None:
    encoder = IdEncoder()
    assert encoder.encode(pa.array([5, 3, 5, 7], kind).slice(1)).tolist() == [0, 1, 2]
    assert list(encoder.finish()) == [3, 5, 7]


def test_integers_beyond_64_bits_are_texts() -> None:
    encoder = IdEncoder()
    encoder.encode(pa.array([1, 2**63 - 1], pa.int64()))
    assert encoder.encode(pa.array([2**63, 1], pa.uint64())).tolist() == [2, 0]
    assert list(encoder.finish()) == ["1", str(2**63 - 1), str(2**63)]


def test_a_dictionary_is_numbered_as_its_rows_are() -> None:
    encoder = IdEncoder()
    ids = pa.DictionaryArray.from_arrays(pa.array([2, 0, 2, 3], pa.int8()), pa.array(["a", "unused", "c", "a2"]))
    assert encoder.encode(ids).tolist() == [0, 1, 0, 2]
    assert list(encoder.finish()) == ["c", "a", "a2"]
    assert encoder.find(ids).tolist() == [0, 1, 0, 2]


def test_texts_are_found_among_integers_in_the_form_of_these_alone() -> None:
    encoder = IdEncoder()
    encoder.encode(pa.array([7, -(2**63), 2**63 - 1, 0]))
    given = ["7", "007", "+7", "7.0", "", str(-(2**63)), str(2**63 - 1), str(2**63), "-0", "0", "9" * 30, " 7"]
    assert encoder.find(pa.array(given)).tolist() == [0, -1, -1, -1, -1, 1, 2, -1, -1, 3, -1, -1]


def test_what_was_finished_stays_as_it_was(tmp_path: Path) -> None:
    encoder = IdEncoder(tmp_path, 20_000)
    encoder.encode(pa.array([f"node {i}" for i in range(3000)]))
    ids = encoder.finish()
    before = [*ids]
    encoder.encode(pa.array([f"later {i}" for i in range(50_000)]))
    assert [*ids] == before == [f"node {i}" for i in range(3000)]
    assert ids.find(pa.array(["node 2999", "later 1"])).tolist() == [2999, -1]
    assert len(encoder.finish()) == 53_000
    assert not any(tmp_path.iterdir()), "files have no names: nothing can be left behind"


def test_many_batches_in_little_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    values = rng.integers(0, 30_000, 100_000)
    texts = pa.array(values).cast(pa.string())
    in_memory, in_files = IdEncoder(), IdEncoder(tmp_path, 100_000)
    whole = in_memory.encode(texts)
    assert encode_all(in_files, texts, 7777) == whole.tolist()
    first, second = in_memory.finish(), in_files.finish()
    assert first.texts.to_arrow() == second.texts.to_arrow()
    assert first.order.equal(second.order)
    assert first.hashes is not None
    assert second.hashes is not None
    assert first.hashes.equal(second.hashes)


def keep_first_of_a_hash() -> AbstractContextManager[object]:
    """Ids are taken for equal if their hashes are."""
    return patch.object(id_table, "compare_candidates", lambda *_: None)


def number_in_order_of_hashes() -> AbstractContextManager[object]:
    """New ids get their numbers in the order of the table."""
    original = id_table.number_absent

    def number(table: Any, ids: Any, hashes: Any, columns: int, first: int, out: Any, new_rows: Any) -> int:
        count = original(table, ids, hashes, columns, first, out, new_rows)
        order = np.argsort(hashes[new_rows[:count]])
        place = np.empty(count, np.int64)
        place[order] = np.arange(count)
        is_new = out >= first
        out[is_new] = first + place[out[is_new] - first]
        new_rows[:count] = new_rows[:count][order]
        return int(count)

    return patch.object(id_table, "number_absent", number)


def forget_when_growing() -> AbstractContextManager[object]:
    """A table that grows loses what was in it but the newest ids."""
    original = id_table.IdTable._grow

    def grow(self: Any) -> bool:
        slots = self._slots
        grown = original(self)
        if grown:
            self._slots[: len(slots)] = 0
        return bool(grown)

    return patch.object(id_table.IdTable, "_grow", grow)


MUTANTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "ids of one hash are one id": keep_first_of_a_hash,
    "ids are numbered in the order of their hashes": number_in_order_of_hashes,
    "a table of ids that grows forgets some": forget_when_growing,
}


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, tmp_path: Path) -> None:
    ids = [f"{i % 2000} {i % 7}" for i in range(20_000)]
    with MUTANTS[name](), all_collide(12):
        encoder = IdEncoder(tmp_path, 1)
        found = encode_all(encoder, pa.array(ids), 3000)
    assert found != number_plainly(ids)
