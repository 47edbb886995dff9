"""Imports run without garbage collections and leave the collector as they found it; workers share the cores."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from outgrow.runtime.system.environment import available_cores, gc_paused_import, thread_environment


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.enable()
    yield
    gc.unfreeze()
    (gc.enable if enabled else gc.disable)()


def test_nothing_is_collected_meanwhile() -> None:
    runs: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        runs.append(phase)

    gc.callbacks.append(note)
    try:
        with gc_paused_import():
            kept = [[i] for i in range(100_000)]
            assert not runs
    finally:
        gc.callbacks.remove(note)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert len(gc.get_objects(generation=0)) < len(kept) < len(gc.get_objects(generation=2))


def test_an_import_that_fails() -> None:
    with pytest.raises(ImportError), gc_paused_import():
        raise ImportError
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_imports_inside_imports() -> None:
    with gc_paused_import():
        with gc_paused_import():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    with gc_paused_import():
        pass
    assert not gc.isenabled()


def test_what_the_user_has_frozen_stays_frozen() -> None:
    kept = [object()]
    gc.freeze()
    with gc_paused_import():
        assert gc.isenabled()
    assert not any(each is kept for each in gc.get_objects())  # which leaves frozen ones out
    gc.unfreeze()
    assert any(each is kept for each in gc.get_objects())


GROUP = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Eight cores, and nothing set by the user."""
    for name in (*COUNTS, "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE", *GROUP):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("outgrow.runtime.system.environment.available_cores", lambda: 8)
    return monkeypatch


@pytest.mark.parametrize(("workers", "share"), [(2, "4"), (3, "2"), (8, "1"), (20, "1")])
def test_workers_share_the_cores(workers: int, share: str, eight_cores: pytest.MonkeyPatch) -> None:
    settings = thread_environment(workers)
    assert [settings[name] for name in COUNTS] == [share] * 3
    assert settings["OMP_WAIT_POLICY"] == "PASSIVE"


def test_one_worker_is_not_counted(eight_cores: pytest.MonkeyPatch) -> None:
    assert not set(COUNTS) & set(thread_environment())


def test_threads_wait_as_the_user_says(eight_cores: pytest.MonkeyPatch) -> None:
    assert thread_environment()["GOMP_SPINCOUNT"] == "1000"
    # The count takes precedence over the policy in GNU's OpenMP.
    eight_cores.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}.isdisjoint(thread_environment())


def test_counts_of_the_user_stay(eight_cores: pytest.MonkeyPatch) -> None:
    eight_cores.setenv("OMP_NUM_THREADS", "1")
    assert {name: thread_environment(4).get(name) for name in COUNTS} == dict(
        zip(COUNTS, (None, None, "2"), strict=True)
    )
    eight_cores.setenv("NUMBA_NUM_THREADS", "5")
    assert not set(COUNTS) & set(thread_environment(4))


def test_workers_of_torchrun_share_the_cores_of_their_host(eight_cores: pytest.MonkeyPatch) -> None:
    for name in GROUP:
        eight_cores.setenv(name, "2")
    eight_cores.setenv("LOCAL_WORLD_SIZE", "2")
    assert [thread_environment()[name] for name in COUNTS] == ["4"] * 3  # also without torchrun
    eight_cores.setenv("TORCHELASTIC_RUN_ID", "any")
    eight_cores.setenv("OMP_NUM_THREADS", "1")  # as torchrun sets it for users who have not
    assert [thread_environment()[name] for name in COUNTS] == ["4"] * 3
    eight_cores.setenv("OMP_NUM_THREADS", "3")
    assert {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}.isdisjoint(thread_environment())
    eight_cores.setenv("LOCAL_WORLD_SIZE", "1")
    eight_cores.setenv("OMP_NUM_THREADS", "1")
    assert not set(COUNTS) & set(thread_environment())


@pytest.mark.parametrize(("first", "late"), [("import torch", True), ("pass", False)])
def test_what_a_program_imports_first(first: str, late: bool) -> None:
    """Threads are set when the library is imported, of torch what can still be set."""
    program = f"{first}; import outgrow, os, torch; "
    program += "from outgrow.runtime.system.environment import is_torch_preloaded as late; "
    program += "print(late(), os.environ['OMP_WAIT_POLICY'], torch.get_num_threads())"
    given = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_", "NUMBA_"))}
    group = {**dict.fromkeys(GROUP, "2"), "LOCAL_WORLD_SIZE": str(4 * available_cores())}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**given, **group}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(late), "PASSIVE", "1"]


def test_a_policy_that_the_user_has_set_is_no_mistake() -> None:
    program = "import torch, outgrow; from outgrow.runtime.system.environment import is_torch_preloaded; "
    program += "print(is_torch_preloaded())"
    given = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run([sys.executable, "-c", program], env=given, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
