"""Files that claim more than they hold, or that are no files; what fuzzing (tests/fuzz) has found."""

import io
import os
import time
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy.sparse import csr_array, csr_matrix

from graph.readers.test_readers import INDEX, npz, planetoid
from outgrow.core.errors import InputError
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.readers import planetoid as planetoid_reader
from outgrow.graph.readers.arrays import ArraySource
from outgrow.graph.readers.detect import detect_reader
from outgrow.graph.readers.planetoid import PlanetoidSource
from outgrow.graph.readers.source import NodeTableSource
from outgrow.graph.readers.tables.options import TableOptions


def refused(path, what, **options):
    with pytest.raises(InputError, match=what) as caught:
        assemble_graph(detect_reader(path, TableOptions(**options)))
    assert len(str(caught.value)) < 2000


def npy(shape, dtype="<i8", data=b""):
    """An array whose header need not be true."""
    whole = io.BytesIO()
    np.lib.format.write_array_header_1_0(whole, {"descr": dtype, "fortran_order": False, "shape": shape})
    return whole.getvalue() + data


def with_member(path, name, content, packing=zipfile.ZIP_STORED):
    npz(path, **{name: None}, **({"feat_indptr": None} if name == "features" else {}))
    with zipfile.ZipFile(path, "a", packing) as file:
        file.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"0 4294967294\n", "leave out nearly all numbers"),
        (b"src,dst,type\n0,1,1073741823\n", "not numbered from 0"),
        (b"src,dst" + b"," * 100_000 + b"\n", "too many columns"),
        (b"0 " * 100_000 + b"\n", "too many columns"),
        (b" " * (17 << 20), "longer than any row"),
        (b"src," + b"x" * 100_000 + b"\n0,1\n", "columns of"),
    ],
)
def test_edge_lists_that_claim_all_memory(tmp_path, text, what):
    (tmp_path / "e.csv").write_bytes(text)
    refused(tmp_path / "e.csv", what)


def test_as_many_nodes_as_the_user_says(tmp_path):
    (tmp_path / "e.csv").write_bytes(b"0 9000000\n")
    refused(tmp_path / "e.csv", "leave out nearly all numbers")
    assert assemble_graph(detect_reader(tmp_path / "e.csv", TableOptions(num_nodes=9_000_001))).num_nodes == 9_000_001
    assert assemble_graph(detect_reader(tmp_path / "e.csv", TableOptions(relabel=True))).num_nodes == 2
    with pytest.raises(InputError, match="leave out nearly all numbers"):
        convert_to_store(detect_reader(tmp_path / "e.csv"), tmp_path / "s")
    assert [path.name for path in tmp_path.iterdir()] == ["e.csv"]


def test_a_bad_line_is_found_by_halves(tmp_path):
    (tmp_path / "e.csv").write_bytes(b"# c\n" * 600_000 + b"src dst\n" + b"0 1\n" * 300_000 + b"x y\n" + b"0 1\n" * 9)
    began = time.monotonic()
    refused(tmp_path / "e.csv", "line 900002, column src: not an integer")
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("label", npy((10**11,)), "cannot be read"),
        ("label", npy((-3,)), "cannot be read"),
        ("label", npy((3,), "<i8", bytes(16)), "cannot be read"),
        ("label", npy((3, 0)), "labels have the wrong form"),
        ("features", npy((10**12, 0), "<f4"), "cannot be read"),
        ("class_names", npy((10**12,), "<U0"), "cannot be read"),
        ("class_names", npy((1,), "<U1", b"\0\0\x11\0"), "names of classes"),
        ("class_names", npy((1,), "<U1", b"\0\xd8\0\0"), "names of classes"),
        ("class_names", npy((2,), "<U2", b"a\0\0\0\0\0\x11\0" * 2), "names of classes"),
        ("num_nodes", npy((2,), "<i8", bytes(16)), "num_nodes cannot be read"),
        ("num_nodes", npy((), "<f8", bytes(8)), "num_nodes cannot be read"),
        ("num_nodes", npy((), "<i8", (2**62).to_bytes(8, "little")), "too many nodes"),
        ("feat_indptr", npy((), "<i8", bytes(8)), "sparse features cannot be read"),
        ("feat_indices", npy((3,), "<f8", bytes(24)), "sparse features cannot be read"),
        ("feat_shape", npy((2,), "<i8", bytes([3, *[0] * 14, 1])), "features do not fit|cannot be read"),
        ("edge_type", npy((4,), "<i4", (2**30 - 1).to_bytes(4, "little") * 4), "not numbered from 0"),
    ],
)
def test_archives_that_claim_what_is_not_there(tmp_path, name, content, what):
    refused(with_member(tmp_path / "g.npz", name, content), what)


@pytest.mark.parametrize(
    ("was", "is_now"),
    [
        ("'<i8'", "',<i8'"),  # two types, of which one is none
        ("'<i8'", "{[]: 1}"),
        ("'descr'", "1: 2, 'descr'"),  # keys that have no order
        ("(3,)", "(3,"),
        ("(3,)", "(" * 300 + "3" + ")" * 300),
        ("(3,)", "(" + "9" * 5000 + ",)"),
        ("{'descr'", "\n\t{'descr'\n  "),
    ],
)
def test_headers_that_are_no_python(tmp_path, was, is_now):
    text = "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }\n".replace(was, is_now, 1).encode()
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(24)
    refused(with_member(tmp_path / "g.npz", "label", content), "cannot be read")


HOSTILE_ENDS = [
    [0, 281474976710658, 2, -4294967276],  # the last is less than 0
    [0, 2, 5, 0],  # the last is 0
    [0, 2, 1, 3],
    [0, 2, 2, 4],
    [1, 2, 2, 3],
    [0, 3],
    [0, 2**63 - 1, -(2**63), 3],
]


@pytest.mark.parametrize("ends", HOSTILE_ENDS)
def test_ends_of_rows_outside_the_values(tmp_path, ends):
    refused(npz(tmp_path / "g.npz", feat_indptr=np.array(ends)), "sparse features")
    rows = csr_array(np.eye(3))
    rows.indptr = np.array(ends)
    with pytest.raises(InputError, match="sparse features"):
        assemble_graph(ArraySource(INDEX, NodeTableSource(features=rows)))


@pytest.mark.parametrize(
    "changes",
    [
        {"feat_indices": np.array([0, 16, 1])},
        {"feat_indices": np.array([0, -1, 1])},
        {"feat_indices": np.array([0, 2**64 - 1, 1], np.uint64)},
        {"feat_indptr": np.array([0, 2**64 - 1, 2, 3], np.uint64)},
        {"feat_indices": np.array(0)},
        {"feat_data": np.array(1.0)},
        {"feat_data": np.ones(2)},
        {"feat_data": np.array(["a"])},
        {"feat_shape": np.array(3)},
        {"feat_shape": np.array([3])},
        {"feat_shape": np.array([-3, 4])},
        {"feat_shape": np.array([3, 2**31])},
        {"feat_shape": np.array([3, 2**64 - 1], np.uint64)},
        {"feat_shape": np.array([3, 0])},
    ],
)
def test_sparse_features_that_are_no_matrix(tmp_path, changes):
    refused(npz(tmp_path / "g.npz", **changes), "sparse features cannot be read")


@pytest.mark.parametrize("ends", HOSTILE_ENDS)
def test_matrices_of_planetoid_whose_rows_end_elsewhere(tmp_path, monkeypatch, ends):
    monkeypatch.setattr(planetoid_reader, "_NUM_VAL", 0)
    rows = csr_matrix(np.eye(3))
    rows.indptr = np.array(ends)
    with pytest.raises(InputError, match=r"ind.tiny.allx cannot be read"):
        assemble_graph(PlanetoidSource(planetoid(tmp_path / "p", allx=rows), "tiny"))


def test_labels_without_a_sign(tmp_path):
    made = assemble_graph(detect_reader(npz(tmp_path / "g.npz", label=np.array([0, 1, 0], np.uint64))))
    assert made.labels.tolist() == [0, 1, 0]
    refused(npz(tmp_path / "h.npz", label=np.array([0, 2**64 - 1, 0], np.uint64)), "labels cannot be used")


def test_features_of_no_dimension(tmp_path):
    refused(npz(tmp_path / "g.npz", feat_indptr=None, features=np.array(3.0)), "features do not fit")
    refused(npz(tmp_path / "h.npz", feat_indptr=None, label=np.array(3)), "labels have the wrong form")


def test_a_number_of_nodes_that_nothing_is_known_of(tmp_path):
    alone = dict.fromkeys(("label", "feat_indptr", "train_idx", "val_idx", "test_idx", "class_names"))
    refused(npz(tmp_path / "g.npz", **alone, num_nodes=np.array(10**9)), "leave out nearly all numbers")
    folder = tmp_path / "folder"
    folder.mkdir()
    npz(folder / "nodes.npz", **alone, edge_index=None, num_nodes=np.array(10**9))
    (folder / "edges.csv").write_text("0,1\n")
    refused(folder, "leave out nearly all numbers")


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archives_that_numpy_does_not_write(tmp_path, packing):
    index = io.BytesIO()
    np.save(index, INDEX)
    refused(with_member(tmp_path / "g.npz", "edge_index", index.getvalue(), packing), "cannot be read")


def test_a_broken_list_of_keys(tmp_path):
    path = npz(tmp_path / "g.npz", edge_index=None)
    path.write_bytes(path.read_bytes().replace(b"PK\x01\x02", b"PK\x01\x03"))
    refused(path, "cannot be read")


@pytest.mark.parametrize(
    ("table", "options", "what"),
    [
        (pa.table([[0], [1], [2]], names=["a", "b", "a"]), {"columns": {"src": "a", "dst": "b"}}, "unclear"),
        (pa.table({"src": [0], "dst": [1]}), {"columns": {"src": "2", "dst": "3"}}, "unclear"),
        (pa.table({"src": [[0]], "dst": [1]}), {}, "cannot be used"),
        (pa.table({"src": [True], "dst": [1]}), {}, "cannot be used"),
        (pa.table({"src": [0], "dst": [1], "weight": ["x" * 100]}), {}, "cannot be used"),
        (pa.table({"src": [0], "dst": [1], "weight": [True]}), {}, "cannot be used"),
        (pa.table({"src": [0], "x" * 100_000: [1]}), {}, "unclear"),
    ],
)
def test_tables_of_other_columns(tmp_path, table, options, what):
    parquet.write_table(table, tmp_path / "e.parquet")
    refused(tmp_path / "e.parquet", what, **options)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("graph", {0: 5}),
        ("graph", {0: ["a"]}),
        ("graph", {0: [2**70]}),
        ("graph", dict.fromkeys(range(2000), [1] * 200)),
        ("ally", np.zeros(2)),
        ("ally", np.eye(3)),
        ("ty", np.eye(1)),
        ("tx", np.eye(2)),
    ],
)
def test_planetoid_files_that_do_not_fit(tmp_path, monkeypatch, part, value):
    monkeypatch.setattr(planetoid_reader, "_NUM_VAL", 0)
    folder = planetoid(tmp_path / "p", **{part: value})
    with pytest.raises(InputError, match=f"ind.tiny.{part} cannot be read"):
        assemble_graph(PlanetoidSource(folder, "tiny"))


@pytest.mark.parametrize("text", ["-1 2", "9" * 100, "", "4000000000 2", "\xff"])
def test_nodes_to_test_on_that_are_none(tmp_path, monkeypatch, text):
    monkeypatch.setattr(planetoid_reader, "_NUM_VAL", 0)
    folder = planetoid(tmp_path / "p")
    (folder / "ind.tiny.test.index").write_text(text)
    with pytest.raises(InputError, match=r"test.index|ind.tiny.tx"):
        assemble_graph(PlanetoidSource(folder, "tiny"))


@pytest.mark.parametrize("name", ["e.csv", "e.parquet", "g.npz"])
def test_pipes_are_no_files(tmp_path, name):
    os.mkfifo(tmp_path / name)
    refused(tmp_path / name, "neither a file nor a folder")


def test_parts_that_are_pipes(tmp_path):
    folder = planetoid(tmp_path / "p")
    for part in ("allx", "test.index"):
        kept = (folder / f"ind.tiny.{part}").read_bytes()
        (folder / f"ind.tiny.{part}").unlink()
        os.mkfifo(folder / f"ind.tiny.{part}")
        refused(folder, f"ind.tiny.{part} cannot be read")
        (folder / f"ind.tiny.{part}").unlink()
        (folder / f"ind.tiny.{part}").write_bytes(kept)
