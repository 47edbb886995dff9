"""Calibration: all workers measure at the same time, and their results make a profile of the machine."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce
from pathlib import Path

from outgrow.core.ledger import Link
from outgrow.ops.backend import run_on_all_threads
from outgrow.planning.hardware.measure_layers import LayerSpeed
from outgrow.planning.hardware.measure_links import measure_link_rates
from outgrow.planning.hardware.measure_training import compute_efficiency
from outgrow.planning.hardware.measure_worker import WorkerSpeed, measure_worker
from outgrow.planning.hardware.profile import DeviceProfile, HostProfile, LinkRate, MachineProfile, RateByWidth
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.storage.scratch_dir import scratch_directory
from outgrow.runtime.system.device import total_device_bytes
from outgrow.runtime.system.hardware import MachineInfo, describe_machine

_ROOM = 1 << 27


@dataclass(frozen=True, kw_only=True)
class WorkerMeasurement:
    """Measurements of one worker."""

    host: str
    machine: MachineInfo
    kind: str
    device: str
    memory_bytes: int
    speed: WorkerSpeed
    links: dict[Link, LinkRate]


def calibrate_machine(comm: Comm, scratch: Path | None, name: str | None = None) -> MachineProfile:
    """Measure the machines of all workers, each on the device of its communicator. All workers together.

    Args:
        comm: Communicator of the workers.
        scratch: Folder on the disk to measure; None for the system's folder of temporary files.
        name: Name of the profile; None for that of the host.

    Raises:
        InputError: The folder cannot be used.
    """
    machine = describe_machine()
    with scratch_directory(scratch, _ROOM) as folder:
        links = measure_link_rates(comm, folder)
    on_gpu = comm.device.type == "cuda"
    with run_on_all_threads():
        speed = measure_worker(comm.device)
    own = WorkerMeasurement(
        host=comm.hosts[comm.rank],
        machine=machine,
        kind=comm.device.type,
        device=machine.gpus[comm.device.index or 0] if on_gpu else machine.processor,
        memory_bytes=total_device_bytes(comm.device),
        speed=speed,
        links=links,
    )
    return combine_measurements(comm.all_gather_object(own), name)


def combine_measurements(workers: Sequence[WorkerMeasurement], name: str | None) -> MachineProfile:
    """Combine the workers' measurements into one profile; of unequal machines, the slowest and smallest count.

    Args:
        workers: Measurements of each worker.
        name: Name of the profile; None for that of this host.
    """
    first = workers[0]
    per_host = Counter(each.host for each in workers)
    shared = first.kind == "cpu"
    speeds = [
        _combine_host([each.speed for each in workers if each.host == host], shares_device=shared) for host in per_host
    ]
    slowest = reduce(_slower_speed, speeds)
    machine = min((each.machine for each in workers), key=lambda each: each.cores)
    found = f"{len(per_host)} host{'s' * (len(per_host) > 1)} with {max(per_host.values())} worker"
    profile = MachineProfile(
        name=name or platform.node() or "this machine",
        date=date.today().isoformat(),
        source=f"outgrow calibrate {machine.versions['outgrow']}, {found}{'s' * (max(per_host.values()) > 1)} each",
        hosts=len(per_host),
        workers=max(per_host.values()),
        device=DeviceProfile(
            kind=first.kind,
            name=first.device,
            memory_bytes=min(each.memory_bytes for each in workers),
            product=slowest.product,
            near=slowest.layers.near,
            far=slowest.layers.far,
            finish=slowest.layers.finish,
            score=slowest.layers.score,
            fresh=slowest.layers.fresh,
            copy=slowest.copy,
            layer_seconds=slowest.layers.layer_seconds,
            step_overhead_seconds=slowest.step_overhead_seconds,
            efficiency=1.0,
        ),
        host=HostProfile(
            cores=machine.cores,
            memory_bytes=min(each.machine.memory_bytes for each in workers),
            gather=slowest.gather,
            sampled_edges=slowest.sampled_edges,
        ),
        links=_slowest_links(workers),
    )
    # Last, since the expected seconds of the reference follow from all the other rates.
    efficiency = compute_efficiency(profile, profile.workers, slowest.epoch_seconds)
    return replace(profile, device=replace(profile.device, efficiency=efficiency))


def _combine_host(speeds: Sequence[WorkerSpeed], *, shares_device: bool) -> WorkerSpeed:
    """Return the joint rates of a host's workers on a shared device; else the rates of the slowest worker."""
    # Workers on one CPU measured it at the same time, so each saw its share: the sum is the rate of the CPU.
    slowest = reduce(_slower_speed, speeds)
    if not shares_device:
        return slowest
    return WorkerSpeed(
        product=_sum_rates([each.product for each in speeds]),
        layers=LayerSpeed(
            near=_sum_rates([each.layers.near for each in speeds]),
            far=_sum_rates([each.layers.far for each in speeds]),
            finish=sum(each.layers.finish for each in speeds),
            score=_sum_rates([each.layers.score for each in speeds]),
            fresh=sum(each.layers.fresh for each in speeds),
            layer_seconds=slowest.layers.layer_seconds,
        ),
        # Gathers and samples are rates of a thread, and are not divided among workers.
        copy=sum(each.copy for each in speeds),
        gather=slowest.gather,
        sampled_edges=slowest.sampled_edges,
        step_overhead_seconds=slowest.step_overhead_seconds,
        epoch_seconds=slowest.epoch_seconds,
    )


def _slower_speed(one: WorkerSpeed, other: WorkerSpeed) -> WorkerSpeed:
    return WorkerSpeed(
        product=_combine_rates(min, one.product, other.product),
        layers=LayerSpeed(
            near=_combine_rates(min, one.layers.near, other.layers.near),
            far=_combine_rates(min, one.layers.far, other.layers.far),
            finish=min(one.layers.finish, other.layers.finish),
            score=_combine_rates(min, one.layers.score, other.layers.score),
            fresh=min(one.layers.fresh, other.layers.fresh),
            layer_seconds=max(one.layers.layer_seconds, other.layers.layer_seconds),
        ),
        copy=min(one.copy, other.copy),
        gather=_combine_rates(min, one.gather, other.gather),
        sampled_edges=min(one.sampled_edges, other.sampled_edges),
        step_overhead_seconds=max(one.step_overhead_seconds, other.step_overhead_seconds),
        epoch_seconds=max(one.epoch_seconds, other.epoch_seconds),
    )


def _combine_rates(of: Callable[[float, float], float], one: RateByWidth, other: RateByWidth) -> RateByWidth:
    return RateByWidth({width: of(rate, other.per_second[width]) for width, rate in one.per_second.items()})


def _sum_rates(rates: Sequence[RateByWidth]) -> RateByWidth:
    return reduce(lambda one, other: _combine_rates(lambda a, b: a + b, one, other), rates)


def _slowest_links(workers: Sequence[WorkerMeasurement]) -> dict[Link, LinkRate]:
    """Return the slowest rates of each link that some worker has."""
    found: dict[Link, list[LinkRate]] = {}
    for link, rate in (item for each in workers for item in each.links.items()):
        found.setdefault(link, []).append(rate)
    return {
        link: LinkRate(
            bytes_per_second=min(rate.bytes_per_second for rate in found[link]),
            message_seconds=max(rate.message_seconds for rate in found[link]),
        )
        for link in Link
        if link in found
    }
