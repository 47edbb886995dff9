"""Softmax cross-entropy of some rows of a matrix, without a copy of these rows; one pass each way.

Letters: ``V`` rows, ``C`` classes, ``N`` labelled rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from outgrow.ops.backend import as_numpy, once_differentiable, parallel_kernel, prange, reducing_kernel
from outgrow.ops.kernels.numerics import exp_nonpositive
from outgrow.ops.kernels.work_split import PARTS
from outgrow.ops.memory_pool import as_input_rows, pooled_empty_rows, with_padding

Array = NDArray[Any]
Ids = NDArray[np.int64]


def cross_entropy(logits_VC: Tensor, labels_N: Tensor, rows_N: Tensor | None = None) -> Tensor:
    """Return the sum over labelled rows of ``log(sum_c exp(logits[row, c])) - logits[row, label]``.

    On a CPU the sum is taken in float64 and does not depend on the number of threads; the gradient is padded
    as `outgrow.ops.memory_pool.pooled_empty_rows` pads. Tensors on a GPU go through torch's own, which checks
    there.

    Args:
        logits_VC: ``[V, C]`` float32 or float64.
        labels_N: ``[N]`` int64: the class of each labelled row, from 0 to ``C - 1``.
        rows_N: ``[N]`` int64: the labelled rows, in any order; a row that is named twice counts twice. None
            for all rows, in order.

    Returns:
        Scalar of the logits' type, differentiable in them; 0 without labelled rows.

    Raises:
        ValueError: On a CPU: a row or a label out of range, or not one label for each row.
    """
    if rows_N is None:
        rows_N = torch.arange(len(logits_VC), device=logits_VC.device)
    if logits_VC.device.type != "cpu":
        return functional.cross_entropy(logits_VC[rows_N], labels_N, reduction="sum")
    labels, rows = as_numpy(labels_N), as_numpy(rows_N)
    _validate_labels(labels, rows, tuple(logits_VC.shape))
    # Sorted, so that the backward pass writes each row once, in order.
    if np.any(rows[1:] < rows[:-1]):
        order = np.argsort(rows, kind="stable")
        labels, rows = labels[order], rows[order]
    return _CrossEntropy.apply(logits_VC, labels, rows)  # type: ignore[no-any-return, no-untyped-call]


def _validate_labels(labels: Ids, rows: Ids, shape: tuple[int, ...]) -> None:
    if labels.shape != rows.shape:
        raise ValueError(f"one label for each labelled row, got {len(labels)} labels and {len(rows)} rows")
    for name, given, end in (("rows", rows, shape[0]), ("labels", labels, shape[1])):
        if len(given) and not 0 <= given.min() <= given.max() < end:
            raise ValueError(f"{name} must be from 0 to {end - 1}, got {given.min()} to {given.max()}")


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_VC: Tensor, labels: Ids, rows: Ids) -> Tensor:
        # Kept separately: their sum would lose the digits in which large logits differ.
        largest, log_sum = (logits_VC.new_empty(len(rows)).numpy() for _ in range(2))
        ctx.labelled = labels, rows, largest, log_sum
        ctx.save_for_backward(logits_VC)
        sums = np.zeros(PARTS)
        _sum_losses(as_input_rows(logits_VC), logits_VC.shape[1], labels, rows, largest, log_sum, sums)
        return logits_VC.new_tensor(sums.sum())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (logits_VC,), (labels, rows, largest, log_sum) = ctx.saved_tensors, ctx.labelled
        num_rows, columns = logits_VC.shape
        d_logits_VC = pooled_empty_rows(num_rows, (columns,), logits_VC)
        logits, out = as_input_rows(logits_VC), with_padding(d_logits_VC).numpy()
        ends, scale = _balanced_ends(rows, num_rows), logits.dtype.type(grad.item())
        _write_gradient(ends, logits, columns, labels, rows, largest, log_sum, scale, out)
        return d_logits_VC, None, None


def _balanced_ends(rows: Ids, num_rows: int) -> Ids:
    """Return ``[2, P + 1]``: where parts begin in rows and in labelled rows, about equal in their sum."""
    before = rows + np.arange(len(rows))
    wanted = (num_rows + len(rows)) * np.arange(PARTS + 1) // PARTS
    ends = wanted - np.searchsorted(before, wanted)
    return np.stack((ends, np.searchsorted(rows, ends)))


@reducing_kernel
def _sum_losses(
    logits: Array,
    columns: int,
    labels: Ids,
    rows: Ids,
    largest: Array,
    log_sum: Array,
    sums: NDArray[np.float64],
) -> None:
    for part in prange(PARTS):
        power = np.empty(columns, logits.dtype)
        total = 0.0
        for n in range(len(rows) * part // PARTS, len(rows) * (part + 1) // PARTS):
            row = logits[rows[n]]
            top = row[0]
            for c in range(columns):
                top = row[c] if row[c] > top else top
            # Subtracting the largest logit keeps every exponential at most 1.
            for c in range(columns):
                power[c] = exp_nonpositive(row[c] - top)
            powers = logits.dtype.type(0)
            for c in range(columns):
                powers += power[c]
            largest[n] = top
            log_sum[n] = np.log(powers)
            total += log_sum[n] - (np.float64(row[labels[n]]) - top)
        sums[part] = total


@parallel_kernel
def _write_gradient(
    ends: Ids,
    logits: Array,
    columns: int,
    labels: Ids,
    rows: Ids,
    largest: Array,
    log_sum: Array,
    scale: Any,
    out: Array,
) -> None:
    for part in prange(PARTS):
        n = ends[1, part]
        for v in range(ends[0, part], ends[0, part + 1]):
            for c in range(columns):
                out[v, c] = 0
            # A row that is named several times adds up.
            while n < ends[1, part + 1] and rows[n] == v:
                for c in range(columns):
                    out[v, c] += exp_nonpositive(logits[v, c] - largest[n] - log_sum[n]) * scale
                out[v, labels[n]] -= scale
                n += 1
