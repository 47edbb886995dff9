"""Tensors of foreign objects as NumPy arrays and SciPy matrices, sparse layouts included."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, issparse

from outgrow.graph.readers.matrices import Matrix, csr_from_arrays
from outgrow.graph.readers.node_parts import part_error


class SparseEdges(NamedTuple):
    """The entries of a sparse matrix.

    Attributes:
        rows: ``[E]`` int64.
        columns: ``[E]`` int64.
        values: ``[E]``; None if there are none, or all are 1.
        shape: Rows and columns.
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[Any] | None
    shape: tuple[int, int]


def is_sparse(values: Any) -> bool:
    """Whether this is a sparse tensor of torch, a ``SparseTensor`` of torch_sparse or a SciPy matrix."""
    import torch

    if isinstance(values, torch.Tensor):
        return values.layout is not torch.strided
    return _is_sparse_tensor(values) or issparse(values)


def sparse_edges(values: Any, name: str) -> SparseEdges:
    """Return the entries of a sparse matrix, in its order; entries that are given twice are kept as they are.

    Raises:
        InputError: No matrix, or another layout than COO, CSR and CSC.
    """
    import torch

    given: Any = None
    ends: Any = None
    if _is_sparse_tensor(values):
        *ends, given = values.coo()
    elif isinstance(values, torch.Tensor) and values.layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        # Not coalesced: that would add up the weights of parallel edges.
        coordinates: Any = values.detach().to_sparse(layout=torch.sparse_coo)
        ends, given = coordinates._indices(), coordinates._values()
    else:
        got = f"a tensor of layout {values.layout}" if isinstance(values, torch.Tensor) else type(values).__name__
        raise part_error(name, "a sparse matrix in COO or CSR", got)
    weight = to_numpy(given, name)
    shape = [int(n) for n in (values.sizes() if _is_sparse_tensor(values) else values.shape)]
    if len(shape) != 2 or (weight is not None and weight.ndim != 1):
        raise part_error(name, "a matrix, with one value for each edge", f"a tensor of shape {shape}")
    if weight is not None and (weight == 1).all():
        weight = None
    rows, columns = (np.asarray(each.cpu()) for each in ends)
    return SparseEdges(rows, columns, weight, (shape[0], shape[1]))


def to_matrix(x: Any, name: str) -> Matrix | None:
    """Return features as an array, or as a CSR matrix if they are sparse; None for None.

    Raises:
        InputError: Neither, or a matrix that is not well-formed.
    """
    import torch

    if issparse(x):
        matrix: Any = x
        return csr_array(matrix)
    if _is_sparse_tensor(x):
        ends, columns, values = x.csr()
        ones = np.ones(len(columns), np.float32)
        return _to_csr(
            name, ones if values is None else _to_strided(values), _to_strided(ends), _to_strided(columns), x.sizes()
        )
    if x is None or not isinstance(x, torch.Tensor) or x.layout not in (torch.sparse_csr, torch.sparse_coo):
        return to_numpy(x, name)
    if x.layout is torch.sparse_coo:
        if x.ndim != 2 or x.dense_dim():
            raise part_error(name, "a matrix", f"{x.ndim} dimensions, {x.dense_dim()} of them dense")
        whole = x.detach().cpu().coalesce()
        made: Any = coo_array((_to_strided(whole.values()), tuple(whole.indices().numpy())), shape=tuple(x.shape))
        return csr_array(made)
    return _to_csr(name, _to_strided(x.values()), _to_strided(x.crow_indices()), _to_strided(x.col_indices()), x.shape)


def _to_csr(name: str, values: Any, ends: Any, columns: Any, shape: Any) -> csr_array:
    try:
        return csr_from_arrays(values, columns, ends, [int(n) for n in shape])
    except ValueError as error:
        raise part_error(name, "a well-formed CSR matrix", str(error)) from error


def to_numpy(values: Any, name: str) -> NDArray[Any] | None:
    """Return a dense tensor or array as an array; None for None. Numbers in bfloat16 become float32.

    Raises:
        InputError: Another type, or a sparse tensor.
    """
    if values is None:
        return None
    import torch

    if isinstance(values, np.ndarray):
        return values
    if not isinstance(values, torch.Tensor) or values.layout is not torch.strided:
        got = f"a tensor of layout {values.layout}" if isinstance(values, torch.Tensor) else type(values).__name__
        raise part_error(name, "a dense tensor", got)
    return _to_strided(values)


def _to_strided(values: Any) -> NDArray[Any]:
    import torch

    # NumPy has no bfloat16.
    here = values.detach().cpu()
    return np.asarray(here.float() if here.dtype == torch.bfloat16 else here)


def _is_sparse_tensor(values: Any) -> bool:
    # By name: torch_sparse need not be installed.
    return type(values).__name__ == "SparseTensor"
