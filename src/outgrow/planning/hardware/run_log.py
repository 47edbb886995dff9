"""The log of what runs have taught of a machine: a file of the latest runs, for one profile of the machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outgrow.core.files import atomic_write, os_errors_as_input_errors
from outgrow.planning.hardware.corrections import Observation, WorkKind
from outgrow.planning.hardware.profile import MachineProfile

MOST_RUNS = 64
"""Runs that are kept; the oldest are forgotten."""
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """A run, as far as it teaches something of the machine.

    Attributes:
        date: When it ended.
        run: Directory of the run; empty if it has none.
        graph: Name of the graph.
        model: Name of the model's class.
        strategy: Name of the strategy.
        workers: Number of workers.
        observation: What was estimated, and what was measured.
        phases: Measured seconds of an epoch of worker 0, by phase.
        planned_link_bytes: Estimated bytes of an epoch on each link.
        moved_link_bytes: Bytes of the run on each link.
    """

    date: str
    run: str
    graph: str
    model: str
    strategy: str
    workers: int
    observation: Observation
    phases: Mapping[str, float]
    planned_link_bytes: Mapping[str, int]
    moved_link_bytes: Mapping[str, int]

    @property
    def estimated_seconds(self) -> float:
        """Seconds of an epoch as estimated without corrections."""
        return sum(self.observation.seconds.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the run as it is written to the file."""
        seen = self.observation
        return {
            **{name: getattr(self, name) for name in ("date", "run", "graph", "model", "strategy", "workers")},
            "estimated_seconds": {kind.value: seconds for kind, seconds in seen.seconds.items()},
            "epoch_seconds": seen.epoch_seconds,
            "planned_bytes": seen.planned_bytes,
            "held_bytes": seen.held_bytes,
            "phases": dict(self.phases),
            "planned_link_bytes": dict(self.planned_link_bytes),
            "moved_link_bytes": dict(self.moved_link_bytes),
        }


def describe_profile(profile: MachineProfile) -> str:
    """Return a digest of a profile's rates: what runs teach holds for the rates that they were estimated by."""
    rates = {name: value for name, value in profile.as_dict().items() if name in ("device", "host", "links")}
    # The memory is that of today, which no rate depends on.
    rates["device"] = {name: value for name, value in rates["device"].items() if name != "memory_bytes"}
    return hashlib.sha256(json.dumps(rates, sort_keys=True).encode()).hexdigest()[:16]


def read_run_log(path: Path, profile: MachineProfile) -> list[LoggedRun]:
    """Return the runs in a file that were estimated by a profile; none if it has others, or cannot be read."""
    # What can be learned again is not worth an error: a file that is broken counts as absent.
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        found = json.loads(path.read_text("utf-8"))
        if found["format"] == _FORMAT and found["profile"] == describe_profile(profile):
            return [_read_run(each) for each in found["runs"]]
    return []


def write_run_log(path: Path, profile: MachineProfile, runs: Sequence[LoggedRun]) -> None:
    """Write the latest of some runs to a file, whole or not at all.

    Raises:
        InputError: The file cannot be written.
    """
    log = {
        "format": _FORMAT,
        "profile": describe_profile(profile),
        "runs": [run.as_dict() for run in runs[-MOST_RUNS:]],
    }
    with os_errors_as_input_errors(
        f"what runs teach cannot be written to {path}",
        needed="a file that can be written",
        repair="make room, or change the rights of the folder",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(log, indent=1) + "\n", "utf-8")


def _read_run(values: Mapping[str, Any]) -> LoggedRun:
    planned, held = int(values["planned_bytes"]), int(values["held_bytes"])
    seconds = {WorkKind(name): float(count) for name, count in values["estimated_seconds"].items()}
    measured = float(values["epoch_seconds"])
    if not (measured > 0 and sum(seconds.values()) > 0 and planned > 0):
        raise ValueError("a run without seconds or bytes")
    return LoggedRun(
        **{name: str(values[name]) for name in ("date", "run", "graph", "model", "strategy")},
        workers=int(values["workers"]),
        observation=Observation(seconds, measured, planned, held),
        phases=dict(values["phases"]),
        planned_link_bytes=dict(values["planned_link_bytes"]),
        moved_link_bytes=dict(values["moved_link_bytes"]),
    )
