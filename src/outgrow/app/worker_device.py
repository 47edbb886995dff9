"""The device of a worker, whose kernels are checked before they are used."""

from __future__ import annotations

from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.system.device import use_device


def use_checked_device(requested: str, comm: Comm) -> None:
    """Let a worker compute on a device, and check a GPU that has not passed the check yet. All workers together.

    Args:
        requested: See `choose_device`.
        comm: Communicator of the workers.

    Raises:
        InputError: See `choose_device`.
        TrainingError: A kernel of the GPU gives other numbers than that of the CPU.
    """
    use_device(requested, comm)
    if comm.device.type == "cuda":
        # Imported only now, as it builds all models.
        from outgrow.app.gpu_check import require_checked_gpu

        require_checked_gpu(comm.device)
