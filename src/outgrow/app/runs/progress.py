"""Progress displays on standard error: bars on a terminal, a few lines elsewhere, or nothing."""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING

from outgrow.app.console import format_seconds
from outgrow.app.messages import is_quiet, log_detail, log_message
from outgrow.core.compile_clock import compile_clock, describe_compilation
from outgrow.nn.edge_tasks import EdgeTask
from outgrow.nn.tasks import MultiLabel, NodeClassification, NodeRegression, NodeTask
from outgrow.training.callbacks import Callback, EpochReport
from outgrow.training.config import TrainConfig
from outgrow.training.progress_events import ProgressEvent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Task, TaskID


_LINES = 20
_SECONDS_BETWEEN_WAITS = 10.0
"""Least seconds between lines of a log that say what training waits for."""


class ProgressDisplay(Callback, ABC):
    """Context that receives reports of epochs and progress events."""

    @abstractmethod
    def on_progress(self, event: ProgressEvent) -> None:
        """Show the progress of a phase."""

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the display."""


def make_progress_display(task: NodeTask | EdgeTask | None, config: TrainConfig, *, show: bool) -> ProgressDisplay:
    """Return the display that suits standard error, or a silent one unless ``show``.

    Args:
        task: The task; None for links.
        config: Options of the loop.
        show: Whether to show anything.
    """
    # A bar redraws its line with control characters, which would fill a log file.
    task = task.make_row_task() if isinstance(task, EdgeTask) else task
    own = "MRR" if task is None else _METRICS.get(task.kind, task.metric.replace("_", " "))
    metric = f"val {config.monitor or own}"
    if not show:
        return SilentDisplay()
    return BarDisplay(config.epochs, metric) if _draws_on_terminal() else LineDisplay(config.epochs, metric)


def _draws_on_terminal() -> bool:
    # Lines, of the other display, are messages, which `--quiet` hides and a log file has.
    return sys.stderr.isatty() and not is_quiet()


_METRICS = {MultiLabel.kind: "F1", NodeClassification.kind: "acc", NodeRegression.kind: "MAE"}


class SilentDisplay(ProgressDisplay):
    """Display that shows nothing."""

    def on_progress(self, event: ProgressEvent) -> None:
        """Do nothing."""


class LineDisplay(ProgressDisplay):
    """Display that prints about 20 lines in all, for logs, and one from time to time while training waits.

    Args:
        epochs: Maximum number of epochs.
        metric: Label of the validation score.
    """

    def __init__(self, epochs: int, metric: str) -> None:
        self.epochs = epochs
        self.metric = metric
        self.every = max(1, epochs // _LINES)
        self._waits = WaitLines()

    def on_epoch(self, report: EpochReport) -> None:
        """Print a line after the first and the last epoch, and at regular intervals between."""
        if report.epoch == 1 or report.epoch % self.every == 0 or report.epoch == self.epochs:
            log_message(f"epoch {report.epoch}/{self.epochs}  {_format_metrics(report, self.metric)}")

    def on_progress(self, event: ProgressEvent) -> None:
        """Print notes and what training waits for: a log has no use for other things that are not finished."""
        if event.note:
            log_message(event.note)
        elif event.interrupts:
            self._waits.add(event.phase)


class WaitLines:
    """Lines of a log that say what is waited for: the first at once, later ones at intervals. Final."""

    def __init__(self) -> None:
        self._last = -math.inf

    def add(self, text: str) -> None:
        """Log a line, unless one was logged just before."""
        if time.monotonic() - self._last >= _SECONDS_BETWEEN_WAITS:
            self._last = time.monotonic()
            log_message(text)


class BarDisplay(ProgressDisplay):
    """Display with a bar of all epochs and one of the current phase.

    Args:
        epochs: Maximum number of epochs.
        metric: Label of the validation score.
        console: Console to draw on; None for standard error.
    """

    def __init__(self, epochs: int, metric: str, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.epochs = epochs
        self.metric = metric
        self.progress = Progress(
            TextColumn("{task.description:<17}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console or Console(stderr=True),
        )
        self.epochs_task = self.progress.add_task("training", total=epochs, facts="", left="")
        self.phase_task = self.progress.add_task("", total=None, facts="", left="", visible=False)
        self.phase = ""

    def on_epoch(self, report: EpochReport) -> None:
        """Update the bar of all epochs."""
        log_detail(f"epoch {report.epoch}/{self.epochs}  {_format_metrics(report, self.metric)}")
        self.progress.update(self.epochs_task, completed=report.epoch, facts=_format_metrics(report, self.metric))
        # A second update, since the time left follows from the first.
        self.progress.update(self.epochs_task, left=_format_remaining(self.progress.tasks[self.epochs_task]))

    def on_progress(self, event: ProgressEvent) -> None:
        """Update the bar of the current phase, or restart it for a new phase; print a note above the bars."""
        if event.note:
            log_detail(event.note)
            self.progress.console.print(event.note, highlight=False)
            return
        if event.phase != self.phase:
            self.phase = event.phase
            # A reset also forgets the speed of the phase before.
            self.progress.reset(self.phase_task, total=event.total, description=event.phase, facts="", left="")
            # A reset to None keeps the total of the phase before.
            self.progress.tasks[self.phase_task].total = event.total
            # With one step per epoch, the bar of all epochs says it already.
            self.progress.update(self.phase_task, visible=event.total != 1)
        self.progress.update(self.phase_task, completed=event.done)
        task = self.progress.tasks[self.phase_task]
        # The speed is unknown until a phase has made some steps.
        rate = "" if not task.speed else f"{_format_count(task.speed)}/s"
        self.progress.update(self.phase_task, facts=rate, left=_format_remaining(task))

    def __enter__(self) -> BarDisplay:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.update(self.phase_task, visible=False)
        self.progress.stop()


def _format_remaining(task: Task) -> str:
    """Return the estimated time left; empty if unknown or finished."""
    if task.time_remaining is None or task.finished:
        return ""
    return f"{timedelta(seconds=round(task.time_remaining))} left"


def _format_metrics(report: EpochReport, metric: str) -> str:
    score = "" if report.val_score is None else f"  {metric} {report.val_score:.4f} (best epoch {report.best_epoch})"
    return f"loss {report.loss:.4f}{score}  {_format_speed(report)}{_format_compiled(report)}"


def _format_compiled(report: EpochReport) -> str:
    if not report.compiled_kernels:
        return ""
    kernels = "1 kernel" if report.compiled_kernels == 1 else f"{report.compiled_kernels} kernels"
    return f"  compiled {kernels} in {format_seconds(report.compile_seconds)}"


def _format_speed(report: EpochReport) -> str:
    # A model that reads no neighbours aggregates no edges.
    rate = report.edges_per_second
    return f"{_format_count(rate)} edges/s" if rate else f"{report.seconds:.1f} s an epoch"


def _format_count(count: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f}" if count >= 10 else f"{count:.1f}"


@contextmanager
def show_compilation() -> Iterator[None]:
    """Context that names kernels which are compiled within it, where no display of a run is open.

    On a terminal in a line that is removed afterwards, else in a line of a log from time to time.
    """
    waits = WaitLines()

    @contextmanager
    def show_kernel(kernel: str) -> Iterator[None]:
        text = describe_compilation(compile_clock.num_kernels + 1, kernel)
        if not _draws_on_terminal():
            waits.add(text)
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(text):
            yield

    with compile_clock.notify(show_kernel):
        yield


@contextmanager
def show_phases() -> Iterator[Callable[[str, int, int | None], None]]:
    """Context that yields a function to call with a phase, its progress and its total (None if unknown).

    Each phase gets a bar on a terminal; nothing is shown elsewhere.
    """
    if not sys.stderr.isatty():
        yield lambda phase, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<12}"), BarColumn(bar_width=24), TextColumn("{task.fields[facts]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def update_phase(phase: str, done: int, total: int | None) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=total, facts="")
            bar.update(tasks[phase], completed=done, total=total, facts=f"{done:,}")

        yield update_phase
