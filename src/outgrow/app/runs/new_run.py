"""Planning of a new run from the options of the command line."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from outgrow._version import __version__
from outgrow.app.auto_strategy import select_from_cli, take_trial_option
from outgrow.app.compatibility import (
    validate_fanout,
    validate_problem,
    validate_strategy,
    warn_of_unread_weights,
)
from outgrow.app.link_recipes import fit_to_links
from outgrow.app.link_task import count_targets
from outgrow.app.metric_checks import validate_metric_names, validate_metrics
from outgrow.app.model_registry import MODELS, adds_vectors, model_options, resolve_model_options
from outgrow.app.node_task import describe_outputs, make_node_task
from outgrow.app.recipes import choose_model, find_recipe, make_train_config, split_options
from outgrow.app.runs.config import absolute_source, build_seeded_model, training_record
from outgrow.app.runs.data import graph_record
from outgrow.app.runs.directory import RunDirectory
from outgrow.app.runs.graph_choice import GraphChoice
from outgrow.app.runs.trials import list_rivals
from outgrow.app.runs.workers import Workers, validate_workers
from outgrow.app.strategy_registry import find_strategy_class, list_strategy_options, use_new_option_names
from outgrow.app.targets import describe_targets, require_options_of_model, select_graph_targets
from outgrow.core.validation import validate_choice
from outgrow.engine.constant_sums import first_layer_in_form
from outgrow.engine.layer_plan import describe_layers
from outgrow.graph.alignment import describe_schema
from outgrow.graph.builders.validate import require_trainable
from outgrow.graph.graph import Graph
from outgrow.graph.statistics.features import describe_form
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.nn.regression import NodeRegression
from outgrow.nn.tasks import NodeTask
from outgrow.ops.owned_rows import held_rows
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import AUTO, Full
from outgrow.training.config import TrainConfig
from outgrow.training.loop_options import describe_options, open_option_names
from outgrow.training.prepared_training import check_optimization


@dataclass(frozen=True, kw_only=True, eq=False)
class RunPlan:
    """Run that is ready to start.

    Attributes:
        graph: Graph to train on.
        task: The task of nodes, or of several node types; None for links.
        model: Model to train, freshly initialised from the seed.
        model_name: Name of the model on the command line.
        model_options: Options of the model.
        config: Options of the training loop.
        strategy: Training strategy.
        reason: One sentence on why this strategy.
        directory: Run directory, locked by this process.
        workers: Number of workers, and their settings.
        rivals: Strategies to try for some steps: see `Session`.
    """

    graph: Graph
    task: NodeTask | None
    model: Model
    model_name: str
    model_options: Mapping[str, object]
    config: TrainConfig
    strategy: Strategy
    reason: str
    directory: RunDirectory
    workers: Workers
    rivals: tuple[Strategy, ...] = ()

    def describe_run(self) -> str:
        """Return a description of the run in several lines, for people."""
        graph = self.graph
        parameters = sum(p.numel() for p in self.model.parameters())
        options = ", ".join(f"{name} {value}" for name, value in self.model_options.items())
        saved = [] if graph.features is None else self._describe_layers(held_rows(graph.features))
        lines = (
            f"{graph.name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {graph.num_features:,} "
            f"{self._describe_form()}features, {self._describe_labels()}",
            f"{self.model_name}: {options}; {parameters:,} parameters; "
            f"{describe_options(self.config)} seed {self.config.seed}{self._describe_batches()}",
            f"{self.reason}; {_describe_strategy(self.strategy.options(), self.workers.number)}",
            *saved,
        )
        return "\n".join(lines)

    def _describe_layers(self, features: Features) -> list[str]:
        hides, strategy = bool(self.config.hide), self.strategy
        form = (
            strategy.find_first_layer(self.model, features, hides_edges=hides) if isinstance(strategy, Full) else None
        )
        with first_layer_in_form(self.model, form):
            # What does not change is cached only if each step computes the same nodes from the same edges.
            caches = not strategy.uses_minibatches and not hides
            lines = describe_layers(self.model, features, cache_constants=caches)
        if form is not None and strategy.options()["first_aggregate"] == AUTO:
            lines[0] += "; where memory has no room for it, projected rows are aggregated in each step"
        return lines

    def _describe_form(self) -> str:
        if self.graph.features is None or not self.graph.sparse:
            return ""
        return f"{describe_form(held_rows(self.graph.features))} "

    def _describe_labels(self) -> str:
        outputs = self.model.layers_list()[-1].spec.out_features
        if self.task is None:
            return f"{self.graph.num_classes} classes"
        if described := describe_targets(self.task):
            return described
        names = ", ".join(self.config.target_weights or ())
        of_type = f" of {names}" if names else ""
        return (
            f"targets{of_type}: {outputs}" if self.task.kind == NodeRegression.kind else f"{outputs} classes{of_type}"
        )

    def _describe_batches(self) -> str:
        batches = self.config.batch_config
        if batches.is_full_graph:
            return ""
        seeds = f"batches of {batches.size:,}" if batches.size else "one batch"
        return f"; {seeds}, {batches.describe_sampling()}"


def plan_new_run(
    graph: GraphChoice,
    model: str | None,
    options: Mapping[str, object],
    *,
    strategy: str,
    out: Path | None,
    workers: Workers,
    again: bool = False,
) -> RunPlan:
    """Plan a new run and create its directory.

    Args:
        graph: The graph by its name, and its split.
        model: Name of the model; None for the one that suits the data set.
        options: Options of the model, the loop and the strategy; the recipe gives the others. With a
            ``decoder`` the model predicts links.
        strategy: Name of the strategy, or ``"auto"``.
        out: Run directory; None for a new one in ``runs``.
        workers: Number of workers, and their settings.
        again: Whether the same run was started before, and its workers died before the first checkpoint.

    Raises:
        InputError: Something cannot be used; nothing was written.
    """
    options = dict(options)
    tries = take_trial_option(strategy, options)
    name = model or choose_model(graph.name)
    validate_choice("model", name, MODELS)
    recipe = find_recipe(graph.name, name, links="decoder" in options, given=options)
    config = make_train_config(recipe, options, model_options(name))
    batches = not config.batch_config.is_full_graph
    validate_metric_names(config.metrics)
    # All that can be refused by name is checked before the graph is loaded, which may take minutes.
    kind = find_strategy_class(strategy, batches=batches, memory="memory" in options)
    options = use_new_option_names(kind, options)
    model_part, strategy_part = split_options(
        name, options, list_strategy_options(kind), open_option_names(config.optimizer, config.schedule)
    )
    model_settings = {**recipe.model, **model_part}
    loaded = graph.load()
    if "decoder" not in model_settings:
        # Vectors of nodes take the place of features that a graph does not have.
        require_trainable(loaded, needs_features=not adds_vectors(name, model_settings))
    else:
        config, model_settings = fit_to_links(loaded, name, recipe, options, model_settings)
    model_settings = resolve_model_options(name, loaded, model_settings)
    of_links = "decoder" in model_settings
    require_options_of_model(config, of_links=of_links)
    targeted = loaded if of_links else select_graph_targets(loaded, config)
    task = None if of_links else make_node_task(targeted, config)
    built = build_seeded_model(name, targeted, model_settings, config.seed, task)
    validate_problem(targeted, built, task)
    built.schema, built.temporal_strategy = describe_schema(loaded), config.temporal_strategy
    warn_of_unread_weights(loaded, built)
    validate_workers(loaded, workers)
    validate_fanout(loaded, built, config)
    check_optimization(config, built, count_targets(targeted, built, config))
    validate_metrics(targeted, built, config, None, task)
    choice = select_from_cli(strategy, strategy_part, targeted, built, config, workers)
    chosen = choice.strategy
    validate_strategy(loaded, built, chosen, config)
    path = out or unused_folder(f"{loaded.name}-{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    record = {
        "outgrow": __version__,
        "graph": absolute_source(graph.name),
        "data_dir": None if graph.data_dir is None else str(graph.data_dir.resolve()),
        "split": graph.split,
        "load_options": graph.options.list_given(),
        "model": {
            "name": name,
            "options": model_settings,
            **describe_outputs(targeted, task),
        },
        **graph_record(loaded),
        **training_record(config, chosen, workers),
    }
    # The directory is created last: options that were refused above leave nothing behind.
    return RunPlan(
        graph=loaded,
        task=task,
        model=built,
        model_name=name,
        model_options=model_settings,
        config=config,
        strategy=chosen,
        reason=choice.reason,
        rivals=list_rivals(choice, built, config) if tries else (),
        directory=RunDirectory.create(path, record, again=again),
        workers=workers,
    )


def unused_folder(name: str) -> Path:
    """Return an unused directory in ``runs``; a number tells runs apart that begin in the same second."""
    folder = Path("runs")
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(folder / each for each in names if not (folder / each).exists())


def _describe_strategy(options: Mapping[str, object], workers: int) -> str:
    """Return the number of workers and, if there are several, the options of the strategy, for people."""
    described = [f"{name} {value}" for name, value in options.items()] if workers > 1 else []
    return ", ".join(["1 worker" if workers == 1 else f"{workers} workers", *described])
