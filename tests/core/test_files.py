"""Files are written whole or not at all, and are on the disk then; errors of the system come with a repair."""

import ast
import errno
import inspect
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from outgrow.core import files
from outgrow.core.errors import InputError
from outgrow.core.files import atomic_write, exchange_paths, fsync_path, os_errors_as_input_errors

AtomicWrite = Callable[..., AbstractContextManager[Path]]
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_files_and_folders(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("something")
    handles = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    fsync_path(file)
    fsync_path(tmp_path)
    if handles:
        assert len(os.listdir("/proc/self/fd")) <= handles


@pytest.mark.parametrize("call", ["open", "fsync"])
@pytest.mark.parametrize("reason", [errno.EINVAL, errno.EACCES, errno.EIO, errno.ENOSPC])
def test_what_a_disk_says(reason: int, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("something")

    def refuse(*_: object) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError, match=re.escape(os.strerror(reason))):
        fsync_path(tmp_path / "file")
    if reason in (errno.EINVAL, errno.EACCES):
        fsync_path(tmp_path)  # a file system that knows no such thing, or a folder that one may write to, but not list
    else:
        with pytest.raises(OSError, match=re.escape(os.strerror(reason))):
            fsync_path(tmp_path)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def calls_of_a_write(write: AtomicWrite, path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of the disk, in order, by a write of ``"new"``."""
    seen = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(handle: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        seen.append("fsync folder" if is_folder else f"fsync {os.pread(handle, 9, 0).decode()}")
        fsync(handle)

    def watched_replace(old: Path, new: Path) -> None:
        seen.append(f"rename to {Path(new).name} in {'its' if old.parent == new.parent else 'another'} folder")
        replace(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", watched_fsync)
        patch.setattr(os, "replace", watched_replace)
        with write(path) as temporary:
            temporary.write_text("new")
    return seen


def check_order(write: AtomicWrite, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes reach the disk before the name, and the name before anything else is done."""
    calls = calls_of_a_write(write, folder / "file", monkeypatch)
    assert calls == ["fsync new", "rename to file in its folder", "fsync folder"]
    assert contents(folder) == {"file": "new"}


def check_body_that_fails(write: AtomicWrite, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of any kind leaves the old file alone, and comes through."""
    (folder / "file").write_text("old")
    for error in (FULL, ValueError("no more rows"), KeyboardInterrupt()):
        came: BaseException | None = None
        try:
            with write(folder / "file") as temporary:
                temporary.write_text("half of")
                raise error
        except BaseException as caught:
            came = caught
        assert came is error
        assert contents(folder) == {"file": "old"}


def check_disk_that_fails(write: AtomicWrite, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So does a disk that is full when the bytes should reach it, or the name."""
    (folder / "file").write_text("old")
    for call in ("fsync", "replace"):
        came: OSError | None = None
        with monkeypatch.context() as patch:
            patch.setattr(os, call, raising(FULL))
            try:
                with write(folder / "file") as temporary:
                    temporary.write_text("new")
            except OSError as caught:
                came = caught
        assert came is FULL, call
        assert contents(folder) == {"file": "old"}, call


def check_removal_that_fails(write: AtomicWrite, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be removed does not hide why it should be, be it there or not."""
    for makes in (True, False):
        came: OSError | None = None
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", raising(OSError(errno.EROFS, "read only")) if makes else Path.unlink)
            try:
                with write(folder / "file") as temporary:
                    if makes:
                        temporary.write_text("half of")
                    raise FULL
            except OSError as caught:
                came = caught
        assert came is FULL


def check_two_writers(write: AtomicWrite, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers of one file at once have a file each; a fixed name is taken as it is, over what a killed one left."""
    with write(folder / "file") as one, write(folder / "file") as two:
        assert one != two
        one.write_text("first")
        two.write_text("second")
    assert contents(folder) == {"file": "first"}
    (folder / "left").write_text("much more, of one that was killed")
    with write(folder / "file", temporary="left") as temporary:
        temporary.write_text("third")
    assert contents(folder) == {"file": "third"}


def raising(error: BaseException) -> Callable[..., None]:
    def refuse(*_: object, **__: object) -> None:
        raise error

    return refuse


Check = Callable[[AtomicWrite, Path, pytest.MonkeyPatch], None]
CHECKS: list[Check] = [
    check_order,
    check_body_that_fails,
    check_disk_that_fails,
    check_removal_that_fails,
    check_two_writers,
]


@pytest.mark.parametrize("check", CHECKS)
def test_atomic_write(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(atomic_write, tmp_path, monkeypatch)


RENAME_FIRST = (
    "fsync_path(written)\n        os.replace(written, path)",
    "os.replace(written, path)\n        fsync_path(path)",
)
NO_OLD_FILE = ("        yield written\n", "        path.unlink(missing_ok=True)\n        yield written\n")


class Mutant(NamedTuple):
    """`atomic_write` with another piece of source, what is wrong with it, and the check that must find it."""

    check: Check
    old: str
    new: str
    breaks: str

    def make_write(self) -> AtomicWrite:
        """The function that is broken. An error if it is written in another way by now."""
        source = ast.unparse(ast.parse(inspect.getsource(files)))
        function = ast.unparse(ast.parse(inspect.getsource(atomic_write)))
        assert source.count(function) == 1
        quoted = function.replace('"', "'")
        assert self.old in quoted
        names: dict[str, Any] = {}
        exec(source.replace(function, quoted.replace(self.old, self.new)), names)
        return names["atomic_write"]


MUTANTS = {
    "contents_not_flushed": Mutant(
        check_order, "fsync_path(written)", "pass", "The bytes are not flushed before the file has its name."
    ),
    "name_not_flushed": Mutant(
        check_order, "fsync_path(path.parent)", "pass", "The folder is not flushed after the file has its name."
    ),
    "file_flushed_for_its_folder": Mutant(
        check_order, "fsync_path(path.parent)", "fsync_path(path)", "The file is flushed again instead of its folder."
    ),
    "copied_to_its_place": Mutant(
        check_order,
        "os.replace(written, path)",
        "path.write_bytes(written.read_bytes())",
        "The file is copied to its place, not renamed.",
    ),
    "written_in_another_folder": Mutant(
        check_order, "path.with_name(", "Path('/tmp').joinpath(", "The file is written in another folder first."
    ),
    "old_file_removed_first": Mutant(
        check_body_that_fails, *NO_OLD_FILE, "The old file is removed before the new one is written."
    ),
    "left_after_an_interrupt": Mutant(
        check_body_that_fails, "except BaseException", "except Exception", "An interrupt leaves half of a file."
    ),
    "left_after_a_mistake": Mutant(
        check_body_that_fails, "except BaseException", "except OSError", "Errors that are not the disk's leave half."
    ),
    "error_swallowed": Mutant(check_body_that_fails, "        raise\n", "", "An error is not passed on."),
    "half_not_removed": Mutant(
        check_body_that_fails, "written.unlink(missing_ok=True)", "pass", "Half of a file is never removed."
    ),
    "renamed_before_flushed": Mutant(
        check_disk_that_fails, *RENAME_FIRST, "The file has its name before its bytes are on the disk."
    ),
    "error_of_the_removal_told": Mutant(
        check_removal_that_fails,
        "with suppress(OSError)",
        "with suppress(KeyError)",
        "An error of the removal hides why there was one.",
    ),
    "one_temporary_name": Mutant(
        check_two_writers, ".{secrets.token_hex(4)}", "", "All writers of a file write under one temporary name."
    ),
    "temporary_name_ignored": Mutant(
        check_two_writers, "temporary or ", "", "A temporary name that the caller gives is not taken."
    ),
}


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_checks_find_mutants(mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = MUTANTS[mutant].make_write()
    with pytest.raises((AssertionError, OSError)):
        MUTANTS[mutant].check(write, tmp_path, monkeypatch)


def test_many_writers_of_one_file(tmp_path: Path) -> None:
    """Readers find it whole at any time."""
    path, sizes = tmp_path / "file", range(1, 9)

    def write(size: int) -> set[str]:
        found = set()
        for _ in range(20):
            with atomic_write(path) as temporary:
                temporary.write_text(f"{size}" * size * 1000)
            found.add(path.read_text())
        return found

    with ThreadPoolExecutor() as threads:
        found = set().union(*threads.map(write, sizes))
    assert found <= {f"{size}" * size * 1000 for size in sizes}
    assert list(tmp_path.iterdir()) == [path]


def test_the_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "no" / "file") as temporary:
        temporary.write_text("something")
    assert list(tmp_path.iterdir()) == []


def translate(error: BaseException, also: tuple[type[Exception], ...] = ()) -> None:
    with os_errors_as_input_errors("it failed", needed="a disk", repair="buy one", also=also):
        raise error


def test_errors_of_the_system_come_with_a_repair() -> None:
    with pytest.raises(InputError) as caught:
        translate(FULL)
    told = caught.value
    assert (told.what, told.needed, told.got, told.repair) == ("it failed", "a disk", str(FULL), "buy one")
    assert told.__cause__ is FULL


def test_other_errors_may_mean_the_same() -> None:
    with pytest.raises(InputError) as caught:
        translate(zlib.error("bad data"), also=(zlib.error,))
    assert caught.value.got == "error: bad data"
    with pytest.raises(InputError) as caught:
        translate(FileNotFoundError(2, "no such file"), also=(zlib.error,))
    assert caught.value.got == "FileNotFoundError: [Errno 2] no such file"


@pytest.mark.parametrize(
    "error", [ValueError("a mistake"), KeyboardInterrupt(), InputError("x", needed="a", got="b", repair="c")]
)
def test_what_is_no_error_of_the_system_comes_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        translate(error)
    assert caught.value is error


def test_without_an_error_nothing_happens() -> None:
    with os_errors_as_input_errors("it failed", needed="a disk", repair="buy one"):
        pass


def test_two_folders_change_names_at_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert exchange_paths(tmp_path / "a", tmp_path / "b") == (sys.platform == "linux")
    if sys.platform == "linux":
        assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert not exchange_paths(tmp_path / "a", tmp_path / "missing")
