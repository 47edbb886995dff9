"""Kernels that most runs on a whole graph need, compiled in another process while this one imports and reads data.

On a machine that has compiled nothing yet a first run would compile them one after the other. This process begins with
those that it needs first, the other one with those that are needed last; where they meet, one waits for the other
(`kernel_cache.py`). `outgrow train` imports this module before all else, so it imports nothing that takes long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from outgrow.ops.compile_processes import CompileRequest, KernelName, compile_processes
from outgrow.ops.kernel_folder import has_kernels

_EPILOGUE, _LOSS, _EDGES = "outgrow.ops.epilogue_kernels", "outgrow.ops.cross_entropy", "outgrow.ops.csc"
_SPMM = KernelName("outgrow.ops.aggregation.spmm", "_make_spmm_kernel", (None,))
COMMON_KERNELS = (
    KernelName("outgrow.ops.sparse", "_scatter_sum"),
    KernelName(_EPILOGUE, "epilogue_rows_backward"),
    KernelName(_EDGES, "_scatter_edges"),
    KernelName(_EDGES, "_count_edges"),
    KernelName(_LOSS, "_write_gradient"),
    KernelName(_LOSS, "_sum_losses"),
    KernelName(_EPILOGUE, "epilogue_rows"),
    _SPMM,
    KernelName("outgrow.ops.rng", "_dropout_sparse_kernel"),
)
"""In the order in which they are compiled: from the end of the first step to its beginning."""


def start_compiling_common_kernels() -> None:
    """Let another process compile `COMMON_KERNELS` if no kernel was ever compiled here; returns at once."""
    # It is asked for again, and reported, where a run needs it.
    with suppress(RuntimeError):
        if has_kernels():
            return
        for kernel in COMMON_KERNELS:
            compile_processes.submit(CompileRequest(kernel))


def common_signatures(kernel: KernelName) -> Iterator[tuple[Any, ...]]:
    """Yield the types of arguments for which a kernel of `COMMON_KERNELS` is compiled, as Numba's types."""
    import numba
    import numpy as np

    from outgrow.ops.epilogue_kernels import EpilogueOperands, EpilogueSteps

    ids, places = np.empty(0, np.int64), np.empty(0, np.int32)
    numbers, sums = np.empty(0, np.float32), np.empty(0, np.float64)
    rows, parts = numbers.reshape(0, 0), ids.reshape(0, 0)
    word = np.uint64(0)
    steps = EpilogueSteps(bias=True, norm=False, activation=1, residual=False, drop=True)
    operands = EpilogueOperands(numbers, numbers, numbers, np.float32(0), ids, word, word, np.float32(0))
    widths = (0, 0, 0)
    typeof: Any = numba.typeof
    examples: dict[str, list[tuple[object, ...]]] = {
        "_scatter_sum": [(ids, places, numbers, rows, rows)],
        "epilogue_rows_backward": [(rows, True, steps, operands, rows, 0, rows, rows, sums.reshape(0, 0, 0))],
        "_scatter_edges": [(ids, places, ids, places, places)],
        "_count_edges": [(places, ids)],
        "_write_gradient": [(parts, rows, 0, ids, ids, numbers, numbers, np.float32(0), rows)],
        "_sum_losses": [(rows, 0, ids, ids, numbers, numbers, sums)],
        "epilogue_rows": [(rows, steps, operands, rows, 0, rows)],
        "_make_spmm_kernel": [(parts, ids, places, edge, rows, rows, rows, widths, False) for edge in (places, None)],
        "_dropout_sparse_kernel": [(parts, ids, places, numbers, ids, word, word, np.float32(0), numbers)],
    }
    for each in examples[kernel.name]:
        yield tuple(typeof(value) for value in each)
