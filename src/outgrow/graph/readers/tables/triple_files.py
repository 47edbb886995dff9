"""Files of triples: which ones a folder has, and their rows of head, relation and tail as texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

from outgrow.core.errors import InputError
from outgrow.core.files import os_errors_as_input_errors
from outgrow.graph.node_ids import ArrowArray
from outgrow.graph.readers.tables.open_table import open_table

ROLES = ("head", "relation", "tail")
_NAMES: Mapping[str, tuple[str, ...]] = {
    "head": ("h", "head", "subject", "subj", "s", "src", "source"),
    "relation": ("r", "rel", "relation", "predicate", "pred", "p"),
    "tail": ("t", "tail", "object", "obj", "o", "dst", "target"),
}
"""Names of the columns, as files of triples have them."""
_PARTS: Mapping[str, tuple[str, ...]] = {
    "train": ("train",),
    "valid": ("valid", "val", "dev", "validation"),
    "test": ("test",),
}
_TEXT = (".txt", ".tsv", ".csv")
_TABLES = (".parquet", ".arrow", ".feather", ".ipc")
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
_BLOCK_BYTES = 1 << 22
_FIRST_BYTES = 1 << 16


class TripleColumns(NamedTuple):
    """Some triples as texts, an Arrow array of large strings each."""

    head: ArrowArray
    relation: ArrowArray
    tail: ArrowArray


def find_triple_files(folder: Path) -> dict[str, Path] | None:
    """Return the files of a folder of triples: ``train``, and ``valid`` or ``test`` or both; None if it is none.

    Raises:
        InputError: There are two files of one part.
    """
    found: dict[str, Path] = {}
    for path in sorted(each for each in folder.iterdir() if each.is_file()):
        name = path.name.lower()
        stem, _, ending = name.partition(".")
        if stem in ("nodes", "edges"):
            # Then these files have ids of nodes, not triples.
            return None
        part = next((part for part, names in _PARTS.items() if stem in names), None)
        if part is None or not _is_table(f".{ending}"):
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
    """A file of triples: text of any separator with or without a header, or a table with names.

    Args:
        path: The file.
        columns: Column of each role, or its number; empty for the names that are known, and for head, relation and
            tail in this order where there are three columns without names.

    Raises:
        InputError: The file cannot be read, is empty, or has no such columns.
    """

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        self.path = path
        self._is_text = path.suffix in _TEXT or path.suffix in _COMPRESSED
        if self._is_text:
            first = _read_first_line(path)
            self._delimiter = _find_delimiter(first)
            fields = [field.strip().strip('"') for field in first.split(self._delimiter)]
            self._has_names = bool(_match_names(fields)) or any(name in fields for name in columns.values())
            self.names = tuple(fields if self._has_names else map(str, range(len(fields))))
        else:
            with _arrow_errors_as_input_errors(path):
                self._table = open_table(path)
                self._has_names, self.names = True, self._table.names
        self._chosen = self._choose_columns(columns)

    @property
    def unread(self) -> tuple[str, ...]:
        """Names of the columns that are not read."""
        return tuple(f"{self.path.name}: {name}" for name in self.names if name not in self._chosen)

    def read_batches(self) -> Iterator[TripleColumns]:
        """Yield all triples, in batches of bounded size.

        Raises:
            InputError: A row with another number of columns or an empty field, a broken file, or no rows.
        """
        import pyarrow as pa
        from pyarrow import compute

        rows = 0
        with _arrow_errors_as_input_errors(self.path):
            for batch in self._iterate_batches():
                if not len(batch):
                    continue
                triples = []
                for role, values in zip(ROLES, batch.columns, strict=True):
                    trimmed = compute.utf8_trim_whitespace(values.cast(pa.large_string()))
                    # A null has no length, and is filled with the length of nothing.
                    lengths = compute.fill_null(compute.binary_length(trimmed), 0).to_numpy(zero_copy_only=False)
                    if not lengths.all():
                        at = int(lengths.argmin())
                        raise InputError(
                            f"{self.path}: a triple has no {role}",
                            needed="head, relation and tail in each row",
                            got=f"nothing in triple {rows + at + 1:,}",
                            repair="drop the row, or write what is missing",
                        )
                    triples.append(trimmed)
                rows += len(batch)
                yield TripleColumns(*triples)
        if not rows:
            raise empty_file_error(self.path)

    def _iterate_batches(self) -> Iterator[Any]:
        import pyarrow as pa

        names = [self.names[self.names.index(name)] for name in self._chosen]
        if not self._is_text:
            yield from self._table.read_batches(names, dict.fromkeys(names, pa.large_string()))
            return
        from pyarrow import csv

        wrong: list[Any] = []

        def note_wrong(row: Any) -> Literal["error"]:
            wrong.append(row)
            return "error"

        quoted = self._delimiter == ","
        try:
            with csv.open_csv(
                str(self.path),
                csv.ReadOptions(column_names=list(self.names), skip_rows=int(self._has_names), block_size=_BLOCK_BYTES),
                # Names in files that tabs separate may have quotation marks of their own.
                csv.ParseOptions(
                    delimiter=self._delimiter, quote_char='"' if quoted else False, invalid_row_handler=note_wrong
                ),
                csv.ConvertOptions(
                    include_columns=names,
                    column_types=dict.fromkeys(names, pa.large_string()),
                    null_values=[],
                    strings_can_be_null=False,
                ),
            ) as reader:
                yield from reader
        except pa.ArrowInvalid as error:
            if not wrong:
                raise
            where = f", line {wrong[0].number}" if wrong[0].number is not None else ""
            raise InputError(
                f"{self.path}{where}: not a triple",
                needed=f"{len(self.names)} columns separated by {_DELIMITERS[self._delimiter]}, as in the first line",
                got=f"{wrong[0].actual_columns} columns: {wrong[0].text[:80]!r}",
                repair="correct the row",
            ) from error

    def _choose_columns(self, columns: Mapping[str, str]) -> tuple[str, ...]:
        known = _match_names(self.names)
        if not known and not self._has_names and len(self.names) == len(ROLES):
            known = dict(zip(ROLES, self.names, strict=True))
        chosen = {**known, **columns}
        missing = [role for role in ROLES if role not in chosen]
        unknown = [name for name in chosen.values() if name not in self.names]
        if missing or unknown or len({*chosen.values()}) < len(chosen):
            raise InputError(
                f"{self.path} has no columns of triples" if missing else f"{self.path} has no such columns",
                needed="three columns: head, relation and tail; or columns with such names",
                got=f"{len(self.names)} columns{': ' + ', '.join(self.names) if self._has_names else ' without names'}",
                repair="name them, as in --columns head=NAME,relation=NAME,tail=NAME; columns without names have "
                "the numbers 0, 1, ...",
            )
        return tuple(chosen[role] for role in ROLES)


_DELIMITERS = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars", " ": "blanks"}


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
    with _arrow_errors_as_input_errors(path), path.open(encoding="utf-8-sig") as file:
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


def _is_table(ending: str) -> bool:
    for packed in _COMPRESSED:
        if ending.endswith(packed):
            return ending.removesuffix(packed) in _TEXT
    return ending in _TEXT or ending in _TABLES


def _read_first_line(path: Path) -> str:
    import pyarrow as pa

    with _arrow_errors_as_input_errors(path), pa.input_stream(str(path)) as stream:
        start = stream.read(_FIRST_BYTES)
    for line in start.removeprefix(b"\xef\xbb\xbf").splitlines():
        if line.strip():
            return str(line.decode(errors="replace"))
    raise empty_file_error(path)


def _find_delimiter(line: str) -> str:
    return next((each for each in _DELIMITERS if line.count(each) >= len(ROLES) - 1), " ")


def _match_names(names: tuple[str, ...] | list[str]) -> dict[str, str]:
    """Return the column of each role whose name says so; nothing unless all three are there, each once."""
    found = {role: [name for name in names if name.lower() in known] for role, known in _NAMES.items()}
    return {role: here[0] for role, here in found.items()} if all(len(here) == 1 for here in found.values()) else {}


@contextmanager
def _arrow_errors_as_input_errors(path: Path) -> Iterator[None]:
    """Raise errors of pyarrow and of the system as an `InputError` with the file."""
    import pyarrow as pa

    refused = os_errors_as_input_errors(
        f"{path} cannot be read",
        needed="a whole file of triples",
        repair="check that it is complete, and its encoding UTF-8",
        also=(pa.ArrowException, UnicodeDecodeError, EOFError),
    )
    with refused:
        yield
