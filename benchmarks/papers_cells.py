"""Cells of the published tables, and the machines that they were measured on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from outgrow.core.ledger import Link
from outgrow.planning.hardware.profile import LinkRate, MachineProfile, RateByWidth, find_profile

CASE = ("graph", "model", "layers", "hidden", "batch_size")
"""What all systems of a comparison have in common."""
_FOLDER = Path(__file__).parent / "papers"
CPUS = "2-core-cpu"
"""Name of the profile whose rates stand for those of other CPUs."""
_CPU_CORES = 2


class Entry(NamedTuple):
    """A cell of a table.

    Attributes:
        paper: Its name.
        table: Its number.
        values: Of the cell, over the table's defaults.
        strategy: What the system is taken for; None for nothing.
        machine: Profile of the machine.
        workers: Devices of all hosts.
        hosts: How many.
    """

    paper: str
    table: str
    values: Mapping[str, Any]
    strategy: str | None
    machine: MachineProfile
    workers: int
    hosts: int


def entries() -> Iterator[Entry]:
    """All cells with a time, or for which memory was too small."""
    for path in sorted(_FOLDER.glob("*.json")):
        for table in json.loads(path.read_text())["tables"]:
            for cell in table["entries"]:
                values = {**table["defaults"], **cell}
                if "seconds" not in values and not values.get("oom"):
                    continue
                own = table.get("machines", {}).get(values["system"], {})
                machine = _cpus(own) if own.get("device") == "cpu" else find_profile(table["machine"])
                hosts = own.get("hosts", table.get("hosts", 1))
                workers = hosts if own else table["workers"]
                strategy = table.get("strategies", {}).get(values["system"])
                yield Entry(path.stem, table["table"], values, strategy, machine, workers, hosts)


def _cpus(facts: Mapping[str, Any]) -> MachineProfile:
    """Hosts with so many cores, each as fast as those that were measured here, and memory as fast as its maker says."""
    known = find_profile(CPUS)
    device = known.device
    times = facts["cores"] / _CPU_CORES
    # What waits for memory is no faster than that, however many cores there are.
    of_memory = min(times, facts["memory_gb_per_second"] * 1e9 / device.copy)

    def scaled(rate: RateByWidth, times: float = times) -> RateByWidth:
        return RateByWidth({width: value * times for width, value in rate.per_second.items()})

    links = dict(known.links)
    if "network_gbit_per_second" in facts:
        rate = facts["network_gbit_per_second"] * 1e9 / 8
        links[Link.NETWORK] = LinkRate(bytes_per_second=rate, message_seconds=1e-4)
    device = replace(
        device,
        memory_bytes=int(facts["memory_gb"] * 1e9),
        product=scaled(device.product),
        near=scaled(device.near),
        far=scaled(device.far, of_memory),
        finish=device.finish * of_memory,
        score=scaled(device.score),
        fresh=device.fresh * times,
        copy=device.copy * of_memory,
    )
    host = replace(known.host, cores=facts["cores"], memory_bytes=device.memory_bytes)
    return replace(known, hosts=facts["hosts"], workers=1, device=device, host=host, links=links)
