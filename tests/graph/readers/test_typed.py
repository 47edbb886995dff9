"""Features of several types of nodes, and the data set that has them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, save_npz

from outgrow.core.errors import InputError
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.readers.heco import HecoSource
from outgrow.graph.readers.matrices import block_diagonal_features
from outgrow.graph.readers.source import BlockFeatures


def as_dense(rows: csr_array | BlockFeatures) -> NDArray[Any]:
    if isinstance(rows, csr_array):
        return rows.toarray()
    out, column = np.zeros(rows.shape), 0
    for first, part in rows.parts:
        out[first : first + len(part), column : column + part.shape[1]] = part
        column += part.shape[1]
    return out


def test_every_type_has_columns_of_its_own() -> None:
    rows = as_dense(block_diagonal_features((2, 1, 2), (np.ones((2, 3)), csr_array([[0.0, 5.0]]), None)))
    assert rows.tolist() == [[1, 1, 1, 0, 0]] * 2 + [[0, 0, 0, 0, 5]] + [[0] * 5] * 2


@pytest.mark.parametrize(("filled", "form"), [(8, BlockFeatures), (3, BlockFeatures), (2, csr_array)])
def test_types_are_dense_where_a_quarter_of_their_numbers_are_not_zero(filled: int, form: type) -> None:
    """Of both types together, given dense or not; a type without features counts for nothing."""
    numbers = np.zeros(10)
    numbers[:filled] = np.arange(filled) + 1
    parts = numbers[:6].reshape(2, 3), None, csr_array(numbers[6:].reshape(2, 2))
    rows = block_diagonal_features((2, 90, 2), parts)
    assert isinstance(rows, form)
    dense = as_dense(rows)
    assert dense.shape == (94, 5)
    assert np.array_equal(dense[:2, :3], parts[0])
    assert np.array_equal(dense[92:, 3:], parts[2].toarray())
    assert np.count_nonzero(dense) == filled


def test_half_precision_is_kept_in_blocks() -> None:
    parts = np.ones((2, 3), np.float16), np.ones((1, 2), np.float16)
    assert block_diagonal_features((2, 1), parts).dtype == np.float16
    assert block_diagonal_features((2, 1), (parts[0], np.ones((1, 2), np.float32))).dtype == np.float32


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
    assert graph.num_features == 3 + 2
    assert graph.split.train.tolist() == [0]


@pytest.mark.parametrize("file", ["p_feat.npz", "pa.txt", "labels.npy"])
def test_a_broken_file_is_named(tmp_path: Path, file: str) -> None:
    (folder_of(tmp_path) / file).write_text("0 1 2\n3")
    with pytest.raises(InputError, match=file):
        assemble_graph(HecoSource(tmp_path, "acm"))
