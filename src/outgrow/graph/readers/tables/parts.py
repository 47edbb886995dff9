"""Tables in several files of a folder, such as those that Spark and DuckDB write."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, final

from outgrow.core.errors import InputError
from outgrow.graph.readers.tables.column_types import list_names, unify_types
from outgrow.graph.readers.tables.forms import list_parts, table_suffix
from outgrow.graph.readers.tables.table import DataType, RecordBatch, Table


class OpenFile(Protocol):
    """Opens the table in a file."""

    def __call__(self, path: Path, *, header: bool | None = None, named: Collection[str] = ()) -> Table:
        """Open a file; see `open_table`."""
        ...


@final
class PartsTable(Table):
    """Table in the files of a folder, one after the other in the order of their names.

    Args:
        path: The folder.
        open_file: Opens a part, as `open_table` does.
        header: Whether the first lines of text files have the names of columns; None to decide by the first file.
        named: Names of columns that the caller asks for.
        files: The parts, in order; empty for those of the folder.

    Raises:
        InputError: Files are of several forms, columns differ, or a file is broken.
    """

    def __init__(
        self,
        path: Path,
        open_file: OpenFile,
        *,
        header: bool | None = None,
        named: Collection[str] = (),
        files: Sequence[Path] = (),
    ) -> None:
        self._path = path
        self._open_file = open_file
        files = [*files] or list_parts(path) or sorted(file for file in path.iterdir() if file.name[0] not in "._")
        if not files or len({table_suffix(file) for file in files}) > 1:
            raise InputError(
                f"{path} is no table",
                needed="a folder of files of one form, which are parts of a table",
                got=", ".join(file.name for file in files[:8]) or "nothing",
                repair="name one file, or move the others away",
            )
        first = open_file(files[0], header=header, named=named)
        self._parts = [first, *(self._open_part(file, first, header) for file in files[1:])]
        self._rows_before: list[int] = []
        self._at = 0

    def _open_part(self, file: Path, first: Table, header: bool | None) -> Table:
        part = self._open_file(file, header=header if first.has_names else False)
        # Text that was cut into parts has names in the first of them only.
        is_rest = not part.has_names and len(part.names) == len(first.names)
        if part.names and set(part.names) != set(first.names) and not is_rest:
            raise InputError(
                f"the columns of {file} differ from those of {first.path.name}",
                needed=f"the columns {list_names(first.names)}",
                got=list_names(part.names),
                repair="move files of other tables to another folder",
            )
        return part

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each column, in the first file."""
        return self._parts[0].names

    @property
    def has_names(self) -> bool:
        """Whether columns have names."""
        return self._parts[0].has_names

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        return sum(part.num_bytes for part in self._parts)

    @property
    def bytes_read(self) -> int:
        """How many bytes of them were read."""
        return sum(part.num_bytes for part in self._parts[: self._at]) + self._parts[self._at].bytes_read

    def find_type(self, name: str) -> DataType | None:
        """Return the type of a column that holds the values of all parts; None in text."""
        types = [part.find_type(name) for part in self._parts]
        if None in types:
            return None
        found = types[0]
        for other in types[1:]:
            found = unify_types(found, other)
        return found

    def refuse_leading_zeros(self, columns: Sequence[str]) -> None:
        """Refuse, from now on, texts such as ``007`` where integers of these columns are read."""
        for part in self._parts:
            part.refuse_leading_zeros(self._name_in(part, columns))

    def infer_types(self, columns: Sequence[str]) -> dict[str, DataType]:
        """Return the type of each column, which holds the values of all rows; of text, all of it is read."""
        found: dict[str, DataType] = {}
        for part in self._parts:
            here = part.infer_types(self._name_in(part, columns))
            for name, kind in zip(columns, here.values(), strict=True):
                found[name] = unify_types(found[name], kind) if name in found else kind
        return found

    def read_batches(
        self, columns: Sequence[str], types: Mapping[str, DataType] | None = None
    ) -> Iterator[RecordBatch]:
        """Yield the rows of all parts; see `Table.read_batches`."""
        given = dict(types or {})
        given |= self.infer_types([name for name in columns if name not in given])
        rows = 0
        self._rows_before = []
        for at, part in enumerate(self._parts):
            self._at = at
            self._rows_before.append(rows)
            own = self._name_in(part, columns)
            kinds = {mine: given[name] for mine, name in zip(own, columns, strict=True)}
            for batch in part.read_batches(own, kinds) if part.names else ():
                rows += len(batch)
                yield batch.rename_columns([*columns]) if own != columns else batch

    def locate_row(self, row: int) -> str:
        """Return the file and the row in it."""
        for before, part in zip(
            reversed(self._rows_before), reversed(self._parts[: len(self._rows_before)]), strict=True
        ):
            if row >= before:
                return part.locate_row(row - before)
        return f"{self.path}, row {row}"

    def _name_in(self, part: Table, columns: Sequence[str]) -> list[str]:
        if part.has_names or not self.has_names:
            return [*columns]
        return [part.names[self.names.index(name)] if part.names else name for name in columns]
