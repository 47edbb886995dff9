"""Features of several types of nodes, and the data set that has them."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import coo_array, csr_array, save_npz

from outgrow.core.errors import InputError
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.readers.heco import HecoSource
from outgrow.graph.readers.matrices import RANDOM_WIDTH, block_diagonal_features, draw_type_vectors


def test_every_type_has_columns_of_its_own() -> None:
    rows = block_diagonal_features(
        ("a", "b", "c"), (2, 1, 2), (np.ones((2, 3)), csr_array([[0.0, 5.0]]), None)
    ).toarray()
    assert rows.shape == (5, 3 + 2 + RANDOM_WIDTH)
    assert rows[:2, :3].tolist() == [[1, 1, 1]] * 2
    assert rows[2, 3:5].tolist() == [0, 5]
    assert np.array_equal(rows[3:, 5:], draw_type_vectors("c", 2))
    assert not rows[:2, 3:].any()
    assert not rows[2:, :3].any()
    assert not rows[3:, :5].any()


def test_vectors_are_those_of_the_name() -> None:
    ours, longer = draw_type_vectors("author", 50), draw_type_vectors("author", 60)
    assert np.array_equal(ours, draw_type_vectors("author", 50))
    assert np.array_equal(ours, longer[:50])
    assert not np.array_equal(ours, draw_type_vectors("venue", 50))
    assert abs(np.linalg.norm(ours, axis=1).mean() - 1) < 0.1


def folder_of(path: Path) -> Path:
    """Two papers, three authors, two subjects."""
    save_npz(path / "p_feat.npz", csr_array([[1.0, 0, 2], [0, 3, 0]]))
    save_npz(path / "a_feat.npz", coo_array([[1.0, 0], [0, 1], [1, 1]]))
    (path / "pa.txt").write_text("0\t2\n1\t0\n1\t1\n")
    (path / "ps.txt").write_text("0\t1\n1\t0\n")
    np.save(path / "labels.npy", np.array([1.0, 0.0]))
    for name, nodes in (("train", [0]), ("val", [1]), ("test", [])):
        np.save(path / f"{name}_60.npy", np.array(nodes, dtype=np.int64))
    return path


def test_the_folder_of_heco(tmp_path: Path) -> None:
    graph = assemble_graph(HecoSource(folder_of(tmp_path), "acm"))
    assert [(each.name, each.first, each.last) for each in graph.node_types] == [
        ("paper", 0, 2),
        ("author", 2, 5),
        ("subject", 5, 7),
    ]
    topology = graph.topology
    ends = topology.indptr.tolist()
    edges = [
        (int(topology.indices[e]), v, int(topology.relation[e]))  # type: ignore[index]
        for v in range(7)
        for e in range(ends[v], ends[v + 1])
    ]
    assert sorted(edges) == [(0, 4, 0), (0, 6, 1), (1, 2, 0), (1, 3, 0), (1, 5, 1)]
    assert graph.labels is not None
    assert graph.labels.tolist() == [1, 0, -1, -1, -1, -1, -1]
    assert graph.num_features == 3 + 2 + RANDOM_WIDTH
    assert graph.split.train.tolist() == [0]


@pytest.mark.parametrize("file", ["p_feat.npz", "pa.txt", "labels.npy"])
def test_a_broken_file_is_named(tmp_path: Path, file: str) -> None:
    (folder_of(tmp_path) / file).write_text("0 1 2\n3")
    with pytest.raises(InputError, match=file):
        assemble_graph(HecoSource(tmp_path, "acm"))
