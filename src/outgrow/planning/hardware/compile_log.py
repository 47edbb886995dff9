"""The log of what compiling kernels took in runs on this machine, from which plans say what it will take.

Which kernels a run needs shows when it runs: by its layers, widths, types and sizes of arrays. So a plan knows of what
was trained here before. A run of which the like has ended with the same folder of kernels waits for none; after a
change of the sources it waits about as long as the slowest of its like has. Of what is new, nothing is known.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from outgrow.core.files import atomic_write

MOST_RUNS = 256
"""Kinds of runs that are kept; the oldest are forgotten."""
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class RunKind:
    """What decides which kernels a run needs.

    Attributes:
        like: Classes of layers, strategy and device: what runs have in common that need about the same kernels.
        digest: Digest of all: of the graph, the model, the options and the workers too.
    """

    like: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class CompiledRun:
    """The latest run of a kind with one folder of kernels.

    Attributes:
        kind: Its kind.
        folder: The folder.
        kernels: Number of kernels that the first such run has compiled.
        seconds: What that took.
    """

    kind: RunKind
    folder: str
    kernels: int
    seconds: float


def read_compile_log(path: Path) -> list[CompiledRun]:
    """Return the runs in a file; none if it cannot be read."""
    # What can be learned again is not worth an error: a file that is broken counts as absent.
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        found = json.loads(path.read_text("utf-8"))
        if found["format"] == _FORMAT:
            return [_read_run(**each) for each in found["runs"]]
    return []


def _read_run(kind: dict[str, str], folder: str, kernels: int, seconds: float) -> CompiledRun:
    return CompiledRun(kind=RunKind(**kind), folder=str(folder), kernels=int(kernels), seconds=float(seconds))


def write_compile_log(path: Path, runs: Sequence[CompiledRun]) -> None:
    """Write the latest of some runs to a file, whole or not at all.

    Raises:
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        runs_of_file = [asdict(run) for run in runs[-MOST_RUNS:]]
        temporary.write_text(json.dumps({"format": _FORMAT, "runs": runs_of_file}, indent=1) + "\n", "utf-8")


def add_compiled_run(runs: Sequence[CompiledRun], run: CompiledRun) -> list[CompiledRun]:
    """Return the runs with another one, which takes the place of the one of its kind and folder."""
    place = run.kind, run.folder
    same = next((each for each in runs if (each.kind, each.folder) == place), run)
    # A later run finds what the first has compiled.
    kept = max(same, run, key=lambda each: each.seconds)
    return [*(each for each in runs if (each.kind, each.folder) != place), kept]


def expect_compile_seconds(runs: Sequence[CompiledRun], kind: RunKind, folder: Path) -> float | None:
    """Return the seconds of compiling to expect of a run.

    Args:
        runs: Runs on this machine.
        kind: The kind of the run.
        folder: The folder of kernels for the sources as they are.

    Returns:
        0 if one of its kind has ended with that folder; else the most that one of its kind has taken, or one like it;
        None if there was none.
    """
    same = [each for each in runs if each.kind == kind]
    if folder.is_dir() and any(each.folder == str(folder) for each in same):
        return 0.0
    alike = same or [each for each in runs if each.kind.like == kind.like]
    return max((each.seconds for each in alike), default=None)
