"""Compressed rows become dense ones where few of their numbers are zero, with both builders alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from graph.handmade import source
from outgrow.graph.builders.feature_form import choose_feature_form, describe_feature_form
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.graph import Graph, GraphOrigin
from outgrow.graph.readers.matrices import DENSE_SHARE
from outgrow.graph.store.reader import open_store
from outgrow.ops.sparse import SparseRows


def make_rows(share: float, seed: int = 0) -> csr_array:
    """``[40, 25]`` float32 with this share of stored numbers, none of them zero."""
    rows = random_array((40, 25), density=share, format="csr", rng=np.random.default_rng(seed), dtype=np.float32)
    rows.data += 1
    return csr_array(rows)


def build_both(rows: csr_array, folder: Path) -> tuple[Graph, Graph]:
    """The graph in memory, and the one of a store."""
    folder.mkdir(exist_ok=True)
    convert_to_store(source(features=rows), folder / "store")
    return assemble_graph(source(features=rows)), open_store(folder / "store")


def test_rows_are_dense_from_the_threshold_on(tmp_path: Path) -> None:
    for graph in build_both(make_rows(DENSE_SHARE), tmp_path):
        assert isinstance(graph.features, torch.Tensor)
    for graph in build_both(make_rows(DENSE_SHARE - 0.01), tmp_path / "below"):
        assert isinstance(graph.features, SparseRows)
    assert isinstance(assemble_graph(source(features=csr_array((40, 25), dtype=np.float32))).features, SparseRows)


@given(share=st.floats(DENSE_SHARE, 1.0), seed=st.integers(0, 100))
@settings(deadline=None, max_examples=20)
def test_they_are_the_same_numbers(share: float, seed: int) -> None:
    rows = make_rows(share, seed)
    features = assemble_graph(source(features=rows)).features
    assert isinstance(features, torch.Tensor)
    assert features.is_contiguous()
    assert np.array_equal(features.numpy(), rows.toarray())


def test_entries_of_one_place_are_added(tmp_path: Path) -> None:
    indptr = np.arange(0, 82, 2)
    twice = csr_array((np.ones(80, np.float32), np.tile([1, 1], 40), indptr), shape=(40, 3))
    for graph in build_both(twice, tmp_path):
        assert torch.equal(graph.features, torch.tensor([[0.0, 2.0, 0.0]]).expand(40, 3))


def test_the_origin_tells_of_it() -> None:
    origin = GraphOrigin(read=(("edges", "a.npz"), ("features", "b.npz")))
    told = describe_feature_form(origin, choose_feature_form(make_rows(0.5)))
    assert told.read == (("edges", "a.npz"), ("features", "b.npz; dense, as 50% of the numbers are stored"))
    assert describe_feature_form(origin, choose_feature_form(make_rows(0.1))) == origin
