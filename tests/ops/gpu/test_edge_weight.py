"""Weights of edges that read the graph only, on a CUDA device, against a loop."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from support import destinations_of, normal, random_topology


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize(("weighted", "symmetric"), [(False, True), (True, False), (True, True)])
def test_scale_edges(
    twin: ModuleType,
    call: Callable[..., None],
    dtype: torch.dtype,
    index: torch.dtype,
    weighted: bool,
    symmetric: bool,
) -> None:
    topology = random_topology(8, 16, index=index, weighted=weighted)
    edges, factor = topology.block.edges, normal(8).abs()
    other = normal(8, seed=1) if symmetric else None
    factor[int(destinations_of(edges)[0])] = torch.inf
    out = torch.full((edges.num_edges,), torch.nan, dtype=dtype)
    call(twin.scale_edge_weight, edges.indptr, edges.indices, topology.weight, factor, other, out)
    at = destinations_of(edges).tolist()
    for e, (v, u) in enumerate(zip(at, edges.indices.tolist(), strict=True)):
        value = factor[v] * (1 if other is None else other[u])
        value = value * (1 if topology.weight is None else topology.weight[e])
        assert out[e] == (value.to(dtype) if value.isfinite() else 0)
