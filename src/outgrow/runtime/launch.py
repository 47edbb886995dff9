"""What must be done before torch is imported, and while it is."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


def set_threads() -> None:
    """Set what torch and Numba read once, when they are loaded. What the user has set already stays as it is.

    OpenMP threads sleep while they wait: torch's and the kernels' thread pools share the cores. Tensors of 2 MB and
    more lie on huge pages where the system has them: fresh small pages cost more than most element-wise passes.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("NUMBA_THREADING_LAYER", "omp")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


@contextmanager
def importing() -> Iterator[None]:
    """Import without garbage collections: modules make hundreds of thousands of objects, and all of them stay.

    Afterwards the objects count as old, so that the next collections do not look at them either. Where collections are
    off, or objects are frozen already, nothing is changed.
    """
    if not gc.isenabled() or gc.get_freeze_count():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # returns all that was frozen to the oldest generation
        gc.enable()
