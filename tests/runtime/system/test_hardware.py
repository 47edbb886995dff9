"""What the machine is, and what is set before torch is loaded."""

from __future__ import annotations

import os
import sys

import psutil
import pytest
import torch

from outgrow.runtime.system.environment import available_cores, set_thread_environment
from outgrow.runtime.system.hardware import describe_machine

SET = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "1000",
    "NUMBA_THREADING_LAYER": "omp",
    "THP_MEM_ALLOC_ENABLE": "1",
}


def test_the_machine_is_described() -> None:
    machine = describe_machine()
    assert machine.memory_bytes == psutil.virtual_memory().total
    assert machine.versions["torch"] == torch.__version__
    assert machine.versions["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert set(machine.versions) == {"python", "outgrow", "torch", "numba", "numpy", "scipy", "pyarrow"}
    assert machine.processor.strip()
    assert len(machine.gpus) == torch.cuda.device_count()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process run on some cores")
def test_cores_are_those_that_this_process_may_use() -> None:
    assert 1 <= available_cores() <= (os.cpu_count() or 1)
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert available_cores() == 1
        assert describe_machine().cores == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_what_is_set_for_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SET:
        monkeypatch.delenv(name, raising=False)
    set_thread_environment()
    assert {name: os.environ[name] for name in SET} == SET


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SET:
        monkeypatch.setenv(name, "mine")
    set_thread_environment()
    assert {os.environ[name] for name in SET} == {"mine"}
