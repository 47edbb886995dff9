"""Predictions and embeddings of nodes, and the files that they are written to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from outgrow.app.runs.directory import convert_write_errors
from outgrow.core.errors import InputError
from outgrow.core.files import atomic_write
from outgrow.graph.store.writer import ArrayWriter
from outgrow.nn.tasks import MultiLabel, SingleLabel

if TYPE_CHECKING:
    import pyarrow as pa


_CHUNK_BYTES = 64 << 20
WHAT = ("classes", "probabilities", "logits", "embeddings")
"""Outputs that can be written."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """Outputs of a model for nodes.

    Attributes:
        nodes: ``[n]`` int64, their ids.
        logits: ``[n, C]``; None if they were not computed.
        embeddings: ``[n, H]``; None if they were not computed.
        class_names: Names of the classes; may be empty.
        multi_label: Whether a node may have several labels.
    """

    nodes: Tensor
    logits: Tensor | None = None
    embeddings: Tensor | None = None
    class_names: tuple[str, ...] = ()
    multi_label: bool = False

    def select_rows(self, what: str, first: int, last: int) -> Tensor:
        """Return the output for the nodes at positions ``first`` to ``last - 1``.

        Args:
            what: One of `WHAT`: classes are ``[n]`` int64 or, if multi-label, ``[n, C]`` uint8 zeros and
                ones; probabilities and logits are ``[n, C]``; embeddings are ``[n, H]``.
            first: First position.
            last: End of the range, exclusive.
        """
        values = self.embeddings if what == "embeddings" else self.logits
        assert values is not None
        rows = values[first:last]
        if what == "classes":
            return (MultiLabel() if self.multi_label else SingleLabel()).predict(rows)
        if what == "probabilities":
            return rows.sigmoid() if self.multi_label else rows.softmax(1)
        return rows

    def chunk_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of positions, end exclusive, that need about 64 MiB each to be written."""
        known = [values for values in (self.logits, self.embeddings) if values is not None]
        # Each value exists up to three times: as output, as probability and in the table that is written.
        step = max(1, _CHUNK_BYTES // sum(3 * values[:1].nbytes + 1 for values in known))
        # At least one, since the first one determines the columns of a table.
        for first in range(0, max(1, len(known[0])), step):
            yield first, min(first + step, len(known[0]))


def validate_output_path(out: Path) -> None:
    """Check that predictions can be written to a file, before anything is computed.

    Raises:
        InputError: Its name has an unknown ending, or its directory is missing or read-only.
    """
    folder = out.resolve().parent
    repair = "give another --out, such as predictions.parquet"
    if out.is_dir():
        needed, got = "the name of a file", "a directory"
    elif not folder.is_dir():
        needed, got = "a file in a directory that exists", f"no directory {folder}"
    elif not os.access(folder, os.W_OK | os.X_OK):
        needed, got = "a writable directory", f"no permission to write to {folder}"
    elif out.suffix not in (".parquet", ".npy"):
        needed, got = "a name that ends in .parquet or .npy", f"the ending {out.suffix!r}" if out.suffix else "none"
    else:
        return
    raise InputError(f"cannot write {out}", needed=needed, got=got, repair=repair)


def write_predictions(predictions: Predictions, what: str, out: Path) -> None:
    """Write predictions in chunks, atomically, as parquet or npy according to the ending of the file.

    Args:
        predictions: Predictions with what ``what`` needs; for parquet also with logits, unless the model
            predicts links.
        what: One of `WHAT`. An npy file holds an array of it; a parquet file a column of lists, next to the
            columns of the classes.
        out: File to write or replace.

    Raises:
        InputError: The file cannot be written.
    """
    write = _write_array if out.suffix == ".npy" else _write_table
    with convert_write_errors(out), atomic_write(out) as temporary:
        write(predictions, what, temporary)


def _write_array(predictions: Predictions, what: str, path: Path) -> None:
    sample = predictions.select_rows(what, 0, 1).numpy()
    with closing(ArrayWriter(path, sample.dtype, sample.shape[1:])) as array:
        for first, last in predictions.chunk_ranges():
            array.append_rows(predictions.select_rows(what, first, last).numpy())
        array.finish_array()


def _write_table(predictions: Predictions, what: str, path: Path) -> None:
    from pyarrow import parquet

    tables = (_make_table(predictions, what, first, last) for first, last in predictions.chunk_ranges())
    # The writer needs the schema, which the first chunk determines.
    head = next(tables)
    with parquet.ParquetWriter(path, head.schema) as file:
        for table in chain([head], tables):
            file.write_table(table)


def _make_table(predictions: Predictions, what: str, first: int, last: int) -> pa.Table:
    import pyarrow as pa

    columns = {"node": pa.array(predictions.nodes[first:last].numpy())}
    if predictions.logits is not None:
        columns |= _class_columns(predictions, first, last)
    if what != "classes":
        rows = predictions.select_rows(what, first, last)
        name = "embedding" if what == "embeddings" else what
        columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(rows.flatten().numpy()), rows.shape[1])
    return pa.table(columns)


def _class_columns(predictions: Predictions, first: int, last: int) -> dict[str, Any]:
    """Return the columns of labels, class names and probabilities."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    probability = predictions.select_rows("probabilities", first, last)
    names = predictions.class_names
    if predictions.multi_label:
        names = names or tuple(str(i) for i in range(probability.shape[1]))
        columns |= {name: pa.array(probability[:, i].numpy()) for i, name in enumerate(names)}
    else:
        label = predictions.select_rows("classes", first, last)
        columns["label"] = pa.array(label.numpy())
        if names:
            columns["class"] = pa.array(names, pa.string()).take(columns["label"])
        columns["probability"] = pa.array(probability.gather(1, label[:, None])[:, 0].numpy())
    return columns
