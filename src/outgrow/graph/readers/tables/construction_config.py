"""Graphs described by a construction config in the form of GraphStorm, ``graph.yaml`` or ``graph.json``.

The config names the tables of each node type and edge type, their columns, transforms of features, labels and splits.
It is a subset of the form of ``graphstorm.gconstruct.construct_graph``, as its documentation describes it ("GraphStorm
Graph Construction Configuration", 2025): what is not read is refused by its name. Paths are relative to the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from outgrow.core.errors import InputError
from outgrow.core.files import os_errors_as_input_errors
from outgrow.core.validation import describe_value, validate_choice
from outgrow.graph.readers.tables.config_files import open_files, read_custom_split
from outgrow.graph.readers.tables.feature_scaling import FeatureScaling
from outgrow.graph.readers.tables.node_roles import ID, LABEL, MASKS, SPLIT, TYPE
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.readers.tables.table_views import SelectedTable
from outgrow.graph.readers.tables.typed_nodes import ROW_COUNT, NodeTypeTable
from outgrow.graph.readers.tables.typed_tables import EdgeTypeTable, TypedTableSource

CONFIG_NAMES = ("graph.yaml", "graph.yml", "graph.json")
_VERSIONS = ("gconstruct-v0.1", "gconstruct-runtime-v0.1")
_TOP = ("version", "nodes", "edges")
_NODE = ("node_type", "files", "format", "node_id_col", "features", "labels")
_EDGE = ("relation", "files", "format", "source_id_col", "dest_id_col", "features", "labels")
_FEATURE = ("feature_col", "feature_name", "transform")
_LABEL = ("label_col", "task_type", "split_pct", "custom_split_filenames", "label_stats_type")
_NO_TRANSFORM = ("no-op", "noop")
_TRANSFORMS = {
    "max_min_norm": {"min_val": "lowest", "max_val": "highest", "min_bound": "least", "max_bound": "most"},
    "standard": {"sum": "total"},
    "to_categorical": {},
    **{name: dict[str, str]() for name in _NO_TRANSFORM},
}
_DEFAULT_SPLIT = (0.8, 0.1, 0.1)
_RESERVED = {*ID, *LABEL, *SPLIT, *TYPE, *MASKS}


class _Features(NamedTuple):
    columns: tuple[str, ...] = ()
    categories: frozenset[str] = frozenset()
    scaling: Mapping[str, FeatureScaling] = {}


def read_construction_config(path: Path, options: TableOptions | None = None) -> TypedTableSource:
    """Return the source of the graph that a construction config describes.

    Args:
        path: The file, of YAML or JSON.
        options: ``split_seed`` of the splits that are drawn, ``split_index`` and ``unknown_nodes`` apply.

    Raises:
        InputError: A file that cannot be read, an unknown key (with the nearest ones), or something that is not
            meant: see the table in the documentation.
    """
    given = options or TableOptions()
    config = _take_mapping(_parse(path), "the config", _TOP, path)
    version = config.get("version", _VERSIONS[0])
    if version not in _VERSIONS:
        raise _config_error(path, "version", f"one of {', '.join(_VERSIONS)}", describe_value(version))
    nodes = [_node_table(each, at, path, given) for at, each in enumerate(_take_list(config, "nodes", path))]
    edges = [_edge_table(each, at, path) for at, each in enumerate(_take_list(config, "edges", path))]
    name = path.absolute().parent.name if path.name in CONFIG_NAMES else path.stem
    return TypedTableSource(name, nodes, edges, unknown_nodes=given.unknown_nodes, split_index=given.split_index)


def _parse(path: Path) -> Any:
    import yaml

    def fail(error: Exception) -> InputError:
        return _config_error(path, "the text", "YAML or JSON", " ".join(str(error).split())[:200])

    with os_errors_as_input_errors(f"{path} cannot be read", needed="a text file", repair="correct the path"):
        held = path.read_bytes()
    try:
        return json.loads(held) if path.suffix.lower() == ".json" else yaml.safe_load(held)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise fail(error) from error


def _node_table(given: Any, at: int, path: Path, options: TableOptions) -> NodeTypeTable:
    where = f"nodes[{at}]"
    node = _take_mapping(given, where, _NODE, path)
    name = _take_text(node, "node_type", where, path)
    table = open_files(node, where, path)
    features = _read_features(node.get("features", []), f"{where}.features", path)
    labels = node.get("labels", [])
    label, split, split_files = _read_labels(labels, f"{where}.labels", path)
    # Under these names columns are what the config says, whatever their own names say.
    aliases = {name: f"feature {name}" if name.strip().lower() in _RESERVED else name for name in features.columns}
    columns = {alias: name for name, alias in aliases.items()} | ({"label": label[0]} if label else {})
    if "node_id_col" in node:
        columns["id"] = _take_text(node, "node_id_col", where, path)
    elif not columns:
        # Rows are counted by any column; as texts it is no feature.
        columns = {ROW_COUNT: table.names[0]}
    chosen = TableOptions(
        label=("label",) if label else (),
        features=tuple(aliases.values()),
        categorical="onehot" if features.columns else "refuse",
        split=split,
        split_seed=options.split_seed,
    )
    categories = frozenset(aliases[name] for name in features.categories)
    selected = SelectedTable(table, columns, texts={*categories, ROW_COUNT})
    split_ids = read_custom_split(split_files, f"{where}.labels", path)
    return NodeTypeTable(
        name=name,
        table=selected,
        options=chosen,
        scaling={aliases[name]: scaling for name, scaling in features.scaling.items()},
        split_ids=split_ids,
        categories=categories,
        are_numbers=bool(labels) and labels[0].get("task_type") == "regression",
    )


def _edge_table(given: Any, at: int, path: Path) -> EdgeTypeTable:
    where = f"edges[{at}]"
    edge = _take_mapping(given, where, _EDGE, path)
    relation = edge.get("relation")
    if not (isinstance(relation, list) and len(relation) == 3 and all(isinstance(each, str) for each in relation)):
        needed = "three texts: type of the sources, name, type of the destinations"
        raise _config_error(path, f"{where}.relation", needed, describe_value(relation))
    table = open_files(edge, where, path)
    columns = {
        "src": _take_text(edge, "source_id_col", where, path),
        "dst": _take_text(edge, "dest_id_col", where, path),
    }
    features, texts = _read_edge_features(edge, where, path, columns)
    if edge.get("labels"):
        needed = "no labels of edges: outgrow train holds links out of all edges (--val-links, --test-links)"
        raise _config_error(path, f"{where}.labels", needed, describe_value(edge["labels"]))
    selected = SelectedTable(table, {name: name for name in dict.fromkeys((*columns.values(), *features))}, texts)
    src, name, dst = relation
    return EdgeTypeTable(relation=(src, name, dst), table=selected, columns=columns, features=features)


def _read_edge_features(
    edge: Mapping[str, Any], where: str, path: Path, columns: dict[str, str]
) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the columns of features of edges, and those of categories; add the column of weights to ``columns``."""
    others = []
    for number, feature in enumerate(_as_list(edge.get("features", []), f"{where}.features", path)):
        named = _take_mapping(feature, f"{where}.features[{number}]", _FEATURE, path)
        column = named.get("feature_col")
        column = column[0] if isinstance(column, list) and len(column) == 1 else column
        if named.get("feature_name", column) != "weight":
            others.append(feature)
        elif not isinstance(column, str) or "transform" in named:
            needed = "one column with feature_name weight, without transform"
            raise _config_error(path, f"{where}.features[{number}]", needed, describe_value(column))
        else:
            columns["weight"] = column
    found = _read_features(others, f"{where}.features", path)
    if found.scaling:
        needed = "features of edges as they are, or the transform to_categorical"
        raise _config_error(path, f"{where}.features", needed, next(iter(found.scaling.values())).method)
    return found.columns, found.categories


def _read_features(given: Any, where: str, path: Path) -> _Features:
    columns: list[str] = []
    categories: set[str] = set()
    scaling: dict[str, FeatureScaling] = {}
    for at, each in enumerate(_as_list(given, where, path)):
        here = f"{where}[{at}]"
        feature = _take_mapping(each, here, _FEATURE, path)
        names = feature.get("feature_col")
        names = [names] if isinstance(names, str) else names
        if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
            raise _config_error(path, f"{here}.feature_col", "a column, or a list of columns", describe_value(names))
        if twice := [name for name in names if name in columns]:
            raise _config_error(path, f"{here}.feature_col", "each column once among the features", twice[0])
        columns += names
        transform = _take_mapping(feature.get("transform", {"name": "no-op"}), f"{here}.transform", None, path)
        method = transform.get("name")
        if method not in _TRANSFORMS:
            needed = ", ".join(name for name in _TRANSFORMS if name != "noop")
            raise _config_error(path, f"{here}.transform", needed, describe_value(method))
        known = _TRANSFORMS[method]
        _take_mapping(transform, f"{here}.transform", ("name", *known), path)
        numbers = {known[key]: value for key, value in transform.items() if key != "name"}
        if bad := [value for value in numbers.values() if type(value) not in (int, float)]:
            raise _config_error(path, f"{here}.transform", "numbers", describe_value(bad[0]))
        if method == "to_categorical":
            categories.update(names)
        elif method not in _NO_TRANSFORM:
            scaling |= dict.fromkeys(names, FeatureScaling(method=method, **numbers))
    return _Features(tuple(columns), frozenset(categories), scaling)


def _read_labels(given: Any, where: str, path: Path) -> tuple[tuple[str, ...], str, Mapping[str, Any]]:
    """Return the columns of labels, the split to draw, and the files of a given one."""
    labels = _as_list(given, where, path)
    if not labels:
        return (), "", {}
    if len(labels) > 1:
        raise _config_error(path, where, "one task for each node type", f"{len(labels)} of them")
    label = _take_mapping(labels[0], f"{where}[0]", _LABEL, path)
    task = label.get("task_type")
    if task not in ("classification", "regression"):
        raise _config_error(path, f"{where}[0].task_type", "classification or regression", describe_value(task))
    column = _take_text(label, "label_col", f"{where}[0]", path)
    files = label.get("custom_split_filenames")
    if files is not None:
        return (column,), "", _take_mapping(files, f"{where}[0].custom_split_filenames", None, path)
    shares = label.get("split_pct", list(_DEFAULT_SPLIT))
    if not isinstance(shares, list) or len(shares) != 3 or any(type(each) not in (int, float) for each in shares):
        needed = "three shares, such as [0.8, 0.1, 0.1]"
        raise _config_error(path, f"{where}[0].split_pct", needed, describe_value(shares))
    return (column,), ",".join(map(repr, shares)), {}


def _take_mapping(given: Any, where: str, known: Sequence[str] | None, path: Path) -> dict[str, Any]:
    if not isinstance(given, dict) or not all(isinstance(key, str) for key in given):
        raise _config_error(path, where, "keys with values", describe_value(given))
    for key in given if known is not None else ():
        validate_choice(f"key of {where} in {path.name}", key, dict.fromkeys(known or ()))
    return given


def _take_list(config: Mapping[str, Any], key: str, path: Path) -> list[Any]:
    made = _as_list(config.get(key), key, path)
    if not made:
        raise _config_error(path, key, "a list with at least one entry", "none")
    return made


def _as_list(given: Any, where: str, path: Path) -> list[Any]:
    if not isinstance(given, list):
        raise _config_error(path, where, "a list", describe_value(given))
    return given


def _take_text(given: Mapping[str, Any], key: str, where: str, path: Path) -> str:
    if not isinstance(given.get(key), str) or not given[key]:
        raise _config_error(path, f"{where}.{key}", "a text", describe_value(given.get(key)))
    return str(given[key])


def _config_error(path: Path, where: str, needed: str, got: str) -> InputError:
    return InputError(
        f"{where} of {path} cannot be used", needed=needed, got=got, repair="correct the file, see docs/tables.md"
    )
