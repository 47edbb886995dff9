"""Files of predictions: what they hold, and how rows are written to them one after the other."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from outgrow.app.node_names import NodeNames
from outgrow.app.runs.directory import convert_write_errors
from outgrow.app.type_predictions import TypeOutputs, compute_type_probabilities, join_type_columns
from outgrow.core.errors import InputError
from outgrow.graph.store.writer import ArrayWriter
from outgrow.nn.tasks import MultiLabel, NodeClassification, NodeRegression

if TYPE_CHECKING:
    import pyarrow as pa


_CHUNK_BYTES = 64 << 20
WHAT = ("classes", "probabilities", "logits", "embeddings", "values")
"""Outputs that can be written; values are those of a regression."""


class PredictionRows(NamedTuple):
    """Outputs for some nodes, consecutive rows of a file.

    Attributes:
        nodes: ``[k]`` int64, their ids.
        logits: ``[k, C]``; None if they are not written.
        embeddings: ``[k, H]``; None if they are not written.
    """

    nodes: Tensor
    logits: Tensor | None = None
    embeddings: Tensor | None = None

    def slice_rows(self, first: int, last: int) -> PredictionRows:
        """Return the rows ``first`` to ``last - 1``."""
        logits, embeddings = (None if part is None else part[first:last] for part in self[1:])
        return PredictionRows(self.nodes[first:last], logits, embeddings)


@dataclass(frozen=True, kw_only=True, eq=False)
class PredictionFormat:
    """What a file of predictions holds of each node.

    Attributes:
        what: One of `WHAT`.
        class_names: Names of the classes; may be empty.
        multi_label: Whether a node may have several labels.
        regression: Whether outputs are numbers, not logits of classes.
        types: Outputs of each node type, where types have outputs of their own; or empty.
        has_labels: Whether a table of embeddings of a model of nodes has columns of labels, too.
    """

    what: str
    class_names: tuple[str, ...] = ()
    multi_label: bool = False
    regression: bool = False
    types: tuple[TypeOutputs, ...] = ()
    has_labels: bool = True

    def for_type(self, outputs: TypeOutputs) -> PredictionFormat:
        """Return the format of the rows of one node type."""
        return PredictionFormat(
            what=self.what,
            class_names=outputs.class_names,
            multi_label=outputs.task == MultiLabel.kind,
            regression=outputs.task == NodeRegression.kind,
        )

    def convert_outputs(self, rows: Tensor) -> Tensor:
        """Return what is written of outputs ``[k, O]``, embeddings or else logits.

        Classes are ``[k]`` int64 or, if multi-label, ``[k, C]`` uint8 zeros and ones; probabilities and logits are
        ``[k, C]``; embeddings are ``[k, H]``; values are ``[k]`` or, if there are several, ``[k, K]``.
        """
        if self.what == "values":
            return NodeRegression().predict(rows)
        if self.what == "classes":
            return (MultiLabel() if self.multi_label else NodeClassification()).predict(rows)
        return self.compute_probabilities(rows) if self.what == "probabilities" else rows

    def compute_probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each class, ``[k, C]``."""
        return logits.sigmoid() if self.multi_label else logits.softmax(1)


def validate_output_path(out: Path, endings: Sequence[str] = (".parquet", ".npy")) -> None:
    """Check that a file can be written, before anything is computed.

    Args:
        out: The file.
        endings: What its name may end in.

    Raises:
        InputError: Its name has an unknown ending, or its directory is missing or read-only.
    """
    folder = out.resolve().parent
    repair = f"give another --out, such as {out.stem or 'predictions'}.parquet"
    if out.is_dir():
        needed, got = "the name of a file", "a directory"
    elif not folder.is_dir():
        needed, got = "a file in a directory that exists", f"no directory {folder}"
    elif not os.access(folder, os.W_OK | os.X_OK):
        needed, got = "a writable directory", f"no permission to write to {folder}"
    elif out.suffix not in endings:
        needed = f"a name that ends in {' or '.join(endings)}"
        got = f"the ending {out.suffix!r}" if out.suffix else "none"
    else:
        return
    raise InputError(f"cannot write {out}", needed=needed, got=got, repair=repair)


def write_predictions(
    form: PredictionFormat, names: NodeNames, pieces: Generator[PredictionRows], path: Path, out: Path
) -> None:
    """Write predictions as they come, in groups of rows of about 64 MiB, as parquet or npy according to the ending.

    An npy file holds an array of what the format says; a parquet file a column of lists, next to the columns of the
    classes if there are logits.

    Args:
        form: What the file holds.
        names: What nodes are called in a table.
        pieces: At least one piece, which may be empty; all of them in the order of the file. Closed also by an error.
        path: New file, complete when this returns.
        out: Its name in errors.

    Raises:
        InputError: The file cannot be written.
    """
    file: _PredictionFile | None = None
    with closing(pieces), ExitStack() as stack:
        for rows in regroup_rows(pieces):
            # Not around the loop: what computes the rows has errors of its own.
            with convert_write_errors(out):
                if file is None:
                    # The first rows determine the type of an array, and the columns of a table.
                    is_array = path.suffix == ".npy"
                    file = _ArrayFile(form, rows, path) if is_array else _TableFile(form, names, rows, path)
                    stack.callback(file.close)
                file.append_rows(rows)
        assert file is not None
        with convert_write_errors(out):
            file.finish_file()


def regroup_rows(pieces: Iterator[PredictionRows]) -> Iterator[PredictionRows]:
    """Yield the same rows in groups of as many as `count_group_rows` says; at least one group, which may be empty."""
    held, count, size, is_empty = list[PredictionRows](), 0, 0, True
    for piece in pieces:
        size = size or count_group_rows(piece)
        held.append(piece)
        count += len(piece.nodes)
        while count >= size:
            whole, is_empty = _join_rows(held), False
            yield whole.slice_rows(0, size)
            held, count = [whole.slice_rows(size, count)], count - size
    # No rows make a group if there is no other: the first one determines the columns of a table.
    if count or is_empty:
        yield _join_rows(held)


def count_group_rows(rows: PredictionRows) -> int:
    """Return how many rows like these need about 64 MiB to be written."""
    known = [values for values in (rows.logits, rows.embeddings) if values is not None]
    # Each value exists up to three times: as output, as probability and in the table that is written.
    return max(1, _CHUNK_BYTES // sum(3 * values.shape[1] * values.element_size() + 1 for values in known))


def _join_rows(pieces: list[PredictionRows]) -> PredictionRows:
    if len(pieces) == 1:
        return pieces[0]
    nodes, *others = zip(*pieces, strict=True)
    logits, embeddings = (None if parts[0] is None else torch.cat(parts) for parts in others)
    return PredictionRows(torch.cat(nodes), logits, embeddings)


class _PredictionFile(Protocol):
    """A file that is being written."""

    def append_rows(self, rows: PredictionRows) -> None: ...

    def finish_file(self) -> None: ...

    def close(self) -> None:
        """Close it without finishing it, if it is not finished."""


class _ArrayFile:
    def __init__(self, form: PredictionFormat, rows: PredictionRows, path: Path) -> None:
        self._form = form
        sample = self._select_values(rows.slice_rows(0, 1)).numpy()
        self._array = ArrayWriter(path, sample.dtype, sample.shape[1:])

    def append_rows(self, rows: PredictionRows) -> None:
        self._array.append_rows(self._select_values(rows).numpy())

    def finish_file(self) -> None:
        self._array.finish_array()

    def close(self) -> None:
        self._array.close()

    def _select_values(self, rows: PredictionRows) -> Tensor:
        values = rows.embeddings if self._form.what == "embeddings" else rows.logits
        assert values is not None
        return self._form.convert_outputs(values)


class _TableFile:
    def __init__(self, form: PredictionFormat, names: NodeNames, rows: PredictionRows, path: Path) -> None:
        from pyarrow import parquet

        self._form, self._names = form, names
        self._file = parquet.ParquetWriter(path, _make_table(form, names, rows.slice_rows(0, 1)).schema)

    def append_rows(self, rows: PredictionRows) -> None:
        self._file.write_table(_make_table(self._form, self._names, rows))

    def finish_file(self) -> None:
        self._file.close()

    def close(self) -> None:
        # What it would write to end the file may not fit on the disk either.
        with suppress(OSError):
            self._file.close()


def _make_table(form: PredictionFormat, names: NodeNames, rows: PredictionRows) -> pa.Table:
    import pyarrow as pa

    columns = names.make_columns(rows.nodes)
    if rows.logits is not None:
        # A class may have the name of another column.
        columns |= {
            f"{name} (class)" if name in columns else name: column
            for name, column in _label_columns(form, rows.nodes, rows.logits).items()
        }
    if form.what not in ("classes", "values"):
        values = rows.embeddings if form.what == "embeddings" else rows.logits
        assert values is not None
        if form.types and form.what == "probabilities":
            lists = compute_type_probabilities(form.types, rows.nodes, values)
        else:
            lists = form.convert_outputs(values)
        name = "embedding" if form.what == "embeddings" else form.what
        columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(lists.flatten().numpy()), lists.shape[1])
    return pa.table(columns)


def _label_columns(form: PredictionFormat, nodes: Tensor, logits: Tensor) -> dict[str, Any]:
    if not form.types:
        return _class_columns(form, logits)
    return join_type_columns(form.types, nodes, logits, lambda each, own: _class_columns(form.for_type(each), own))


def _class_columns(form: PredictionFormat, logits: Tensor) -> dict[str, Any]:
    """Return the columns of labels, class names and probabilities; or of the values of a regression."""
    import pyarrow as pa

    if form.regression:
        columns_of = logits.T.contiguous().numpy()
        return {_value_name(i, len(columns_of)): pa.array(column) for i, column in enumerate(columns_of)}
    columns: dict[str, Any] = {}
    probability = form.compute_probabilities(logits)
    names = form.class_names
    if form.multi_label:
        names = names or tuple(str(i) for i in range(probability.shape[1]))
        columns |= {name: pa.array(probability[:, i].numpy()) for i, name in enumerate(names)}
    else:
        label = NodeClassification().predict(logits)
        columns["label"] = pa.array(label.numpy())
        if names:
            columns["class"] = pa.array(names, pa.string()).take(columns["label"])
        columns["probability"] = pa.array(probability.gather(1, label[:, None])[:, 0].numpy())
    return columns


def _value_name(column: int, count: int) -> str:
    return "value" if count == 1 else f"value_{column}"


def choose_output(what: str | None, *, regression: bool) -> str:
    """Return what to write: as asked for, or else classes, or the values of a regression.

    Raises:
        InputError: A regression has no classes or probabilities, and classes are no values.
    """
    if what is None:
        return "values" if regression else "classes"
    if what in (("classes", "probabilities") if regression else ("values",)):
        raise InputError(
            f"the run has no {what}",
            needed="values, logits or embeddings of a regression" if regression else "an output of classes",
            got=f"--what {what}",
            repair="leave --what out",
        )
    return what
