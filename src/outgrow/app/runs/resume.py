"""From the directory of a run, and what the user typed besides, to a run that can go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from outgrow.app.auto_strategy import select_from_cli
from outgrow.app.compatibility import validate_fanout
from outgrow.app.model_registry import AUTO, model_options
from outgrow.app.runs.config import (
    absolute_source,
    build_seeded_model,
    load_recorded_graph,
    read_model_record,
    training_record,
)
from outgrow.app.runs.directory import RunDirectory
from outgrow.app.runs.new_run import RunPlan
from outgrow.app.runs.workers import Workers, validate_workers
from outgrow.app.strategy_registry import find_strategy_class, list_strategy_options, use_new_option_names
from outgrow.core.deprecation import use_new_names
from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.engine.batches import parse_fanouts
from outgrow.nn.model import Model
from outgrow.training import checkpoint
from outgrow.training.config import TrainConfig
from outgrow.training.trainer import validate_step_signature

_MAY_CHANGE = {"epochs", "lr", "patience", "checkpoint_every", "checkpoint_steps"}


def plan_resumed_run(
    out: Path, given: Mapping[str, object], data_dir: Path | None, workers: Workers, *, keep_num_workers: bool
) -> RunPlan:
    """Plan to go on with a run. How long, by which strategy and on how many workers may differ.

    Args:
        out: Directory of the run, which this process holds from now on.
        given: What was given once more: ``graph``, ``model``, ``strategy``, ``task`` and any other option.
        data_dir: Folder to look in first for the files of a named data set.
        workers: How many workers train from now on.
        keep_num_workers: Take the number of workers from the run.

    Raises:
        InputError: There is no such run, another process is at work on it, or an option would change its results;
            nothing was changed.
    """
    directory = RunDirectory.open(out)
    record = directory.config
    name, settings = read_model_record(record, out)
    config, (choice, ways) = _merge_options(record, name, settings, _to_record(given), out)
    workers = replace(workers, number=record.get("workers", 1)) if keep_num_workers else workers
    loaded = load_recorded_graph(record, data_dir)
    validate_workers(loaded, workers)
    model = build_seeded_model(name, loaded, settings, config.seed)
    validate_fanout(loaded, model, config)
    chosen, reason = select_from_cli(choice, ways, loaded, model, config, workers)
    directory.acquire_lock()
    try:
        _validate_checkpoint(directory, model, config)
        directory.write_json("config.json", {**record, **training_record(config, chosen, workers)})
    except BaseException:
        directory.release_lock()
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


def _merge_options(
    record: Mapping[str, Any], name: str, settings: Mapping[str, object], given: Mapping[str, object], out: Path
) -> tuple[TrainConfig, tuple[str, dict[str, object]]]:
    """Options of the loop; the strategy and its options: as before, unless there is another."""
    before = str(record["strategy"]["name"])
    config = TrainConfig().with_options(**record["train"])
    choice = str(given.get("strategy", before))
    kind = find_strategy_class(choice, batches=not config.batch_config.is_full_graph, memory="memory" in given)
    given = use_new_option_names(kind, given)
    known = dict.fromkeys(list_strategy_options(kind))
    ways = use_new_names(kind, record["strategy"]["options"]) if choice == before else {}
    places = {"graph": absolute_source(record["graph"]), "model": name, "strategy": before}
    places["task"] = "links" if "decoder" in settings else "nodes"
    started = {**dict.fromkeys(model_options(name)), **places, **settings, **asdict(TrainConfig()), **record["train"]}
    for option, value in given.items():
        then = validate_choice("option", option, {**started, **known})
        if option not in {"strategy", *_MAY_CHANGE, *known} and then != value:
            raise InputError(
                f"the run in {out} cannot go on with another {option}",
                needed=f"{option} {'left out' if then is None else then}, as the run was started with",
                got=f"{option} {value}",
                repair=f"leave {option} out, or start a new run in another --out",
            )
    changed = {option: value for option, value in given.items() if option in _MAY_CHANGE}
    own = {option: value for option, value in given.items() if option in known}
    return config.with_options(**changed), (choice, {**ways, **own})


def _to_record(given: Mapping[str, object]) -> dict[str, object]:
    """Options as the record of a run has them."""
    same = {option: value for option, value in given.items() if (option, value) != ("decoder", AUTO)}
    if "graph" in same:
        same["graph"] = absolute_source(str(same["graph"]))
    if "fanout" in same:
        same["fanout"] = json.loads(json.dumps(parse_fanouts(same["fanout"])))
    return same


def _validate_checkpoint(directory: RunDirectory, model: Model, config: TrainConfig) -> None:
    """Check that the newest checkpoint is one of the model, from which so many epochs can be trained."""
    path = directory.latest_checkpoint()
    progress = checkpoint.restore_checkpoint(
        checkpoint.load_checkpoint(path), path, model, config.make_optimizer(model)
    )
    validate_step_signature(progress, path, progress.course, config.epochs)
