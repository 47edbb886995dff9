"""Stores whose manifest is sealed, and says what cannot be; what fuzzing (tests/fuzz) has found."""

import hashlib
import json
import os

import numpy as np
import pytest
from scipy.sparse import csr_array

import outgrow as og
from graph.handmade import graph
from outgrow.core.errors import StoreError
from outgrow.graph.store.manifest import FILE, HEADER_BYTES
from outgrow.graph.store.reader import open_store, write_store


@pytest.fixture
def store(tmp_path):
    write_store(graph(), tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def sparse_store(tmp_path):
    write_store(og.from_arrays([[0, 1], [1, 2]], features=csr_array(np.eye(6, dtype=np.float32))), tmp_path / "sparse")
    return tmp_path / "sparse"


def change(store, edit):
    record = json.loads((store / FILE).read_text())
    del record["checksum"], record["format"]
    edit(record)
    checksum = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    (store / FILE).write_text(json.dumps({"format": 1, "checksum": checksum, **record}))


def refused(store, what=None):
    with pytest.raises(StoreError, match=what) as caught:
        open_store(store, verify=True)
    assert len(str(caught.value)) < 4000


@pytest.mark.parametrize("value", [None, True, "5", "../x", 1.5, [], {}, [1], -1, 10**40])
@pytest.mark.parametrize("key", ["num_nodes", "num_edges", "num_features", "num_classes", "class_names", "node_types"])
def test_values_of_another_type(store, key, value):
    if value == [] and key in ("class_names", "node_types"):
        pytest.skip("there need be none")
    change(store, lambda record: record.update({key: value}))
    refused(store)


@pytest.mark.parametrize("value", [None, 1, "true", []])
def test_times_that_are_dates_or_not(store, value):
    change(store, lambda record: record.update({"times_are_dates": value}))
    refused(store)


@pytest.mark.parametrize("read", [[["a"]], [["a", "b", "c"]], [[]], ["ab"], [[1, 2]]])
def test_an_origin_of_other_than_pairs(store, read):
    change(store, lambda record: record.update({"origin": {"read": read, "unread": []}}))
    refused(store)


@pytest.mark.parametrize("columns", [[["a", []]], [["a", ["x"]], ["b", ["y"]]], [["a", []], ["b", []], ["c", []]]])
def test_names_that_are_not_those_of_the_features_of_edges(tmp_path, columns):
    for sizes in ((), (2, 2)):
        kind = np.int8 if sizes else np.float32
        made = og.from_arrays([[0, 1], [1, 0]], edge_features=np.ones((2, 2), kind), edge_feature_sizes=sizes)
        og.save_graph(made, tmp_path / "store", overwrite=True)
        change(tmp_path / "store", lambda record: record.update({"edge_columns": columns}))
        if sizes or len(columns) != 2:
            refused(tmp_path / "store", "is broken")


@pytest.mark.parametrize("key", ["edge_feature_sizes", "edge_columns"])
@pytest.mark.parametrize(
    "value", [None, True, "5", {}, [1.5], [-1], [10**40], ["a"], [["a"]], [["a", "b"]], [[1, []]], [3]]
)
def test_sizes_and_names_of_features_of_edges_of_another_type(store, key, value):
    """The store has no features of edges, of which there could be sizes."""
    change(store, lambda record: record.update({key: value}))
    refused(store)


@pytest.mark.parametrize("value", [None, True, "5", 1.5, [], {}, [1.5], [-1], [10**100], ["a"]])
@pytest.mark.parametrize("key", ["shape", "dtype", "size", "sha256"])
def test_entries_of_another_type(store, key, value):
    change(store, lambda record: record["arrays"]["labels"].update({key: value}))
    refused(store)


@pytest.mark.parametrize("shape", [[], {}, "", [6, 1], [5]])
@pytest.mark.parametrize("name", ["indptr", "train", "feature_indptr", "feature_indices", "feature_values"])
def test_shapes_of_other_dimensions(sparse_store, name, shape):
    change(sparse_store, lambda record: record["arrays"][name].update(shape=shape))
    refused(sparse_store)


@pytest.mark.parametrize("name", ["indptr", "feature_indptr"])
def test_row_ends_whose_differences_overflow(sparse_store, name):
    """They fall by so much that the difference is more than 0 again."""
    path = sparse_store / f"{name}.npy"
    ends = np.load(path)
    ends[1:5] = 2**63 - 1, -(2**63), -1, 0
    np.save(path, ends)
    total = hashlib.sha256(path.read_bytes()[HEADER_BYTES:]).hexdigest()
    change(sparse_store, lambda record: record["arrays"][name].update(sha256=total))
    refused(sparse_store, f"{name} is broken")


@pytest.mark.parametrize("shape", [[10**12, 3], [40, 10**12], [0, 10**18]])
def test_an_array_without_bytes(store, shape):
    """Its size is that of a header, which says a shape of terabytes."""

    def edit(record):
        record["num_nodes"], record["num_features"] = shape
        record["arrays"]["features"] |= {"shape": shape, "size": HEADER_BYTES}

    (store / "features.npy").write_bytes((store / "features.npy").read_bytes()[:HEADER_BYTES])
    change(store, edit)
    refused(store)


@pytest.mark.parametrize(
    "text", ["[" * 200_000, "null", "[]", "9" * 5000, '{"format": "' + "x" * 9999 + '"}', '{"a":' * 99999]
)
def test_a_manifest_that_is_none(store, text):
    (store / FILE).write_text(text)
    refused(store)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "x" * 9999])
def test_arrays_of_other_places(store, name):
    change(store, lambda record: record["arrays"].update({name: record["arrays"]["labels"]}))
    refused(store)


@pytest.mark.parametrize("name", [FILE, "indptr.npy"])
def test_pipes_and_devices_are_no_files(store, name):
    (store / name).unlink()
    os.mkfifo(store / name)
    refused(store)
    (store / name).unlink()
    (store / name).symlink_to("/dev/zero")
    refused(store)
