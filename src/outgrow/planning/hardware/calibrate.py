"""A machine measured: what each worker does while all others do the same, put together to a profile."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce
from pathlib import Path

from outgrow.core.ledger import Link
from outgrow.planning.hardware.measure_layers import LayerSpeed
from outgrow.planning.hardware.measure_links import links_of
from outgrow.planning.hardware.measure_training import efficiency_of
from outgrow.planning.hardware.measure_worker import Speed, speed_on
from outgrow.planning.hardware.profile import ByWidth, Device, Host, LinkRate, Profile
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.storage.scratch_dir import scratch_folder
from outgrow.runtime.system.device import memory_bytes
from outgrow.runtime.system.hardware import Machine, describe

_ROOM = 1 << 27


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one worker has found."""

    host: str
    machine: Machine
    kind: str
    device: str
    memory_bytes: int
    speed: Speed
    links: dict[Link, LinkRate]


def calibrate(comm: Comm, scratch: Path | None, name: str | None = None) -> Profile:
    """Measure the workers' machines. All workers together; each computes on the device of its line.

    Args:
        comm: The line to the other workers.
        scratch: Folder on the disk that is measured; None for the system's folder of temporary files.
        name: Of the profile; None for that of the host.

    Raises:
        InputError: The folder cannot be used.
    """
    machine = describe()
    with scratch_folder(scratch, _ROOM) as folder:
        links = links_of(comm, folder)
    on_gpu = comm.device.type == "cuda"
    mine = Measured(
        host=comm.hosts[comm.rank],
        machine=machine,
        kind=comm.device.type,
        device=machine.gpus[comm.device.index or 0] if on_gpu else machine.processor,
        memory_bytes=memory_bytes(comm.device),
        speed=speed_on(comm.device),
        links=links,
    )
    return put_together(comm.gather(mine), name)


def put_together(workers: Sequence[Measured], name: str | None) -> Profile:
    """One profile of several workers' measurements: of hosts and devices that differ, the slowest and smallest.

    Args:
        workers: What each has found.
        name: Of the profile; None for that of this host.
    """
    first, per_host = workers[0], Counter(each.host for each in workers)
    shared = first.kind == "cpu"
    speeds = [_of_host([each.speed for each in workers if each.host == host], shared=shared) for host in per_host]
    slowest = reduce(_slower, speeds)
    machine = min((each.machine for each in workers), key=lambda each: each.cores)
    found = f"{len(per_host)} host{'s' * (len(per_host) > 1)} with {max(per_host.values())} worker"
    profile = Profile(
        name=name or platform.node() or "this machine",
        date=date.today().isoformat(),
        source=f"outgrow calibrate {machine.versions['outgrow']}, {found}{'s' * (max(per_host.values()) > 1)} each",
        hosts=len(per_host),
        workers=max(per_host.values()),
        device=Device(
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
            efficiency=1.0,
        ),
        host=Host(
            cores=machine.cores,
            memory_bytes=min(each.machine.memory_bytes for each in workers),
            gather=slowest.gather,
            sampled_edges=slowest.sampled_edges,
        ),
        links=_slowest_links(workers),
    )
    efficiency = efficiency_of(profile, profile.workers, slowest.epoch_seconds)
    return replace(profile, device=replace(profile.device, efficiency=efficiency))


def _of_host(speeds: Sequence[Speed], *, shared: bool) -> Speed:
    """What the workers of a host do together on a device that they share; else what the slowest of them does."""
    slowest = reduce(_slower, speeds)
    if not shared:
        return slowest
    return Speed(
        product=_sum([each.product for each in speeds]),
        layers=LayerSpeed(
            near=_sum([each.layers.near for each in speeds]),
            far=_sum([each.layers.far for each in speeds]),
            finish=sum(each.layers.finish for each in speeds),
            score=sum(each.layers.score for each in speeds),
            fresh=sum(each.layers.fresh for each in speeds),
            layer_seconds=slowest.layers.layer_seconds,
        ),
        copy=sum(each.copy for each in speeds),
        gather=slowest.gather,
        sampled_edges=slowest.sampled_edges,
        epoch_seconds=slowest.epoch_seconds,
    )


def _slower(one: Speed, other: Speed) -> Speed:
    return Speed(
        product=_each(min, one.product, other.product),
        layers=LayerSpeed(
            near=_each(min, one.layers.near, other.layers.near),
            far=_each(min, one.layers.far, other.layers.far),
            finish=min(one.layers.finish, other.layers.finish),
            score=min(one.layers.score, other.layers.score),
            fresh=min(one.layers.fresh, other.layers.fresh),
            layer_seconds=max(one.layers.layer_seconds, other.layers.layer_seconds),
        ),
        copy=min(one.copy, other.copy),
        gather=_each(min, one.gather, other.gather),
        sampled_edges=min(one.sampled_edges, other.sampled_edges),
        epoch_seconds=max(one.epoch_seconds, other.epoch_seconds),
    )


def _each(of: Callable[[float, float], float], one: ByWidth, other: ByWidth) -> ByWidth:
    return ByWidth({width: of(rate, other.per_second[width]) for width, rate in one.per_second.items()})


def _sum(rates: Sequence[ByWidth]) -> ByWidth:
    return reduce(lambda one, other: _each(lambda a, b: a + b, one, other), rates)


def _slowest_links(workers: Sequence[Measured]) -> dict[Link, LinkRate]:
    """Of each link that some worker has."""
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
