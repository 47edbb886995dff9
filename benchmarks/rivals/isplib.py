"""iSpLib: PyG's layers on a `SparseTensor`, whose products with dense rows its patch of PyG takes over.

Its kernels are made for widths that are multiples of 16; products of other widths take up to three times as long. Its
examples pad features with zeros, and its documentation says to choose widths by that; here all widths are padded.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch_sparse
from isplib import iSpLibPlugin
from rivals.common import Job, main, read_arrays, widths
from rivals.layers import drive
from rivals.padding import call_padded, count_missing, pad_kind
from rivals.pyg import KINDS
from torch_sparse import SparseTensor

_UNIT = 16  # what the examples pad to: floats in a vector of AVX-512


def correct_means(graph: SparseTensor) -> None:
    """Give the plugin the factors of the edges of means in the backward pass, which it puts in the wrong order."""
    rowptr, col, _ = graph.csr()
    row = graph.storage.row().index_select(0, graph.storage.csr2csc())
    counts = graph.storage.rowcount().clamp(min=1)
    found = {"new_row": row, "new_rowcount": counts.index_select(0, row).to(torch.float32).reciprocal()}
    iSpLibPlugin.row_cache[rowptr.data_ptr(), col.data_ptr()] = found


def work(job: Job) -> dict[str, Any]:
    """Train; see `rivals.common.main`."""
    arrays = read_arrays(job.folder)
    source, target = torch.from_numpy(arrays.edge_index)
    size = (len(arrays.labels),) * 2
    graph = SparseTensor(row=target, col=source, sparse_sizes=size)
    correct_means(graph)
    iSpLibPlugin.patch_pyg()
    with patch.object(torch_sparse, "matmul", wraps=torch_sparse.matmul) as product:
        KINDS[job.model].make(4, 4, 1)(torch.zeros(size[0], 4), graph)
    if not product.called:
        raise RuntimeError("PyG does not call iSpLib's product")
    sizes = widths(job.folder)
    # Features are the same in each epoch, so that they are padded once; the narrower ones are kept nowhere.
    arrays = arrays._replace(features=np.pad(arrays.features, ((0, 0), (0, count_missing(sizes[0], _UNIT)))))
    return drive(
        job,
        pad_kind(KINDS[job.model], _UNIT),
        sizes,
        lambda layer, x: call_padded(layer, x, _UNIT, lambda padded: layer(padded, graph)),
        arrays,
    )


if __name__ == "__main__":
    main(work, ("torch_geometric", "torch_sparse", "isplib"))
