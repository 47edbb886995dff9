"""Which tests stay together, and which are begun first, where several processes share them (``-n``).

Tests of a file stay together, since they share what takes long to make, and so do files that share it. The longest are
begun first, so that no process is left alone with one at the end.
"""

from __future__ import annotations

from typing import Any

TOGETHER = {
    "traffic": (
        "tests/suites/test_traffic.py",
        "tests/suites/test_tensor_traffic.py",
        "tests/suites/test_offload_traffic.py",
        "tests/planning/test_traffic.py",
    ),
}
"""Files that look at the same runs."""
LONGEST: tuple[str, ...] = (
    "tests/suites/test_exactness.py",
    "tests/nn/test_conformance.py",
    "tests/app/runs/test_lost_within_an_epoch.py",
    "tests/chaos/test_runs.py",
    "tests/suites/test_traffic.py",
    "tests/suites/test_tensor_traffic.py",
    "tests/suites/test_offload_traffic.py",
    "tests/planning/test_traffic.py",
    "tests/ops/aggregation/test_spmm.py",
    "tests/docs/test_pages.py",
    "tests/suites/test_invariance.py",
    "tests/app/test_workers.py",
    "tests/suites/test_bfloat16.py",
    "tests/app/test_plan.py",
    "tests/app/test_calibrate.py",
    "tests/examples/test_examples.py",
    "tests/app/test_train.py",
    "tests/graph/test_halo.py",
    "tests/graph/store/test_reader.py",
    "tests/planning/test_minibatch_traffic.py",
    "tests/suites/test_handover.py",
    "tests/app/report/test_page.py",
    "tests/suites/test_evaluation.py",
    "tests/strategies/orchestrate/test_strategy.py",
    "tests/strategies/test_on_device.py",
    "tests/app/test_api.py",
    "tests/runtime/distributed/test_launch_failures.py",
    "tests/suites/test_links.py",
    "tests/app/test_links.py",
    "tests/runtime/distributed/test_launch.py",
    "tests/app/test_offload.py",
    "tests/fuzz/test_readers.py",
    "tests/app/runs/test_torchrun.py",
    "tests/app/test_sockets.py",
)
"""Files that take long, the longest first."""


def unit_of(nodeid: str) -> str:
    """The tests that a test stays with."""
    path = nodeid.partition("::")[0]
    return next((name for name, paths in TOGETHER.items() if path in paths), path)


def turn_of(nodeid: str) -> int:
    """When a test is begun."""
    path = nodeid.partition("::")[0]
    return LONGEST.index(path) if path in LONGEST else len(LONGEST)


def scheduler_of(config: Any, log: Any) -> Any:
    """Deals tests out to processes as they are asked to be run, in units."""
    from xdist.scheduler import LoadScopeScheduling

    class InUnits(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False
    return InUnits(config, log)
