"""Measuring this machine on as many workers as asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outgrow.app.crew import Workers
from outgrow.planning.calibrate import calibrate
from outgrow.planning.profile import Profile
from outgrow.runtime.comm import Alone, Comm
from outgrow.runtime.device import device_of
from outgrow.runtime.elastic import group_size

if TYPE_CHECKING:
    from outgrow.runtime.worker import Workplace


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What every worker is given.

    Attributes:
        device: What workers compute on: see `device_of`.
        scratch: Folder on the disk that is measured; None for the system's folder of temporary files.
        name: Of the profile; None for that of the host.
    """

    device: str
    scratch: Path | None
    name: str | None

    def on(self, comm: Comm) -> Profile:
        """Measure, all workers together."""
        comm.device = device_of(self.device, comm)
        return calibrate(comm, self.scratch, self.name)

    def __call__(self, place: Workplace) -> Profile | None:
        """As one of several workers; the one that leads has the profile."""
        found = self.on(place.comm)
        return found if place.comm.leads else None


def measured(asked: Calibration, workers: Workers) -> Profile | None:
    """Measure this machine: in this process, in as many of its own, or as one of those that torchrun has started.

    Returns:
        The profile, in a group on the worker that leads only.

    Raises:
        InputError: The device or the folder cannot be used.
        WorkerError: A worker has died.
    """
    if group_size():
        from outgrow.runtime.worker import run_in_group

        return run_in_group(asked, heartbeat_seconds=workers.heartbeat_seconds)
    if workers.number == 1:
        return asked.on(Alone())
    from outgrow.runtime.launch import run_workers

    return run_workers(asked, workers.number, heartbeat_seconds=workers.heartbeat_seconds)[0]
