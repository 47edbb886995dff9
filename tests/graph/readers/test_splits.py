"""Splits that are drawn have exact shares, in all and nearly so in each class, whatever the order of nodes."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.graph.readers.splits import (
    PART_WORDS,
    SplitRequest,
    draw_split,
    parse_split,
    select_parts,
    split_by_time,
    split_by_words,
    splits_of_masks,
)
from outgrow.graph.readers.tables.split_files import find_split_files
from outgrow.graph.store.fingerprint import fingerprint_graph

SHARES = st.sampled_from(["0.6,0.2,0.2", "0.1,0.1,0.8", "1,0,0", "0.5,0.25,0.25", "0.333,0.333,0.333", "1/3,1/3,1/3"])


def sizes(parts: Any) -> list[int]:
    return [len(part) for part in parts]


@given(st.lists(st.integers(-1, 6), min_size=1, max_size=200), SHARES, st.integers(0, 3))
def test_shares_are_exact(labels: list[int], shares: str, seed: int) -> None:
    values = np.array(labels)
    request = parse_split(shares, seed)
    parts = draw_split(values, np.arange(len(values)), request)
    known = np.flatnonzero(values >= 0)
    ends = [int(sum(request.shares[: at + 1]) * len(known) + Fraction(1, 2)) for at in range(3)]
    assert sizes(parts) == np.diff(ends, prepend=0).tolist()
    drawn = np.concatenate(parts)
    assert len(np.unique(drawn)) == len(drawn)
    assert np.isin(drawn, known).all()
    for label in np.unique(values[known]):
        count = int((values == label).sum())
        for part, share in zip(parts, request.shares, strict=True):
            assert abs(int((values[part] == label).sum()) - share * count) < 2


@given(st.lists(st.integers(-1, 4), min_size=3, max_size=60), SHARES, st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_matter(labels: list[int], shares: str, random: Any) -> None:
    values = np.array(labels)
    keys = np.arange(len(values)) * 7919 + 13
    order = np.array(random.sample(range(len(values)), len(values)))
    request = parse_split(shares)
    one = draw_split(values, keys, request)
    other = draw_split(values[order], keys[order], request)
    for a, b in zip(one, other, strict=True):
        assert {*keys[a].tolist()} == {*keys[order][b].tolist()}


def test_classes_of_many_nodes_have_their_shares() -> None:
    labels = np.repeat([0, 1, 2, 3], [500, 300, 150, 50])
    for part, share in zip(draw_split(labels, np.arange(1000), parse_split("0.6,0.2,0.2")), (6, 2, 2), strict=True):
        assert np.bincount(labels[part]).tolist() == [50 * share, 30 * share, 15 * share, 5 * share]


def test_another_seed_draws_another_split() -> None:
    keys = np.arange(100)
    drawn = [draw_split(None, keys, parse_split("0.5,0.25,0.25", seed))[0] for seed in (0, 0, 1)]
    assert drawn[0].tolist() == drawn[1].tolist() != drawn[2].tolist()


@pytest.mark.parametrize(
    ("labels", "count"),
    [(np.array([0.5, np.nan, 1.5, 2.5]), 3), (np.eye(4, 2), 4), (np.array([[1], [0], [1], [-1]]), 3), (None, 4)],
)
def test_only_nodes_with_a_label_are_drawn(labels: Any, count: int) -> None:
    assert sum(sizes(draw_split(labels, np.arange(4), parse_split("1,0,0")))) == count


@given(st.lists(st.integers(0, 5), min_size=1, max_size=50), SHARES)
def test_the_earliest_train(times: list[int], shares: str) -> None:
    values, request = np.array(times), parse_split(f"time:t:{shares}")
    assert request.column == "t"
    known = np.ones(len(values), bool)
    parts = split_by_time(values, np.arange(len(values)), known, request)
    for before, after in ((0, 1), (1, 2), (0, 2)):
        if len(parts[before]) and len(parts[after]):
            assert values[parts[before]].max() <= values[parts[after]].min()
    assert sizes(parts) == sizes(draw_split(None, np.arange(len(values)), request))
    order = np.argsort(values, kind="stable")[::-1].copy()
    again = split_by_time(values[order], order, known, request)
    assert [np.sort(order[part]).tolist() for part in again] == [part.tolist() for part in parts]


def test_words_of_a_split() -> None:
    words = ["Train", "VALID", "test ", "validation", "none", "val"]
    train, val, test = split_by_words(np.array([0, 1, 2, 3, 4, 5, -1]), words, "here")
    assert (train.tolist(), val.tolist(), test.tolist()) == ([0], [1, 3, 5], [2])


@pytest.mark.parametrize(
    "text", ["0.6,0.2", "0.6,0.3,0.2", "0,0.5,0.5", "-1,1,1", "a,b,c", "time:x", "time::1,0,0", "1/0,0,0"]
)
def test_a_split_that_cannot_be_read(text: str) -> None:
    with pytest.raises(InputError, match="the split cannot be read"):
        parse_split(text)


def test_kinds_of_splits() -> None:
    assert [parse_split(text).kind for text in ("", "files", "fold", "0.5,0.5,0")] == [
        "given",
        "files",
        "column",
        "shares",
    ]
    assert parse_split("time:a:b:1,0,0").column == "a:b"


@given(st.integers(3, 30), st.integers(1, 5), st.booleans(), st.booleans())
def test_tables_of_masks(nodes: int, count: int, across: bool, as_bytes: bool) -> None:
    part = np.random.default_rng(nodes).integers(0, 3, (count, nodes))
    masks: dict[str, Any] = {name: part == at for at, name in enumerate(("train", "val", "test"))}
    given_masks = {
        name: (mask if across else mask.T).astype(np.uint8 if as_bytes else bool) for name, mask in masks.items()
    }
    if nodes == count and across:
        return
    splits = splits_of_masks(given_masks, nodes, "here")
    assert len(splits) == count
    for at, parts in enumerate(splits):
        for name, mask in zip(masks, parts, strict=True):
            assert mask.dtype == bool
            assert (mask == masks[name][at]).all()


def test_one_test_mask_beside_several_others() -> None:
    masks = {"train": np.eye(5, 3, dtype=bool), "val": None, "test": np.eye(5, dtype=bool)[4]}
    splits = splits_of_masks(masks, 5, "here")
    assert len(splits) == 3
    assert all((parts[2] == masks["test"]).all() for parts in splits)
    with pytest.raises(InputError, match="do not fit each other"):
        splits_of_masks({"train": np.eye(5, 3, dtype=bool), "val": np.eye(5, 2, dtype=bool)}, 5, "here")
    with pytest.raises(InputError, match="has the wrong form"):
        splits_of_masks({"train": np.full((5, 2), 2)}, 5, "here")
    with pytest.raises(InputError, match="no split 3"):
        select_parts(splits, 3, "here")


def test_masks_of_arrays_are_all_splits() -> None:
    nodes = 12
    part = np.random.default_rng(0).integers(0, 3, (nodes, 4))
    given_split = {"train": part == 0, "val": part == 1, "test": part == 2}
    graph = og.from_arrays(np.array([[0, 1], [1, 2]]), features=np.ones((nodes, 2)), split=given_split)
    assert len(graph.splits) == 4
    for at in range(4):
        chosen = graph.select_split(at)
        assert chosen.split.train.tolist() == np.flatnonzero(part[:, at] == 0).tolist()
    single = {name: mask[:, 2] for name, mask in given_split.items()}
    alone = og.from_arrays(np.array([[0, 1], [1, 2]]), features=np.ones((nodes, 2)), split=single)
    assert not alone.splits
    # A run goes on with a store of one split that began with one of several, if the split is the same.
    assert fingerprint_graph(alone) == fingerprint_graph(graph.select_split(2)) != fingerprint_graph(graph)


def test_masks_of_pyg_are_all_splits(tmp_path: Path) -> None:
    data = pytest.importorskip("torch_geometric.data")
    import torch

    masks = torch.rand(6, 3, generator=torch.Generator().manual_seed(0)) < 0.5
    made = data.Data(x=torch.eye(6), y=torch.arange(6) % 2, edge_index=torch.tensor([[0, 1], [1, 2]]))
    made.train_mask, made.test_mask = masks, torch.arange(6) == 5
    made.train_mask[5] = False
    made.val_mask = ~masks & (torch.arange(6) < 5)[:, None]
    graph = og.load(made, split_index=1)
    assert len(graph.splits) == 3
    assert graph.split.train.tolist() == masks[:, 1].nonzero()[:, 0].tolist()
    assert all(split.test.tolist() == [5] for split in graph.splits)
    stored = og.save_graph(graph, tmp_path / "store")
    assert [split.val.tolist() for split in stored.splits] == [split.val.tolist() for split in graph.splits]
    assert og.load(tmp_path / "store", split_index=2).split.train.tolist() == graph.splits[2].train.tolist()
    drawn = og.load(made, split="0.5,0.5,0")
    assert not drawn.splits
    assert [len(part) for part in (drawn.split.train, drawn.split.val, drawn.split.test)] == [3, 3, 0]
    with pytest.raises(InputError, match="does not take these options"):
        og.load(made, label="y")
    with pytest.raises(InputError, match="no node table"):
        og.load(made, split="files")


def test_data_sets_by_name_are_split_anew(tmp_path: Path) -> None:
    graph = og.load("rmat-5", split="0.5,0.25,0.25", split_seed=3)
    counts = [len(part) for part in (graph.split.train, graph.split.val, graph.split.test)]
    assert sum(counts) == graph.num_nodes
    assert counts[0] == round(graph.num_nodes / 2)
    np.savez(tmp_path / "edges.npz", edge_index=np.array([[0, 1], [1, 2]]))
    with pytest.raises(InputError, match="tells nothing of its nodes"):
        og.load(tmp_path / "edges.npz", split="0.5,0.25,0.25")
    np.savez(tmp_path / "unknown.npz", edge_index=np.array([[0, 1], [1, 2]]), label=np.full(3, -1))
    with pytest.raises(InputError, match="names nobody"):
        og.load(tmp_path / "unknown.npz", split="0.5,0.25,0.25")


def test_no_split_has_nodes_without_a_label() -> None:
    masks = np.array([[True, False], [False, True], [False, False]])
    with pytest.raises(InputError, match="without a label"):
        og.from_arrays(np.array([[0], [1]]), labels=np.array([0, -1, 1]), split={"train": masks})


def test_a_request_names_its_shares() -> None:
    assert parse_split(" 0.1,0.2,0.3 ").shares == (Fraction(1, 10), Fraction(1, 5), Fraction(3, 10))
    assert SplitRequest().kind == "given"


def test_files_of_parts_have_the_words_that_columns_have(tmp_path: Path) -> None:
    for word in PART_WORDS:
        folder = tmp_path / word
        folder.mkdir()
        (folder / f"{word}.txt").write_text("1\n")
        assert find_split_files(folder) == [{PART_WORDS[word]: folder / f"{word}.txt"}]
