"""What the keys of ``.npz`` files of graphs mean, for those who ask what was read."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_MEANING = {
    **dict.fromkeys(("edge_index", "edges"), "edges"),
    "edge_type": "relations",
    "edge_weight": "weights",
    **dict.fromkeys(("edge_features", "edge_attr"), "edge features"),
    # The other arrays of a sparse matrix belong to its data.
    **dict.fromkeys(("features", "node_features", "feat_data"), "features"),
    **dict.fromkeys(("label", "labels", "node_labels"), "labels"),
    **{f"{part}_{form}": part for part in ("train", "val", "test") for form in ("idx", "mask", "masks")},
    "class_names": "class names",
    "rel_names": "relation names",
}


def describe_keys(keys: Sequence[str], unread: Collection[str], where: str) -> tuple[tuple[str, str], ...]:
    """Return what is read of a file, and under which key.

    Args:
        keys: Keys of the file.
        unread: Those that are not read.
        where: Name of the file.
    """
    read = [(key, _MEANING[key]) for key in keys if key in _MEANING and key not in unread]
    order = list(dict.fromkeys(_MEANING.values()))
    read.sort(key=lambda pair: order.index(pair[1]))
    return tuple((what, f"{where}, key {key}") for key, what in read)
