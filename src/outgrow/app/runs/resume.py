"""From the directory of a run, and what the user typed besides, to a run that can go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from outgrow.app.auto_strategy import strategy_asked
from outgrow.app.compatibility import require_hops
from outgrow.app.model_registry import AUTO, model_options
from outgrow.app.runs.config import how, load_recorded, place_of, recorded_model, seeded_model
from outgrow.app.runs.directory import RunDirectory
from outgrow.app.runs.new_run import RunPlan
from outgrow.app.runs.workers import Workers, require_workers
from outgrow.app.strategy_registry import strategy_kind, strategy_options
from outgrow.core.errors import InputError
from outgrow.core.validation import pick
from outgrow.engine.batches import hops_of
from outgrow.nn.model import Model
from outgrow.training import checkpoint
from outgrow.training.config import TrainConfig
from outgrow.training.trainer import require_course

_MAY_CHANGE = {"epochs", "lr", "patience", "checkpoint_every", "checkpoint_steps"}


def resumed_run(
    out: Path, asked: Mapping[str, object], data_dir: Path | None, workers: Workers, *, as_many_as_before: bool
) -> RunPlan:
    """Plan to go on with a run. How long, by which strategy and on how many workers may differ.

    Args:
        out: Directory of the run, which this process holds from now on.
        asked: What was given once more: ``graph``, ``model``, ``strategy``, ``task`` and any other option.
        data_dir: Folder to look in first for the files of a named data set.
        workers: How many workers train from now on.
        as_many_as_before: Take the number of workers from the run.

    Raises:
        InputError: There is no such run, another process is at work on it, or an option would change its results;
            nothing was changed.
    """
    directory = RunDirectory.open(out)
    record = directory.config
    name, settings = recorded_model(record, out)
    config, (choice, ways) = _asked_of(record, name, settings, _as_recorded(asked), out)
    workers = replace(workers, number=record.get("workers", 1)) if as_many_as_before else workers
    loaded = load_recorded(record, data_dir)
    require_workers(loaded, workers)
    model = seeded_model(name, loaded, settings, config.seed)
    require_hops(loaded, model, config)
    chosen, reason = strategy_asked(choice, ways, loaded, model, config, workers)
    directory.hold()
    try:
        _require_fitting(directory, model, config)
        directory.write("config.json", {**record, **how(config, chosen, workers)})
    except BaseException:
        directory.release()
        raise
    return RunPlan(
        graph=loaded,
        model=model,
        model_name=name,
        model_options=settings,
        config=config,
        strategy=chosen,
        reason=reason,
        directory=directory,
        workers=workers,
    )


def _asked_of(
    record: Mapping[str, Any], name: str, settings: Mapping[str, object], asked: Mapping[str, object], out: Path
) -> tuple[TrainConfig, tuple[str, dict[str, object]]]:
    """Options of the loop; the strategy and its options: as before, unless there is another."""
    before = str(record["strategy"]["name"])
    config = TrainConfig().with_options(**record["train"])
    choice = str(asked.get("strategy", before))
    kind = strategy_kind(choice, batches=not config.batches.everything, memory="memory" in asked)
    known = dict.fromkeys(strategy_options(kind))
    ways = record["strategy"]["options"] if choice == before else {}
    places = {"graph": place_of(record["graph"]), "model": name, "strategy": before}
    places["task"] = "links" if "decoder" in settings else "nodes"
    started = {**dict.fromkeys(model_options(name)), **places, **settings, **asdict(TrainConfig()), **record["train"]}
    for option, value in asked.items():
        then = pick("option", option, {**started, **known})
        if option not in {"strategy", *_MAY_CHANGE, *known} and then != value:
            raise InputError(
                f"the run in {out} cannot go on with another {option}",
                needed=f"{option} {'left out' if then is None else then}, as the run was started with",
                got=f"{option} {value}",
                repair=f"leave {option} out, or start a new run in another --out",
            )
    changed = {option: value for option, value in asked.items() if option in _MAY_CHANGE}
    own = {option: value for option, value in asked.items() if option in known}
    return config.with_options(**changed), (choice, {**ways, **own})


def _as_recorded(asked: Mapping[str, object]) -> dict[str, object]:
    """Options as the record of a run has them."""
    same = {option: value for option, value in asked.items() if (option, value) != ("decoder", AUTO)}
    if "graph" in same:
        same["graph"] = place_of(str(same["graph"]))
    if "fanout" in same:
        same["fanout"] = json.loads(json.dumps(hops_of(same["fanout"])))
    return same


def _require_fitting(directory: RunDirectory, model: Model, config: TrainConfig) -> None:
    """Check that the newest checkpoint is one of the model, from which so many epochs can be trained."""
    path = directory.newest_checkpoint()
    progress = checkpoint.restore(checkpoint.load(path), path, model, config.make_optimizer(model))
    require_course(progress, path, progress.course, config.epochs)
