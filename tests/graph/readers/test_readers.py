"""Readers of files and objects: what they read, and what they refuse."""

import gzip
import pickle
import zipfile

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from scipy.sparse import csr_array, csr_matrix

from graph.handmade import edges_of
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import DataWarning
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.readers import npz_archive
from outgrow.graph.readers import planetoid as planetoid_reader
from outgrow.graph.readers.detect import FolderSource, detect_reader
from outgrow.graph.readers.npz import NpzSource
from outgrow.graph.readers.ogb import OgbSource
from outgrow.graph.readers.planetoid import PlanetoidSource
from outgrow.graph.readers.tables.edge_table import EdgeTableSource
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.ops.sparse import SparseRows

INDEX = np.array([[0, 1, 2, 2], [1, 2, 0, 1]])


def pairs(graph):
    return [edge[:2] for edge in edges_of(graph)]


def npz(path, *, save=np.savez, **changes):
    known = {
        "edge_index": INDEX.astype(np.int32),
        "label": np.array([0, 1, 0]),
        "feat_data": np.ones(1, np.float32),
        "feat_indices": np.array([0, 3, 1], np.int16),
        "feat_indptr": np.array([0, 2, 2, 3]),
        "feat_shape": np.array([3, 16]),
        "train_idx": np.array([0]),
        "val_idx": np.array([1]),
        "test_idx": np.array([2]),
        "class_names": np.array(["no", "yes"]),
    }
    save(path, **{key: value for key, value in {**known, **changes}.items() if value is not None})
    return path


@pytest.mark.parametrize("large", [0, 1 << 26], ids=["mapped", "read"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, monkeypatch, save, large):
    monkeypatch.setattr(npz_archive, "_LARGE_BYTES", large)
    made = assemble_graph(NpzSource(npz(tmp_path / "g.npz", save=save)))
    assert made.name == "g"
    assert pairs(made) == [(2, 0), (0, 1), (2, 1), (1, 2)]
    assert isinstance(made.features, SparseRows)
    assert made.features.indices.tolist() == [0, 3, 1]
    assert made.features.values.tolist() == [1, 1, 1]
    assert made.labels.tolist() == [0, 1, 0]
    assert made.class_names == ("no", "yes")
    assert [part.tolist() for part in (made.split.train, made.split.val, made.split.test)] == [[0], [1], [2]]


def test_npz_with_types_weights_and_dense_features(tmp_path):
    dense = np.arange(6, dtype=np.float64).reshape(3, 2)
    path = npz(
        tmp_path / "g.npz",
        **dict.fromkeys(("feat_data", "feat_indices", "feat_indptr", "feat_shape")),
        features=dense,
        edge_type=np.array([1, 0, 0, 1]),
        edge_weight=np.array([1.0, 2, 3, 4]),
        rel_names=np.array(["r", "s"]),
    )
    made = assemble_graph(NpzSource(path, "named"))
    assert made.name == "named"
    assert made.relation_names == ("r", "s")
    assert edges_of(made) == [(2, 0, 0, 3.0), (0, 1, 1, 1.0), (2, 1, 1, 4.0), (1, 2, 0, 2.0)]
    assert torch.equal(made.features, torch.from_numpy(dense))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"edge_index": None}, "has no edge_index"),
        ({"edge_index": INDEX.T}, "edges of .* wrong form"),
        ({"edge_index": INDEX * 0.5}, "edges of .* wrong form"),
        ({"edge_type": np.zeros(3, int)}, "edges of .* wrong form"),
        ({"edge_weight": np.array(list("abcd"))}, "edges of .* wrong form"),
        ({"feat_shape": None}, "has no feat_shape"),
        ({"feat_indptr": np.array([0, 2])}, "sparse features"),
        ({"label": np.array([None, 1, 2])}, "cannot be read"),
    ],
)
def test_bad_npz(tmp_path, changes, what):
    with pytest.raises(InputError, match=what):
        assemble_graph(NpzSource(npz(tmp_path / "g.npz", **changes)))


def test_damaged_npz(tmp_path):
    path = npz(tmp_path / "g.npz")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="cannot be read"):
        assemble_graph(NpzSource(path))
    path.write_bytes(content.replace(INDEX.astype(np.int32).tobytes(), INDEX.astype(np.int32).tobytes()[::-1]))
    with pytest.raises(InputError, match="cannot be read"):
        assemble_graph(NpzSource(path))
    with zipfile.ZipFile(path, "w"):
        pass
    with pytest.raises(InputError, match="has no edge_index"):
        assemble_graph(NpzSource(path))


class Evil:
    def __reduce__(self):
        return (eval, ("1/0",))


def planetoid(folder, **changes):
    """Five nodes: 0 and 1 to train on, 4 and 2 to test on, and 3 without a row."""
    rows = csr_matrix(np.eye(2, 9, dtype=np.float32))
    hot = np.eye(2, dtype=np.int32)
    parts = {
        "x": rows,
        "y": hot,
        "allx": rows,
        "ally": hot,
        "tx": csr_matrix(([5, 6], ([0, 1], [2, 1])), (2, 9), dtype=np.float32),
        "ty": hot[::-1].copy(),
        "graph": {0: [1, 1, 0], 1: [0], 2: [4], 3: [], 4: [3]},
        **changes,
    }
    folder.mkdir(exist_ok=True)
    for part, value in parts.items():
        (folder / f"ind.tiny.{part}").write_bytes(pickle.dumps(value, protocol=2))
    (folder / "ind.tiny.test.index").write_text("4\n2\n")
    return folder


def test_planetoid(tmp_path, monkeypatch):
    monkeypatch.setattr(planetoid_reader, "_NUM_VAL", 0)
    made = assemble_graph(PlanetoidSource(planetoid(tmp_path / "p"), "tiny"))
    assert pairs(made) == [(1, 0), (0, 1), (4, 2), (4, 3), (2, 4), (3, 4)]
    assert made.features.indptr.tolist() == [0, 1, 2, 3, 3, 4]
    assert made.features.values.tolist() == [1, 1, 6, 5]
    assert made.labels.tolist() == [0, 1, 0, -1, 1]
    assert made.split.train.tolist() == [0, 1]
    assert made.split.test.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("part", "value", "what"),
    [("graph", Evil(), "no graph needs"), ("allx", [1], "cannot be read"), ("ty", "words", "cannot be read")],
)
def test_bad_planetoid(tmp_path, monkeypatch, part, value, what):
    monkeypatch.setattr(planetoid_reader, "_NUM_VAL", 0)
    folder = planetoid(tmp_path / "p", **{part: value})
    with pytest.raises(InputError, match=what):
        assemble_graph(PlanetoidSource(folder, "tiny"))
    (folder / f"ind.tiny.{part}").write_bytes(b"\x80\x02garbage")
    with pytest.raises(InputError, match=f"ind.tiny.{part} cannot be read"):
        assemble_graph(PlanetoidSource(folder, "tiny"))
    (folder / f"ind.tiny.{part}").unlink()
    with pytest.raises(InputError, match=f"ind.tiny.{part} cannot be read"):
        assemble_graph(PlanetoidSource(folder, "tiny"))


def test_parquet(tmp_path):
    columns = {"Target": pa.array([1, 2, 0, 1], pa.int8()), "note": list("abcd"), "Source": [0, 1, 2, 2]}
    parquet.write_table(pa.table({**columns, "weight": [1, 2, 3, 4], "type": [1, 0, 0, 1]}), tmp_path / "e.parquet")
    with pytest.warns(DataWarning, match="not read: note, of e"):
        made = assemble_graph(EdgeTableSource(tmp_path / "e.parquet", TableOptions(num_nodes=5)))
    assert edges_of(made) == [(2, 0, 0, 3.0), (0, 1, 1, 1.0), (2, 1, 1, 4.0), (1, 2, 0, 2.0)]
    assert made.num_nodes == 5


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ({"src": [0, None, 1], "dst": [0, 1, 2]}, "row 1, column src: no value"),
        ({"src": [0.5], "dst": [1]}, "integers"),
        ({"src": [["a"]], "dst": [1]}, "integers or texts"),
        ({"src": pa.array([2**63], pa.uint64()), "dst": [1]}, "row group 0, row 0, column src: not an integer"),
        ({"src": [0], "weight": [1]}, "no column for dst"),
    ],
)
def test_bad_parquet(tmp_path, table, what):
    parquet.write_table(pa.table(table), tmp_path / "e.parquet")
    with pytest.raises(InputError, match=what):
        assemble_graph(EdgeTableSource(tmp_path / "e.parquet"))
    (tmp_path / "e.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="cannot be read"):
        assemble_graph(EdgeTableSource(tmp_path / "e.parquet"))


def ogb(folder, **changes):
    files = {
        "raw/edge.csv.gz": "0,1\n1,2\n2,0\n2,1\n",
        "raw/num-node-list.csv.gz": "3\n",
        "raw/node-feat.csv.gz": "0.5,1\n-1e3,2\n0,3\n",
        "raw/node-label.csv.gz": "1\nnan\n0\n",
        "split/time/train.csv.gz": "2\n",
        "split/time/valid.csv.gz": "",
        "split/time/test.csv.gz": "0\n",
        **changes,
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))
    return folder


def test_ogb(tmp_path):
    made = assemble_graph(OgbSource(ogb(tmp_path / "ogbn_tiny")))
    assert made.name == "ogbn-tiny"
    assert pairs(made) == [(2, 0), (0, 1), (2, 1), (1, 2)]
    assert made.features.tolist() == [[0.5, 1], [-1000, 2], [0, 3]]
    assert made.labels.tolist() == [1, -1, 0]
    assert [part.tolist() for part in (made.split.train, made.split.val, made.split.test)] == [[2], [], [0]]


def test_ogb_multi_label_and_binary(tmp_path):
    folder = ogb(tmp_path / "a", **{"raw/node-label.csv.gz": "1,0\n0,0\n1,1\n"})
    assert assemble_graph(OgbSource(folder)).labels.tolist() == [[1, 0], [0, 0], [1, 1]]
    folder = ogb(tmp_path / "b")
    for path in (folder / "raw").iterdir():
        path.unlink()
    counts = np.array([3])
    np.savez(folder / "raw" / "data.npz", edge_index=INDEX, num_nodes_list=counts, node_feat=np.ones((3, 2), "f2"))
    np.savez(folder / "raw" / "node-label.npz", node_label=np.array([[1.0], [np.nan], [0.0]], "f4"))
    made = assemble_graph(OgbSource(folder))
    assert pairs(made) == [(2, 0), (0, 1), (2, 1), (1, 2)]
    assert made.labels.tolist() == [1, -1, 0]
    assert made.features.dtype == torch.float16


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"raw/node-feat.csv.gz": "0,1\n2,x\n0,0\n"}, "line 2"),
        ({"raw/node-feat.csv.gz": "0,1\n\n2\n0,0\n"}, "line 3"),
        ({"raw/node-feat.csv.gz": "0,1\n2,nan\n0,0\n"}, "not finite"),
        ({"raw/node-label.csv.gz": "0\ninf\n2\n"}, "needed: +finite"),
        ({"raw/num-node-list.csv.gz": "3\n4\n"}, "not one graph"),
        ({"split/other/train.csv.gz": "0\n"}, "several splits"),
        ({"raw/relations/edge.csv.gz": ""}, "several types"),
    ],
)
def test_bad_ogb(tmp_path, changes, what):
    with pytest.raises(InputError, match=what):
        assemble_graph(OgbSource(ogb(tmp_path / "o", **changes)))


def test_the_reader_is_chosen_by_the_path(tmp_path):
    npz(tmp_path / "g.npz")
    for name in ("e.csv", "e.txt", "e.tsv"):
        (tmp_path / name).write_text("0 1\n")
    (tmp_path / "e.csv.gz").write_bytes(gzip.compress(b"0 1\n"))
    parquet.write_table(pa.table({"src": [0], "dst": [1]}), tmp_path / "e.parquet")
    assert isinstance(detect_reader(tmp_path / "g.npz"), NpzSource)
    for name in ("e.csv", "e.txt", "e.tsv", "e.csv.gz"):
        assert isinstance(detect_reader(tmp_path / name, TableOptions(num_nodes=4)), EdgeTableSource)
    assert isinstance(detect_reader(tmp_path / "e.parquet", TableOptions(relabel=True)), EdgeTableSource)
    assert isinstance(detect_reader(planetoid(tmp_path / "p")), PlanetoidSource)
    assert isinstance(detect_reader(ogb(tmp_path / "o")), OgbSource)


@pytest.mark.parametrize("table", ["edges.csv", "edges.tsv.gz", "edges.parquet"])
def test_a_folder_with_edges_and_nodes(tmp_path, table):
    folder = tmp_path / "mine"
    folder.mkdir()
    npz(folder / "nodes.npz", edge_index=None)
    text = "".join(f"{src}\t{dst}\n" for src, dst in INDEX.T).encode()
    if table.endswith("parquet"):
        parquet.write_table(pa.table({"src": INDEX[0], "dst": INDEX[1]}), folder / table)
    else:
        (folder / table).write_bytes(gzip.compress(text) if table.endswith("gz") else text)
    source = detect_reader(folder)
    assert isinstance(source, FolderSource)
    made = assemble_graph(source)
    assert made.name == "mine"
    assert pairs(made) == [(2, 0), (0, 1), (2, 1), (1, 2)]
    assert made.num_classes == 2


def test_unknown_forms_are_refused(tmp_path):
    (tmp_path / "cat.jpg").touch()
    (tmp_path / "folder").mkdir()
    npz(tmp_path / "g.npz")
    for name, what in (("cat.jpg", "no known form"), ("folder", "no known form"), ("nothing", "does not exist")):
        with pytest.raises(InputError, match=what) as caught:
            detect_reader(tmp_path / name)
        assert "edge table" in caught.value.needed
    with pytest.raises(InputError, match="does not take these options"):
        detect_reader(tmp_path / "g.npz", TableOptions(relabel=True))


COUNTS = {
    "amazon_photo.npz": (7650, 143_663, 745, 8, (4590, 1530, 1530)),
    "coauthor_cs.npz": (18_333, 163_788, 6805, 15, (10_999, 3667, 3667)),
    "wordnet.npz": (117_659, 364_552, 6900, 45, (58_829, 29_415, 29_415)),
    "debian.npz": (63_436, 342_324, 3780, 50, (31_540, 15_770, 15_771)),
    "planetoid_cora": (2708, 2 * 5278, 1433, 7, (140, 500, 1000)),
    "planetoid_citeseer": (3327, 2 * 4552, 3703, 6, (120, 500, 1000)),
}


@pytest.mark.filterwarnings("ignore:not read")
@pytest.mark.parametrize("name", COUNTS)
def test_real_graphs_have_the_published_counts(data_dir, name):
    path = data_dir / name
    if not path.exists():
        pytest.skip(f"{path} is missing")
    made = assemble_graph(detect_reader(path))
    assert made.sparse == (name != "amazon_photo.npz")
    split = tuple(map(len, (made.split.train, made.split.val, made.split.test)))
    assert (made.num_nodes, made.num_edges, made.num_features, made.num_classes, split) == COUNTS[name]
    assert made.num_relations == {"wordnet.npz": 26, "debian.npz": 5}.get(name, 0)
    if name == "planetoid_citeseer":
        empty = made.features.indptr.diff() == 0
        assert int((made.labels == -1).sum()) == 15
        assert bool(empty[made.labels == -1].all())


def test_sparse_matrices_of_any_version_are_read(tmp_path):
    """`csr_array` pickles under another name than the matrices of Planetoid, and is refused."""
    folder = planetoid(tmp_path / "p", allx=csr_array(np.eye(2, 9, dtype=np.float32)))
    with pytest.raises(InputError, match="no graph needs"):
        assemble_graph(PlanetoidSource(folder, "tiny"))
