"""One run for each of several splits of a graph, in one directory, and the mean and deviation of their scores."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from outgrow.app.messages import log_message
from outgrow.app.runs.config import absolute_source
from outgrow.app.runs.directory import SPLITS, RunDirectory, write_text_atomically
from outgrow.app.runs.graph_choice import GraphChoice
from outgrow.app.runs.new_run import RunPlan, plan_new_run, unused_folder
from outgrow.app.runs.result import Run
from outgrow.app.runs.resume import plan_resumed_run
from outgrow.app.runs.workers import Workers
from outgrow.core.errors import InputError
from outgrow.core.validation import finite_or_none, require_local_path
from outgrow.graph import datasets

RunAttempt = Callable[[RunPlan, bool], Run]


class SplitRuns(NamedTuple):
    """What came of runs of several splits.

    Attributes:
        summary: Content of their ``summary.json``; None if they were interrupted.
        directory: Their directory; None if they were interrupted.
        interrupted_by: Number of the signal that has ended them; None if none did.
    """

    summary: dict[str, Any] | None
    directory: Path | None
    interrupted_by: int | None


class SplitRunsRequest(NamedTuple):
    """What is trained on every split.

    Attributes:
        graph: Data set, store directory or graph file; None with ``resume``.
        splits: ``"all"``, or numbers such as ``"0,3"``.
        model: Name of the model; None for the one that suits the data set.
        options: Options of the model, the loop and the strategy.
        strategy: Name of the strategy; None for ``"auto"``, or for that of the run that is resumed.
        data_dir: Folder to look in first for the files of a named data set.
    """

    graph: str | None
    splits: str
    model: str | None
    options: Mapping[str, object]
    strategy: str | None
    data_dir: Path | None

    def as_record(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return the content of ``splits.json``."""
        return {
            "splits": list(numbers),
            "graph": absolute_source(self.graph or ""),
            "model": self.model,
            "options": dict(self.options),
            "strategy": self.strategy,
            "data_dir": None if self.data_dir is None else str(self.data_dir.resolve()),
        }


def has_split_runs(out: Path) -> bool:
    """Whether a directory holds runs of several splits."""
    return (out / SPLITS).is_file()


def start_split_runs(request: SplitRunsRequest, out: Path | None, workers: Workers, train: RunAttempt) -> SplitRuns:
    """Train once for each split, each in a directory of its own, and write their scores to ``summary.json``.

    Args:
        request: What is trained.
        out: New or empty directory; None for a new one in ``runs``.
        workers: Number of workers of each run, and their settings.
        train: Trains a planned run; told whether it is resumed.

    Raises:
        InputError: There is no such split, or something cannot be used.
    """
    if out is not None:
        _require_unused(out)
    loaded = datasets.load_graph(request.graph or "", data_dir=request.data_dir)
    numbers = _parse_numbers(request.splits, len(loaded.splits or (loaded.split,)))
    folder = out or unused_folder(f"{loaded.name}-splits-{time.strftime('%Y%m%d-%H%M%S')}")

    def plan(number: int) -> tuple[RunPlan, bool]:
        choice = GraphChoice(name=request.graph or "", data_dir=request.data_dir, split=number, loaded=loaded)
        planned = _plan_new(request, choice, folder / f"split-{number}", workers)
        if not has_split_runs(folder):
            # Only now: what was refused above leaves nothing behind.
            write_text_atomically(folder / SPLITS, json.dumps(request.as_record(numbers), indent=2) + "\n")
        return planned, False

    return _train_all(folder, numbers, plan, train)


def resume_split_runs(
    request: SplitRunsRequest,
    out: Path,
    workers: Workers,
    train: RunAttempt,
    *,
    keep_num_workers: bool,
    allow_changed_data: bool,
) -> SplitRuns:
    """Go on with runs of several splits: those that have ended are kept, unless options are given.

    Args:
        request: What is given this time.
        out: Their directory.
        workers: Number of workers of each run, and their settings.
        train: Trains a planned run; told whether it is resumed.
        keep_num_workers: Whether to take the number of workers from each run.
        allow_changed_data: Whether to go on with a graph whose contents have changed.

    Raises:
        InputError: The options do not fit the runs.
    """
    record = json.loads((out / SPLITS).read_text())
    if request.splits and (wanted := _parse_numbers(request.splits, None)) and list(wanted) != record["splits"]:
        raise InputError(
            f"the runs in {out} are of other splits",
            needed=f"--splits left out, or {','.join(map(str, record['splits']))}",
            got=request.splits,
            repair="leave it out, or start in another --out",
        )
    given = {"graph": request.graph, "model": request.model, "strategy": request.strategy, **request.options}
    given = {name: value for name, value in given.items() if value is not None}
    folder = request.data_dir or (Path(record["data_dir"]) if record["data_dir"] else None)
    whole = SplitRunsRequest(
        graph=record["graph"],
        splits="",
        model=record["model"],
        options={**record["options"], **request.options},
        strategy=request.strategy or record["strategy"],
        data_dir=folder,
    )

    def plan(number: int) -> tuple[RunPlan, bool] | dict[str, Any]:
        directory = RunDirectory(out / f"split-{number}")
        if not directory.exists:
            choice = GraphChoice(name=record["graph"], data_dir=folder, split=number)
            return _plan_new(whole, choice, directory.path, workers), False
        if not given and (ended := _read_ended(directory)):
            return ended
        resumed = plan_resumed_run(
            directory.path,
            given,
            request.data_dir,
            workers,
            keep_num_workers=keep_num_workers,
            allow_changed_data=allow_changed_data,
        )
        return resumed, resumed.directory.has_checkpoint

    return _train_all(out, record["splits"], plan, train)


def summarize_split_runs(numbers: Sequence[int], summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean and the standard deviation (of a sample) of every score of some runs."""
    names = list(summaries[0]["scores"]["test"])
    scores = {
        part: {name: _average_scores([summary["scores"][part].get(name) for summary in summaries]) for name in names}
        for part in ("val", "test")
    }
    return {
        "splits": list(numbers),
        "metric": summaries[0]["metric"],
        "val_score": _average_scores([summary["val_score"] for summary in summaries]),
        "test_score": _average_scores([summary["test_score"] for summary in summaries]),
        "scores": scores,
        "runs": [
            {"split": number, "directory": f"split-{number}"}
            | {key: summary[key] for key in ("val_score", "test_score", "best_epoch", "epochs")}
            for number, summary in zip(numbers, summaries, strict=True)
        ],
    }


def _train_all(
    folder: Path,
    numbers: Sequence[int],
    plan: Callable[[int], tuple[RunPlan, bool] | dict[str, Any]],
    train: RunAttempt,
) -> SplitRuns:
    summaries = list[dict[str, Any]]()
    for at, number in enumerate(numbers):
        planned = plan(number)
        log_message(f"split {number}, {at + 1} of {len(numbers)}")
        if isinstance(planned, dict):
            summaries.append(planned)
            continue
        run = train(*planned)
        if run.interrupted_by is not None:
            log_message(f"{at} of {len(numbers)} splits have ended; resume with --out {folder} --resume")
            return SplitRuns(None, None, run.interrupted_by)
        summaries.append(run.summary)
    summary = summarize_split_runs(numbers, summaries)
    write_text_atomically(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    metric = summary["metric"].replace("_", " ")
    log_message(
        f"{len(numbers)} splits: test {metric} {_show(summary['test_score'])}, validation {_show(summary['val_score'])}"
    )
    others = [name for name in summary["scores"]["test"] if name != summary["metric"]]
    if others:
        tested = summary["scores"]["test"]
        log_message("test " + ", ".join(f"{name.replace('_', ' ')} {_show(tested[name])}" for name in others))
    log_message(f"directory of the runs: {folder}")
    return SplitRuns(summary, folder, None)


def _show(score: Mapping[str, float | None]) -> str:
    mean, deviation = ("unknown" if score[key] is None else f"{score[key]:.4f}" for key in ("mean", "std"))
    return f"{mean} (deviation {deviation})"


def _require_unused(folder: Path) -> None:
    require_local_path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            f"{folder} is in use",
            needed="a new or empty directory for the runs",
            got="files in it",
            repair="give another --out, or add --resume to continue the runs there",
        )


def _plan_new(request: SplitRunsRequest, choice: GraphChoice, out: Path, workers: Workers) -> RunPlan:
    strategy = request.strategy or "auto"
    return plan_new_run(choice, request.model, request.options, strategy=strategy, out=out, workers=workers)


def _read_ended(directory: RunDirectory) -> dict[str, Any] | None:
    """Return the summary of a run that has ended."""
    if not (directory.path / "summary.json").exists():
        return None
    summary = directory.read_json("summary.json")
    return None if summary["stopped"] == "interrupted" else summary


def _average_scores(values: Sequence[float | None]) -> dict[str, float | None]:
    known = [value for value in values if value is not None and math.isfinite(value)]
    if len(known) < len(values):
        return {"mean": None, "std": None}
    deviation = statistics.stdev(known) if len(known) > 1 else math.nan
    return {"mean": statistics.fmean(known), "std": finite_or_none(deviation)}


def _parse_numbers(text: str, count: int | None) -> list[int]:
    if text.strip() == "all":
        return [] if count is None else list(range(count))
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len({*map(int, parts)}) < len(parts):
        raise InputError(
            "the splits cannot be read",
            needed="all, or numbers such as 0,3, each once",
            got=repr(text),
            repair="for example --splits all",
        )
    numbers = [int(part) for part in parts]
    if count is not None and max(numbers) >= count:
        raise InputError(
            f"there is no split {max(numbers)}",
            needed=f"numbers from 0 to {count - 1}" if count > 1 else "0: the graph has one split",
            got=text,
            repair="choose among these; outgrow info shows how many splits a graph has",
        )
    return numbers
