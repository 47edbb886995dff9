"""Ids of nodes: found by their value, kept by stores, checked, and compared with those of another graph."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import outgrow as og
from outgrow.core.errors import InputError, StoreError
from outgrow.graph import id_order, node_ids
from outgrow.graph.graph import NodeType
from outgrow.graph.id_order import _select_range as select_range
from outgrow.graph.id_summary import compare_summaries, summarize_ids
from outgrow.graph.node_ids import NodeIds, TextArrays, to_integers
from outgrow.graph.store.fingerprint import changed_parts, fingerprint_graph
from outgrow.graph.store.reader import open_store, write_store
from outgrow.graph.store.verify import verify_graph
from outgrow.ops.text_hash import hash_texts

INT64 = st.integers(-(2**63), 2**63 - 1)
LIMIT = 2**63 - 1


def hash_few(offsets: Any, data: Any, out: Any) -> None:
    """Hashes of which there are four."""
    hash_texts(offsets, data, out)
    out &= np.uint64(3)


def collide() -> AbstractContextManager[object]:
    """All texts have one of four hashes."""
    return patch.object(node_ids, "hash_texts", hash_few)


def make_ids(ids: Sequence[int] | Sequence[str], borders: Sequence[int] = (), **space: Any) -> NodeIds:
    """Ids of nodes."""
    if all(isinstance(each, int) for each in ids):
        return NodeIds.from_integers(np.array(ids, np.int64), borders, **space)
    return NodeIds.from_texts(TextArrays.from_arrow(pa.array(ids, pa.string())), borders, **space)


def as_arrow(ids: Sequence[int] | Sequence[str]) -> pa.Array:
    """Ids as an array of their type."""
    return pa.array(ids, pa.int64() if isinstance(ids[0], int) else pa.string())


@given(
    ids=st.lists(INT64, min_size=1, max_size=60, unique=True)
    | st.lists(st.text(), min_size=1, max_size=60, unique=True),
    most=st.sampled_from([None, 1, 200, 1000]),
    collides=st.booleans(),
)
def test_all_ids_are_found(ids: list[int] | list[str], most: int | None, collides: bool) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(node_ids, "hash_texts", hash_few if collides else hash_texts),
    ):
        scratch = None if most is None else Path(folder)
        made, plain = make_ids(ids, scratch=scratch, memory_bytes=most), make_ids(ids)
        assert made.order.dtype == torch.int32
        assert made.order.equal(plain.order), "the memory makes no difference"
        assert list(made) == ids
        assert made.find(as_arrow(ids)).tolist() == list(range(len(ids)))
        other = "not there" if isinstance(ids[0], str) else next(n for n in range(100) if n not in ids)
        assert made.find(as_arrow([other])).tolist() == [-1]
        verify_graph(graph_of(made))
        verify_graph(graph_of(plain))


@given(
    ids=st.lists(st.integers(-4, 4) | st.sampled_from([LIMIT, -LIMIT - 1]), min_size=1, max_size=30)
    | st.lists(st.sampled_from(["a", "b", "", "c", "d", "aa", "é"]), min_size=1, max_size=30),
    most=st.sampled_from([None, 1, 200]),
)
def test_ids_that_occur_twice_are_counted(ids: list[int] | list[str], most: int | None) -> None:
    distinct = len(set(ids))
    with tempfile.TemporaryDirectory() as folder, collide():
        space = {} if most is None else {"scratch": Path(folder), "memory_bytes": most}
        if distinct == len(ids):
            make_ids(ids, **space)
            return
        with pytest.raises(InputError, match="occurs twice") as refused:
            make_ids(ids, **space)
    assert refused.value.got.startswith(f"{len(ids) - distinct:,} repetitions, such as ")


def test_types_have_ids_of_their_own() -> None:
    for ids in (["a", "b", "a", "c"], [1, 2, 1, 3]):
        made = make_ids(ids, (0, 2, 4))
        assert made.find(as_arrow(ids[:1]), 0, 2).tolist() == [0]
        assert made.find(as_arrow(ids[:1]), 2, 4).tolist() == [2]
        verify_graph(graph_of(made, (0, 2, 4)))
        with pytest.raises(InputError, match="occurs twice"):
            make_ids(ids, (0, 1, 4) if ids[0] == 2 else (0, 3, 4))


def graph_of(ids: NodeIds, borders: Sequence[int] = ()) -> og.Graph:
    """A graph with these ids."""
    count = len(ids)
    plain = og.from_arrays(np.arange(count)[None].repeat(2, 0), num_nodes=count)
    kinds = tuple(NodeType(name=f"t{a}", first=a, last=b) for a, b in pairwise(borders))
    return replace(plain, ids=ids, node_types=kinds)


@pytest.mark.parametrize("ids", [["b", "", "日本", "x" * 100], [5, -3, LIMIT, 0]])
def test_a_store_keeps_ids(ids: list[int] | list[str], tmp_path: Path) -> None:
    graph = graph_of(make_ids(ids))
    write_store(graph, tmp_path / "store")
    opened = open_store(tmp_path / "store", verify=True)
    assert opened.ids is not None
    assert list(opened.ids) == ids
    assert opened.index_of(ids[::-1]).tolist() == [3, 2, 1, 0]
    assert fingerprint_graph(opened) == fingerprint_graph(graph)
    again = og.save_graph(opened, tmp_path / "again")
    assert again.ids is not None
    assert list(again.ids) == ids


def broken_ids() -> dict[str, Callable[[], NodeIds]]:
    """Ids of which something is wrong."""
    texts, numbers = make_ids(["a", "b", "cc", "d"]), make_ids([4, 2, 9, 7])
    held = {"offsets": texts.offsets, "data": texts.data, "hashes": texts.hashes}
    same = make_ids(["a", "b", "c"])
    assert texts.hashes is not None
    assert same.offsets is not None

    def texts_with(**changes: Any) -> NodeIds:
        order = changes.pop("order", texts.order)
        return NodeIds(order, **{**held, **changes})

    def repeated() -> NodeIds:
        data = torch.tensor(list(b"aba"), dtype=torch.uint8)
        hashes = np.empty(3, np.uint64)
        hash_texts(np.arange(4), data.numpy(), hashes)
        order = np.argsort(hashes, kind="stable")
        ordered = torch.from_numpy(hashes[order].view(np.int64))
        return NodeIds(torch.from_numpy(order), offsets=same.offsets, data=data, hashes=ordered)

    return {
        "falling ends": lambda: texts_with(offsets=torch.tensor([0, 2, 1, 4, 5])),
        "ends outside": lambda: texts_with(offsets=torch.tensor([0, 9, 9, 9, 5])),
        "other data": lambda: texts_with(offsets=torch.tensor([0, 1, 2, 4, 4])),
        "no UTF-8": lambda: texts_with(data=torch.tensor([97, 98, 255, 99, 100], dtype=torch.uint8)),
        "another text": lambda: texts_with(data=torch.tensor(list(b"abcxd"), dtype=torch.uint8)),
        "a node twice": lambda: texts_with(order=texts.order[[0, 0, 1, 2]]),
        "a node outside": lambda: texts_with(order=torch.tensor([0, 1, 2, 4])),
        "hashes out of order": lambda: texts_with(hashes=texts.hashes.flip(0), order=texts.order.flip(0)),
        "integers out of order": lambda: NodeIds(torch.tensor([0, 1, 2, 3]), values=numbers.values),
        "an integer twice": lambda: NodeIds(torch.tensor([1, 2, 0, 3]), values=torch.tensor([4, 2, 2, 7])),
        "a text twice": repeated,
        "too few": lambda: make_ids(["a"]),
    }


@pytest.mark.parametrize("what", broken_ids())
def test_broken_ids_are_refused(what: str, tmp_path: Path) -> None:
    ids = broken_ids()[what]()
    count = 3 if what == "a text twice" else 4
    graph = replace(og.from_arrays(np.arange(count)[None].repeat(2, 0), num_nodes=count), ids=ids)
    with pytest.raises(InputError, match=r"ids of the nodes are broken|occurs twice"):
        og.save_graph(graph, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_a_store_of_broken_ids_is_refused(tmp_path: Path) -> None:
    graph = graph_of(make_ids(["a", "b", "cc", "d"]))
    assert graph.ids is not None
    broken = replace(graph, ids=broken_ids()["another text"]())
    with patch("outgrow.graph.store.reader.verify_graph"):
        write_store(broken, tmp_path / "store")
    open_store(tmp_path / "store")
    with pytest.raises(StoreError, match="ids of the nodes are broken"):
        open_store(tmp_path / "store", verify=True)


def test_only_graphs_with_ids_have_them_in_their_fingerprint() -> None:
    with_ids, others = graph_of(make_ids(["a", "b"])), graph_of(make_ids(["a", "c"]))
    without = replace(with_ids, ids=None)
    assert changed_parts(fingerprint_graph(without), fingerprint_graph(with_ids)) == []
    assert changed_parts(fingerprint_graph(with_ids), fingerprint_graph(without)) == []
    assert changed_parts(fingerprint_graph(with_ids), fingerprint_graph(others)) == ["ids"]


def test_graphs_share_nodes() -> None:
    def compare(before: Sequence[int] | Sequence[str], now: Sequence[int] | Sequence[str]) -> str:
        return compare_summaries(summarize_ids(make_ids(before)), summarize_ids(make_ids(now)))

    assert compare(["a", "b", "c"], ["c", "x", "a", "y"]) == "2 nodes are new, 1 gone, 2 the same"
    assert compare([1, 2, 3], [4, 5]) == "2 nodes are new, 3 gone, 0 the same"
    assert compare(["a", "b"], ["b", "a"]) == "the same 2 ids, of other nodes"
    few, many = [f"n{i}" for i in range(20_000)], [f"n{i}" for i in range(10_000, 40_000)]
    said = compare(few, many)
    assert said.startswith("about ")
    new, gone, same = (int(word.replace(",", "")) for word in said.split() if word[0].isdigit())
    assert (new + same, gone + same) == (30_000, 20_000)
    assert abs(same - 10_000) < 3_000


def compare_neighbours_alone(texts: TextArrays, rows: Any) -> list[int]:
    """Of texts of one hash, only those beside each other are compared."""
    taken = [texts.data[texts.offsets[row] : texts.offsets[row + 1]].tobytes() for row in rows.tolist()]
    return [row for row, one, other in zip(rows.tolist()[1:], taken[1:], taken[:-1], strict=True) if one == other]


def lose_border(read_keys: Any, first: int, last: int, low: Any, high: Any) -> Any:
    """A key that borders on two ranges is in neither."""
    for nodes, keys in select_range(read_keys, first, last, low, high):
        inside = keys != low if low is not None else np.ones(len(keys), bool)
        yield nodes[inside], keys[inside]


MUTANTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "repeated_ids_among_neighbours": lambda: patch.object(TextArrays, "list_repeated", compare_neighbours_alone),
    "ids_at_borders_of_ranges_lost": lambda: patch.object(id_order, "_select_range", lose_border),
}
BROKEN_BY = dict(zip(MUTANTS, (compare_neighbours_alone, lose_border), strict=True))


def is_order_kept(folder: Path) -> bool:
    """Whether ids are found, and those that occur twice counted, with few hashes and in little memory."""
    with collide():
        try:
            make_ids([*"abcdefghij"] * 3)
        except InputError as error:
            if not error.got.startswith("20 repetitions"):
                return False
    ids = [f"node {at}" for at in range(300)]
    made = make_ids(ids, scratch=folder, memory_bytes=1000)
    return bool(made.find(as_arrow(ids)).tolist() == list(range(300)))


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, tmp_path: Path) -> None:
    assert is_order_kept(tmp_path)
    with MUTANTS[name]():
        assert not is_order_kept(tmp_path)


def test_integers_are_read_in_their_own_form_only() -> None:
    texts = ["7", "-12", "0", "007", "+7", "-0", "1.0", "", "a", str(2**63 - 1), str(2**63), str(-(2**63))]
    values, known = to_integers(pa.array(texts, pa.large_string()))
    assert [text for text, is_known in zip(texts, known, strict=True) if is_known] == [*texts[:3], texts[9], texts[11]]
    assert values[known].tolist() == [7, -12, 0, 2**63 - 1, -(2**63)]
