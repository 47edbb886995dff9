"""What control groups leave of the memory that a system has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import outgrow.core.memory_limits as module
from outgrow.core.memory_limits import available_bytes

FREE = 10 << 30
V1 = "memory.limit_in_bytes", "memory.usage_in_bytes"
V2 = "memory.max", "memory.current"


class Groups:
    """Control groups as files, and a system with ``FREE`` bytes left."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.membership = folder / "groups", folder / "membership"
        monkeypatch.setattr(module, "_GROUPS", self.folder)
        monkeypatch.setattr(module, "_MEMBERSHIP", self.membership)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=FREE))

    def join(self, *lines: str) -> None:
        self.membership.write_text("".join(f"{line}\n" for line in lines))

    def make(self, path: str, names: tuple[str, str], limit: str, used: int, stat: str = "") -> None:
        group = self.folder / path
        group.mkdir(parents=True, exist_ok=True)
        for name, value in (*zip(names, (limit, str(used)), strict=True), ("memory.stat", stat)):
            (group / name).write_text(f"{value}\n" if value else "")


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Groups:
    return Groups(tmp_path, monkeypatch)


def test_without_groups_the_system_says_what_is_available(groups: Groups) -> None:
    assert available_bytes() == FREE
    groups.join("0::/nowhere")
    assert available_bytes() == FREE


def test_a_group_of_version_2(groups: Groups) -> None:
    groups.join("0::/jobs/mine")
    groups.make("jobs/mine", V2, str(3 << 30), 1 << 30)
    assert available_bytes() == 2 << 30
    groups.make("jobs/mine", V2, "max", 1 << 30)
    assert available_bytes() == FREE
    groups.make("jobs/mine", V2, str(99 << 30), 1 << 30)
    assert available_bytes() == FREE


def test_a_group_of_version_1(groups: Groups) -> None:
    groups.join("12:cpu,cpuacct:/other", "7:name=systemd:/other", "4:hugetlb,memory:/jobs/mine", "0::/unified")
    groups.make("memory/jobs/mine", V1, str(3 << 30), 1 << 30)
    groups.make("memory/other", V1, "5", 4)
    assert available_bytes() == 2 << 30
    groups.make("memory/jobs/mine", V1, str(2**63 - 4096), 1 << 30)
    assert available_bytes() == FREE


def test_the_narrowest_group_around_this_process_counts(groups: Groups) -> None:
    groups.join("0::/jobs/mine/step")
    groups.make("jobs/mine/step", V2, "max", 1 << 20)
    groups.make("jobs/mine", V2, str(5 << 30), 1 << 30)
    groups.make("jobs", V2, str(8 << 30), 6 << 30)
    assert available_bytes() == 2 << 30
    groups.make("jobs/mine", V2, str(2 << 30), 1 << 30)
    assert available_bytes() == 1 << 30


@pytest.mark.parametrize(("line", "root", "names"), [("0::/docker/4f", ".", V2), ("4:memory:/docker/4f", "memory", V1)])
def test_a_container_sees_its_group_as_the_root(groups: Groups, line: str, root: str, names: tuple[str, str]) -> None:
    groups.join(line)
    groups.make(root, names, str(3 << 30), 1 << 30)
    assert available_bytes() == 2 << 30


@pytest.mark.parametrize(
    ("line", "root", "names", "prefix"), [("0::/", ".", V2, ""), ("4:memory:/", "memory", V1, "total_")]
)
def test_pages_of_files_can_be_taken(groups: Groups, line: str, root: str, names: tuple[str, str], prefix: str) -> None:
    """A group whose memory is full of what was read has room; memory that is shared has not."""
    groups.join(line)
    stat = f"{prefix}active_file {1 << 29}\n{prefix}inactive_file {1 << 30}\nshmem {1 << 30}"
    groups.make(root, names, str(3 << 30), 3 << 30, stat)
    assert available_bytes() == 3 << 29


def test_a_group_that_is_slowed_down_before_its_limit(groups: Groups) -> None:
    groups.join("0::/")
    groups.make(".", V2, str(4 << 30), 1 << 30)
    (groups.folder / "memory.high").write_text(f"{2 << 30}\n")
    assert available_bytes() == 1 << 30
    (groups.folder / "memory.high").write_text("max\n")
    assert available_bytes() == 3 << 30


def test_a_group_that_is_over_its_limit_has_nothing_left(groups: Groups) -> None:
    groups.join("0::/")
    groups.make(".", V2, "1000", 5000)
    assert available_bytes() == 0


def test_this_machine_says_something_sensible() -> None:
    assert 0 <= available_bytes() <= psutil.virtual_memory().total
