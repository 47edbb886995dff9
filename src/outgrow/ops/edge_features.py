"""Products of edge features with weights, differentiable in the weight, without a converted copy of the features.

Features are constants: numbers of any width, which kernels widen one by one, or codes of categories, of which each is
the one-hot vector of its category, so that a product is a sum of rows of the weight. Letters: ``E`` edges, ``De``
columns of features, ``I`` inputs that they are to a layer (columns, or categories of all columns of codes), ``K``
columns of the weight.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.core.errors import InputError
from outgrow.ops.backend import (
    as_numpy,
    device_function,
    gpu_dispatch,
    kernel_factory,
    once_differentiable,
    parallel_kernel,
    prange,
)
from outgrow.ops.kernels.numerics import as_float, kernel_view

Array = NDArray[Any]

MOST_SHARES = 64
"""Most parts of the edges, each of which sums a gradient of the weight of its own. Fixed, whatever the threads are."""
_LEAST_SHARES = 4
_SUMMED_NUMBERS = 1 << 22
_MOST_FIXED = 16


class EdgeFeatures(NamedTuple):
    """Features of edges as kernels take them.

    Attributes:
        values: ``[E, De]`` floating, or integer codes; a code of -1 is a vector of zeros.
        starts: ``[De]`` int64, the row of the weight of the first category of each column; None if they are numbers.
    """

    values: Tensor
    starts: Tensor | None

    def to_arrays(self) -> tuple[Array, Array | None]:
        """Return the arrays of CPU kernels: numbers of half precision as bits."""
        if self.starts is None:
            return as_numpy(kernel_view(self.values)), None
        return as_numpy(self.values), as_numpy(self.starts)


def read_edge_features(edges: Edges, edge_dim: int) -> EdgeFeatures:
    """Return the features of the edges of a block, after checking that they are what a layer reads.

    Args:
        edges: Edges with features.
        edge_dim: ``I``, the inputs that the layer has for an edge.

    Raises:
        InputError: Edges have no features, or others than the layer reads.
    """
    if edges.features is None or edges.num_features != edge_dim:
        raise InputError(
            "a layer that reads features of edges does not fit the graph",
            needed=f"{edge_dim} features of each edge",
            got="edges without features" if edges.features is None else f"{edges.num_features} features",
            repair="build the layer with edge_dim=graph.num_edge_features, on a graph whose edges have features",
        )
    if not edges.feature_sizes:
        return EdgeFeatures(edges.features, None)
    if "edge feature starts" not in edges.cache:
        _validate_codes(edges.features, edges.feature_sizes)
        starts = [0, *accumulate(edges.feature_sizes)][:-1]
        edges.cache["edge feature starts"] = torch.tensor(starts, device=edges.features.device)
    return EdgeFeatures(edges.features, cast(Tensor, edges.cache["edge feature starts"]))


def dense_edge_features(values_ED: Tensor, starts_D: Tensor | None, edge_dim: int, dtype: torch.dtype) -> Tensor:
    """Return ``[E, I]``: features of edges, as in `EdgeFeatures`, as numbers of a type; codes as one-hot vectors."""
    if starts_D is None:
        return values_ED.to(dtype)
    at_ED = values_ED.long()
    # One more column takes the codes of -1, and is left out.
    at_ED = torch.where(at_ED < 0, edge_dim, at_ED + starts_D)
    out_EJ = torch.zeros(len(at_ED), edge_dim + 1, dtype=dtype, device=values_ED.device)
    return out_EJ.scatter_(1, at_ED, 1)[:, :edge_dim]


def _validate_codes(codes_ED: Tensor, sizes: tuple[int, ...]) -> None:
    if codes_ED.shape[1] != len(sizes):
        got = f"{codes_ED.shape[1]} columns, sizes of {len(sizes)}"
    elif not len(codes_ED):
        return
    else:
        # A column at a time: no copy of all codes. Once per block, as reading from a GPU waits for the device.
        ends = [[int(end) for end in codes_ED[:, column].aminmax()] for column in range(len(sizes))]
        wrong = [(*end, size) for end, size in zip(ends, sizes, strict=True) if end[0] < -1 or end[1] >= size]
        if not wrong:
            return
        got = f"codes {wrong[0][0]} to {wrong[0][1]} of {wrong[0][2]} categories"
    raise InputError(
        "codes of edge features are out of range",
        needed="a size for each column, and codes from -1 (none) to below it",
        got=got,
        repair="number the categories of a column from 0",
    )


def project_edges(edges: Edges, weight_IK: Tensor) -> Tensor:
    """Return ``[E, K]``: the product of the features of each edge and the weight, of the type of the weight.

    Args:
        edges: In-edges of a block, with features that are ``I`` inputs.
        weight_IK: ``[I, K]``, in which the result is differentiable. Its gradient is summed in float64, in an order
            that depends on the number of edges alone.

    Raises:
        InputError: See `read_edge_features`.
    """
    return _ProjectEdges.apply(weight_IK, read_edge_features(edges, len(weight_IK)))  # type: ignore[no-any-return, no-untyped-call]


class _ProjectEdges(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight_IK: Tensor, features: EdgeFeatures) -> Tensor:
        ctx.features = features
        ctx.shape = weight_IK.shape
        out = weight_IK.new_empty(len(features.values), weight_IK.shape[1])
        edge_projection(features.values, features.starts, weight_IK, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_EK: Tensor) -> tuple[Tensor, None]:
        out = grad_EK.new_empty(ctx.shape)
        edge_projection_grad(ctx.features.values, ctx.features.starts, grad_EK, out)
        return out, None


@gpu_dispatch
def edge_projection(values_ED: Tensor, starts_D: Tensor | None, weight_IK: Tensor, out_EK: Tensor) -> None:
    """Compute `project_edges` into ``out_EK``; features are those of `EdgeFeatures`."""
    features, starts = EdgeFeatures(values_ED, starts_D).to_arrays()
    _make_projection_kernel(_fixed_width(out_EK))(features, starts, as_numpy(weight_IK), as_numpy(out_EK))


@gpu_dispatch
def edge_projection_grad(values_ED: Tensor, starts_D: Tensor | None, grad_EK: Tensor, out_IK: Tensor) -> None:
    """Compute the gradient of the weight from that of the product, into ``out_IK``."""
    features, starts = EdgeFeatures(values_ED, starts_D).to_arrays()
    sums = zero_sums(MOST_SHARES, *out_IK.shape)
    _make_gradient_kernel(_fixed_width(out_IK))(features, starts, as_numpy(grad_EK), sums)
    as_numpy(out_IK)[:] = sums.sum(0)


def zero_sums(most: int, *shape: int) -> NDArray[np.float64]:
    """Return zeros ``[shares, *shape]``: sums over the edges of each share, of which there are at most ``most``."""
    # Many categories make a large weight, of which fewer copies are held; their number follows from the shape alone.
    shares = max(_LEAST_SHARES, _SUMMED_NUMBERS // max(1, int(np.prod(shape))))
    return np.zeros((min(most, MOST_SHARES, shares), *shape))


def _fixed_width(rows: Tensor) -> int | None:
    return rows.shape[1] if rows.shape[1] <= _MOST_FIXED else None


@device_function
def add_edge_product(features: Array, starts: Array | None, weight: Array, e: int, total: Array) -> None:
    """Add the product of the features of edge ``e`` and the weight to ``total``, which may be narrower."""
    if starts is None:
        for d in range(features.shape[1]):
            value = total.dtype.type(as_float(features[e, d]))
            for f in range(len(total)):
                total[f] += value * weight[d, f]
    else:
        for d in range(features.shape[1]):
            code = features[e, d]
            if code >= 0:
                row = starts[d] + code
                for f in range(len(total)):
                    total[f] += weight[row, f]


@kernel_factory
def _make_projection_kernel(fixed: int | None) -> Callable[..., None]:
    @parallel_kernel
    def projection_kernel(features: Array, starts: Array | None, weight: Array, out: Array) -> None:
        count = len(out)
        width = out.shape[1] if fixed is None else fixed
        for share in prange(MOST_SHARES):
            total = np.empty(width, out.dtype)
            for e in range(count * share // MOST_SHARES, count * (share + 1) // MOST_SHARES):
                for k in range(width):
                    total[k] = 0
                add_edge_product(features, starts, weight, e, total)
                for k in range(width):
                    out[e, k] = total[k]

    return projection_kernel


@kernel_factory
def _make_gradient_kernel(fixed: int | None) -> Callable[..., None]:
    @parallel_kernel
    def gradient_kernel(features: Array, starts: Array | None, grad: Array, sums: Array) -> None:
        count, shares = len(grad), len(sums)
        width = grad.shape[1] if fixed is None else fixed
        for share in prange(shares):
            for e in range(count * share // shares, count * (share + 1) // shares):
                for d in range(features.shape[1]):
                    if starts is None:
                        value = np.float64(as_float(features[e, d]))
                        for k in range(width):
                            sums[share, d, k] += value * grad[e, k]
                    else:
                        code = features[e, d]
                        if code >= 0:
                            for k in range(width):
                                sums[share, starts[d] + code, k] += grad[e, k]

    return gradient_kernel
