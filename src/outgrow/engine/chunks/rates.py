"""How fast this machine moves rows: measured once for a disk and a number of workers, and kept in the user's cache."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from outgrow.core.types import Kind
from outgrow.graph.datasets.locate import cache_folder
from outgrow.graph.partition.waves import Throughputs
from outgrow.runtime.comm import Comm
from outgrow.runtime.disk import Disk, DiskRows
from outgrow.runtime.voyage import Route

_ROWS, _WIDTH, _STEP, _TURNS = 1 << 14, 128, 3, 3


def rates_of(comm: Comm, folder: Path, disk: Disk) -> Throughputs:
    """Bytes of rows a second between HOST and device, between workers, and within the device; all workers together.

    What was measured once is used from then on, so that runs choose alike.

    Args:
        comm: The line to the other workers.
        folder: A folder of scratch files.
        disk: The threads that read them.
    """
    crossed, moved = comm.ledger.crossed.copy(), (disk.read_bytes, disk.written_bytes, disk.read_requests)
    name = f"{socket.gethostname()}-{os.stat(folder).st_dev}-{comm.size}"
    path = cache_folder() / "rates.json"
    kept = _kept(path).get(name) if comm.leads else None
    known = comm.broadcast(kept if _usable(kept) else None)
    if known is None:
        known = comm.broadcast(_measured(comm, folder, disk))
        if comm.leads:
            _keep(path, {**_kept(path), name: known})
    comm.ledger.crossed.clear()  # nothing of this is part of training
    comm.ledger.crossed.update(crossed)
    disk.read_bytes, disk.written_bytes, disk.read_requests = moved
    return Throughputs(**known)


def _measured(comm: Comm, folder: Path, disk: Disk) -> dict[str, float]:
    """Every third row of a file, rows exchanged with the next worker, and rows added to where they are."""
    values = torch.rand(_ROWS, _WIDTH)
    wanted = torch.arange(0, _ROWS, _STEP)
    places = torch.arange(len(wanted))
    rows = DiskRows.create(disk, folder / "rates", _ROWS, _WIDTH, values.dtype)
    rows.write_range(0, values)
    out = torch.zeros(len(wanted), _WIDTH)
    sizes = tuple(len(wanted) if (comm.rank + 1) % comm.size == peer else 0 for peer in range(comm.size))
    back = tuple(len(wanted) if (comm.rank - 1) % comm.size == peer else 0 for peer in range(comm.size))

    def exchange() -> None:
        comm.rows(out, Route(sizes, back), Kind.METRICS).wait()

    found = {
        "host": _rate(lambda: rows.read(wanted, out, places), out.nbytes),
        "device": _rate(exchange, out.nbytes),
        "reuse": _rate(lambda: out.add_(values.index_select(0, wanted)), out.nbytes),
    }
    rows.close()
    (folder / "rates").unlink()
    return found


def _rate(move: Callable[[], object], num_bytes: int) -> float:
    best = float("inf")
    for _ in range(_TURNS):
        began = time.perf_counter()
        move()
        best = min(best, time.perf_counter() - began)
    return num_bytes / max(best, 1e-9)


def _kept(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _usable(rates: Any) -> bool:
    """Whether what the file has for a machine are throughputs."""
    if not isinstance(rates, dict) or rates.keys() != {field.name for field in fields(Throughputs)}:
        return False
    return all(isinstance(rate, float) and 0 < rate < math.inf for rate in rates.values())


def _keep(path: Path, rates: dict[str, Any]) -> None:
    """Best effort: a cache that cannot be written means measuring again."""
    made = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(json.dumps(rates, indent=1), "utf-8")
        made.replace(path)
    except OSError:
        with suppress(OSError):
            made.unlink()
