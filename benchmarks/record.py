"""Where figures are written, and what is written with all of them: date, commit, machine."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outgrow.runtime.system.hardware import describe_machine

HERE = Path(__file__).parent
ROOT = HERE.parent


def write(benchmark: str, figures: Mapping[str, Any], out: Path | None) -> Path:
    """Write the JSON of a benchmark to ``out``, or to results/ under a name of processor and day; returns where."""
    machine, date = describe_machine(), time.strftime("%Y-%m-%d")
    result = {"benchmark": benchmark, "date": date, "commit": commit(), "machine": asdict(machine), **figures}
    path = out or HERE / "results" / f"{benchmark}_{_slug(machine.processor)}_{date}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def commit() -> str:
    """The commit that is measured, with a mark if files have changed since."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _slug(processor: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", processor.lower()).strip("-")
