"""Progress for people, on standard error: a bar on a terminal, a few lines elsewhere, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from outgrow.graph.graph import Graph
from outgrow.nn.model import Model
from outgrow.training.config import TrainConfig
from outgrow.training.progress_events import Moment
from outgrow.training.trainer import EpochReport

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Task, TaskID


_LINES = 20


class Display(Protocol):
    """A listener and watcher that is opened and closed."""

    def epoch(self, report: EpochReport) -> None:
        """An epoch has ended."""

    def moment(self, moment: Moment) -> None:
        """Something is under way."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def progress_for(graph: Graph, model: Model, config: TrainConfig, *, show: bool) -> Display:
    """The display that suits standard error."""
    metric = "val MRR" if model.decoder is not None else "val F1" if graph.multi_label else "val acc"
    if not show:
        return Silent()
    return Bar(config.epochs, metric) if sys.stderr.isatty() else Lines(config.epochs, metric)


class Silent:
    """Shows nothing."""

    def epoch(self, report: EpochReport) -> None:
        """Nothing."""

    def moment(self, moment: Moment) -> None:
        """Nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Lines:
    """A line every twentieth of the way, for logs.

    Args:
        epochs: Most epochs.
        metric: What to call the validation score.
    """

    def __init__(self, epochs: int, metric: str) -> None:
        self.epochs, self.metric = epochs, metric
        self.every = max(1, epochs // _LINES)

    def epoch(self, report: EpochReport) -> None:
        """Print a line if it is time."""
        if report.epoch == 1 or report.epoch % self.every == 0 or report.epoch == self.epochs:
            print(f"epoch {report.epoch}/{self.epochs}  {_facts(report, self.metric)}", file=sys.stderr, flush=True)

    def moment(self, moment: Moment) -> None:
        """Nothing: logs are for what has ended."""

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Bar:
    """Live bars: one of all epochs, with loss, validation score, rate and time left, and one of what is under way.

    Args:
        epochs: Most epochs.
        metric: What to call the validation score.
        console: Where to show them; None for standard error.
    """

    def __init__(self, epochs: int, metric: str, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.metric = metric
        self.bar = Progress(
            TextColumn("{task.description:<17}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console or Console(stderr=True),
        )
        self.all = self.bar.add_task("training", total=epochs, facts="", left="")
        self.now = self.bar.add_task("", total=None, facts="", left="", visible=False)
        self.phase = ""

    def epoch(self, report: EpochReport) -> None:
        """Move the bar of all epochs."""
        self.bar.update(self.all, completed=report.epoch, facts=_facts(report, self.metric))
        self.bar.update(self.all, left=_left(self.bar.tasks[self.all]))

    def moment(self, moment: Moment) -> None:
        """Move the bar of what is under way, or begin another one."""
        if moment.phase != self.phase:
            self.phase = moment.phase
            self.bar.reset(self.now, total=moment.total, description=moment.phase, facts="", left="")
            self.bar.update(self.now, visible=moment.total != 1)  # one step is what the other bar counts
        self.bar.update(self.now, completed=moment.done)
        task = self.bar.tasks[self.now]
        rate = "" if not task.speed else f"{_short(task.speed)}/s"
        self.bar.update(self.now, facts=rate, left=_left(task))

    def __enter__(self) -> Bar:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.update(self.now, visible=False)
        self.bar.stop()


def _left(task: Task) -> str:
    """How long it will still take."""
    if task.time_remaining is None or task.finished:
        return ""
    return f"{timedelta(seconds=round(task.time_remaining))} left"


def _facts(report: EpochReport, metric: str) -> str:
    score = "" if report.val_score is None else f"  {metric} {report.val_score:.4f} (best epoch {report.best_epoch})"
    return f"loss {report.loss:.4f}{score}  {_rate(report.edges_per_second)}"


def _rate(edges_per_second: float) -> str:
    return f"{_short(edges_per_second)} edges/s"


def _short(count: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f}" if count >= 10 else f"{count:.1f}"


@contextmanager
def phases() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar for each phase of a long preparation: call with the phase, what is done and the total, if known."""
    if not sys.stderr.isatty():
        yield lambda phase, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<12}"), BarColumn(bar_width=24), TextColumn("{task.fields[facts]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def show(phase: str, done: int, total: int | None) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=total, facts="")
            bar.update(tasks[phase], completed=done, total=total, facts=f"{done:,}")

        yield show
