"""Thread settings before torch; torchrun's variables."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def torchrun_world_size() -> int:
    """Number of workers of the group that this process was started for; 0 if it was started alone."""
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in _NAMES) else 0


def torchrun_num_nodes() -> int:
    """On how many hosts the group is, by what torchrun tells each process; 1 without a group."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    return max(1, -(-torchrun_world_size() // here)) if here else 1


def is_torchrun_leader() -> bool:
    """Whether this process was started alone, or as the first of its group."""
    return not torchrun_world_size() or os.environ["RANK"] == "0"


_too_late = False


def set_thread_environment(workers: int = 1) -> None:
    """Set what torch and Numba read once, when they are loaded: see `thread_environment`.

    A worker of torchrun, or of a cluster's own launcher, shares the cores with the other workers of its host, whatever
    ``workers`` says.

    Args:
        workers: Processes that share the cores of this host.
    """
    os.environ.update(thread_environment(workers))


def is_torch_preloaded() -> bool:
    """Whether torch was loaded before its threads could be told to sleep while they wait."""
    return _too_late


def configure_threads() -> None:
    """Set threads when the library is imported; of torch, if it is loaded already, what can be set then."""
    global _too_late
    loaded, waits = "torch" in sys.modules, "OMP_WAIT_POLICY" in os.environ
    share = thread_environment().get("OMP_NUM_THREADS")
    set_thread_environment()
    if loaded and share is not None:
        sys.modules["torch"].set_num_threads(int(share))
    _too_late = loaded and not waits


def thread_environment(workers: int = 1) -> dict[str, str]:
    """Environment variables for ``workers`` processes that share this host. What the user has set already is left out.

    OpenMP threads sleep while they wait: torch's and the kernels' thread pools share the cores, and so do workers.
    Tensors of 2 MB and more lie on huge pages where the system has them: fresh small pages cost more than most
    element-wise passes. Several workers get an equal share of the cores each, and at least one.
    """
    settings = {"OMP_WAIT_POLICY": "PASSIVE", "NUMBA_THREADING_LAYER": "omp", "THP_MEM_ALLOC_ENABLE": "1"}
    given = dict(os.environ)
    if torchrun_world_size() and "LOCAL_WORLD_SIZE" in given:
        workers = int(given["LOCAL_WORLD_SIZE"])
        if workers > 1 and "TORCHELASTIC_RUN_ID" in given and given.get("OMP_NUM_THREADS") == "1":
            del given["OMP_NUM_THREADS"]  # torchrun's own choice for users who have made none
    if workers > 1:
        share = str(max(1, available_cores() // workers))
        settings["NUMBA_NUM_THREADS"] = share
        if "OMP_NUM_THREADS" not in given:  # otherwise MKL follows it; torch would follow MKL
            settings |= {"OMP_NUM_THREADS": share, "MKL_NUM_THREADS": share}
    return {name: value for name, value in settings.items() if name not in given}


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else (os.cpu_count() or 1)


@contextmanager
def gc_paused_import() -> Iterator[None]:
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
