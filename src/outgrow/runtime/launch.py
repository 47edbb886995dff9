"""What must be set before torch is imported."""

from __future__ import annotations

import os


def set_threads() -> None:
    """Set what torch and Numba read once, when they are loaded. What the user has set already stays as it is.

    OpenMP threads sleep while they wait: torch's and the kernels' thread pools share the cores. Tensors of 2 MB and
    more lie on huge pages where the system has them: fresh small pages cost more than most element-wise passes.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("NUMBA_THREADING_LAYER", "omp")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
