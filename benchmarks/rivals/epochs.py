"""The clocks of mini-batch training: seconds, loss, evaluations and parameters of every epoch, memory of the first."""

from __future__ import annotations

import re
import resource
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rivals.common import Job

_EVERY = 0.1


class Epochs:
    """Keeps what there is to report of each epoch. Make it before the data are loaded.

    Memory is looked at until the end of the first epoch only, which does not count: looking takes time.

    Args:
        job: Folder of the process, in which parameters go, and the number of epochs.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self.evaluations: dict[str, dict[str, list[float]]] = {}
        self.peak_bytes = 0
        self.first_ended = threading.Event()
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        self.watcher.start()

    def ended(self, seconds: float, loss: float, layers: Sequence[Mapping[str, Any]]) -> None:
        """An epoch has ended; parameters are named as in `rivals.common.set_start`."""
        self.stop_watching()
        self.seconds.append(seconds)
        self.losses.append(loss)
        values = {f"{i}.{name}": np.array(p.detach()) for i, layer in enumerate(layers) for name, p in layer.items()}
        np.savez(self.job.folder / f"epoch-{len(self.seconds)}.npz", **values)

    def stop_watching(self) -> None:
        """Look at the memory no longer."""
        self.first_ended.set()
        self.watcher.join()

    def evaluated(self, way: str, seconds: float, val: float) -> None:
        """The model that an epoch has left was scored on the validation nodes."""
        figures = self.evaluations.setdefault(way, {"seconds": [], "val": []})
        figures["seconds"].append(seconds)
        figures["val"].append(val)

    def report(self) -> dict[str, Any]:
        """Figures; the peak is that of this process and those that it has started, shared pages counted once.

        ``evaluations`` has those of all epochs, and ``peak_rss_bytes`` is the peak of this process alone, with them.
        """
        evaluated = {
            "evaluations": self.evaluations,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        return {
            **(evaluated if self.evaluations else {}),
            "seconds": self.seconds[self.job.warmup :],
            "warmup_seconds": self.seconds[: self.job.warmup],
            "losses": self.losses,
            "peak_bytes": self.peak_bytes,
        }

    def _watch(self) -> None:
        while not self.first_ended.wait(_EVERY):
            mine = psutil.Process()
            processes = [mine.pid, *(child.pid for child in mine.children(recursive=True))]
            self.peak_bytes = max(self.peak_bytes, sum(map(_proportional_bytes, processes)))


def _proportional_bytes(pid: int) -> int:
    """Resident memory of a process; a page that several have mapped counts for each by its share."""
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:  # it has just ended
        return 0
    return int(found[1]) * 1024 if found else 0
