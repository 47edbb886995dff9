"""``outgrow calibrate`` from end to end."""

import json
from pathlib import Path

import pytest
from tests.app.conftest import Command

from outgrow.core.ledger import Link
from outgrow.planning.hardware.profile import read_profile


def test_this_machine(outgrow: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("outgrow.app.plan.machine_profiles.cache_dir", lambda: tmp_path / "outgrow")
    result = outgrow("calibrate", "--name", "mine", "--device", "cpu", "--json")
    assert result.code == 0
    assert "written to" in result.err
    [kept] = (tmp_path / "outgrow" / "machines").iterdir()
    profile = read_profile(kept)
    assert profile.as_dict() == result.summary == json.loads(kept.read_text())
    assert (profile.name, profile.hosts, profile.workers, profile.device.kind) == ("mine", 1, 1, "cpu")
    assert profile.links.keys() == {Link.DISK_TO_HOST, Link.HOST_TO_DEVICE, Link.DEVICE_TO_HOST}
    assert profile.device.product.rate_at(256) > profile.device.product.rate_at(4)


@pytest.mark.slow
def test_two_workers_have_a_link(outgrow: Command, tmp_path: Path) -> None:
    result = outgrow("calibrate", "--workers", 2, "--out", tmp_path / "two.json")
    assert result.code == 0
    assert "us a message" in result.out
    profile = read_profile(tmp_path / "two.json")
    assert (profile.hosts, profile.workers) == (1, 2)
    assert profile.links[Link.PEER].message_seconds > 0


def test_one_thing_at_a_time_is_asked_for(outgrow: Command) -> None:
    for args in (("--reset", "--learned"), ("--learned", "--workers", 2), ("--from", "run", "--out", "x.json")):
        result = outgrow("calibrate", *args)
        assert (result.code, result.out) == (2, "")
        assert "stands alone" in result.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--device", "gpu"), ("cpu", "cuda")),
        (("--workers", 0), ("at least 1",)),
        (("--scratch", "nowhere"), ("no such folder",)),
        (("--scratch", "/dev/shm"), ("in memory",)),
    ],
)
def test_what_cannot_be_done_is_refused(outgrow: Command, args: tuple[object, ...], words: tuple[str, ...]) -> None:
    result = outgrow("calibrate", *args, "--out", "x.json")
    assert result.code == 2
    assert result.out == ""
    assert not Path("x.json").exists()
    for word in words:
        assert word in result.err
