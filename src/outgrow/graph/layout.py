"""Which arrays a store has, of which shapes and types."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from outgrow.core.errors import StoreError
from outgrow.graph.manifest import BFLOAT16, REPAIR, Manifest

_FLOATS, _IDS, _SMALL = ("<f2", "<f4", "<f8"), ("<i4", "<i8"), ("|i1", "<i2", "<i4")
_ALWAYS = frozenset({"indptr", "indices", "train", "val", "test"})
_SPARSE = frozenset({"feature_indptr", "feature_indices", "feature_values"})


class Form(NamedTuple):
    """What an array must be.

    Attributes:
        shape: Its shape; -1 stands for any length.
        dtypes: The types that it may have.
    """

    shape: tuple[int, ...]
    dtypes: tuple[str, ...]


def check_layout(path: Path, manifest: Manifest) -> None:
    """Check that the arrays of a manifest fit its counts and one another.

    Raises:
        StoreError: An array is missing, unknown, or of another shape or type.
    """
    forms, given = _forms(manifest), manifest.arrays
    for name, entry in given.items():
        if name not in forms:
            raise _misfit(path, f"arrays among {', '.join(forms)}", repr(name[:40]))
        form = forms[name]
        fits = len(form.shape) == len(entry.shape) and all(
            a in (b, -1) for a, b in zip(form.shape, entry.shape, strict=True)
        )
        if not fits or entry.dtype not in form.dtypes:
            needed = f"{name} of shape {list(form.shape)} and type {' or '.join(form.dtypes)}"
            raise _misfit(path, needed, f"shape {list(entry.shape)} and type {entry.dtype}")
    required = _ALWAYS | (_SPARSE if _SPARSE & given.keys() else frozenset())
    if missing := sorted(required - given.keys()):
        raise _misfit(path, f"the arrays {', '.join(sorted(required))}", f"no {', '.join(missing)}")
    if "features" in given and "feature_indptr" in given:
        raise _misfit(path, "dense or sparse features", "both")


def _forms(manifest: Manifest) -> dict[str, Form]:
    nodes, edges, given = manifest.num_nodes, manifest.num_edges, manifest.arrays
    values = next(iter(given["feature_values"].shape), -1) if "feature_values" in given else -1
    multi = "labels" in given and len(given["labels"].shape) == 2
    return {
        "indptr": Form((nodes + 1,), ("<i8",)),
        "indices": Form((edges,), _IDS),
        "relation": Form((edges,), _SMALL),
        "weight": Form((edges,), ("<f4",)),
        "features": Form((nodes, manifest.num_features), (*_FLOATS, BFLOAT16)),
        "feature_indptr": Form((nodes + 1,), ("<i8",)),
        "feature_indices": Form((values,), ("<i4",)),
        "feature_values": Form((values,), _FLOATS),
        "labels": Form((nodes, manifest.num_classes), ("|u1",)) if multi else Form((nodes,), (*_SMALL, "<i8")),
        "train": Form((-1,), ("<i8",)),
        "val": Form((-1,), ("<i8",)),
        "test": Form((-1,), ("<i8",)),
    }


def _misfit(path: Path, needed: str, got: str) -> StoreError:
    return StoreError(f"the arrays of {path} do not fit", needed=needed, got=got, repair=REPAIR)
