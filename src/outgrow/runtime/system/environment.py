"""Environment variables: thread settings that must precede the import of torch, and those of torchrun."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def torchrun_world_size() -> int:
    """Return the number of workers that torchrun, or the program, has started; 0 if this process is alone."""
    if is_in_program_group():
        return int(sys.modules["torch.distributed"].get_world_size())
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in _NAMES) else 0


def torchrun_rank() -> int:
    """Return the rank of this process in the group; 0 if it is alone."""
    if is_in_program_group():
        return int(sys.modules["torch.distributed"].get_rank())
    return int(os.environ["RANK"]) if torchrun_world_size() else 0


def torchrun_num_nodes() -> int:
    """Return the number of hosts of torchrun's group; 1 without a group."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    return max(1, -(-torchrun_world_size() // here)) if here else 1


def is_torchrun_leader() -> bool:
    """Whether this process is rank 0 of torchrun's group, or was started alone."""
    return torchrun_rank() == 0


def is_in_program_group() -> bool:
    """Whether the program has made a group of several processes, by ``init_process_group``, that is not ours."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return not _own_group and distributed.get_world_size() > 1


def has_own_group() -> bool:
    """Whether torch's default group is one of ours."""
    return _own_group


def mark_own_group(joined: bool) -> None:
    """Record whether torch's default group is one of ours: a training that fails leaves it behind."""
    global _own_group
    _own_group = joined


_own_group = False
_too_late = False


def set_thread_environment(workers: int = 1) -> None:
    """Set the variables of `thread_environment`, which torch and Numba read only once, on import.

    Args:
        workers: Number of processes that share the cores of this host. Under torchrun, or a cluster's own
            launcher, the launcher's number of local workers takes precedence.
    """
    os.environ.update(thread_environment(workers))


def is_torch_preloaded() -> bool:
    """Whether torch was imported first, so that its idle threads spin instead of sleeping."""
    return _too_late


def configure_threads() -> None:
    """Configure threads on import of the library; if torch is already loaded, as far as still possible."""
    global _too_late
    # Both before the call below, which sets the variable.
    loaded = "torch" in sys.modules
    waits = "OMP_WAIT_POLICY" in os.environ
    share = thread_environment().get("OMP_NUM_THREADS")
    set_thread_environment()
    if loaded and share is not None:
        sys.modules["torch"].set_num_threads(int(share))
    _too_late = loaded and not waits


def thread_environment(workers: int = 1) -> dict[str, str]:
    """Return the environment for ``workers`` processes on this host, without variables that the user has set.

    Idle OpenMP threads sleep instead of spinning, since torch's and the kernels' thread pools share the
    cores, and so do workers; but only after some 50 microseconds, as waking them takes longer than the next
    small product. Tensors of 2 MB and more use huge pages if available: faulting in small pages
    costs more than most element-wise passes. Each of several workers gets an equal share of the cores, at
    least one.
    """
    settings = {"OMP_WAIT_POLICY": "PASSIVE", "NUMBA_THREADING_LAYER": "omp", "THP_MEM_ALLOC_ENABLE": "1"}
    given = dict(os.environ)
    # It takes precedence over the policy, which the user may have set.
    if "OMP_WAIT_POLICY" not in given:
        settings["GOMP_SPINCOUNT"] = "1000"
    if torchrun_world_size() and "LOCAL_WORLD_SIZE" in given:
        workers = int(given["LOCAL_WORLD_SIZE"])
        if workers > 1 and "TORCHELASTIC_RUN_ID" in given and given.get("OMP_NUM_THREADS") == "1":
            # torchrun's own default, not a choice of the user.
            del given["OMP_NUM_THREADS"]
    if workers > 1:
        share = str(max(1, available_cores() // workers))
        settings["NUMBA_NUM_THREADS"] = share
        # If the user has set it, MKL follows it; another value for MKL would override it in torch.
        if "OMP_NUM_THREADS" not in given:
            settings |= {"OMP_NUM_THREADS": share, "MKL_NUM_THREADS": share}
    return {name: value for name, value in settings.items() if name not in given}


def available_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else (os.cpu_count() or 1)


@contextmanager
def gc_paused_import() -> Iterator[None]:
    """Disable garbage collection during imports, which create hundreds of thousands of permanent objects.

    Afterwards these objects are in the oldest generation, so that young collections skip them. Does nothing
    if collection is disabled or objects are already frozen.
    """
    if not gc.isenabled() or gc.get_freeze_count():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        # Unfreezing moves all frozen objects to the oldest generation.
        gc.unfreeze()
        gc.enable()
