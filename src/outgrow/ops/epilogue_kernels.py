"""Kernels of `outgrow.ops.epilogue`: bias, norm, activation, residual and dropout in one pass over the rows.

The steps are switched on and off once per row at run time, so that one compiled kernel serves every
combination. Letters: ``N`` rows, ``F`` columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import device_function, prange, reducing_kernel, serial_kernel
from outgrow.ops.kernels.numerics import exp_nonpositive, expm1_nonpositive
from outgrow.ops.kernels.work_split import PARTS
from outgrow.ops.rng import hash64, keeps_element

Array = NDArray[Any]

RELU, ELU = 1, 2
NORM_WEIGHT, NORM_BIAS, BIAS = 0, 1, 2
"""Positions of the sums over rows in the output of the backward kernel."""


class EpilogueSteps(NamedTuple):
    """Steps of an epilogue, in this order; ``activation`` is 0 for none, `RELU` or `ELU`."""

    bias: bool
    norm: bool
    activation: int
    residual: bool
    drop: bool

    @property
    def num_active(self) -> int:
        """Number of steps that are switched on."""
        return sum(map(bool, self))

    @property
    def reads_result(self) -> bool:
        """Whether the backward pass reads the result instead of the input."""
        # The derivatives of ReLU and ELU follow from their results, unless a residual has been added to
        # these. The norm needs its input in any case.
        return self.activation > 0 and not (self.norm or self.residual)


class EpilogueOperands(NamedTuple):
    """Parameters of the steps; empty arrays for steps that are switched off.

    Attributes:
        bias: ``[F]``.
        weight: ``[F]`` of the norm.
        shift: ``[F]`` of the norm.
        eps: Number that is added to the variance.
        nodes: ``[N]`` global ids of the rows.
        key: Key of the dropout.
        limit: Elements with draws below it are dropped.
        scale: Factor of the elements that are kept.
    """

    bias: Array
    weight: Array
    shift: Array
    eps: Any
    nodes: Array
    key: Any
    limit: Any
    scale: Any


@reducing_kernel
def epilogue_rows(
    y: Array, steps: EpilogueSteps, operands: EpilogueOperands, residual: Array, columns: int, out: Array
) -> None:
    """Apply the steps to ``y [N, S]`` with ``residual [N, S]``, into ``out [N, S]``."""
    for part in prange(PARTS):
        biased, norms, activation, adds, drops = steps
        bias, weight, shift, eps, nodes, key, limit, scale = operands
        zero = y.dtype.type(0)
        # All steps run on a copy of one row that stays in the first-level cache: each row crosses memory
        # once.
        row = np.empty(columns, y.dtype)
        for n in range(len(y) * part // PARTS, len(y) * (part + 1) // PARTS):
            for f in range(columns):
                row[f] = y[n, f]
            if biased:
                for f in range(columns):
                    row[f] += bias[f]
            if norms:
                mean, rate = _mean_and_rate(row, eps)
                for f in range(columns):
                    row[f] = (row[f] - mean) * rate * weight[f] + shift[f]
            if activation == RELU:
                for f in range(columns):
                    # NaN compares false and passes through, as in torch.
                    row[f] = zero if row[f] < 0 else row[f]
            if activation == ELU:
                for f in range(columns):
                    # Computed for all columns, from at most 0: the loop has no branch and cannot overflow.
                    below = expm1_nonpositive(zero if row[f] > 0 else row[f])
                    row[f] = row[f] if row[f] > 0 else below
            if adds:
                for f in range(columns):
                    row[f] += residual[n, f]
            if drops:
                _drop_elements(row, hash64(key, np.uint64(nodes[n])), limit, scale)
            for f in range(columns):
                out[n, f] = row[f]


@reducing_kernel
def epilogue_rows_backward(
    given: Array,
    reads_result: bool,
    steps: EpilogueSteps,
    operands: EpilogueOperands,
    grad: Array,
    columns: int,
    d_y: Array,
    d_residual: Array,
    sums: NDArray[np.float64],
) -> None:
    """Compute the gradients of ``y`` and the residual, and the parts' sums for the parameters' gradients.

    ``given`` is the result if ``reads_result``, else the input. Steps are undone in reverse order.
    """
    for part in prange(PARTS):
        biased, norms, activation, adds, drops = steps
        bias, weight, shift, eps, nodes, key, limit, scale = operands
        zero = grad.dtype.type(0)
        one = grad.dtype.type(1)
        rate = grad.dtype.type(0)
        row = np.empty(columns, grad.dtype)
        before = np.empty(columns, grad.dtype)
        normal = np.empty(columns, grad.dtype)
        for n in range(len(grad) * part // PARTS, len(grad) * (part + 1) // PARTS):
            for f in range(columns):
                row[f] = grad[n, f]
            if drops:
                # The draws are a function of the key, so they are repeated here instead of stored as a mask.
                _drop_elements(row, hash64(key, np.uint64(nodes[n])), limit, scale)
                # Without dropout the residual's gradient equals ``grad``, and the caller returns that.
                if adds:
                    for f in range(columns):
                        d_residual[n, f] = row[f]
            # Recompute the input of the activation from the input of the first step: cheaper than having
            # stored it.
            if norms or activation != 0:
                for f in range(columns):
                    before[f] = given[n, f]
                if biased and not reads_result:
                    for f in range(columns):
                        before[f] += bias[f]
            if norms:
                mean, rate = _mean_and_rate(before, eps)
                for f in range(columns):
                    normal[f] = (before[f] - mean) * rate
                    before[f] = normal[f] * weight[f] + shift[f]
            if activation == RELU:
                for f in range(columns):
                    row[f] = zero if before[f] <= 0 else row[f]
            if activation == ELU and reads_result:
                for f in range(columns):
                    # For a result y below 0 the derivative exp(x) is y + 1. Dropout has scaled the result:
                    # undo that. Elements that were dropped have a gradient of 0 already.
                    row[f] *= (zero if before[f] > 0 else before[f] / scale) + one
            if activation == ELU and not reads_result:
                for f in range(columns):
                    row[f] *= exp_nonpositive(zero if before[f] > 0 else before[f])
            if norms:
                # In float64 and per part: float32 would lose digits over many rows, and parts fix the order
                # of the sum.
                for f in range(columns):
                    sums[part, NORM_WEIGHT, f] += row[f] * normal[f]
                    sums[part, NORM_BIAS, f] += row[f]
                _norm_backward(row, normal, weight, rate)
            if biased:
                for f in range(columns):
                    sums[part, BIAS, f] += row[f]
            for f in range(columns):
                d_y[n, f] = row[f]


@serial_kernel
def _drop_elements(row: Array, row_key: np.uint64, limit: Any, scale: Any) -> None:
    for f in range(len(row)):
        row[f] = row[f] * scale if keeps_element(row_key, f, limit) else row.dtype.type(0)


@device_function
def _mean_and_rate(row: Array, eps: Any) -> tuple[Any, Any]:
    """Return the mean of a row, and one over the root of its variance plus ``eps``."""
    total = row.dtype.type(0)
    for f in range(len(row)):
        total += row[f]
    mean = total / row.dtype.type(len(row))
    # A second pass over the cached row: the mean of squares minus the squared mean would cancel.
    total = row.dtype.type(0)
    for f in range(len(row)):
        total += (row[f] - mean) * (row[f] - mean)
    return mean, row.dtype.type(1) / np.sqrt(total / row.dtype.type(len(row)) + eps)


@device_function
def _norm_backward(row: Array, normal: Array, weight: Array, rate: Any) -> None:
    """Turn the gradient of a normalised, scaled row into that of the row, in place."""
    total = row.dtype.type(0)
    along = row.dtype.type(0)
    for f in range(len(row)):
        row[f] *= weight[f]
        total += row[f]
        along += row[f] * normal[f]
    # Remove the components of the gradient along the mean and along the normalised row: the norm is constant
    # in both.
    count = row.dtype.type(len(row))
    for f in range(len(row)):
        row[f] = (row[f] - total / count - normal[f] * (along / count)) * rate
