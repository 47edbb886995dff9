"""Folders with one table for each node type and edge type, and such tables in memory.

The layout is ``nodes/TYPE.csv`` and ``edges/SRC__RELATION__DST.csv``, with any form of table; a folder of parts has
the name of its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from outgrow.core.errors import InputError
from outgrow.graph.readers.tables.column_types import list_names
from outgrow.graph.readers.tables.construction_config import CONFIG_NAMES, read_construction_config
from outgrow.graph.readers.tables.edge_features import find_edge_features, has_feature_column
from outgrow.graph.readers.tables.open_table import open_table
from outgrow.graph.readers.tables.options import NODE_AND_EDGE_OPTIONS, TableOptions
from outgrow.graph.readers.tables.table import Table
from outgrow.graph.readers.tables.time_columns import missing_column_error
from outgrow.graph.readers.tables.typed_nodes import NodeTypeTable, check_columns
from outgrow.graph.readers.tables.typed_tables import EdgeTypeTable, TypedTableSource
from outgrow.graph.readers.typed_parts import Relation

CONFIG_OPTIONS = ("split_seed", "split_index", "unknown_nodes")
_NODES, _EDGES = "nodes", "edges"
_BETWEEN = "__"


def find_typed_source(path: Path, options: TableOptions) -> TypedTableSource | None:
    """Return the source of a construction config or a folder with one or with tables of types; None for others.

    Args:
        path: The file or folder.
        options: Options of tables.

    Raises:
        InputError: An option that does not apply, or tables that are unclear.
    """
    config = path if path.is_file() and path.suffix.lower() in (".yaml", ".yml", ".json") else None
    if path.is_dir():
        config = next((path / name for name in CONFIG_NAMES if (path / name).is_file()), None)
    if config is not None:
        options.refuse_all_but(CONFIG_OPTIONS, str(config))
        return read_construction_config(config, options)
    if not (path / _NODES).is_dir() or not (path / _EDGES).is_dir():
        return None
    if not any(_BETWEEN in _type_name(each) for each in (path / _EDGES).iterdir()):
        # Parts of one table of nodes and one of edges.
        return None
    options.refuse_all_but(NODE_AND_EDGE_OPTIONS, str(path))
    nodes = {_type_name(each): open_table(each) for each in _list_tables(path / _NODES)}
    edges = {_parse_relation(each): open_table(each) for each in _list_tables(path / _EDGES)}
    return make_typed_source(path.absolute().name, nodes, edges, options)


def make_typed_source(
    name: str, nodes: Mapping[str, Table], edges: Mapping[Relation, Table], options: TableOptions
) -> TypedTableSource:
    """Return the source of one table for each type.

    Args:
        name: Name of the graph.
        nodes: Table of each node type.
        edges: Table of each edge type.
        options: Those of `NODE_AND_EDGE_OPTIONS` apply; columns and splits to the tables that have them.

    Raises:
        InputError: Tables that are unclear, or a column that no table has.
    """
    tables = [NodeTypeTable(name=kind, table=table, options=options) for kind, table in nodes.items()]
    check_columns(tables, options)
    every = [*nodes.values(), *edges.values()]
    if options.time_column and not any(options.time_column in table.names for table in every):
        names = sorted({column for table in every for column in table.names})
        raise missing_column_error(name, options.time_column, names)
    return TypedTableSource(
        name,
        tables,
        [replace(each, time_column=options.time_column) for each in _edge_tables(edges, options.edge_features)],
        unknown_nodes=options.unknown_nodes,
        split_index=options.split_index,
    )


def _edge_tables(edges: Mapping[Relation, Table], wanted: tuple[str, ...]) -> list[EdgeTypeTable]:
    """Return the tables, each with the columns of features that it has.

    Raises:
        InputError: A table that has some of the columns only, or a column that none has.
    """
    made = []
    for relation, table in edges.items():
        there = tuple(name for name in wanted if has_feature_column(table, name))
        if there and len(there) < len(wanted):
            missing = next(name for name in wanted if name not in there)
            # The error of a table that is read alone.
            find_edge_features(table, [missing])
        made.append(EdgeTypeTable(relation=relation, table=table, features=there))
    if wanted and not any(each.features for each in made):
        names = {name for table in edges.values() for name in table.names}
        raise InputError(
            f"no table of edges has the column {wanted[0]}",
            needed=f"columns of the tables: {list_names(sorted(names))}",
            got=f"--edge-features {','.join(wanted)}",
            repair="correct the name",
        )
    return made


def _list_tables(folder: Path) -> list[Path]:
    # Files that start so are no data: checksums, marks of Spark.
    found = sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))
    names = [_type_name(path) for path in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(
            f"two tables of {twice[0]} in {folder}",
            needed="one table for each type, which may be a folder of parts",
            got=", ".join(path.name for path in found if _type_name(path) == twice[0]),
            repair="remove one of them, or put parts into a folder of that name",
        )
    if not found:
        raise InputError(
            f"{folder} is empty",
            needed=f"a table for each type, such as {folder.name}/"
            + ("paper.csv" if folder.name == _NODES else "paper__cites__paper.csv"),
            got="no file",
            repair="write the tables, or give a single edge table",
        )
    return found


def _type_name(path: Path) -> str:
    return path.name.partition(".")[0]


def _parse_relation(path: Path) -> Relation:
    parts = _type_name(path).split(_BETWEEN)
    if len(parts) != 3 or not all(parts):
        raise InputError(
            f"the name of {path} does not tell the types of its nodes",
            needed="SOURCE__RELATION__DESTINATION, such as author__writes__paper.csv",
            got=path.name,
            repair="rename the file, or describe the tables in graph.yaml",
        )
    return parts[0], parts[1], parts[2]
