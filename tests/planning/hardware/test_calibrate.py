"""Several workers' measurements as one profile."""

from typing import Any

import pytest

from outgrow.core.ledger import Link
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import full_graph_parts
from outgrow.planning.graph_stats.counted import make_workload
from outgrow.planning.hardware.calibrate import WorkerMeasurement, combine_measurements
from outgrow.planning.hardware.measure_layers import LayerSpeed, best_seconds, typical_seconds
from outgrow.planning.hardware.measure_training import make_reference
from outgrow.planning.hardware.measure_worker import WorkerSpeed
from outgrow.planning.hardware.profile import LinkRate, RateByWidth
from outgrow.planning.traffic import WorkerLayout
from outgrow.runtime.system.hardware import MachineInfo


def _measured(host: str, kind: str, speed: float, **links: float) -> WorkerMeasurement:
    rates = RateByWidth({1: speed, 8: 3 * speed})
    machine = MachineInfo(
        system="", processor="cpu", cores=4, memory_bytes=int(100 * speed), gpus=("gpu",), versions={"outgrow": "1"}
    )
    return WorkerMeasurement(
        host=host,
        machine=machine,
        kind=kind,
        device=kind,
        memory_bytes=int(10 * speed),
        speed=WorkerSpeed(
            product=rates,
            layers=LayerSpeed(near=rates, far=rates, finish=speed, score=rates, fresh=speed, layer_seconds=1 / speed),
            copy=speed,
            gather=rates,
            sampled_edges=speed,
            step_overhead_seconds=2 / speed,
            epoch_seconds=10 / speed,
        ),
        links={Link(name): LinkRate(bytes_per_second=rate, message_seconds=1 / rate) for name, rate in links.items()},
    )


def test_workers_of_a_host_share_a_cpu() -> None:
    found = combine_measurements([_measured("a", "cpu", 2), _measured("a", "cpu", 3), _measured("b", "cpu", 6)], "here")
    assert (found.name, found.hosts, found.workers) == ("here", 2, 2)
    assert found.device.product == found.device.near == found.device.far == RateByWidth({1: 5, 8: 15})
    assert (found.device.finish, found.device.score, found.device.fresh) == (5, RateByWidth({1: 5, 8: 15}), 5)
    assert (found.device.copy, found.device.layer_seconds, found.device.memory_bytes) == (5, 1 / 2, 20)
    assert found.device.step_overhead_seconds == 1
    assert found.host.gather == RateByWidth({1: 2, 8: 6})  # one thread's
    assert (found.host.sampled_edges, found.host.memory_bytes, found.host.cores) == (2, 200, 4)


def test_each_has_a_gpu_of_its_own() -> None:
    found = combine_measurements([_measured("a", "cuda", 2), _measured("a", "cuda", 3)], None)
    assert found.device.product == RateByWidth({1: 2, 8: 6})
    assert (found.device.copy, found.device.is_shared) == (2, False)


def test_of_links_the_slowest_is_taken() -> None:
    workers = [_measured("a", "cpu", 1, peer=4, disk_to_host=8), _measured("a", "cpu", 1, peer=2, disk_to_host=16)]
    links: Any = combine_measurements([*workers, _measured("b", "cpu", 1, disk_to_host=32)], None).links
    assert links.keys() == {Link.PEER, Link.DISK_TO_HOST}
    assert links[Link.PEER] == LinkRate(bytes_per_second=2, message_seconds=0.5)
    assert links[Link.DISK_TO_HOST].bytes_per_second == 8


def test_with_its_efficiency_the_reference_takes_as_long_as_it_did() -> None:
    """Two workers of a CPU, whose slower one took 10 / 2 seconds; and one on a device of its own. Begin a step last."""
    for kind, count, slowest in (("cpu", 2, 2.0), ("cuda", 2, 2.0), ("cpu", 1, 4.0)):
        profile = combine_measurements([_measured("a", kind, slowest + each) for each in range(count)], None)
        graph, model = make_reference()
        pace = CostModel.from_profile(profile, WorkerLayout(workers=count), 4)
        parts = full_graph_parts(make_workload(graph, model), pace, graph.num_nodes, graph.num_edges)
        assert sum(part.seconds for part in parts) == pytest.approx(10 / slowest)


@pytest.mark.parametrize(("of", "expected"), [(best_seconds, 2), (typical_seconds, 3)])
def test_the_first_turn_is_not_timed(monkeypatch: pytest.MonkeyPatch, of: Any, expected: float) -> None:
    clock = 0.0
    took = iter([50.0, 3.0, 2.0, 4.0, 9.0])

    def work() -> None:
        nonlocal clock
        clock += next(took)

    monkeypatch.setattr("outgrow.planning.hardware.measure_layers.time.perf_counter", lambda: clock)
    assert of(work) == expected
