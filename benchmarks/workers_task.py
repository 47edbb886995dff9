"""What the cells of `workers.py` run: training on one or several workers of this machine, with all that is measured."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rivals.common import LEARNING_RATE, Job
from rivals.ours import build_model

from outgrow.core.errors import OutgrowError
from outgrow.runtime.distributed.launch import run_workers
from outgrow.runtime.system.environment import available_cores

if TYPE_CHECKING:
    from outgrow.runtime.distributed.comm import Comm
    from outgrow.runtime.distributed.worker import WorkerContext
    from outgrow.training.trainer import EpochReport, Trainer

HOUSE, MIS_SET = "ours", "mis-set"
_SETTINGS = re.compile("OMP_|GOMP_|MKL_|NUMBA_NUM|NUMBA_THREADING|THP_|KMP_")


class Cell(NamedTuple):
    """What one line of the table is about. Partition and overlap are of no account on one worker."""

    model: str
    workers: int
    partition: str = "-"
    overlap: bool = False
    threads: str = HOUSE


class Done(Exception):
    """All epochs are measured: what comes after training is left out."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """What every worker does in one process of a round: train, and tell of threads and of every epoch.

    Attributes:
        cell: Which line of the table.
        job: Model, folder of the arrays, and epochs, as the comparison with other libraries has them.
        store: The graph.
    """

    cell: Cell
    job: Job
    store: Path

    def __call__(self, place: WorkerContext) -> None:
        from outgrow.runtime.distributed.comm import SingleProcessComm

        comm = place.comm if place.comm.size > 1 else SingleProcessComm()
        waits = watch_waits()
        trainer = self._trainer(comm)
        trainer.add_callbacks(_Meter(comm, waits, self.job, place.send_message))
        try:
            trainer.run(self._strategy())
        except Done:
            place.send_message({"threads": threads(), "rank": comm.rank})

    def _strategy(self) -> Any:
        from outgrow.strategies.full import Full

        return Full(partition=self.cell.partition, overlap=self.cell.overlap) if self.cell.workers > 1 else Full()

    def _trainer(self, comm: Comm) -> Trainer:
        from outgrow.app.runs.session import make_problem
        from outgrow.graph.store.reader import open_store
        from outgrow.training.config import TrainConfig
        from outgrow.training.evaluation import NodeEvaluation
        from outgrow.training.trainer import Trainer

        graph, model = open_store(self.store), build_model(self.job)
        config = TrainConfig(epochs=self.job.warmup + self.job.epochs, lr=LEARNING_RATE)
        problem = make_problem(graph, model, config.seed, self._strategy().share(graph, comm, model))
        return Trainer(problem, NodeEvaluation(problem, graph.split.val, graph.split.test), config)


class _Meter:
    """Tells of every epoch on its worker: seconds, processor time, waiting, bytes sent by kind."""

    def __init__(self, comm: Comm, waits: dict[str, float], job: Job, tell: Callable[[dict[str, Any]], None]) -> None:
        self.comm, self.waits, self.job, self.tell = comm, waits, job, tell
        self.times, self.sent = self._times(), self._sent()

    def on_epoch(self, report: EpochReport) -> None:
        """An epoch has ended."""
        times, sent = self._times(), self._sent()
        passed = {name: times[name] - self.times[name] for name in times}
        told = {"rank": self.comm.rank, "seconds": report.seconds, "loss": report.loss, **passed}
        self.tell({**told, "bytes": dict(sent - self.sent)})
        self.times, self.sent = times, sent
        if report.epoch == self.job.warmup + self.job.epochs:
            raise Done

    def _times(self) -> dict[str, float]:
        return {"cpu_seconds": time.process_time(), **self.waits}

    def _sent(self) -> Counter[str]:
        sent: Counter[str] = Counter()
        for (_, kind), count in self.comm.ledger.bytes_by_link.items():
            sent[kind.value] += count
        return sent


def watch_waits() -> dict[str, float]:
    """Seconds that this worker waits from now on: for rows of others, and for sums, which everybody waits for."""
    from outgrow.runtime.distributed import comm

    waits = {"wait_rows_seconds": 0.0, "wait_sums_seconds": 0.0}

    def timed(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def measured(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                waits[name] += time.perf_counter() - began

        return measured

    comm.AsyncAllToAll.receive = timed(comm.AsyncAllToAll.receive, "wait_rows_seconds")  # type: ignore[method-assign]
    comm.ProcessGroupComm.all_reduce = timed(comm.ProcessGroupComm.all_reduce, "wait_sums_seconds")  # type: ignore[method-assign]
    return waits


def threads() -> dict[str, Any]:
    """The threads of this process: what was set, and what came of it."""
    import torch
    from numba import get_num_threads, threading_layer  # type: ignore[attr-defined]

    given = {name: value for name, value in sorted(os.environ.items()) if _SETTINGS.match(name)}
    found = {"torch": torch.get_num_threads(), "numba": get_num_threads(), "layer": threading_layer()}
    return {**found, "environment": given}


def start(training: Training, seconds: float) -> dict[str, Any]:
    """Run the workers of a cell once; what they told, up to the end or until the time was over."""
    told: list[Any] = []
    cell, load, failed = training.cell, os.getloadavg()[0], ""
    with environment(misleading() if cell.threads == MIS_SET else {}):
        try:
            with deadline(seconds):
                run_workers(training, cell.workers, on_message=told.append)
        except TimeoutError:
            failed = f"more than {seconds:g} s"
        except OutgrowError as error:
            failed = str(error)
    merged = _merged(told, cell.workers, training.job.warmup)
    return {**({"failed": failed} if failed else {}), "load": load, **merged}


def _merged(told: list[dict[str, Any]], workers: int, warmup: int) -> dict[str, Any]:
    """What the workers told of each epoch together: it takes as long as the slowest of them."""
    ranks = [[each for each in told if each["rank"] == rank and "seconds" in each] for rank in range(workers)]
    every = list(zip(*ranks, strict=False))
    epochs = every[warmup:]
    kinds = sorted({kind for epoch in epochs for each in epoch for kind in each["bytes"]})
    return {
        "seconds": [max(each["seconds"] for each in epoch) for epoch in epochs],
        "warmup_seconds": [max(each["seconds"] for each in epoch) for epoch in every[:warmup]],
        "losses": [epoch[0]["loss"] for epoch in every],
        "cpu_seconds": [sum(each["cpu_seconds"] for each in epoch) for epoch in epochs],
        "wait_rows_seconds": [[each["wait_rows_seconds"] for each in epoch] for epoch in epochs],
        "wait_sums_seconds": [[each["wait_sums_seconds"] for each in epoch] for epoch in epochs],
        "bytes": [{kind: sum(each["bytes"].get(kind, 0) for each in epoch) for kind in kinds} for epoch in epochs],
        "threads": [each["threads"] for each in told if "threads" in each],
    }


def misleading() -> dict[str, str]:
    """Settings under which every worker takes all cores, and its threads spin while they wait."""
    everything = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), str(available_cores()))
    return {**everything, "OMP_WAIT_POLICY": "ACTIVE"}


@contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    """This process's environment without any settings of threads but those given: workers then choose their own."""
    before = dict(os.environ)
    for name in before:
        if _SETTINGS.match(name):
            del os.environ[name]
    os.environ.update(settings)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise a TimeoutError after some time."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
