import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.core.errors import InputError
from outgrow.graph.synthetic.node_features import SyntheticNodes
from outgrow.graph.synthetic.rmat import RMat
from outgrow.ops.rng import permute_range


def all_edges(source):
    chunks = list(source.read_edges())
    return np.concatenate([c.src for c in chunks]), np.concatenate([c.dst for c in chunks])


@given(n=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=60)
def test_a_permutation_reaches_every_number_once(n, key):
    images = permute_range(0, n, n, key)
    assert np.array_equal(np.sort(images), np.arange(n))
    assert np.array_equal(permute_range(n // 3, n // 2, n, key), images[n // 3 : n // 2])


def test_a_permutation_mixes_and_depends_on_its_key():
    n = 100_003
    images = permute_range(0, n, n, 1)
    assert abs(np.corrcoef(np.arange(n), images)[0, 1]) < 0.02
    assert (np.abs(np.diff(images)) < n / 100).mean() == pytest.approx(0.02, abs=0.01)
    assert (images == permute_range(0, n, n, 2)).mean() < 0.001


def test_counts_range_and_repeatability():
    graph = RMat(scale=12, edge_factor=8, seed=3)
    src, dst = all_edges(graph)
    assert len(src) == graph.num_edges == 8 << 12
    assert src.dtype == dst.dtype == np.int64
    assert min(src.min(), dst.min()) >= 0
    assert max(src.max(), dst.max()) < graph.num_nodes == 1 << 12
    assert all(np.array_equal(a, b) for a, b in zip((src, dst), all_edges(graph), strict=True))
    assert not np.array_equal(src, all_edges(RMat(scale=12, edge_factor=8, seed=4))[0])


def test_chunks_join_to_the_same_edges(monkeypatch):
    whole = all_edges(RMat(scale=10, edge_factor=5))
    monkeypatch.setattr("outgrow.graph.synthetic.rmat.CHUNK_EDGES", 777)
    chunks = list(RMat(scale=10, edge_factor=5).read_edges())
    assert max(len(chunk.src) for chunk in chunks) == 777
    assert np.array_equal(np.concatenate([chunk.src for chunk in chunks]), whole[0])
    assert np.array_equal(np.concatenate([chunk.dst for chunk in chunks]), whole[1])


def test_threads_do_not_matter():
    before = numba.get_num_threads()
    many = all_edges(RMat(scale=13))
    numba.set_num_threads(1)
    try:
        one = all_edges(RMat(scale=13))
    finally:
        numba.set_num_threads(before)
    assert np.array_equal(many[0], one[0])
    assert np.array_equal(many[1], one[1])


@pytest.mark.parametrize("level", [0, 1, 7, 10])
def test_each_level_falls_into_the_quarters_with_their_probabilities(level):
    """Edges of an R-MAT without scrambling are sums of independent draws, one for each bit of the two ids."""
    scale, seed = 11, 5
    graph = RMat(scale=scale, edge_factor=64, seed=seed, quarters=(0.5, 0.25, 0.15))
    src, dst = all_edges(graph)
    unscrambled = unscramble(graph, seed)
    row, column = unscrambled[src] >> level & 1, unscrambled[dst] >> level & 1
    shares = np.bincount(row * 2 + column, minlength=4) / len(src)
    assert shares == pytest.approx([0.5, 0.25, 0.15, 0.1], abs=5 * 0.5 / np.sqrt(len(src)))


def test_degrees_are_skewed():
    src, _ = all_edges(RMat(scale=14, edge_factor=16))
    degrees = np.sort(np.bincount(src, minlength=1 << 14))[::-1]
    assert degrees[: len(degrees) // 100].sum() > 0.15 * len(src)
    even = np.bincount(all_edges(RMat(scale=14, quarters=(0.25, 0.25, 0.25)))[0])
    assert even.max() < 60 < degrees[0]


def test_a_signal_adds_labels_features_and_a_split():
    signal = SyntheticNodes(classes=5, features=12, shares=(0.5, 0.2, 0.1))
    tables = RMat(scale=9, node_spec=signal).read_tables()
    assert tables.num_nodes == 512
    assert np.asarray(tables.features).shape == (512, 12)
    assert set(tables.labels) == set(range(5))
    assert [len(part) for part in (tables.train, tables.val, tables.test)] == [256, 102, 51]
    assert RMat(scale=9).read_tables().features is None


@pytest.mark.parametrize("options", [{"scale": 0}, {"scale": 41}, {"scale": 5, "edge_factor": 0}])
def test_wrong_numbers_are_refused(options):
    with pytest.raises(InputError, match="R-MAT"):
        RMat(**options)


@pytest.mark.parametrize("quarters", [(0.5, 0.5, 0.1), (-0.1, 0.5, 0.1)])
def test_wrong_probabilities_are_refused(quarters):
    with pytest.raises(InputError, match="sum of at most 1"):
        RMat(scale=4, quarters=quarters)


def unscramble(graph, seed):
    from outgrow.graph.synthetic import rmat
    from outgrow.ops.rng import fold_in

    names = permute_range(0, graph.num_nodes, graph.num_nodes, fold_in(seed, rmat._NAMES))
    inverse = np.empty_like(names)
    inverse[names] = np.arange(len(names))
    return inverse


def test_features_of_edges_are_those_of_their_numbers(monkeypatch):
    def rows(source):
        return np.concatenate([chunk.features for chunk in source.read_edges()])

    whole = rows(RMat(scale=10, edge_factor=5, edge_features=3))
    assert whole.shape == (5 << 10, 3)
    assert abs(whole.mean()) < 0.05
    assert whole.std() == pytest.approx(1, abs=0.05)
    monkeypatch.setattr("outgrow.graph.synthetic.rmat.CHUNK_EDGES", 777)
    parts = RMat(scale=10, edge_factor=5, edge_features=3)
    assert np.array_equal(rows(parts), whole)
    assert np.array_equal(all_edges(parts)[0], all_edges(RMat(scale=10, edge_factor=5))[0])
    with pytest.raises(InputError, match="cannot be generated"):
        RMat(scale=10, edge_features=-1)
