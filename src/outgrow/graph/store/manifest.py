"""The manifest of a store (``manifest.json``)."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from outgrow.core.errors import StoreError
from outgrow.core.graph_schema import EdgeFeatureColumn, parse_edge_columns
from outgrow.graph.graph import GraphOrigin, NodeType

FORMAT = 1
FILE = "manifest.json"
# Fixed, so that the header can be written after the data; two cache lines, so data stay aligned.
HEADER_BYTES = 128
BFLOAT16 = "bfloat16"
TYPE_LABELS = "type_labels_"
"""Name of the labels of a node type, before its number among the types with labels of their own."""
TYPE_FEATURES = "type_features_"
"""Name of the dense features of a node type, before its number among the types with columns of their own."""
_BITS = "<u2"
_MOST, _LARGEST_SIZE = 2**63 - 1, 2**31
_COUNTS = ("num_nodes", "num_edges", "num_features", "num_classes", "num_splits")
REPAIR = "write the store again with outgrow convert, or take it from a backup"


@dataclass(frozen=True, kw_only=True)
class ArrayEntry:
    """Entry of one array of a store, which is the file ``NAME.npy``.

    Attributes:
        shape: Shape of the array.
        dtype: Type as NumPy writes it, such as ``<i8``; or `BFLOAT16`, which NumPy does not have.
        size: Bytes of the file, including the header.
        sha256: Checksum of the data, which start after `HEADER_BYTES`; shape and type determine the header.
    """

    shape: tuple[int, ...]
    dtype: str
    size: int
    sha256: str

    @property
    def storage_dtype(self) -> str:
        """Type in the header of the file: that of the bits for bfloat16, else ``dtype``."""
        return _BITS if self.dtype == BFLOAT16 else self.dtype

    def encode_header(self) -> bytes:
        """Return the header of the file: all bytes before the data."""
        buffer = io.BytesIO()
        head = {"descr": self.storage_dtype, "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(buffer, head)
        header = buffer.getvalue()
        assert len(header) == HEADER_BYTES
        return header


@dataclass(frozen=True, kw_only=True)
class TypeLabelEntry:
    """Entry of ``type_labels_N``, the labels of a node type: name of the type, number and names of its classes."""

    name: str
    num_classes: int
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PartEntry:
    """Entry of a store that is one part of a graph, as `GraphPart` has it; ``whole`` is its ``checksums`` by array.

    The arrays of features have the rows of the nodes in ``own_nodes`` alone, in their order.
    """

    number: int
    num_parts: int
    method: str
    key: str
    whole: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Contents of a store.

    Attributes:
        name: Name of the graph.
        num_nodes: ``V``.
        num_edges: ``E``.
        num_features: ``D``; 0 without features.
        num_classes: ``C``; 0 without labels.
        arrays: Entry of each array, by name.
        class_names: Name of each class, or empty.
        relation_names: Name of each relation, or empty.
        node_types: Ranges of node ids, or empty.
        num_splits: Number of splits beside the chosen one; 0 if it is the only one.
        origin: What the arrays were made of.
        type_labels: Entry of the labels of each type that has labels of its own, or empty.
        edge_feature_sizes: Number of categories of each column of codes that edges have; empty if there are none.
        edge_columns: Names of the columns of features of edges and of their categories, or empty.
        times_are_dates: Whether times are microseconds since 1970, which dates were converted to.
        part: Entry of a store that is one part of a graph; None for a whole graph.
    """

    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    arrays: dict[str, ArrayEntry]
    class_names: tuple[str, ...] = ()
    relation_names: tuple[str, ...] = ()
    node_types: tuple[NodeType, ...] = ()
    num_splits: int = 0
    origin: GraphOrigin = field(default_factory=GraphOrigin)
    type_labels: tuple[TypeLabelEntry, ...] = ()
    edge_feature_sizes: tuple[int, ...] = ()
    edge_columns: tuple[EdgeFeatureColumn, ...] = ()
    times_are_dates: bool = False
    part: PartEntry | None = None


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write ``manifest.json`` into a folder."""
    content = asdict(manifest)
    for kind in content["node_types"]:
        # Left out where it says nothing, so that older versions read the manifest.
        if not kind["num_columns"]:
            del kind["num_columns"]
    lists = dict.fromkeys(("type_labels", "edge_feature_sizes", "edge_columns"), ())
    nothing = {"num_splits": 0, "times_are_dates": False, "part": None, "origin": asdict(GraphOrigin()), **lists}
    for name in nothing:
        if content[name] == nothing[name]:
            del content[name]
    # The format comes first and outside the checksum: later versions may compute that otherwise.
    record = {"format": FORMAT, "checksum": _content_checksum(content), **content}
    (folder / FILE).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Read ``manifest.json`` from a folder.

    Raises:
        StoreError: It is missing or broken, or has a format that this version does not read.
    """
    path = folder / FILE
    try:
        if not path.is_file():
            raise FileNotFoundError("there is no such file")
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = record.pop("format")
        checksum = record.pop("checksum", None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _broken_manifest_error(
            folder, "a manifest that can be read", f"{type(error).__name__}: {error}"
        ) from error
    # Before the checksum and the fields: those of another format may differ.
    if version != FORMAT:
        newer = isinstance(version, int) and version > FORMAT
        version = str(version)[:20]
        raise StoreError(
            f"{folder} is a store of format {version}",
            needed=f"format {FORMAT}, the one that this version of Outgrow reads",
            got=f"format {version}",
            repair=f"install a newer Outgrow that reads format {version}" if newer else REPAIR,
        )
    if _content_checksum(record) != checksum:
        raise _broken_manifest_error(folder, f"a manifest of checksum {str(checksum)[:64]}", _content_checksum(record))
    try:
        return _from_record(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _broken_manifest_error(
            folder, "a complete manifest", f"{type(error).__name__}: {str(error)[:200]}"
        ) from error


def _from_record(record: dict[str, Any]) -> Manifest:
    # A manifest may come from anywhere: every field is checked before anything is allocated by it.
    arrays = {name: _parse_array_entry(entry) for name, entry in record.pop("arrays").items()}
    kinds = record.pop("node_types")
    if not isinstance(kinds, list):
        raise TypeError("node types that are no list")
    types = tuple(NodeType(**entry) for entry in kinds)
    classes = _parse_names(record.pop("class_names"))
    relations = _parse_names(record.pop("relation_names"))
    origin = _parse_origin(record.pop("origin", {"read": [], "unread": []}))
    labels = tuple(_parse_type_labels(entry, types) for entry in record.pop("type_labels", []))
    if labels and (len(labels) < 2 or len({each.name for each in labels}) < len(labels) or "labels" in arrays):
        raise TypeError("labels of node types that are not those of several types")
    part = _parse_part(record.pop("part", None))
    columns, sizes = parse_edge_columns(record.pop("edge_columns", [])), record.pop("edge_feature_sizes", [])
    if not isinstance(sizes, list) or bool(sizes) > ("edge_features" in arrays):
        raise TypeError("sizes of the features of edges that are no list, or of none")
    manifest = Manifest(
        **record,
        arrays=arrays,
        node_types=types,
        class_names=classes,
        relation_names=relations,
        origin=origin,
        type_labels=labels,
        edge_feature_sizes=tuple(sizes),
        edge_columns=columns,
        part=part,
    )
    _check_counts(sizes, most=_LARGEST_SIZE)
    _check_counts(vars(manifest)[name] for name in _COUNTS)
    _check_counts(count for entry in arrays.values() for count in (*entry.shape, entry.size))
    _check_counts(count for kind in types for count in (kind.first, kind.last, kind.num_columns))
    if type(manifest.times_are_dates) is not bool:
        raise TypeError("times that are dates or not")
    texts = [text for entry in arrays.values() for text in (entry.dtype, entry.sha256)]
    _parse_names([manifest.name, *(kind.name for kind in types), *texts])
    return manifest


def _parse_type_labels(entry: dict[str, Any], types: tuple[NodeType, ...]) -> TypeLabelEntry:
    made = TypeLabelEntry(**{**entry, "class_names": _parse_names(entry["class_names"])})
    _check_counts([made.num_classes])
    if made.name not in [kind.name for kind in types]:
        raise TypeError(f"labels of {str(made.name)[:40]}, which is no node type")
    return made


def _parse_part(entry: dict[str, Any] | None) -> PartEntry | None:
    if entry is None:
        return None
    made = PartEntry(**entry)
    _check_counts([made.number, made.num_parts])
    _parse_names([made.method, made.key, *made.whole.keys(), *made.whole.values()])
    if made.number >= made.num_parts:
        raise TypeError(f"part {made.number} of {made.num_parts}")
    return made


def _parse_array_entry(entry: dict[str, Any]) -> ArrayEntry:
    if not isinstance(entry["shape"], list):
        raise TypeError("a shape that is no list")
    return ArrayEntry(**{**entry, "shape": tuple(entry["shape"])})


def _parse_origin(record: Any) -> GraphOrigin:
    return GraphOrigin(
        read=tuple((what, where) for what, where in map(_parse_names, record["read"])),
        unread=_parse_names(record["unread"]),
    )


def _check_counts(given: Iterable[object], most: int = _MOST) -> None:
    for count in given:
        # Exactly int: True is an instance of int, and a huge number would overflow in NumPy.
        if type(count) is not int or not 0 <= count <= most:
            raise TypeError(f"{str(count)[:40]} is no count")


def _parse_names(given: object) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise TypeError("names that are no texts")
    return tuple(given)


def _content_checksum(content: dict[str, Any]) -> str:
    # Sorted keys: the checksum depends on the content, not on how the file is laid out.
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _broken_manifest_error(folder: Path, needed: str, got: str) -> StoreError:
    return StoreError(f"{folder / FILE} is broken", needed=needed, got=got, repair=REPAIR)
