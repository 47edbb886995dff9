"""Edges of a graph as readers yield them, in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.graph.readers.source import EdgeChunk
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy

_CHUNK = 1 << 18
_CHUNK_BYTES = 1 << 24


def read_stored_edges(topology: Topology) -> Iterator[EdgeChunk]:
    """Yield the edges of a graph in its order, in chunks of bounded size; its arrays may be mapped.

    Features in bfloat16, which NumPy does not have, come as float32.
    """
    indptr, indices = as_numpy(topology.indptr), as_numpy(topology.indices)
    relation = None if topology.relation is None else as_numpy(topology.relation)
    weight = None if topology.weight is None else as_numpy(topology.weight)
    features = topology.edge_features
    step = _CHUNK if features is None else max(1, min(_CHUNK, _CHUNK_BYTES // features[:1].nbytes))
    for first in range(0, len(indices), step):
        last = min(len(indices), first + step)
        low = int(np.searchsorted(indptr, first, side="right")) - 1
        high = int(np.searchsorted(indptr, last, side="left"))
        counts = np.diff(np.clip(indptr[low : high + 1], first, last))
        yield EdgeChunk(
            # Copies: a view would keep the mapping.
            src=indices[first:last].astype(np.int64),
            dst=np.repeat(np.arange(low, high), counts),
            relation=None if relation is None else np.array(relation[first:last]),
            weight=None if weight is None else np.array(weight[first:last]),
            features=None if features is None else stored_rows(features[first:last]),
            time=None if topology.edge_time is None else np.array(as_numpy(topology.edge_time)[first:last]),
        )


def stored_rows(features: Tensor) -> NDArray[Any]:
    """Return a copy of the features of some edges, ``[n, De]``; those in bfloat16, which NumPy lacks, in float32."""
    return np.array(as_numpy(features.float() if features.dtype == torch.bfloat16 else features))
