"""Files of node ids, for `outgrow predict --nodes`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.errors import InputError

_COLUMN = "node"


def read_nodes(path: Path) -> Tensor:
    """Read node ids: an .npy array, a .parquet table with a column ``node``, or text with one id in a line.

    Returns:
        ``[n]`` of the type of the file; whether they are ids or a mask is not checked.

    Raises:
        InputError: The file is missing or holds something else.
    """
    if not path.is_file():
        raise _error(path, "a file", "none" if not path.exists() else "a directory")
    try:
        values = _read_array(path)
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise _error(path, "node ids", f"{type(error).__name__}: {str(error)[:200]}") from error
    if values.ndim != 1 or values.dtype.kind not in "iub":
        raise _error(path, "one whole number for each node", f"shape {values.shape} of {values.dtype}")
    return torch.from_numpy(np.ascontiguousarray(values if values.dtype.kind == "b" else values.astype(np.int64)))


def _read_array(path: Path) -> NDArray[Any]:
    if path.suffix == ".npy":
        array: NDArray[Any] = np.load(path, allow_pickle=False)
        return array
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path, columns=[_COLUMN])[_COLUMN].to_numpy()
    return np.array([int(line) for line in path.read_text("utf-8").split()], dtype=np.int64)


def _error(path: Path, needed: str, got: str) -> InputError:
    return InputError(
        f"cannot read nodes from {path}",
        needed=needed,
        got=got,
        repair=f"give an .npy array, a .parquet table with a column {_COLUMN!r}, or text with one id in a line",
    )
