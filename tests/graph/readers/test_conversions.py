"""Labels, masks and weights: every value is kept, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from numpy.typing import NDArray

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import DataWarning
from outgrow.graph.readers.conversions import to_integer_labels, to_node_ids, to_weights

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


@pytest.mark.parametrize("labels", [[0.2, 0.7, 1, 0], [0, np.inf, 1, 0], [0, 2.0**60, 1, 0]])
def test_quantities_are_no_labels(labels: list[float]) -> None:
    with pytest.raises(InputError, match=r"got: +[12] others, the first is"):
        og.from_arrays(EDGES, labels=np.array(labels))


@pytest.mark.parametrize("weight", [1e39, -1e300, 1e-60])
def test_weights_beyond_float32_are_refused(weight: float) -> None:
    with pytest.raises(InputError, match=r"the first is .*1e"):
        og.from_arrays(EDGES, weight=np.array([1, 1, weight, 1]))
