"""What must be set before torch is imported."""

from __future__ import annotations

import os


def set_threads() -> None:
    """Let OpenMP threads sleep while they wait: torch's and the kernels' thread pools share the cores.

    What the user has set already stays as it is.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("NUMBA_THREADING_LAYER", "omp")
