"""Progress for people, on standard error: a bar on a terminal, a few lines elsewhere, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from outgrow.graph.graph import Graph
from outgrow.nn.model import Model
from outgrow.training.config import TrainConfig
from outgrow.training.trainer import EpochReport

if TYPE_CHECKING:
    from rich.progress import TaskID

_LINES = 20


class Display(Protocol):
    """A listener that is opened and closed."""

    def epoch(self, report: EpochReport) -> None:
        """An epoch has ended."""

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

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Bar:
    """A live bar with loss, validation score, rate and time left.

    Args:
        epochs: Most epochs.
        metric: What to call the validation score.
    """

    def __init__(self, epochs: int, metric: str) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.metric = metric
        self.bar = Progress(
            TextColumn("training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.task = self.bar.add_task("train", total=epochs, facts="")

    def epoch(self, report: EpochReport) -> None:
        """Move the bar."""
        self.bar.update(self.task, completed=report.epoch, facts=_facts(report, self.metric))

    def __enter__(self) -> Bar:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()


def _facts(report: EpochReport, metric: str) -> str:
    score = "" if report.val_score is None else f"  {metric} {report.val_score:.4f} (best epoch {report.best_epoch})"
    return f"loss {report.loss:.4f}{score}  {_rate(report.edges_per_second)}"


def _rate(edges_per_second: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if edges_per_second >= size:
            return f"{edges_per_second / size:.1f} {unit} edges/s"
    return f"{edges_per_second:.0f} edges/s"


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
