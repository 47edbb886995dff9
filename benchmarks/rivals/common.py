"""What every rival shares: the job, the arrays, the epoch that is timed, the memory that is counted.

It runs in the environments of the rivals, so it needs NumPy and torch only, and imports torch inside functions:
what a library wants set before torch is loaded can still be set.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

HEADS = 4
LEARNING_RATE = 0.01
SPARSE = "sparse.npz"
"""Features in the folder of the arrays, if the graph has sparse ones."""
_RESET_PEAK = "5"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one process is to do.

    Attributes:
        model: What to train; which names there are is up to the benchmark.
        form: How the library is given the graph; each rival knows its own.
        folder: Where the arrays are, and the parameters to start from.
        warmup: Epochs before those that count.
        epochs: Epochs that count.
        limit_bytes: Most private memory that the process may have; on a GPU, whose driver maps far more, it is not set.
        device: Where to train: of PyG and Outgrow also ``cuda``.
    """

    model: str
    form: str
    folder: Path
    warmup: int
    epochs: int
    limit_bytes: int
    device: str = "cpu"


class Arrays(NamedTuple):
    """The graph and its nodes, in memory of the process (not mapped).

    Attributes:
        indptr: ``[V + 1]`` int64; the in-edges of node ``v`` are ``indptr[v]`` to ``indptr[v + 1]``.
        indices: ``[E]`` int32; source of each edge.
        features: ``[V, D]`` float32.
        labels: ``[V]`` int64.
        train: ``[n]`` int64, nodes of the loss.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    train: NDArray[np.int64]

    @property
    def edge_index(self) -> NDArray[np.int64]:
        """``[2, E]``: sources, then destinations, sorted by destination."""
        dst = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
        return np.stack([self.indices.astype(np.int64), dst])


def read_arrays(folder: Path, *, without: str = "") -> Arrays:
    """Read what `rivals.data` or `rivals.real_data` wrote, one array left empty if it is not wanted."""
    arrays: list[Any] = [np.load(folder / f"{n}.npy") if n != without else np.empty(0) for n in Arrays._fields]
    return Arrays(*arrays)


def read_relation(folder: Path) -> NDArray[Any]:
    """``[E]``: relation of each edge, in the type in which it was saved."""
    relation: NDArray[Any] = np.load(folder / "relation.npy")
    return relation


class Relations(NamedTuple):
    """What a model of relations is to be made for.

    Attributes:
        relations: Number of relations.
        bases: Weights that the relations of a layer share.
    """

    relations: int
    bases: int


def read_relations(folder: Path) -> Relations:
    """What ``data.json`` says of relations."""
    found = json.loads((folder / "data.json").read_text())
    return Relations(found["relations"], found["bases"])


class Csr(NamedTuple):
    """Features in compressed rows.

    Attributes:
        indptr: ``[V + 1]`` int64.
        indices: ``[N]`` int32; column of each stored value.
        values: ``[N]`` float32.
        num_columns: Columns of the matrix.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: NDArray[np.float32]
    num_columns: int

    def dense(self) -> NDArray[np.float32]:
        """``[V, D]``."""
        rows = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
        out = np.zeros((len(self.indptr) - 1, self.num_columns), dtype=np.float32)
        out[rows, self.indices] = self.values
        return out


def read_sparse_features(file: Path) -> Csr | None:
    """Read them; None if there is no such file."""
    if not file.exists():
        return None
    with np.load(file) as arrays:
        return Csr(arrays["indptr"], arrays["indices"], arrays["values"], int(arrays["num_columns"]))


def widths(folder: Path) -> tuple[int, int, int]:
    """Input, hidden and output width."""
    found = json.loads((folder / "data.json").read_text())["widths"]
    return found[0], found[1], found[2]


def set_start(job: Job, layers: Sequence[Mapping[str, Any]]) -> None:
    """Copy the values that all rivals start from into the parameters of a model; axes of length 1 may differ.

    Args:
        job: Its model and folder say which values.
        layers: For each layer its parameters by their common names: tensors, or views of them, with projections as
            ``[in, out]``.

    Raises:
        ValueError: The names or the shapes are not the same.
    """
    import torch

    parameters = {f"{index}.{name}": value for index, layer in enumerate(layers) for name, value in layer.items()}
    with np.load(job.folder / f"start-{job.model}.npz") as file:
        start = {name: torch.from_numpy(file[name]) for name in file.files}
    if parameters.keys() != start.keys():
        raise ValueError(f"parameters {sorted(parameters)} are not those to start from, {sorted(start)}")
    with torch.no_grad():
        for name, value in start.items():
            mine = parameters[name]
            if mine.squeeze().shape != value.squeeze().shape:
                raise ValueError(f"{name} is {tuple(mine.shape)}, and is to start as {tuple(value.shape)}")
            mine.copy_(value.reshape(mine.shape))


class Meter:
    """Watches the process from the first epoch, warm-up included, to the last."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
        self.began = time.monotonic()
        self.used = time.process_time()
        self.cpu_seconds: list[float] = []
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self.prepared = 0.0

    def epoch(self, seconds: float, loss: float) -> None:
        """An epoch has ended."""
        used = time.process_time()
        self.cpu_seconds.append(used - self.used)
        self.used = used
        if not self.seconds:
            self.prepared = time.monotonic() - self.began - seconds
        self.seconds.append(seconds)
        self.losses.append(loss)

    def report(self, job: Job) -> dict[str, Any]:
        """Figures; the peak is the largest resident size since the meter was made."""
        return {
            "seconds": self.seconds[job.warmup :],
            "cpu_seconds": self.cpu_seconds[job.warmup :],
            "prepare_seconds": self.prepared,
            "warmup_seconds": self.seconds[: job.warmup],
            "losses": self.losses,
            "window": [self.began, time.monotonic()],
            "peak_rss_bytes": _status("VmHWM"),
            **({} if job.device == "cpu" else {"peak_device_bytes": _peak_device_bytes()}),
        }


def train(job: Job, model: Any, logits: Callable[[], Any], arrays: Arrays) -> dict[str, Any]:
    """The loop of PyG and DGL: forward on the whole graph, cross-entropy, backward, Adam.

    Args:
        job: The job.
        model: A torch module.
        logits: ``[V, C]`` of all nodes.
        arrays: Labels and training nodes.
    """
    import torch

    nodes = torch.from_numpy(arrays.train).to(job.device)
    labels = torch.from_numpy(arrays.labels).to(job.device)[nodes]
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    model.train()
    meter = Meter()
    for _ in range(job.warmup + job.epochs):
        began = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(logits()[nodes], labels)
        torch.autograd.backward(loss)
        value = loss.item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if job.device != "cpu":
            torch.cuda.synchronize()
        meter.epoch(time.perf_counter() - began, value)
    return meter.report(job)


def main(work: Callable[[Job], dict[str, Any]], packages: tuple[str, ...]) -> None:
    """Do the job on the command line; the last line of standard output is the report, as JSON.

    Memory is limited with ``RLIMIT_DATA``: private pages count, mapped libraries do not. Running into it is a result.
    """
    parser = argparse.ArgumentParser()
    for name in ("model", "form"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    for name in ("warmup", "epochs", "limit-bytes"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    job = Job(**vars(parser.parse_args()))
    if job.device == "cpu":
        resource.setrlimit(resource.RLIMIT_DATA, (job.limit_bytes, job.limit_bytes))
    try:
        report = work(job)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "alloc" not in str(error).lower():
            raise
        report = {"failed": "out of memory", "message": str(error).splitlines()[0] if str(error) else ""}
    sys.stdout.write("\n" + json.dumps({**report, **_circumstances(packages)}) + "\n")


def _circumstances(packages: tuple[str, ...]) -> dict[str, Any]:
    import torch

    names = ("torch", "numpy", *packages)
    settings = re.compile("OMP_|MKL_|NUMBA_|THP_|KMP_")
    return {
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in names}},
        "environment": {name: value for name, value in sorted(os.environ.items()) if settings.match(name)},
    }


def _peak_device_bytes() -> int:
    import torch

    return int(torch.cuda.max_memory_allocated())


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
