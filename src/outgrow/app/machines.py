"""The machine that is planned for: another, this one as it was measured, or a typical one in its place."""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from outgrow.core.errors import InputError
from outgrow.graph.datasets.locate import cache_folder
from outgrow.planning.profile import Profile, profile_of, read_profile
from outgrow.planning.traffic import Place
from outgrow.runtime.comm import Alone
from outgrow.runtime.device import device_of, memory_bytes

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
