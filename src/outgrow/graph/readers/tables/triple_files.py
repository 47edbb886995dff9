"""Files of triples: which ones a folder has, and their rows of head, relation and tail as texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, final

from outgrow.core.errors import InputError
from outgrow.core.files import os_errors_as_input_errors
from outgrow.graph.node_ids import ArrowArray
from outgrow.graph.readers.tables.forms import MATRIX_MARKET, is_table, table_suffix
from outgrow.graph.readers.tables.open_table import open_table
from outgrow.graph.readers.tables.table import Table

ROLES = ("head", "relation", "tail")
_NAMES: Mapping[str, tuple[str, ...]] = {
    "head": ("head", "h", "subject", "subj", "s", "src", "source"),
    "relation": ("relation", "rel", "r", "predicate", "pred", "p"),
    "tail": ("tail", "t", "object", "obj", "o", "dst", "target"),
}
"""Names of the columns, as files of triples have them."""
_PARTS: Mapping[str, tuple[str, ...]] = {
    "train": ("train",),
    "valid": ("valid", "val", "dev", "validation"),
    "test": ("test",),
}


class TripleColumns(NamedTuple):
    """Some triples as texts, an Arrow array of large strings each."""

    head: ArrowArray
    relation: ArrowArray
    tail: ArrowArray


def find_triple_files(folder: Path) -> dict[str, Path] | None:
    """Return the tables of a folder of triples: ``train``, and ``valid`` or ``test`` or both; None if it is none.

    Raises:
        InputError: There are two tables of one part.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        stem = path.name.lower().partition(".")[0]
        if stem in ("nodes", "edges"):
            # Then these files have ids of nodes, not triples.
            return None
        part = next((part for part, names in _PARTS.items() if stem in names), None)
        if part is None or not is_table(path) or table_suffix(path) in MATRIX_MARKET:
            continue
        if part in found:
            raise InputError(
                f"{folder} has two files of the same triples",
                needed=f"one file for each of {', '.join(_PARTS)}",
                got=f"{found[part].name} and {path.name}",
                repair="move one of them away",
            )
        found[part] = path
    return {part: found[part] for part in _PARTS if part in found} if "train" in found and len(found) > 1 else None


@final
class TripleFile:
    """A table of triples.

    Args:
        path: The file, or a folder of parts.
        columns: Column of each role, or its number; empty for the names that are known, and for head, relation and
            tail in this order where there are three columns without names.

    Raises:
        InputError: The file cannot be read, is empty, or has no such columns.
    """

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        self.path = path
        self._table = _open_triples(path, columns)
        if not self._table.names:
            raise empty_file_error(path)
        self._chosen = _choose_columns(self._table, columns)

    @property
    def unread(self) -> tuple[str, ...]:
        """Names of the columns that are not read."""
        return tuple(f"{self.path.name}: {name}" for name in self._table.names if name not in self._chosen)

    def read_batches(self) -> Iterator[TripleColumns]:
        """Yield all triples, in batches of bounded size.

        Raises:
            InputError: A row with another number of columns or an empty field, a broken file, or no rows.
        """
        import pyarrow as pa
        from pyarrow import compute

        rows = 0
        for batch in self._table.read_batches(self._chosen, dict.fromkeys(self._chosen, pa.large_string())):
            triples = []
            for role, values in zip(ROLES, batch.columns, strict=True):
                trimmed = compute.utf8_trim_whitespace(values.cast(pa.large_string()))
                # A null has no length, and is filled with the length of nothing.
                lengths = compute.fill_null(compute.binary_length(trimmed), 0).to_numpy(zero_copy_only=False)
                if not lengths.all():
                    raise InputError(
                        f"{self._table.locate_row(rows + int(lengths.argmin()))}: a triple has no {role}",
                        needed="head, relation and tail in each row",
                        got="an empty field",
                        repair="drop the row, or write what is missing",
                    )
                triples.append(trimmed)
            rows += len(batch)
            yield TripleColumns(*triples)
        if not rows:
            raise empty_file_error(self.path)


def choose_role_columns(columns: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each role of a triple, for columns given as those of a triple or of an edge.

    Raises:
        InputError: There is no such role.
    """
    roles = {name: role for role, names in _NAMES.items() for name in names}
    for name in columns:
        if name not in roles:
            raise InputError(
                f"triples have no column {name}",
                needed=f"columns of {', '.join(ROLES)}",
                got=f"{name}={columns[name]}",
                repair="leave it out",
            )
    return {roles[name]: column for name, column in columns.items()}


def read_numbered_names(path: Path, *, name_first: bool) -> list[str]:
    """Return names in the order of their numbers, of a file with a name and a number in each line.

    Args:
        path: The file, such as ``entities.dict`` (number, name) or ``entity2id.txt`` (name, number); its first line
            may be the count of the others.
        name_first: Whether the name is before the number.

    Raises:
        InputError: The file has another form, or the numbers are not those from 0 on, each once.
    """
    named: dict[int, str] = {}
    refused = os_errors_as_input_errors(
        f"{path} cannot be read",
        needed="names and their numbers",
        repair="check that it is there, and its encoding UTF-8",
        also=(UnicodeDecodeError,),
    )
    with refused, path.open(encoding="utf-8-sig") as file:
        for line, text in enumerate(file, 1):
            fields = text.rstrip("\r\n").split("\t") if "\t" in text else text.split()
            if not fields or (line == 1 and len(fields) == 1 and fields[0].isdecimal()):
                continue
            number = fields[-1 if name_first else 0].strip() if len(fields) == 2 else ""
            if not number.isdecimal() or int(number) in named:
                raise InputError(
                    f"{path}, line {line}: not a name with its number",
                    needed=f"{'a name and a number' if name_first else 'a number and a name'}, each number once",
                    got=repr(text.rstrip()[:80]),
                    repair="correct the file, or move it away: names are then numbered as they occur",
                )
            named[int(number)] = fields[0 if name_first else 1].strip()
    if {*named} != {*range(len(named))} or len({*named.values()}) < len(named):
        raise InputError(
            f"{path} does not number names from 0",
            needed="numbers from 0 without gaps, and each name once",
            got=f"{len(named):,} numbers up to {max(named, default=-1):,}, {len({*named.values()}):,} names",
            repair="correct the file, or move it away: names are then numbered as they occur",
        )
    return [named[number] for number in range(len(named))]


def empty_file_error(path: Path) -> InputError:
    """Return the error of a file without triples."""
    return InputError(
        f"{path} has no triples",
        needed="one triple at least",
        got="an empty file",
        repair="fill it; to do without such links, remove the file",
    )


def _open_triples(path: Path, columns: Mapping[str, str]) -> Table:
    """Open a table, whose first line is a header if it names all roles, or a column that is asked for."""
    named = [name for name in columns.values() if not name.isdecimal()]
    table = open_table(path, header=True)
    if _match_names(table.names) or any(name in table.names for name in named):
        return table
    # Names and relations are texts like a header: only its words tell one.
    return open_table(path, header=False)


def _choose_columns(table: Table, columns: Mapping[str, str]) -> tuple[str, ...]:
    known = _match_names(table.names)
    if not known and not table.has_names and len(table.names) == len(ROLES):
        known = dict(zip(ROLES, table.names, strict=True))
    chosen = {**known, **columns}
    missing = [role for role in ROLES if role not in chosen]
    unknown = [name for name in chosen.values() if name not in table.names]
    if missing or unknown or len({*chosen.values()}) < len(chosen):
        names = f": {', '.join(table.names)}" if table.has_names else " without names"
        raise InputError(
            f"{table.path} has no columns of triples" if missing else f"{table.path} has no such columns",
            needed="three columns: head, relation and tail; or columns with such names",
            got=f"{len(table.names)} columns{names}",
            repair="name them, as in --columns head=NAME,relation=NAME,tail=NAME; columns without names have the "
            "numbers 0, 1, ...",
        )
    return tuple(chosen[role] for role in ROLES)


def _match_names(names: tuple[str, ...]) -> dict[str, str]:
    """Return the column of each role whose name says so; nothing unless all three are there, each once."""
    found = {role: [name for name in names if name.lower() in known] for role, known in _NAMES.items()}
    return {role: here[0] for role, here in found.items()} if all(len(here) == 1 for here in found.values()) else {}
