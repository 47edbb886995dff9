"""Runs that one strategy begins and another ends, each on its own number of workers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from failing import Failing, Lost
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.strategies.tensor.strategy import TensorParallel
from outgrow.training.config import TrainConfig
from planted import model_of
from pool import run_workers
from suites.invariance import BATCHES, CONFIG
from suites.sessions import Plan, Result, train_in_turn
from support import disk_folder

EPOCHS, SAVED, STEPS = 6, 4, 2
"""How long runs are; after how many epochs they change hands; and, within the next epoch, after how many steps."""
HOT = "orchestrate with hot nodes"


class Task(NamedTuple):
    """What is trained.

    Attributes:
        kind: The model: see `model_of`.
        config: How long and how hard.
        ways: Strategies. All but the one with hot nodes give the same run.
    """

    kind: str
    config: TrainConfig
    ways: Mapping[str, Strategy]

    @property
    def within(self) -> bool:
        """Whether runs are lost within an epoch, and do not end with one."""
        return self.config.checkpoint_steps is not None


class Begun(NamedTuple):
    """A run that has not come to its end: of which task, under which strategy, on how many workers."""

    task: str
    way: str
    workers: int


class Handover(NamedTuple):
    """A run, and the strategy and the number of workers that it goes on with."""

    begun: Begun
    way: str
    workers: int

    @property
    def name(self) -> str:
        """Of a folder."""
        return " ".join(map(str, (*self.begun, "to", self.way, self.workers)))


SAMPLING: dict[str, Strategy] = {
    "sampled": Sampled(),
    "split": SplitParallel(),
    "migrate": Migrate(move_model=True),
    "orchestrate": Orchestrate(hot_ratio=0.0, partition="hash"),
}
EVERYTHING: dict[str, Strategy] = {
    "full": Full(partition="hash"),
    "offload": Offload(chunks=3, partition="hash", scratch_dir=str(disk_folder())),
    "tensor": TensorParallel(),
    **SAMPLING,
}
MIXED: dict[str, Strategy] = {HOT: Orchestrate(hot_ratio=0.3, super_batch=1), **SAMPLING}
WHOLE = replace(CONFIG, epochs=EPOCHS, lr=0.1)
BETWEEN = replace(BATCHES, epochs=EPOCHS, lr=0.05)
WITHIN = replace(BETWEEN, checkpoint_steps=STEPS, checkpoint_every=EPOCHS)
TASKS = {
    "whole": Task("gcn", WHOLE, EVERYTHING),
    "batches": Task("sage", BETWEEN, SAMPLING),
    "within": Task("gat", WITHIN, SAMPLING),
    "mixed": Task("sage", BETWEEN, MIXED),
    "mixed within": Task("sage", WITHIN, MIXED),
}

_LOOP = {
    "optimizer": "sgd", "momentum": 0.9, "lr": 0.3, "schedule": "cosine", "warmup": 1, "T_max": 6,
    "clip_grad_norm": 0.05, "ema": 0.8,
}  # fmt: skip
LOOP_TASKS = {
    "whole in a loop": Task("gcn", WHOLE.with_options(**_LOOP), EVERYTHING),
    # Two batches are a step, and runs are lost after one of a step of three.
    "within a loop": Task("sage", WITHIN.with_options(**_LOOP, accumulate=3, checkpoint_steps=1), SAMPLING),
}
"""The same with all that may happen to gradients."""


def _task(begun: Begun) -> Task:
    return {**TASKS, **LOOP_TASKS}[begun.task]


def hand_over(chosen: Iterable[Handover], store: Path, folder: Path) -> dict[Handover, Result]:
    """What comes of each; its files are in a folder of its name.

    Launches are few: on the way up to the largest number of workers each saves, and resumes what no more have saved;
    on the way down the others are resumed.
    """
    begun = {each.begun for each in chosen}
    numbers = sorted({each.workers for each in (*chosen, *begun)})
    up = [each for each in chosen if each.begun.workers <= each.workers]
    down = [each for each in chosen if each.begun.workers > each.workers]
    turns = [(workers, begun, up) for workers in numbers] + [(workers, set[Begun](), down) for workers in numbers]
    found: dict[Handover, Result] = {}
    for workers, fresh, saved in turns:
        begin = sorted(each for each in fresh if each.workers == workers)
        end = [each for each in saved if each.workers == workers]
        if begin or end:
            found |= _on(workers, partial(_work, begun=begin, ended=end, store=store, folder=folder), folder)
    return found


def _on(workers: int, work: Callable[[WorkerContext], dict[Handover, Result]], folder: Path) -> dict[Handover, Result]:
    if workers > 1:
        return run_workers(work, workers)[0]
    alone = WorkerContext(
        comm=SingleProcessComm(), folder=folder, attempt=0, send_message=lambda message: None, should_stop=lambda: False
    )
    return work(alone)


def _work(
    place: WorkerContext, *, begun: list[Begun], ended: list[Handover], store: Path, folder: Path
) -> dict[Handover, Result]:
    for each in begun:
        with suppress(Lost):
            train_in_turn(place, {each: _first_half(each, store, _folder(each, folder))})
    if place.comm.is_rank_zero:
        for each in ended:
            shutil.copytree(_folder(each.begun, folder), folder / each.name)
    return train_in_turn(place, {each: _second_half(each, store, folder / each.name) for each in ended})


def _folder(begun: Begun, folder: Path) -> Path:
    made = folder / " ".join(map(str, begun))
    made.mkdir(exist_ok=True)
    return made


def _first_half(begun: Begun, store: Path, directory: Path) -> Plan:
    task = _task(begun)
    model, way = model_of(task.kind, seed=1), task.ways[begun.way]
    if task.within:
        return Plan(store, model, task.config, Failing(way, SAVED + 1, STEPS), directory)
    return Plan(store, model, replace(task.config, epochs=SAVED), way, directory)


def _second_half(handover: Handover, store: Path, directory: Path) -> Plan:
    task = _task(handover.begun)
    model = model_of(task.kind, seed=2)  # nothing of it is used
    return Plan(store, model, task.config, task.ways[handover.way], directory, resume=True)
