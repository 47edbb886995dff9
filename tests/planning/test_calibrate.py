"""Several workers' measurements as one profile."""

from typing import Any

import pytest

from outgrow.core.types import Link
from outgrow.planning.calibrate import Measured, put_together
from outgrow.planning.measure import Speed, best_seconds
from outgrow.planning.rates import ByWidth, LinkRate
from outgrow.runtime.hardware import Machine


def _measured(host: str, kind: str, speed: float, **links: float) -> Measured:
    rates = ByWidth({1: speed, 8: 3 * speed})
    machine = Machine(
        system="", processor="cpu", cores=4, memory_bytes=int(100 * speed), gpus=("gpu",), versions={"outgrow": "1"}
    )
    return Measured(
        host=host,
        machine=machine,
        kind=kind,
        device=kind,
        memory_bytes=int(10 * speed),
        speed=Speed(
            product=rates, aggregate=rates, copy=speed, call_seconds=1 / speed, gather=rates, sampled_edges=speed
        ),
        links={Link(name): LinkRate(bytes_per_second=rate, message_seconds=1 / rate) for name, rate in links.items()},
    )


def test_workers_of_a_host_share_a_cpu() -> None:
    found = put_together([_measured("a", "cpu", 2), _measured("a", "cpu", 3), _measured("b", "cpu", 6)], "here")
    assert (found.name, found.hosts, found.workers) == ("here", 2, 2)
    assert found.device.product == found.device.aggregate == ByWidth({1: 5, 8: 15})
    assert (found.device.copy, found.device.call_seconds, found.device.memory_bytes) == (5, 1 / 2, 20)
    assert found.host.gather == ByWidth({1: 2, 8: 6})  # one thread's
    assert (found.host.sampled_edges, found.host.memory_bytes, found.host.cores) == (2, 200, 4)


def test_each_has_a_gpu_of_its_own() -> None:
    found = put_together([_measured("a", "cuda", 2), _measured("a", "cuda", 3)], None)
    assert found.device.product == ByWidth({1: 2, 8: 6})
    assert (found.device.copy, found.device.shared) == (2, False)


def test_of_links_the_slowest_is_taken() -> None:
    workers = [_measured("a", "cpu", 1, peer=4, disk_to_host=8), _measured("a", "cpu", 1, peer=2, disk_to_host=16)]
    links: Any = put_together([*workers, _measured("b", "cpu", 1, disk_to_host=32)], None).links
    assert links.keys() == {Link.PEER, Link.DISK_TO_HOST}
    assert links[Link.PEER] == LinkRate(bytes_per_second=2, message_seconds=0.5)
    assert links[Link.DISK_TO_HOST].bytes_per_second == 8


def test_the_first_turn_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    took = iter([50.0, 3.0, 2.0, 4.0, 9.0])

    def work() -> None:
        nonlocal clock
        clock += next(took)

    monkeypatch.setattr("outgrow.planning.measure.time.perf_counter", lambda: clock)
    assert best_seconds(work) == 2
