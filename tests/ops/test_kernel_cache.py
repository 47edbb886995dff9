"""Compiled kernels are found by what they are compiled from, wherever it lies; a folder that is no use is no error."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from numba.core.caching import NullCache

import outgrow
from outgrow.core.errors import InputError
from outgrow.ops import kernel_cache
from outgrow.ops.kernel_cache import MODE_VARIABLE, WARNED_VARIABLE, loop_mode
from outgrow.ops.kernel_folder import FOLDER_VARIABLE, kernel_folder

SOURCE = Path(outgrow.__file__).parent
HELPER = """
import numba

@numba.njit(inline="always")
def turned(x):
    return 2 * x
"""
KERNELS = """
import os

import numba

from outgrow.ops.kernel_cache import MODE_VARIABLE, cache_on_disk
from outgrow.ops.tiny_helper import turned

@cache_on_disk
@numba.njit
def part(x):
    return turned(x) + 1

@cache_on_disk
@numba.njit(parallel=os.environ.get(MODE_VARIABLE) != "serial")
def whole(x):
    for i in numba.prange(len(x)):
        x[i] = part(x[i])

@cache_on_disk
@numba.njit
def alone(x):
    return turned(x)
"""
RUN = """
import ctypes, json, pathlib, sys, time
import numpy as np
import tiny
from outgrow.core.compile_clock import compile_clock

def unprivileged():
    # without what lets root write everywhere
    head, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(head, none) == 0

values = {}
for word in sys.argv[1:]:
    if word == "whole":
        values[word] = np.arange(3.0)
        tiny.whole(values[word])
        values[word] = values[word].tolist()
    elif word == "unprivileged":
        unprivileged()
    elif word.startswith("wait:"):
        time.sleep(max(0, float(word[5:]) - time.time()))
    elif word.startswith("edit:"):
        file = pathlib.Path(word[5:])
        file.write_text(file.read_text() + "# longer")
    else:
        values[word] = getattr(tiny, word)(1.5)
stats = [each.stats for each in (tiny.part, tiny.whole, tiny.alone)]
hits, misses = (sum(sum(getattr(each, "cache_" + name).values()) for each in stats) for name in ("hits", "misses"))
# The clock counts what is compiled, and waiting for another process; a part of a kernel counts with it.
waits = any(word.startswith("wait:") for word in sys.argv)
# Where two start together one may be late, and find what the other has compiled.
assert (compile_clock.seconds > 0) == (misses > 0) or (waits and not misses)
assert compile_clock.num_kernels <= misses + waits
print(json.dumps({"values": values, "hits": hits, "misses": misses}))
"""


class Said(NamedTuple):
    """What a process computed, how many kernels it found and compiled, and what it told."""

    values: dict[str, Any]
    hits: int
    misses: int
    told: str


class Copy(NamedTuple):
    """A copy of the package with a few small kernels, and a folder for what is compiled."""

    home: Path
    cache: Path

    @classmethod
    def at(cls, home: Path, cache: Path) -> Copy:
        shutil.copytree(SOURCE, home / "outgrow", ignore=shutil.ignore_patterns("__pycache__"))
        (home / "outgrow" / "ops" / "tiny_helper.py").write_text(HELPER)
        (home / "tiny.py").write_text(KERNELS)
        return cls(home, cache)

    def start(self, *words: str, **settings: str) -> subprocess.Popen[str]:
        """A process that does what the words say; nothing of Python's own is kept, which goes by time and size."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in (WARNED_VARIABLE, MODE_VARIABLE, "LOCAL_RANK")
        }
        mine = {"PYTHONPATH": str(self.home), "PYTHONDONTWRITEBYTECODE": "1", FOLDER_VARIABLE: str(self.cache)}
        command = [sys.executable, "-c", RUN, *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env={**kept, **mine, **settings}, cwd=self.home, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, *words: str, **settings: str) -> Said:
        return heard(self.start(*words, **settings))


def heard(process: subprocess.Popen[str]) -> Said:
    out, told = process.communicate(timeout=200)
    assert process.returncode == 0, told
    return Said(**json.loads(out), told=told)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy whose kernels have been compiled. Tests leave it as it is."""
    folder = tmp_path_factory.mktemp("kernels")
    copy = Copy.at(folder / "first", folder / "cache")
    assert copy.run("whole", "alone") == Said({"whole": [1, 3, 5], "alone": 3}, hits=0, misses=3, told="")
    return copy


@pytest.fixture
def copy(filled: Copy, tmp_path: Path) -> Copy:
    """A second copy elsewhere, with the compiled kernels of the first."""
    shutil.copytree(filled.cache, tmp_path / "cache")
    return Copy.at(tmp_path / "second", tmp_path / "cache")


def test_a_copy_elsewhere_compiles_nothing(copy: Copy) -> None:
    assert copy.run("whole", "alone") == Said({"whole": [1, 3, 5], "alone": 3}, hits=2, misses=0, told="")


def test_another_file_with_kernels_that_changes_compiles_its_own_again(copy: Copy) -> None:
    (copy.home / "tiny.py").write_text(KERNELS.replace("turned(x) + 1", "turned(x) + 3"))
    assert copy.run("part", "alone") == Said({"part": 6, "alone": 3}, hits=0, misses=2, told="")
    (copy.home / "tiny.py").write_text(KERNELS)
    assert copy.run("part", "alone") == Said({"part": 4, "alone": 3}, hits=2, misses=0, told="")


def test_a_helper_that_changes_compiles_all_that_it_is_part_of(copy: Copy) -> None:
    helper = copy.home / "outgrow" / "ops" / "tiny_helper.py"
    before = helper.stat()
    helper.write_text(HELPER.replace("2 * x", "5 * x"))
    os.utime(helper, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert helper.stat().st_size == before.st_size
    assert copy.run("part", "alone") == Said({"part": 8.5, "alone": 7.5}, hits=0, misses=2, told="")
    assert copy.run("part", "alone") == Said({"part": 8.5, "alone": 7.5}, hits=2, misses=0, told="")


def test_what_changes_while_a_process_runs_is_not_kept_as_what_it_compiled(copy: Copy) -> None:
    helper = copy.home / "outgrow" / "ops" / "tiny_helper.py"
    files = set(copy.cache.rglob("*"))
    found = copy.run("part", f"edit:{helper}", "alone")
    assert (found.values, found.hits, found.misses) == ({"part": 4, "alone": 3}, 1, 1)
    assert "sources have changed" in found.told
    assert set(copy.cache.rglob("*")) == files


def test_another_processor_compiles_its_own(copy: Copy) -> None:
    # All tests may run as on a generic processor: that is not another one then.
    name = "x86-64-v2" if os.environ.get("NUMBA_CPU_NAME") == "generic" else "generic"
    other = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": ""}
    assert copy.run("alone", **other) == Said({"alone": 3}, hits=0, misses=1, told="")
    assert copy.run("alone", **other) == Said({"alone": 3}, hits=1, misses=0, told="")
    assert copy.run("alone") == Said({"alone": 3}, hits=1, misses=0, told="")


def test_serial_kernels_are_others(copy: Copy) -> None:
    # Parts without loops are the same.
    assert copy.run("whole", **{MODE_VARIABLE: "serial"}) == Said({"whole": [1, 3, 5]}, hits=1, misses=1, told="")
    assert copy.run("whole", **{MODE_VARIABLE: "serial"}) == Said({"whole": [1, 3, 5]}, hits=1, misses=0, told="")
    assert copy.run("whole", **{MODE_VARIABLE: "parallel"}) == Said({"whole": [1, 3, 5]}, hits=1, misses=0, told="")


@pytest.mark.parametrize("below", ["missing", "a/file"])
def test_a_folder_that_cannot_be_made_is_said_in_one_line(below: str, copy: Copy) -> None:
    place = Path("/proc") if below == "missing" else copy.home / "tiny.py"
    found = copy.run("part", "alone", **{FOLDER_VARIABLE: str(place / below)})
    assert (found.values, found.hits, found.misses) == ({"part": 4, "alone": 3}, 0, 2)
    assert str(place / below) in found.told
    assert FOLDER_VARIABLE in found.told
    assert len(found.told.splitlines()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="root gives up writing everywhere as Linux has it")
def test_a_folder_that_can_only_be_read_is_used(copy: Copy) -> None:
    folders = [copy.cache, *(path for path in copy.cache.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        found = copy.run("unprivileged", "part")
        assert found == Said({"part": 4}, hits=1, misses=0, told="")
        other = copy.run("unprivileged", "whole", **{MODE_VARIABLE: "serial"})
        assert (other.values, other.misses, len(other.told.splitlines())) == ({"whole": [1, 3, 5]}, 1, 1)
    finally:
        for folder in folders:
            folder.chmod(0o755)


@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
def test_torn_files_are_made_again(ending: str, copy: Copy) -> None:
    for file in copy.cache.rglob(f"*{ending}"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert copy.run("alone") == Said({"alone": 3}, hits=0, misses=1, told="")
    assert copy.run("alone") == Said({"alone": 3}, hits=1, misses=0, told="")


def test_of_two_processes_one_compiles(copy: Copy) -> None:
    shutil.rmtree(copy.cache)
    together = f"wait:{time.time() + 3}"
    first, second = (heard(each) for each in [copy.start(together, "alone") for _ in "12"])
    assert first.values == second.values == {"alone": 3}
    assert sorted([(first.hits, first.misses), (second.hits, second.misses)]) == [(0, 1), (1, 0)]
    assert first.told == second.told == ""


@pytest.fixture
def folders(tmp_path: Path) -> Callable[[str, int], list[Path]]:
    """Makes folders, each last used a day before the next, the last one now."""

    def make(name: str, count: int) -> list[Path]:
        made = [tmp_path / f"{name}{i}" for i in range(count)]
        for age, folder in enumerate(reversed(made)):
            folder.mkdir()
            (folder / "kernel").touch()
            os.utime(folder, times=(0, time.time() - 86400 * age))
        return made

    return make


def test_the_oldest_folders_go(folders: Callable[[str, int], list[Path]]) -> None:
    made = folders("a", 7)
    kernel_cache._remove_oldest([*made, made[0] / "missing"], 3)
    assert [folder for folder in made if folder.exists()] == made[-3:]


def test_folders_in_use_stay(folders: Callable[[str, int], list[Path]]) -> None:
    made = folders("a", 7)
    for folder in made[:4]:
        os.utime(folder)
    kernel_cache._remove_oldest(made, 2)
    assert [folder for folder in made if folder.exists()] == [*made[:4], made[-1]]


def test_states_that_are_no_longer_used_go_and_nothing_else_does(
    folders: Callable[[str, int], list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    states, mine = folders("kernels-", 30), folders("mine", 30)
    place = kernel_cache._ContentLocator.from_function(test_folders_in_use_stay, __file__)
    place.ensure_cache_path()
    left = [*(folder for folder in states if folder.exists()), Path(place.get_cache_path()).parent]
    assert left == [*states[1 - kernel_cache._MAX_STAMPS :], left[-1]]
    assert all(folder.exists() for folder in mine)
    place.mark_used()
    place.ensure_cache_path()
    assert all(folder.exists() for folder in left)


def test_versions_of_one_file_do_not_grow_without_end(copy: Copy) -> None:
    copy.run("alone")
    ours = max(copy.cache.glob("*/tiny-*"), key=lambda folder: folder.stat().st_mtime)
    for i in range(10):
        (ours.parent / f"tiny-{i}").mkdir()
        os.utime(ours.parent / f"tiny-{i}", times=(0, 0))
    (copy.home / "tiny.py").write_text(KERNELS + "\n")
    assert copy.run("alone").misses == 1
    assert len(list(ours.parent.glob("tiny-*"))) == kernel_cache._MAX_FILE_VERSIONS


def test_where_kernels_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (FOLDER_VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: Path("/someone"))
    assert kernel_folder() == Path("/someone/.cache/outgrow/kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert kernel_folder() == Path("/elsewhere/outgrow/kernels")
    monkeypatch.setenv(FOLDER_VARIABLE, "/mine")
    assert kernel_folder() == Path("/mine")


@pytest.fixture
def without_a_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (FOLDER_VARIABLE, WARNED_VARIABLE, "LOCAL_RANK", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def home() -> Path:
        raise RuntimeError("there is no home")

    monkeypatch.setattr(Path, "home", home)
    yield
    os.environ.pop(WARNED_VARIABLE, None)


@pytest.mark.usefixtures("without_a_home")
def test_who_has_no_home_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert isinstance(kernel_cache._open_cache(kernel_folder, ExitStack(), in_parallel=True), NullCache)
    assert capsys.readouterr().err.count("there is no home") == 1


@pytest.mark.parametrize(
    ("value", "found"), [(None, "auto"), ("", "auto"), ("auto", "auto"), ("parallel", "parallel"), ("serial", "serial")]
)
def test_the_mode_of_kernels(value: str | None, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MODE_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(MODE_VARIABLE, value)
    assert loop_mode() == found


def test_an_unknown_mode_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODE_VARIABLE, "Serial")
    with pytest.raises(InputError, match="'Serial'"):
        loop_mode()
