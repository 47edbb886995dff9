"""Labels, masks and weights: every value is kept, or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from numpy.typing import NDArray

import outgrow as og
from outgrow.app.graph_facts import describe_graph
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import DataWarning
from outgrow.graph.readers.conversions import to_integer_labels, to_node_ids, to_weights
from outgrow.graph.store.reader import open_store, write_store

EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
NUMBERS = st_numpy.boolean_dtypes() | st_numpy.integer_dtypes() | st_numpy.unsigned_integer_dtypes()


def arrays(kinds: Any, **elements: Any) -> Any:
    return kinds.flatmap(lambda kind: st_numpy.arrays(kind, st.integers(1, 12), elements=elements.get("elements")))


@given(arrays(NUMBERS | st_numpy.floating_dtypes(sizes=(32, 64))))
@settings(deadline=None)
@pytest.mark.filterwarnings("ignore::outgrow.core.user_warnings.DataWarning")
def test_labels_are_kept_or_refused(given: NDArray[Any]) -> None:
    try:
        found = to_integer_labels(given, named=False)
    except InputError:
        return
    for value, label in zip(given.tolist(), found.tolist(), strict=True):
        unknown = value != value or (given.dtype == np.uint8 and value == 255)
        assert label == (-1 if unknown and label != 255 else value)


@given(arrays(NUMBERS | st_numpy.floating_dtypes(sizes=(16, 32, 64))))
@settings(deadline=None)
def test_weights_are_rounded_or_refused(given: NDArray[Any]) -> None:
    try:
        found = to_weights(given, "weight")
    except InputError:
        return
    assert found.dtype == np.float32
    exact = given.astype(np.longdouble)
    finite = np.isfinite(exact)
    assert np.array_equal(np.isfinite(found), finite)
    # Half a unit in the last place; below the normal numbers the unit is fixed.
    bound = np.maximum(np.abs(exact[finite]) * 2.0**-24, 2.0**-150)
    assert (np.abs(found[finite].astype(np.longdouble) - exact[finite]) <= bound).all()
    assert np.array_equal(found == 0, given == 0)


@given(st.lists(st.booleans(), min_size=3, max_size=20), st.sampled_from([np.bool_, np.int8, np.uint8]))
@settings(deadline=None)
def test_a_mask_names_the_nodes_where_it_is_set(mask: list[bool], kind: type) -> None:
    found = to_node_ids(np.array(mask, dtype=kind), len(mask), "the split train")
    assert found.tolist() == [node for node, is_set in enumerate(mask) if is_set]


@given(st.lists(st.integers(0, 11), unique=True, max_size=12), st.sampled_from([np.int8, np.uint8, np.int64]))
@settings(deadline=None)
def test_ids_stay_ids(ids: list[int], kind: type) -> None:
    assert to_node_ids(np.array(ids, dtype=kind), 12, "the split train").tolist() == ids


@pytest.mark.parametrize(
    "mask",
    [np.ones(3, bool), np.ones(4, np.int64), np.ones(5, np.uint8), np.ones((4, 2), bool), np.ones((4, 2), np.uint8)],
    ids=["short", "of int64", "long", "of two splits", "of two splits as bytes"],
)
def test_masks_that_are_refused(mask: NDArray[Any]) -> None:
    with pytest.raises(InputError, match="mask") as refused:
        to_node_ids(mask, 4, "the split train")
    assert "flatnonzero" not in str(refused.value)
    assert f"{mask.dtype} of shape {list(mask.shape)}" in refused.value.got


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.bool_])
def test_a_graph_with_masks_of_bytes(kind: type) -> None:
    graph = og.from_arrays(EDGES, labels=np.array([0, 1, 0, 1]), split={"train": np.array([1, 0, 1, 0], kind)})
    assert graph.split.train.tolist() == [0, 2]


def test_255_of_uint8_is_unknown_unless_it_is_named_or_254_is_there() -> None:
    labels = np.array([0, 2, 255, 1], np.uint8)
    with pytest.warns(DataWarning, match="255 at 1 nodes is read as unknown"):
        graph = og.from_arrays(EDGES, labels=labels)
    assert graph.num_classes == 3
    assert graph.labels is not None
    assert graph.labels.tolist() == [0, 2, -1, 1]
    for kept, named in ((labels, True), (np.array([254, 255], np.uint8), False), (labels.astype(np.int16), False)):
        assert np.array_equal(to_integer_labels(kept, named=named), kept)


def test_whole_floats_are_classes_with_a_warning() -> None:
    with pytest.warns(DataWarning, match="labels are float32 without fractions"):
        graph = og.from_arrays(EDGES, labels=np.array([0, 2, np.nan, 1], np.float32))
    assert graph.labels is not None
    assert graph.labels.tolist() == [0, 2, -1, 1]


def test_label_sets_as_floats_need_no_warning() -> None:
    graph = og.from_arrays(EDGES, labels=np.array([[0, 1.0], [1, 1], [0, 0], [1, 0]]))
    assert graph.multi_label


@pytest.mark.parametrize("labels", [[0.2, 0.7, 1, 0], [0, 2.0**60, 1, np.nan], [-2.0, 0, 1, 1]])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_floats_that_are_no_classes_are_targets(labels: list[float], kind: type) -> None:
    graph = og.from_arrays(EDGES, labels=np.array(labels, kind), split={"train": np.arange(4)})
    assert graph.labels is not None
    assert graph.has_targets
    assert graph.num_classes == 1
    np.testing.assert_array_equal(graph.labels.numpy(), np.array(labels, kind))


@pytest.mark.parametrize("labels", [np.full((4, 3), 0.5), np.array([[0, 1], [np.nan, 1], [0, 0], [1, 1]])])
def test_floats_of_several_columns_that_are_no_label_sets_are_targets(labels: NDArray[np.float64]) -> None:
    graph = og.from_arrays(EDGES, labels=labels)
    assert graph.has_targets
    assert not graph.multi_label
    assert graph.num_classes == labels.shape[1]


def test_targets_in_half_precision_and_in_one_column() -> None:
    half = og.from_arrays(EDGES, labels=np.array([0.5, 1, 2, np.nan], np.float16))
    column = og.from_arrays(EDGES, labels=np.array([[0.5], [1], [2], [3]]))
    assert half.labels is not None
    assert column.labels is not None
    assert half.labels.dtype == torch.float32
    assert column.labels.shape == (4,)


@pytest.mark.parametrize("labels", [[0, np.inf, 1, 0], [0.5, -np.inf, 1, 0]])
def test_infinite_labels_are_refused(labels: list[float]) -> None:
    with pytest.raises(InputError, match=r"got: +1 others, the first is -?inf at node 1"):
        og.from_arrays(EDGES, labels=np.array(labels))


def test_targets_in_a_store(tmp_path: Path) -> None:
    for number, labels in enumerate((np.array([0.5, np.nan, 2, 3]), np.array([[0.5, 1]] * 4, np.float32))):
        graph = og.from_arrays(EDGES, features=np.ones((4, 2)), labels=labels, split={"train": np.arange(4)})
        write_store(graph, tmp_path / str(number))
        found = open_store(tmp_path / str(number), verify=True)
        assert found.labels is not None
        np.testing.assert_array_equal(found.labels.numpy(), labels)
        assert found.num_classes == graph.num_classes
        assert describe_graph(found)["labels_are"] == "numbers"
        assert describe_graph(found)["labelled_nodes"] == 3 + number
        whole = replace(found, labels=found.labels.round())
        write_store(whole, tmp_path / f"{number} whole")
        assert open_store(tmp_path / f"{number} whole", verify=True).has_targets
        with pytest.raises(InputError, match="targets of a regression are wrong"):
            write_store(replace(whole, num_classes=7), tmp_path / "wrong")


@pytest.mark.parametrize("weight", [1e39, -1e300, 1e-60])
def test_weights_beyond_float32_are_refused(weight: float) -> None:
    with pytest.raises(InputError, match=r"the first is .*1e"):
        og.from_arrays(EDGES, weight=np.array([1, 1, weight, 1]))
