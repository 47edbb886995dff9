"""Schema of the arrays of a store: which there may be, of which shapes and types, and which belong together."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from outgrow.core.errors import StoreError
from outgrow.graph.store.manifest import BFLOAT16, REPAIR, TYPE_FEATURES, TYPE_LABELS, Manifest

_FLOATS, _IDS, _SMALL = ("<f2", "<f4", "<f8"), ("<i4", "<i8"), ("|i1", "<i2", "<i4")
_ALWAYS, _BY_TIME = frozenset({"indptr", "indices", "train", "val", "test"}), frozenset({"time_order", "ordered_time"})
_OF_PART = frozenset({"node_part", "own_nodes"})
_INTEGER_IDS, _TEXT_IDS = frozenset({"ids"}), frozenset({"id_offsets", "id_data", "id_hashes"})
_PARTS = ("train", "val", "test")
_SPARSE = frozenset({"feature_indptr", "feature_indices", "feature_values"})


class ArraySchema(NamedTuple):
    """Requirements for an array.

    Attributes:
        shape: Required shape; -1 stands for any length.
        dtypes: Allowed types.
    """

    shape: tuple[int, ...]
    dtypes: tuple[str, ...]


def check_array_schemas(path: Path, manifest: Manifest) -> None:
    """Check that the arrays of a manifest match its counts and one another.

    Raises:
        StoreError: An array is missing or unknown, or has the wrong shape or type.
    """
    given = manifest.arrays
    # Before names are made of it: the number comes from the file.
    if len(_PARTS) * manifest.num_splits > len(given):
        raise _schema_error(path, f"arrays of {manifest.num_splits} splits", f"{len(given)} arrays")
    forms = _array_schemas(manifest)
    for name, entry in given.items():
        if name not in forms:
            raise _schema_error(path, f"arrays among {', '.join(forms)}", repr(name[:40]))
        form = forms[name]
        fits = len(form.shape) == len(entry.shape) and all(
            a in (b, -1) for a, b in zip(form.shape, entry.shape, strict=True)
        )
        if not fits or entry.dtype not in form.dtypes:
            needed = f"{name} of shape {list(form.shape)} and type {' or '.join(form.dtypes)}"
            raise _schema_error(path, needed, f"shape {list(entry.shape)} and type {entry.dtype}")
    # An array of a group needs the others: sparse features, ids of either kind, each split, links held out.
    groups = (group for group in _array_groups(manifest) if group & given.keys())
    of_part = frozenset() if manifest.part is None else _OF_PART
    required = _ALWAYS.union(of_part, _type_label_schemas(manifest), *groups)
    if missing := sorted(required - given.keys()):
        raise _schema_error(path, f"the arrays {', '.join(sorted(required))}", f"no {', '.join(missing)}")
    forms_given = [name for name in ("features", "feature_indptr", f"{TYPE_FEATURES}0") if name in given]
    if len(forms_given) > 1:
        raise _schema_error(path, "features of one form", ", ".join(forms_given))


def _array_schemas(manifest: Manifest) -> dict[str, ArraySchema]:
    nodes, edges, given = manifest.num_nodes, manifest.num_edges, manifest.arrays
    # Sparse values have no count of their own in the manifest: all three arrays must agree with one.
    values = next(iter(given["feature_values"].shape), -1) if "feature_values" in given else -1
    labels = given.get("labels")
    sizes = manifest.edge_feature_sizes
    several = labels is not None and len(labels.shape) == 2
    of_part = {} if manifest.part is None else {"node_part": ArraySchema((nodes,), ("<i2", "<i4"))}
    # Of a part only the own nodes have features.
    rows = nodes if manifest.part is None else next(iter(given["own_nodes"].shape), -1) if "own_nodes" in given else -1
    if of_part:
        of_part["own_nodes"] = ArraySchema((rows,), ("<i8",))
    return {
        **of_part,
        "indptr": ArraySchema((nodes + 1,), ("<i8",)),
        "indices": ArraySchema((edges,), _IDS),
        "relation": ArraySchema((edges,), _SMALL),
        "weight": ArraySchema((edges,), ("<f4",)),
        "edge_features": ArraySchema((edges, len(sizes)), _SMALL)
        if sizes
        else ArraySchema((edges, -1), (*_FLOATS, BFLOAT16)),
        **dict.fromkeys(("edge_time", "ordered_time"), ArraySchema((edges,), ("<i8",))),
        "time_order": ArraySchema((edges,), _IDS),
        "features": ArraySchema((rows, manifest.num_features), (*_FLOATS, BFLOAT16)),
        "feature_indptr": ArraySchema((rows + 1 if rows >= 0 else -1,), ("<i8",)),
        "feature_indices": ArraySchema((values,), ("<i4",)),
        "feature_values": ArraySchema((values,), _FLOATS),
        "labels": ArraySchema((nodes, manifest.num_classes), ("|u1", *_FLOATS))
        if several
        else ArraySchema((nodes,), (*_SMALL, "<i8", *_FLOATS)),
        **_type_feature_schemas(manifest),
        **_type_label_schemas(manifest),
        **dict.fromkeys(_PARTS, ArraySchema((-1,), ("<i8",))),
        **{f"{part}_{at}": ArraySchema((-1,), ("<i8",)) for at in range(manifest.num_splits) for part in _PARTS},
        **dict.fromkeys(("ids", "id_hashes", "node_time"), ArraySchema((nodes,), ("<i8",))),
        "id_offsets": ArraySchema((nodes + 1,), ("<i8",)),
        "id_data": ArraySchema((-1,), ("|u1",)),
        "id_order": ArraySchema((nodes,), _IDS),
        **dict.fromkeys(("val_links", "test_links"), ArraySchema((-1, 3), ("<i8",))),
        **dict.fromkeys(("val_heads", "val_tails", "test_heads", "test_tails"), ArraySchema((-1, -1), ("<i8",))),
    }


def _type_feature_schemas(manifest: Manifest) -> dict[str, ArraySchema]:
    first = manifest.arrays.get(f"{TYPE_FEATURES}0")
    # All types have their numbers in one type, which is any of these.
    dtypes = (*_FLOATS, BFLOAT16) if first is None or first.dtype not in (*_FLOATS, BFLOAT16) else (first.dtype,)
    kinds, whole = [kind for kind in manifest.node_types if kind.num_columns], manifest.part is None
    return {
        f"{TYPE_FEATURES}{number}": ArraySchema((kind.last - kind.first if whole else -1, kind.num_columns), dtypes)
        for number, kind in enumerate(kinds)
    }


def _type_label_schemas(manifest: Manifest) -> dict[str, ArraySchema]:
    schemas = {}
    counts = {kind.name: kind.last - kind.first for kind in manifest.node_types}
    for number, each in enumerate(manifest.type_labels):
        name = f"{TYPE_LABELS}{number}"
        given = manifest.arrays.get(name)
        several = given is not None and len(given.shape) == 2
        shape = (counts[each.name], each.num_classes) if several else (counts[each.name],)
        schemas[name] = ArraySchema(shape, ("|u1", *_FLOATS) if several else (*_SMALL, "<i8", *_FLOATS))
    return schemas


def _array_groups(manifest: Manifest) -> list[frozenset[str]]:
    splits = [frozenset(f"{part}_{at}" for part in _PARTS) for at in range(manifest.num_splits)]
    ids = _TEXT_IDS if _TEXT_IDS & manifest.arrays.keys() else _INTEGER_IDS
    return [
        _SPARSE,
        frozenset(_type_feature_schemas(manifest)),
        ids | {"id_order"},
        frozenset({"val_links", "test_links"}),
        _BY_TIME,
        *splits,
    ]


def _schema_error(path: Path, needed: str, got: str) -> StoreError:
    return StoreError(f"the arrays of {path} do not fit", needed=needed, got=got, repair=REPAIR)
