"""Compiling what a run needs before it starts: its first steps and their evaluation, of which nothing is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from outgrow.app.messages import log_message, log_warning
from outgrow.app.runs.directory import release_on_exit
from outgrow.app.runs.graph_choice import GraphChoice
from outgrow.app.runs.local_workers import run_session
from outgrow.app.runs.new_run import RunPlan, plan_new_run
from outgrow.app.runs.progress import make_progress_display, show_compilation
from outgrow.app.runs.session import Session
from outgrow.app.runs.workers import Workers
from outgrow.core.compile_clock import compile_clock
from outgrow.ops.backend import compile_before_running
from outgrow.ops.compile_processes import compile_processes
from outgrow.ops.kernel_folder import kernel_folder
from outgrow.runtime.storage.tempdir_reaper import temporary_directory

_FULL_GRAPH_EPOCHS = 2
"""The second one computes from what the first has kept."""


class WarmReport(NamedTuple):
    """What was compiled.

    Attributes:
        compiled: Kernels that were compiled, here and in other processes, and kept.
        found: Kernels that were there.
        seconds: Seconds of all, with the steps.
        folder: Where they are kept.
    """

    compiled: int
    found: int
    seconds: float
    folder: Path


def compile_run_kernels(
    graph: GraphChoice,
    model: str | None,
    options: Mapping[str, object],
    *,
    strategy: str,
    device: str,
    tell: Callable[[int, int, str], None],
) -> WarmReport:
    """Compile the kernels of a run in one process.

    Args:
        graph: The graph.
        model: Name of the model; None for the one that suits the data set.
        options: As of `plan_new_run`; epochs are not read.
        strategy: Name of the strategy, or ``"auto"``.
        device: What to compute on.
        tell: Called with the number of a kernel, of how many, and its name, while other processes compile.

    Raises:
        InputError: Something cannot be used.
    """
    began, before = time.perf_counter(), _count_kernels()
    by_batch = "batch_size" in options or "fanout" in options
    steps = {"epochs": 1 if by_batch else _FULL_GRAPH_EPOCHS, "eval_every": 1}

    def train_first_epochs() -> None:
        workers = Workers(number=1, device=device)
        with temporary_directory("outgrow-warm-") as folder:
            run, given = folder / "run", {**options, **steps}
            with show_compilation():  # of kernels that read the graph
                plan = plan_new_run(graph, model, given, strategy=strategy, out=run, workers=workers)
            _train(plan)

    train_first_epochs()
    compile_processes.wait(tell)
    if compile_processes.num_missing:
        with compile_before_running():
            train_first_epochs()
    compiled, found = (now - then for now, then in zip(_count_kernels(), before, strict=True))
    return WarmReport(compiled, found, time.perf_counter() - began, kernel_folder())


def _train(plan: RunPlan) -> None:
    log_message(plan.describe_run())
    with release_on_exit(plan.directory), make_progress_display(plan.task, plan.config, show=True) as listener:
        session = Session(
            graph=plan.graph,
            model=plan.model,
            config=plan.config,
            strategy=plan.strategy,
            callbacks=(listener,),
            progress_callbacks=(listener,),
            device=plan.workers.device,
        )
        run_session(session, plan.workers, resume=False, log=log_warning)


def _count_kernels() -> tuple[int, int]:
    return compile_clock.num_kernels + compile_processes.num_kernels, compile_clock.num_loaded
