"""Imports run without garbage collections, and leave the collector as they found it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from outgrow.runtime.launch import importing


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
        with importing():
            kept = [[i] for i in range(100_000)]
            assert not runs
    finally:
        gc.callbacks.remove(note)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert len(gc.get_objects(generation=0)) < len(kept) < len(gc.get_objects(generation=2))


def test_an_import_that_fails() -> None:
    with pytest.raises(ImportError), importing():
        raise ImportError
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_imports_inside_imports() -> None:
    with importing():
        with importing():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    with importing():
        pass
    assert not gc.isenabled()


def test_what_the_user_has_frozen_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with importing():
        assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
