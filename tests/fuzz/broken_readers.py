"""Mutants of the readers: they break their promises, by which is seen that a broken one would be noticed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from outgrow.core.errors import InputError

Reader = Callable[[Path, dict[str, Any], Path | None], None]
_held: list[bytearray] = []


def raises(path: Path, options: dict[str, Any], out: Path | None) -> None:
    """Another exception is raised than those that tell what to do."""
    {}["no such key"]


def runs_code(path: Path, options: dict[str, Any], out: Path | None) -> None:
    """What the input says is evaluated."""
    eval(path.read_text().splitlines()[0].replace(" ", "+"))


def starts_a_program(path: Path, options: dict[str, Any], out: Path | None) -> None:
    """A program is started."""
    os.system("true")


def writes(path: Path, options: dict[str, Any], out: Path | None) -> None:
    """A file is written where none should be."""
    (Path.cwd() / "seen").write_text("x")


def leaves_half(path: Path, options: dict[str, Any], out: Path | None) -> None:
    """Half of a store is left where a whole one should have been."""
    if out is not None:
        (out / "made.store").mkdir()
    raise InputError("broken", needed="a", got="b", repair="c")


def takes_memory(path: Path, options: dict[str, Any], out: Path | None) -> None:
    """More memory than is in proportion is taken."""
    _held.append(bytearray(os.urandom(1 << 20) * 700))


def keeps_memory(path: Path, options: dict[str, Any], out: Path | None) -> None:
    """As much memory is taken in pieces that are each small, and the error sounds well."""
    try:
        while True:
            _held.append(bytearray(1 << 24))
    except MemoryError as error:
        _held.clear()
        raise InputError("broken", needed="a", got="b", repair="c") from error


def hangs(path: Path, options: dict[str, Any], out: Path | None) -> None:
    """Reading has no end."""
    while True:
        pass


def dies(path: Path, options: dict[str, Any], out: Path | None) -> None:
    """The process is gone."""
    os.abort()


def says_nothing(path: Path, options: dict[str, Any], out: Path | None) -> None:
    """The error names no repair."""
    raise InputError("broken", needed="", got="", repair="")


def refuses(path: Path, options: dict[str, Any], out: Path | None) -> None:
    """A valid input is refused."""
    raise InputError("broken", needed="a", got="b", repair="c")


class Mutant(NamedTuple):
    """A broken reader, and words of the violation that must be found."""

    read: Reader
    violation: str


MUTANTS: Mapping[str, Mutant] = {
    reader.__name__: Mutant(reader, violation)
    for reader, violation in (
        (raises, "raised KeyError"),
        (runs_code, "has done exec"),
        (starts_a_program, "has done os.system"),
        (writes, "left cwd/seen"),
        (leaves_half, "left out/made.store"),
        (takes_memory, "raised MemoryError"),
        (keeps_memory, "MiB for 8 bytes"),
        (hangs, "took more than 1 s"),
        (dies, "died by SIGABRT"),
        (says_nothing, "a bad message"),
        (refuses, "refused what should be accepted"),
    )
}
