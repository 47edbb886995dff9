"""Which profile; calibration on workers."""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from outgrow.app.runs.workers import Workers
from outgrow.core.errors import InputError
from outgrow.graph.datasets.locate import cache_dir
from outgrow.planning.hardware.calibrate import calibrate_machine
from outgrow.planning.hardware.profile import MachineProfile, find_profile, read_profile
from outgrow.planning.traffic import WorkerLayout
from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from outgrow.runtime.system.device import choose_device, total_device_bytes
from outgrow.runtime.system.environment import torchrun_world_size

if TYPE_CHECKING:
    from outgrow.runtime.distributed.worker import WorkerContext


_TYPICAL = {"cpu": "2-core-cpu", "cuda": "4xV100"}
"""The machines that stand for this one until it is measured, by what workers compute on."""


def select_machine(hardware: str | None, layout: WorkerLayout, device: str) -> tuple[MachineProfile, bool]:
    """The profile of a machine by name or file, or of this one; and whether the latter was measured.

    Until this machine is measured, a typical one of its kind with its memory stands for it.

    Args:
        hardware: A name or a file; None for this machine.
        layout: How many workers there will be, on how many hosts.
        device: What they compute on: see `choose_device`.

    Raises:
        InputError: No such machine, a broken file, or no such device here.
    """
    if hardware is not None:
        return find_profile(hardware), True
    where = choose_device(device, SingleProcessComm())
    kept = find_cached_profile(layout.workers, layout.hosts, where.type)
    memory = total_device_bytes(where)
    if kept is not None:
        return replace(kept, device=replace(kept.device, memory_bytes=memory)), True
    typical = find_profile(_TYPICAL[where.type])
    here = replace(typical.device, memory_bytes=memory)
    return replace(typical, name="this machine, not measured", device=here), False


def profile_cache_path(profile: MachineProfile) -> Path:
    """Where a profile of this machine is kept for plans."""
    return _profile_path(profile.device.kind, profile.hosts, profile.workers)


def find_cached_profile(workers: int, hosts: int, kind: str) -> MachineProfile | None:
    """The profile of this machine that is kept: measured by as many workers of a host, or by nearly as many.

    One worker has measured no link to another.
    """
    wanted, found = -(-workers // hosts), list[MachineProfile]()
    for path in (cache_dir() / "machines").glob(f"{platform.node()}-{kind}-{hosts}x*.json"):
        with suppress(InputError):  # of another version: as if it were not there
            found.append(read_profile(path))
    fitting = [each for each in found if wanted == 1 or each.workers > 1]
    return min(fitting, key=lambda each: abs(each.workers - wanted), default=None)


def _profile_path(kind: str, hosts: int, workers: int) -> Path:
    return cache_dir() / "machines" / f"{platform.node()}-{kind}-{hosts}x{workers}.json"


@dataclass(frozen=True, kw_only=True)
class CalibrationTask:
    """What every worker is given.

    Attributes:
        device: What workers compute on: see `choose_device`.
        scratch: Folder on the disk that is measured; None for the system's folder of temporary files.
        name: Of the profile; None for that of the host.
    """

    device: str
    scratch: Path | None
    name: str | None

    def run_on(self, comm: Comm) -> MachineProfile:
        """Measure, all workers together."""
        comm.device = choose_device(self.device, comm)
        return calibrate_machine(comm, self.scratch, self.name)

    def __call__(self, context: WorkerContext) -> MachineProfile | None:
        """As one of several workers; the one that leads has the profile."""
        found = self.run_on(context.comm)
        return found if context.comm.is_rank_zero else None


def measure_machine(task: CalibrationTask, workers: Workers) -> MachineProfile | None:
    """Measure this machine: in this process, in as many of its own, or as one of those that torchrun has started.

    Returns:
        The profile, in a group on the worker that leads only.

    Raises:
        InputError: The device or the folder cannot be used.
        WorkerError: A worker has died.
    """
    if torchrun_world_size():
        from outgrow.runtime.distributed.worker import run_under_torchrun

        return run_under_torchrun(task, heartbeat_seconds=workers.heartbeat_seconds)
    if workers.number == 1:
        return task.run_on(SingleProcessComm())
    from outgrow.runtime.distributed.launch import run_workers

    return run_workers(task, workers.number, heartbeat_seconds=workers.heartbeat_seconds)[0]
