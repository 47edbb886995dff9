"""Planning of a resumed run from its directory and the options given this time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from outgrow.app.auto_strategy import select_from_cli
from outgrow.app.compatibility import validate_fanout, validate_problem
from outgrow.app.link_task import count_targets
from outgrow.app.metric_checks import require_recorded_metrics, validate_metrics
from outgrow.app.model_registry import AUTO
from outgrow.app.node_task import make_node_task, require_recorded_task
from outgrow.app.runs.config import (
    RecordedModel,
    absolute_source,
    load_recorded_graph,
    read_load_options,
    read_model_record,
    training_record,
)
from outgrow.app.runs.data import align_with_record, graph_record, validate_same_data
from outgrow.app.runs.directory import RunDirectory
from outgrow.app.runs.new_run import RunPlan
from outgrow.app.runs.workers import Workers, validate_workers
from outgrow.app.strategy_registry import find_strategy_class, list_strategy_options, use_new_option_names
from outgrow.app.targets import select_graph_targets
from outgrow.core.deprecation import use_new_names
from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.engine.batches import parse_fanouts
from outgrow.graph.alignment import describe_schema
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.nn.losses import validate_weights
from outgrow.nn.model import Model
from outgrow.training import checkpoint
from outgrow.training.config import TrainConfig
from outgrow.training.loop_options import open_option_names
from outgrow.training.optimization import Optimization
from outgrow.training.prepared_training import count_steps
from outgrow.training.target_request import parse_relations, parse_targets, parse_task

_EVALUATION = {"eval", "val", "test", "eval_fanout", "eval_batch_size"}
_METRICS = {"metrics", "monitor", "monitor_mode"}
_MAY_CHANGE = {"epochs", "lr", "patience", "checkpoint_every", "checkpoint_steps", "inexact", *_EVALUATION, *_METRICS}


def plan_resumed_run(
    out: Path,
    given: Mapping[str, object],
    data_dir: Path | None,
    workers: Workers,
    *,
    keep_num_workers: bool,
    allow_changed_data: bool = False,
) -> RunPlan:
    """Plan to resume a run, from the beginning if it has no checkpoint. Its length, strategy and workers may change.

    Args:
        out: Run directory, which this process locks.
        given: Options given this time: ``graph``, ``model``, ``strategy``, ``task`` and any other.
        data_dir: Folder to look in first for the files of a named data set.
        workers: Number of workers from now on, and their settings.
        keep_num_workers: Whether to take the number of workers from the run.
        allow_changed_data: Whether to go on with a graph whose contents have changed.

    Raises:
        InputError: There is no such run, another process is training there, or an option would change the
            results; nothing was changed.
    """
    directory = RunDirectory.open(out)
    record = directory.config
    require_recorded_task(record, out)
    recorded = read_model_record(record, out)
    config, (choice, strategy_options) = _merge_options(record, recorded, _to_record(given), out)
    workers = replace(workers, number=record.get("workers", 1)) if keep_num_workers else workers
    loaded = align_with_record(
        load_recorded_graph(record, data_dir),
        record,
        reads_relations=recorded.reads_relations,
        reads_types=recorded.reads_types,
    )
    validate_workers(loaded, workers)
    targeted = loaded if recorded.predicts_links else select_graph_targets(loaded, config)
    task = None if recorded.predicts_links else make_node_task(targeted, config)
    model = recorded.build(targeted, config.seed, task)
    validate_problem(targeted, model, task)
    model.schema, model.temporal_strategy = describe_schema(loaded), config.temporal_strategy
    validate_fanout(loaded, model, config)
    require_recorded_metrics(record, given, out)
    validate_metrics(targeted, model, config, None, task)
    chosen, reason, *_ = select_from_cli(choice, strategy_options, targeted, model, config, workers)
    # A run that is still at work here would replace the checkpoint while it is read.
    with directory.locked_unless_refused():
        # Checked before ``config.json`` is replaced: a refused run stays as it was.
        graph_facts = graph_record(loaded)
        newest = directory.newest_to_resume()
        saved = None if newest is None else checkpoint.load_checkpoint(newest)
        if not allow_changed_data:
            validate_same_data(out, record, saved, graph_facts)
        if newest is not None and saved is not None:
            _validate_checkpoint(
                saved, newest, model, config, graph_facts["data"], count_targets(targeted, model, config)
            )
        directory.write_json("config.json", {**record, **graph_facts, **training_record(config, chosen, workers)})
    return RunPlan(
        graph=loaded,
        task=task,
        model=model,
        model_name=recorded.name,
        model_options=recorded.options,
        config=config,
        strategy=chosen,
        reason=reason,
        directory=directory,
        workers=workers,
    )


def require_same_load_options(out: Path, given: TableOptions) -> None:
    """Check that no option of how a graph is read is given that a run does not have.

    Raises:
        InputError: There is no such run, or it was started without such an option.
    """
    recorded = read_load_options(RunDirectory.open(out).config).list_given()
    if others := {name: value for name, value in given.list_given().items() if recorded.get(name) != value}:
        raise InputError(
            f"the run in {out} reads its graph in another way",
            needed="the options of how the graph is read as they were, or none",
            got=", ".join(f"{name}={value!r}" for name, value in others.items()),
            repair="leave them out, or start a new run",
        )


def _merge_options(
    record: Mapping[str, Any], recorded: RecordedModel, given: Mapping[str, object], out: Path
) -> tuple[TrainConfig, tuple[str, dict[str, object]]]:
    """Merge recorded and given options.

    Returns:
        Options of the loop, and name and options of the strategy; the latter are kept unless the strategy
        changes.

    Raises:
        InputError: There is no such option, or it would change the results of the run.
    """
    before = str(record["strategy"]["name"])
    config = TrainConfig().with_options(**record["train"])
    choice = str(given.get("strategy", before))
    kind = find_strategy_class(choice, batches=not config.batch_config.is_full_graph, memory="memory" in given)
    given = use_new_option_names(kind, given)
    known = dict.fromkeys(list_strategy_options(kind))
    # Another strategy may have an option of the same name that means something else.
    strategy_options = use_new_names(kind, record["strategy"]["options"]) if choice == before else {}
    identity = {"graph": absolute_source(record["graph"]), "model": recorded.name, "strategy": before}
    # Defaults come before the record: a run of an older version lacks the options added since.
    open_options = {**config.optimizer_options, **config.schedule_options}
    started = {
        **dict.fromkeys(open_option_names(config.optimizer, config.schedule)),
        **dict.fromkeys(recorded.known_options),
        **{each: json.loads(json.dumps(value)) for each, value in open_options.items()},
        **identity,
        **recorded.options,
        **asdict(TrainConfig()),
        **record["train"],
    }
    started["task"] = "links" if recorded.predicts_links else config.task or "nodes"
    for option, value in given.items():
        then = validate_choice("option", option, {**started, **known})
        if (option, value) == ("task", "nodes") and then != "links":
            continue
        # An option repeated with its old value changes nothing and is accepted.
        if option not in {"strategy", *_MAY_CHANGE, *known} and then != value:
            raise InputError(
                f"the run in {out} cannot go on with another {option}",
                needed=f"{option} {'left out' if then is None else then}, as the run was started with",
                got=f"{option} {value}",
                repair=f"leave {option} out, or start a new run in another --out",
            )
    changed = {option: value for option, value in given.items() if option in _MAY_CHANGE}
    changed_strategy = {option: value for option, value in given.items() if option in known}
    return config.with_options(**changed), (choice, {**strategy_options, **changed_strategy})


def _to_record(given: Mapping[str, object]) -> dict[str, object]:
    """Convert given options to the form in which ``config.json`` has them, so that both can be compared."""
    # The record names the decoder that "auto" chose; asking for "auto" again changes nothing.
    same = {option: value for option, value in given.items() if (option, value) != ("decoder", AUTO)}
    for option in ("class_weight", "pos_weight"):
        if option in same:
            same[option] = json.loads(json.dumps(validate_weights(option, same[option])))
    if "link_relations" in same:
        same["link_relations"] = list(parse_relations(str(same["link_relations"])))
    if "targets" in same:
        same["targets"] = parse_targets(same["targets"])
    if "=" in str(same.get("task")):
        same["task"] = parse_task(same["task"])
    if "graph" in same:
        same["graph"] = absolute_source(str(same["graph"]))
    if "fanout" in same:
        # JSON turns tuples into lists, as in the record.
        same["fanout"] = json.loads(json.dumps(parse_fanouts(same["fanout"])))
    return same


def _validate_checkpoint(
    saved: dict[str, Any], path: Path, model: Model, config: TrainConfig, data: Mapping[str, str], num_train: int
) -> None:
    """Check that the newest checkpoint fits the model and its optimizer, and allows the number of epochs.

    Raises:
        InputError: It does not.
    """
    optimization = Optimization.from_config(config, model, count_steps(config, model, num_train))
    progress = checkpoint.restore_checkpoint(saved, path, model, optimization.optimizer, optimization)
    progress.adopt_data(data)
    checkpoint.validate_step_signature(progress, path, progress.course, config.epochs)
