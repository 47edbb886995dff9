"""How the command ``train`` runs what it has planned: on workers of its own, under torchrun, or split by split."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from outgrow.app.console import print_ledger
from outgrow.app.messages import log_message, log_warning
from outgrow.core.errors import InputError
from outgrow.runtime.system.environment import torchrun_world_size

if TYPE_CHECKING:
    from outgrow.app.runs.new_run import RunPlan
    from outgrow.app.runs.progress import ProgressDisplay
    from outgrow.app.runs.result import Run
    from outgrow.app.runs.split_runs import SplitRuns, SplitRunsRequest
    from outgrow.app.runs.workers import Workers


class ResumeChoice(NamedTuple):
    """Whether runs of several splits go on.

    Attributes:
        resume: Whether they were started before.
        resume_auto: Whether they may have been.
        allow_changed_data: Whether to go on with a graph whose contents have changed.
        keep_num_workers: Whether to take the number of workers from the runs.
    """

    resume: bool
    resume_auto: bool
    allow_changed_data: bool
    keep_num_workers: bool


def run_local(plan: RunPlan, resume: bool) -> Run:
    """Train a planned run on workers of this host, show its progress and print its result."""
    from outgrow.app.runs.directory import release_on_exit
    from outgrow.app.runs.local_workers import run_session
    from outgrow.app.runs.session import Session

    started = time.perf_counter()
    # The display closes before the lock is released, and before the result is printed below it.
    with release_on_exit(plan.directory), open_display(plan) as listener:
        session = Session(
            graph=plan.graph,
            model=plan.model,
            config=plan.config,
            strategy=plan.strategy,
            directory=plan.directory,
            callbacks=(listener,),
            progress_callbacks=(listener,),
            device=plan.workers.device,
            data=plan.directory.config.get("data", {}),
            grace_seconds=plan.workers.grace_seconds,
            rivals=plan.rivals,
        )
        run = run_session(session, plan.workers, resume=resume, log=log_warning)
    _print_result(run, time.perf_counter() - started)
    return run


def run_torchrun_worker(
    plan_attempt: Callable[[bool], tuple[RunPlan, bool]], out: Path | None, workers: Workers
) -> Run:
    """Train as one worker of the group that torchrun started."""
    from outgrow.app.runs.torchrun import train_under_torchrun

    started = time.perf_counter()
    run = train_under_torchrun(
        plan_attempt, out=out, heartbeat_seconds=workers.heartbeat_seconds, open_display=open_display
    )
    if run.directory is not None:
        _print_result(run, time.perf_counter() - started)
    return run


def open_display(plan: RunPlan) -> ProgressDisplay:
    """Log the description of the run; return its progress display."""
    from outgrow.app.runs.progress import make_progress_display

    log_message(plan.describe_run())
    return make_progress_display(plan.task, plan.config, show=True)


def _print_result(run: Run, seconds: float) -> None:
    summary: dict[str, Any] = run.summary
    if summary["stopped"] == "interrupted":
        log_message(f"interrupted after epoch {summary['epochs']}; resume with --out {run.directory} --resume")
    metric = summary["metric"].replace("_", " ")
    best = f" (epoch {summary['best_epoch']})" if summary["best_epoch"] else ""
    log_message(
        f"test {metric} {run.test_score:.4f}, validation {run.val_score:.4f}{best}; {summary['epochs']} epochs "
        f"in {seconds:.1f} s; peak memory {summary['peak_bytes']['device'] / 2**20:,.0f} MiB"
    )
    others = [name for name in summary["scores"]["test"] if name != summary["metric"]]
    if others:
        log_message("test " + ", ".join(f"{name.replace('_', ' ')} {run.scores['test'][name]:.4f}" for name in others))
    print_ledger(summary["ledger"])
    log_message(f"run directory: {run.directory}")


def train_splits(request: SplitRunsRequest, out: Path | None, workers: Workers, choice: ResumeChoice) -> SplitRuns:
    """Train once for each of several splits, or go on with that.

    Raises:
        InputError: Under torchrun, for links, or where something cannot be used.
    """
    from outgrow.app.runs.split_runs import has_split_runs, resume_split_runs, start_split_runs

    if torchrun_world_size():
        raise _splits_error("one process that starts workers itself", "torchrun", "leave torchrun out: --workers N")
    if "decoder" in request.options:
        raise _splits_error("a task of nodes", "links", "leave --splits out: links have val_links and test_links")
    there = out is not None and has_split_runs(out)
    if out is not None and there and (choice.resume or choice.resume_auto):
        return resume_split_runs(
            request,
            out,
            workers,
            run_local,
            keep_num_workers=choice.keep_num_workers,
            allow_changed_data=choice.allow_changed_data,
        )
    if choice.resume:
        raise _splits_error("--out with runs of several splits, to resume them", "no such runs", "leave --resume out")
    if request.graph is None:
        raise _splits_error("a graph", "none", "for example `outgrow train my.store --splits all`")
    return start_split_runs(request, out, workers, run_local)


def _splits_error(needed: str, got: str, repair: str) -> InputError:
    return InputError("splits cannot be trained in turn", needed=needed, got=got, repair=repair)
