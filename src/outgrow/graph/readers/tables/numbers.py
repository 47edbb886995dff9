"""Text files of nothing but numbers, as arrays."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.readers.tables.id_columns import missing_value_error
from outgrow.graph.readers.tables.text_table import TextTable


def read_numbers(path: Path, dtype: type[np.int64] | type[np.float32]) -> NDArray[Any]:
    """Read a table of numbers without a header.

    Args:
        path: The file.
        dtype: Type of every number.

    Returns:
        ``[n, columns]``, mapped from a temporary file, so that a table larger than memory can be read in
        slices. In a table of floats, an empty field is NaN.

    Raises:
        InputError: A row with anything else than numbers (the message has its line), or a broken file.
    """
    import pyarrow as pa

    table = TextTable(path, header=False)
    names = table.names
    types = dict.fromkeys(names, pa.from_numpy_dtype(np.dtype(dtype)))
    rows = 0
    with tempfile.TemporaryFile() as file:
        for batch in table.read_batches(names, types) if names else ():
            part = np.empty((len(batch), len(names)), dtype)
            for at, column in enumerate(batch.columns):
                if column.null_count and dtype is np.int64:
                    missing = int(np.argmin(np.asarray(column.is_valid())))
                    raise missing_value_error(table.locate_row(rows + missing), names[at])
                part[:, at] = column.to_numpy(zero_copy_only=False)
            file.write(part.data)
            rows += len(part)
        file.flush()
        if rows == 0:
            return np.empty((0, 1), dtype=dtype)
        # The mapping keeps the unnamed file alive; the system deletes it with the last reference.
        return np.memmap(file, dtype=dtype, mode="r", shape=(rows, len(names)))
