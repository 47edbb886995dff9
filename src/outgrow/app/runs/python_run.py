"""Directories of runs of `og.train`, whose models are made in Python: see `python_model`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outgrow.app.runs.data import validate_same_data
from outgrow.app.runs.directory import RunDirectory
from outgrow.app.runs.python_model import save_python_model
from outgrow.core.errors import InputError
from outgrow.nn.model import Model
from outgrow.training import checkpoint


def resolve_resume(resume: bool | str, out: str | Path | None) -> bool:
    """Return whether there is a run to go on with, or should be.

    Raises:
        InputError: ``resume`` is another string than "auto".
    """
    if resume == "auto":
        return out is not None and RunDirectory(Path(out)).exists
    if not isinstance(resume, bool):
        raise InputError(
            "resume is not understood",
            needed='True, False or "auto"',
            got=repr(resume),
            repair='give "auto" to go on with a run if there is one',
        )
    return resume


def create_run_directory(
    out: str | Path | None, config: Mapping[str, Any], model: Model, *, resume: bool, again: bool
) -> RunDirectory | None:
    """Create the directory of a new run; return None for a run without one.

    Args:
        out: The directory, or None.
        config: What ``config.json`` records.
        model: The model, which is kept in the directory.
        resume: Whether a run was to be resumed.
        again: As in `RunDirectory.create`.

    Raises:
        InputError: There is no directory to resume from, or it cannot be created.
    """
    if out is not None:
        directory = RunDirectory.create(Path(out), config, again=again)
        try:
            save_python_model(model, config["model"], directory.path)
        except BaseException:
            directory.discard_unstarted()
            directory.release_lock()
            raise
        return directory
    if resume:
        raise InputError("nothing to resume", needed="the directory of a run", got="out=None", repair="give out")
    return None


def open_run_directory(out: Path, config: Mapping[str, Any], *, allow_changed_data: bool) -> RunDirectory:
    """Open the directory of a run to resume, and record the data that it goes on with.

    Raises:
        InputError: It is no run, the split of links or the targets have changed or, unless allowed, the data.
    """
    opened = RunDirectory.open(out)
    record = opened.config
    # Only what is predicted is compared: the checkpoint checks the model, and other options may change.
    _validate_same_targets(record["train"], config["train"])
    # A model may have outputs for two columns alike.
    target = record.get("model", {}).get("edge_target"), config.get("model", {}).get("edge_target")
    if target[0] != target[1]:
        raise InputError(
            "the run cannot go on with another target of edges",
            needed=f"target {target[0]}, as the run was started with",
            got=f"target {target[1]}",
            repair="give the same task, or start a new run in another out",
        )
    with opened.locked_unless_refused():
        newest = opened.newest_to_resume()
        if not allow_changed_data:
            saved = None if newest is None else checkpoint.load_checkpoint(newest)
            validate_same_data(out, record, saved, config)
        now = {name: config[name] for name in ("data", "graph_schema", "ids") if name in config}
        opened.write_json("config.json", {**record, **now})
    return opened


def _validate_same_targets(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that a resumed run splits links as before, whose test links must not become training links, and targets.

    Raises:
        InputError: One of these options has changed.
    """
    splits = ("val_links", "test_links", "split_seed", "link_relations", "targets")
    # The best model is found by scores of one kind.
    for option in (*splits, "rank_self", "ranking_candidates"):
        # Runs of older versions lack these options; they have no links to protect. JSON has lists for tuples.
        known = before.get(option, now[option])
        known = tuple(known) if isinstance(known, list) else known
        # The outputs of a model are in the order of its targets.
        if known != now[option] or (option == "targets" and list(known or ()) != list(now[option] or ())):
            raise InputError(
                f"the run cannot go on with another {option}",
                needed=f"{option} {before[option]}, as the run was started with",
                got=f"{option} {now[option]}",
                repair=f"give {option}={before[option]}, or start a new run in another out",
            )
