"""Which profile; calibration on workers."""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from outgrow.app.runs.workers import Workers
from outgrow.core.errors import InputError
from outgrow.graph.datasets.locate import cache_folder
from outgrow.planning.hardware.calibrate import calibrate
from outgrow.planning.hardware.profile import Profile, profile_of, read_profile
from outgrow.planning.traffic import Place
from outgrow.runtime.distributed.comm import Alone, Comm
from outgrow.runtime.system.device import device_of, memory_bytes
from outgrow.runtime.system.environment import group_size

if TYPE_CHECKING:
    from outgrow.runtime.distributed.worker import Workplace


_TYPICAL = {"cpu": "2-core-cpu", "cuda": "4xV100"}
"""The machines that stand for this one until it is measured, by what workers compute on."""


def machine_for(hardware: str | None, place: Place, device: str) -> tuple[Profile, bool]:
    """The profile of a machine by name or file, or of this one; and whether the latter was measured.

    Until this machine is measured, a typical one of its kind with its memory stands for it.

    Args:
        hardware: A name or a file; None for this machine.
        place: How many workers there will be, on how many hosts.
        device: What they compute on: see `device_of`.

    Raises:
        InputError: No such machine, a broken file, or no such device here.
    """
    if hardware is not None:
        return profile_of(hardware), True
    where = device_of(device, Alone())
    kept = kept_for(place.workers, place.hosts, where.type)
    memory = memory_bytes(where)
    if kept is not None:
        return replace(kept, device=replace(kept.device, memory_bytes=memory)), True
    typical = profile_of(_TYPICAL[where.type])
    here = replace(typical.device, memory_bytes=memory)
    return replace(typical, name="this machine, not measured", device=here), False


def kept_at(profile: Profile) -> Path:
    """Where a profile of this machine is kept for plans."""
    return _kept(profile.device.kind, profile.hosts, profile.workers)


def kept_for(workers: int, hosts: int, kind: str) -> Profile | None:
    """The profile of this machine that is kept: measured by as many workers of a host, or by nearly as many.

    One worker has measured no link to another.
    """
    wanted, found = -(-workers // hosts), list[Profile]()
    for path in (cache_folder() / "machines").glob(f"{platform.node()}-{kind}-{hosts}x*.json"):
        with suppress(InputError):  # of another version: as if it were not there
            found.append(read_profile(path))
    fitting = [each for each in found if wanted == 1 or each.workers > 1]
    return min(fitting, key=lambda each: abs(each.workers - wanted), default=None)


def _kept(kind: str, hosts: int, workers: int) -> Path:
    return cache_folder() / "machines" / f"{platform.node()}-{kind}-{hosts}x{workers}.json"


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
        from outgrow.runtime.distributed.worker import run_in_group

        return run_in_group(asked, heartbeat_seconds=workers.heartbeat_seconds)
    if workers.number == 1:
        return asked.on(Alone())
    from outgrow.runtime.distributed.launch import run_workers

    return run_workers(asked, workers.number, heartbeat_seconds=workers.heartbeat_seconds)[0]
