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

from outgrow.core.files import atomic_write
from outgrow.core.ledger import Kind
from outgrow.graph.datasets.locate import cache_folder
from outgrow.runtime.distributed.async_exchange import Route
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.storage.row_file import Disk, DiskRows
from outgrow.runtime.storage.row_storage import HostRows, pinned_rows
from outgrow.runtime.system.device import Streams
from outgrow.strategies.offload.reorder import Throughputs

_ROWS, _WIDTH, _STEP, _TURNS = 1 << 14, 128, 3, 3


def rates_of(comm: Comm, folder: Path, disk: Disk) -> Throughputs:
    """Bytes of rows a second between HOST and device, between workers, and within the device; all workers together.

    HOST is a disk for workers that compute on a CPU, and pinned memory for those with a GPU.

    What was measured once is used from then on, so that runs choose alike.

    Args:
        comm: The line to the other workers.
        folder: A folder of scratch files.
        disk: The threads that read them.
    """
    crossed, moved = comm.ledger.crossed.copy(), (disk.read_bytes, disk.written_bytes, disk.read_requests)
    host = os.stat(folder).st_dev if comm.device.type == "cpu" else comm.device.type
    name = f"{socket.gethostname()}-{host}-{comm.size}"
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
    """Every third row of the HOST tier, rows exchanged with the next worker, and rows added to where they are."""
    device, streams, path = comm.device, Streams(comm.device), folder / "rates"
    values = torch.rand(_ROWS, _WIDTH, device=device)
    wanted = torch.arange(0, _ROWS, _STEP, device=device)
    places = torch.arange(len(wanted), device=device)
    rows: HostRows
    if device.type == "cpu":
        rows = DiskRows.create(disk, path, _ROWS, _WIDTH, values.dtype)
    else:
        rows = pinned_rows(_ROWS, _WIDTH, values.dtype, device)
    rows.write_range(0, values)
    out = torch.zeros(len(wanted), _WIDTH, device=device)
    sizes = tuple(len(wanted) if (comm.rank + 1) % comm.size == peer else 0 for peer in range(comm.size))
    back = tuple(len(wanted) if (comm.rank - 1) % comm.size == peer else 0 for peer in range(comm.size))

    def exchange() -> None:
        comm.rows(out, Route(sizes, back), Kind.METRICS).wait()

    found = {
        "host": _rate(lambda: rows.read(wanted, out, places), out.nbytes, streams),
        "device": _rate(exchange, out.nbytes, streams),
        "reuse": _rate(lambda: out.add_(values.index_select(0, wanted)), out.nbytes, streams),
    }
    rows.close()
    path.unlink(missing_ok=True)
    return found


def _rate(move: Callable[[], object], num_bytes: int, streams: Streams) -> float:
    best = float("inf")
    for _ in range(_TURNS):
        streams.finish()
        began = time.perf_counter()
        move()
        streams.finish()
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
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(rates, indent=1), "utf-8")
