"""Throughputs are measured once for a machine, and survive whatever becomes of the file that keeps them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from outgrow.core.ledger import Kind, Link
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.storage.row_file import Disk, DiskRows
from outgrow.strategies.offload.bandwidth import rates_of
from outgrow.strategies.offload.reorder import Throughputs
from strategies.offload.cut_graphs import together

KNOWN = {"host": 1.5, "device": 2.5, "reuse": 3.5}
SIZES = (1, 2, 3)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that keeps throughputs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "outgrow" / "rates.json"


def rates_on(comm: Comm, folder: Path) -> Throughputs:
    """The throughputs as one worker is told, with a folder of its own; nothing is left there, nor counted."""
    mine = folder / f"worker-{comm.rank}"
    mine.mkdir(exist_ok=True)
    disk = Disk()
    rows = DiskRows.create(disk, mine / "before", 2, 2, torch.float32)
    rows.write_range(0, torch.ones(2, 2))
    comm.ledger.move(Link.HOST_TO_DEVICE, Kind.FEATURES, 11)
    before = comm.ledger.crossed.copy(), comm.ledger.counters.copy(), disk.read_bytes, disk.written_bytes
    found = rates_of(comm, mine, disk)
    assert before == (comm.ledger.crossed, comm.ledger.counters, disk.read_bytes, disk.written_bytes)
    rows.close()
    disk.close()
    (mine / "before").unlink()
    assert list(mine.iterdir()) == []
    return found


def rates(folder: Path, size: int = 1) -> Throughputs:
    """The throughputs that all workers are told."""
    found = together(size, lambda comm: rates_on(comm, folder))
    assert all(each == found[0] for each in found)
    return found[0]


def kept(cache: Path) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads(cache.read_text("utf-8"))
    return found


def keep(cache: Path, found: object) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps(found), "utf-8")


@pytest.mark.parametrize("size", SIZES)
def test_what_was_measured_is_kept(size: int, cache: Path, tmp_path: Path) -> None:
    first = rates(tmp_path, size)
    assert all(rate > 1e4 for rate in vars(first).values())
    assert list(kept(cache).values()) == [vars(first)]
    assert rates(tmp_path, size) == first
    assert list(cache.parent.iterdir()) == [cache]


def test_what_is_kept_is_not_measured_again(cache: Path, tmp_path: Path) -> None:
    rates(tmp_path)
    [name] = kept(cache)
    keep(cache, {name: KNOWN})
    assert rates(tmp_path) == Throughputs(**KNOWN)


def test_other_machines_and_numbers_of_workers_keep_their_own(cache: Path, tmp_path: Path) -> None:
    rates(tmp_path)
    [name] = kept(cache)
    keep(cache, {name: KNOWN, "elsewhere": KNOWN})
    assert rates(tmp_path, 2) != Throughputs(**KNOWN)
    found = kept(cache)
    assert len(found) == 3
    assert found[name] == found["elsewhere"] == KNOWN
    assert rates(tmp_path) == Throughputs(**KNOWN)


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"null", b"7", b'"text"', b"\x00\x01", b"\xff\xfe\x80"])
def test_a_broken_file_is_written_anew(content: bytes, cache: Path, tmp_path: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_bytes(content)
    found = rates(tmp_path)
    assert list(kept(cache).values()) == [vars(found)]


@pytest.mark.parametrize(
    "entry",
    [
        None,
        3,
        [1.0, 2.0, 3.0],
        {},
        {"host": 1.0, "device": 1.0},
        {**KNOWN, "more": 1.0},
        {**KNOWN, "host": 0.0},
        {**KNOWN, "host": -1.0},
        {**KNOWN, "host": float("nan")},
        {**KNOWN, "host": float("inf")},
        {**KNOWN, "host": "fast"},
    ],
)
def test_an_entry_that_is_none_is_measured_anew(entry: object, cache: Path, tmp_path: Path) -> None:
    rates(tmp_path)
    [name] = kept(cache)
    keep(cache, {name: entry, "elsewhere": entry})
    found = rates(tmp_path)
    assert kept(cache)[name] == vars(found)
    assert all(0 < rate < float("inf") for rate in vars(found).values())


@pytest.mark.parametrize("blocked", ["rates.json", "..", "."])
def test_without_a_place_to_keep_them_they_are_measured_each_time(blocked: str, cache: Path, tmp_path: Path) -> None:
    """A folder where the file should be, or a file where a folder should be."""
    if blocked == "rates.json":
        cache.mkdir(parents=True)
    else:
        file = (cache.parent / blocked).resolve()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("no folder")
    assert all(rate > 0 for rate in vars(rates(tmp_path)).values())
    assert not list((tmp_path / "cache").glob("**/*.partial"))
