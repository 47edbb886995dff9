"""Files that a construction config names: tables of one or several files, and lists of the nodes of a split."""

from __future__ import annotations

import glob
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from outgrow.core.errors import InputError
from outgrow.core.files import os_errors_as_input_errors
from outgrow.core.validation import describe_value, validate_choice
from outgrow.graph.node_ids import ArrowArray
from outgrow.graph.readers.tables.forms import PARQUET, TEXT, table_suffix
from outgrow.graph.readers.tables.json_table import JsonTable
from outgrow.graph.readers.tables.open_table import open_table
from outgrow.graph.readers.tables.parts import PartsTable
from outgrow.graph.readers.tables.table import Table

_FORMATS = ("csv", "parquet", "json")
_SUFFIXES = {"csv": TEXT, "parquet": PARQUET}
_SEPARATORS = (",", ";", "\t", "|", " ")
_PARTS = {"train": "train", "valid": "val", "val": "val", "test": "test"}


def open_files(given: Mapping[str, Any], where: str, config: Path) -> Table:
    """Return the table of the ``files`` and ``format`` of a node type or edge type.

    Args:
        given: The entry: ``files`` is a path, a path with wildcards or a list of these.
        where: Name of the entry in errors.
        config: The config, to whose folder paths are relative.

    Raises:
        InputError: Files that are missing, or another format than csv, parquet and json (lines).
    """
    named = given.get("format")
    name = named.get("name") if isinstance(named, dict) else named
    if not isinstance(name, str) or name.lower() not in _FORMATS:
        needed = '{"name": "csv"}, parquet or json (an object a line)'
        raise _files_error(config, f"{where}.format", needed, describe_value(named))
    separator = named.get("separator", ",") if isinstance(named, dict) else ","
    if isinstance(named, dict):
        for key in named:
            validate_choice(f"key of {where}.format in {config.name}", key, {"name": None, "separator": None})
    paths = _find_files(given.get("files"), f"{where}.files", config)
    if separator not in _SEPARATORS:
        raise _files_error(
            config, f"{where}.format", f"one of the separators {', '.join(_SEPARATORS)}", repr(separator)
        )
    name = name.lower()
    for path in paths if name != "json" else ():
        if path.is_file() and table_suffix(path) not in _SUFFIXES[name]:
            needed = f"files that end in {' or '.join(_SUFFIXES[name])}, as their format is"
            raise _files_error(config, f"{where}.files", needed, path.name)
    # What separates columns of text is found by its lines.
    open_file = _open_json if name == "json" else open_table
    return open_file(paths[0]) if len(paths) == 1 else PartsTable(paths[0].parent, open_file, files=paths)


def read_custom_split(given: Mapping[str, Any], where: str, config: Path) -> dict[str, ArrowArray]:
    """Return the ids of the nodes of each part of a split: ``custom_split_filenames``.

    Args:
        given: Files of ``train``, ``valid`` and ``test``: json with an id a line, or parquet with a ``column``.
        where: Name of the entry in errors.
        config: The config, to whose folder paths are relative.

    Raises:
        InputError: A file that is missing, or of another form.
    """
    import pyarrow as pa

    made: dict[str, ArrowArray] = {}
    for key, files in given.items():
        if key == "column":
            continue
        part = validate_choice(f"part of {where}.custom_split_filenames", key, _PARTS)
        if not files:
            continue
        arrays = [_read_ids(path, given.get("column"), where, config) for path in _find_files(files, where, config)]
        made[part] = pa.concat_arrays([each.cast(pa.large_string()) for each in arrays])
    return made


def _find_files(given: Any, where: str, config: Path) -> list[Path]:
    wanted = [given] if isinstance(given, str) else given
    if not (isinstance(wanted, list) and wanted and all(isinstance(each, str) for each in wanted)):
        raise _files_error(config, where, "a path, or a list of paths", describe_value(given))
    found: list[Path] = []
    for each in wanted:
        whole = config.parent / each
        matches = sorted(map(Path, glob.glob(str(whole)))) if any(sign in each for sign in "*?[") else [whole]
        if not matches or not matches[0].exists():
            raise _files_error(config, where, "files that exist", f"nothing at {whole}")
        found += matches
    return found


def _open_json(path: Path, *, header: bool | None = None, named: Collection[str] = ()) -> Table:
    return JsonTable(path)


def _read_ids(path: Path, column: Any, where: str, config: Path) -> ArrowArray:
    import pyarrow as pa
    from pyarrow import parquet

    refused = os_errors_as_input_errors(
        f"{path} cannot be read",
        needed="an id a line, as JSON; or parquet with a column of ids",
        repair="write the file again",
        also=(pa.ArrowInvalid, ValueError),
    )
    if path.suffix.lower() == ".parquet":
        names = column if isinstance(column, list) else [column]
        with refused:
            table = parquet.read_table(path)
        name = names[0] if len(names) == 1 and names[0] is not None else table.column_names[0]
        if name not in table.column_names:
            raise _files_error(config, f"{where}.custom_split_filenames", f"a column of {path.name}", str(name))
        return table.column(name).combine_chunks().cast(pa.large_string())
    with refused:
        values: Sequence[Any] = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    return pa.array([str(value) for value in values], pa.large_string())


def _files_error(config: Path, where: str, needed: str, got: str) -> InputError:
    return InputError(
        f"{where} of {config} cannot be used", needed=needed, got=got, repair="correct the file, see docs/tables.md"
    )
