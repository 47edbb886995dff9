"""Machine profiles: choice of one for a plan, and calibration on workers."""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from outgrow.app.runs.workers import Workers
from outgrow.core.errors import InputError
from outgrow.graph.datasets.locate import cache_dir
from outgrow.planning.hardware.calibrate import calibrate_machine
from outgrow.planning.hardware.corrections import (
    EXPECTED_SPREAD,
    NO_CORRECTIONS,
    UNMEASURED_SPREAD,
    Corrections,
    fit_corrections,
)
from outgrow.planning.hardware.profile import MachineProfile, find_profile, read_profile
from outgrow.planning.hardware.run_log import read_run_log
from outgrow.planning.traffic import WorkerLayout
from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from outgrow.runtime.system.device import choose_device, total_device_bytes, use_device
from outgrow.runtime.system.environment import torchrun_world_size

if TYPE_CHECKING:
    from outgrow.runtime.distributed.worker import WorkerContext


_TYPICAL = {"cpu": "2-core-cpu", "cuda": "4xV100"}
"""Profiles used for this machine until it is measured, by device type."""


class PlannedMachine(NamedTuple):
    """Machine to plan for.

    Attributes:
        profile: Its profile.
        is_measured: Whether it was measured; else the profile is a typical one, with the memory of this machine.
        corrections: What runs on it have taught.
        run_log: File of what they teach; None for a machine that is not this one.
    """

    profile: MachineProfile
    is_measured: bool
    corrections: Corrections
    run_log: Path | None


def select_machine(hardware: str | None, layout: WorkerLayout, device: str) -> PlannedMachine:
    """Return the machine to plan for.

    Until this machine is measured, a typical profile with this machine's memory is used instead.

    Args:
        hardware: Name or file of a profile; None for this machine.
        layout: Number of workers and hosts.
        device: Device that workers compute on: see `choose_device`.

    Raises:
        InputError: There is no such machine or device, or the file is broken.
    """
    if hardware is not None:
        return PlannedMachine(find_profile(hardware), True, NO_CORRECTIONS, None)
    where = choose_device(device, SingleProcessComm())
    cached = find_cached_profile(layout.workers, layout.hosts, where.type)
    # The memory is read anew: a container may have another limit than when the profile was measured.
    return _as_planned(cached, where.type, total_device_bytes(where))


def _as_planned(cached: MachineProfile | None, kind: str, memory: int) -> PlannedMachine:
    """Return this machine by its own profile, or by a typical one, with what runs have taught."""
    profile = cached or find_profile(_TYPICAL[kind])
    profile = replace(profile, device=replace(profile.device, memory_bytes=memory))
    if cached is None:
        profile = replace(profile, name="this machine, not measured")
    log = _machine_file("runs", kind, profile.hosts, profile.workers if cached else "typical")
    runs = [run.observation for run in read_run_log(log, profile)]
    expected = EXPECTED_SPREAD if cached else UNMEASURED_SPREAD
    return PlannedMachine(profile, cached is not None, fit_corrections(runs, expected), log)


def profile_cache_path(profile: MachineProfile) -> Path:
    """Return the path in the cache for a profile of this machine."""
    # Rates depend on how many workers share a host, so each layout has a file of its own.
    return _machine_file("machines", profile.device.kind, profile.hosts, profile.workers)


def compile_log_path() -> Path:
    """Return the file of what compiling kernels took in runs on this machine."""
    return cache_dir() / "compiled" / f"{platform.node()}.json"


def list_learning_machines() -> list[PlannedMachine]:
    """Return this machine once for each profile that runs may have taught something for."""
    measured = [(profile, profile.device.kind, profile.device.memory_bytes) for profile in _cached_profiles("*")]
    typical = [(None, kind, find_profile(name).device.memory_bytes) for kind, name in _TYPICAL.items()]
    return [_as_planned(*each) for each in (*measured, *typical)]


def list_run_logs() -> list[Path]:
    """Return the files of what runs on this machine have taught."""
    return sorted((cache_dir() / "runs").glob(f"{platform.node()}-*.json"))


def find_cached_profile(workers: int, hosts: int, kind: str) -> MachineProfile | None:
    """Return the cached profile with the nearest number of workers per host; None if there is none."""
    wanted = -(-workers // hosts)
    found = _cached_profiles(f"{kind}-{hosts}x*")
    # A single worker has measured no link to another worker.
    fitting = [each for each in found if wanted == 1 or each.workers > 1]
    return min(fitting, key=lambda each: abs(each.workers - wanted), default=None)


def _cached_profiles(pattern: str) -> list[MachineProfile]:
    """Return the cached profiles of this machine whose kind and layout fit a pattern."""
    found = list[MachineProfile]()
    for path in sorted((cache_dir() / "machines").glob(f"{platform.node()}-{pattern}.json")):
        # A profile that another version wrote may not be readable: it counts as absent.
        with suppress(InputError):
            found.append(read_profile(path))
    return found


def _machine_file(folder: str, kind: str, hosts: int, workers: int | str) -> Path:
    return cache_dir() / folder / f"{platform.node()}-{kind}-{hosts}x{workers}.json"


@dataclass(frozen=True, kw_only=True)
class CalibrationTask:
    """Measurement that every worker runs.

    Attributes:
        device: Device that workers compute on: see `choose_device`.
        scratch: Folder on the disk to measure; None for the system's folder of temporary files.
        name: Name of the profile; None for that of the host.
    """

    device: str
    scratch: Path | None
    name: str | None

    def run_on(self, comm: Comm) -> MachineProfile:
        """Measure together with the other workers; return the profile."""
        use_device(self.device, comm)
        return calibrate_machine(comm, self.scratch, self.name)

    def __call__(self, context: WorkerContext) -> MachineProfile | None:
        """Measure as one of several workers; return the profile on worker 0, None on the others."""
        found = self.run_on(context.comm)
        return found if context.comm.is_rank_zero else None


def measure_machine(task: CalibrationTask, workers: Workers) -> MachineProfile | None:
    """Measure this machine: in this process, in several worker processes, or as one worker of torchrun.

    Returns:
        The profile; None on workers of torchrun other than worker 0.

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
