"""From what the user typed to a run that can start: recipe, model, options, directory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

import outgrow
from outgrow.app.asked_options import config_of, sorted_options
from outgrow.app.choice import strategy_asked
from outgrow.app.crew import Workers, require_workers
from outgrow.app.fit import require_batches, require_hops, require_problem
from outgrow.app.links import require_linked
from outgrow.app.models import AUTO, MODELS, build_model, default_decoder
from outgrow.app.recipes import default_model, recipe_of
from outgrow.app.rundir import RunDirectory
from outgrow.app.strategies import strategy_kind, strategy_options
from outgrow.core.errors import InputError
from outgrow.core.nearest import pick
from outgrow.engine.choices import choices
from outgrow.graph import datasets
from outgrow.graph.graph import Graph
from outgrow.graph.store import is_store
from outgrow.graph.validate import require_trainable
from outgrow.nn.model import Model
from outgrow.strategies.base import Strategy
from outgrow.training.config import TrainConfig


@dataclass(frozen=True, kw_only=True, eq=False)
class RunPlan:
    """A run that can start.

    Attributes:
        graph: What to train on.
        model: What to train, freshly initialised from the seed.
        model_name: Its name on the command line.
        model_options: Its options.
        config: Options of the loop.
        strategy: How.
        reason: One sentence on why this strategy.
        directory: Where the run's files go.
        workers: How many workers train.
    """

    graph: Graph
    model: Model
    model_name: str
    model_options: Mapping[str, object]
    config: TrainConfig
    strategy: Strategy
    reason: str
    directory: RunDirectory
    workers: Workers

    def headline(self) -> str:
        """What is about to happen, for people."""
        graph, parameters = self.graph, sum(p.numel() for p in self.model.parameters())
        options = ", ".join(f"{name} {value}" for name, value in self.model_options.items())
        keeps = not self.strategy.takes_batches
        saved = [] if graph.features is None else choices(self.model, graph.features, keeps=keeps)
        lines = (
            f"{graph.name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {graph.num_features:,} "
            f"{'sparse ' if graph.sparse else ''}features, {graph.num_classes} classes",
            f"{self.model_name}: {options}; {parameters:,} parameters; "
            f"{self.config.optimizer} lr {self.config.lr:g} weight decay {self.config.weight_decay:g} "
            f"seed {self.config.seed}{self._batches()}",
            f"{self.reason}; {_spelled(self.strategy.options(), self.workers.number)}",
            *saved,
        )
        return "\n".join(lines)

    def _batches(self) -> str:
        batches = self.config.batches
        if batches.everything:
            return ""
        seeds = f"batches of {batches.size:,}" if batches.size else "one batch"
        return f"; {seeds}, fan-outs {batches.spelled()}{' by weight' if batches.weighted else ''}"


def new_run(
    graph: str,
    model: str | None,
    options: Mapping[str, object],
    *,
    data_dir: Path | None,
    strategy: str,
    out: Path | None,
    workers: Workers,
    again: bool = False,
) -> RunPlan:
    """Plan a run; what is not in ``options`` comes from the recipe. A ``decoder`` among them makes it one of links.

    ``again`` plans it once more, after its workers have died before their first checkpoint.

    Raises:
        InputError: Something cannot be used; nothing was written.
    """
    name = model or default_model(graph)
    pick("model", name, MODELS)
    recipe = recipe_of(graph, name, links="decoder" in options)
    config = config_of(recipe, options)
    batches = not config.batches.everything
    kind = strategy_kind(strategy, batches=batches, memory="memory" in options)
    model_part, strategy_part = sorted_options(name, options, strategy_options(kind))
    model_settings = {**recipe.model, **model_part}
    graph = place_of(graph)
    loaded = datasets.load(graph, data_dir=data_dir)
    if "decoder" not in model_settings:
        require_trainable(loaded)
    else:
        require_linked(loaded)
        if model_settings["decoder"] == AUTO:
            model_settings["decoder"] = default_decoder(loaded)
    built = seeded_model(name, loaded, model_settings, config.seed)
    require_problem(loaded, built)
    require_workers(loaded, workers)
    require_hops(loaded, built, config)
    chosen, reason = strategy_asked(strategy, strategy_part, loaded, built, config, workers)
    require_batches(loaded, built, chosen, config)
    path = out or _new_folder(f"{loaded.name}-{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    record = {
        "outgrow": outgrow.__version__,
        "graph": graph,
        "data_dir": None if data_dir is None else str(data_dir.resolve()),
        "model": {
            "name": name,
            "options": model_settings,
            "classes": loaded.num_classes,
            "class_names": list(loaded.class_names),
            "several_labels": loaded.multi_label,
        },
        **how(config, chosen, workers),
    }
    return RunPlan(
        graph=loaded,
        model=built,
        model_name=name,
        model_options=model_settings,
        config=config,
        strategy=chosen,
        reason=reason,
        directory=RunDirectory.create(path, record, again=again),
        workers=workers,
    )


def _new_folder(name: str) -> Path:
    """A directory for a run that nobody has named: the first that is free, of runs that begin in the same second."""
    folder = Path("runs")
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(folder / each for each in names if not (folder / each).exists())


def how(config: TrainConfig, strategy: Strategy, workers: Workers) -> dict[str, Any]:
    """How a run is trained, as it is recorded."""
    return {
        "train": asdict(config),
        "strategy": {"name": strategy.name, "options": strategy.options()},
        "workers": workers.number,
    }


def place_of(graph: str) -> str:
    """A graph as it is recorded: the whole path of a file or folder, so that a run goes on from any directory."""
    path = Path(graph).expanduser()
    is_path = is_store(path) or (graph not in datasets.datasets() and path.exists())
    return str(path.resolve()) if is_path else graph


def load_recorded(record: Mapping[str, Any], data_dir: Path | None) -> Graph:
    """The graph of a recorded run."""
    recorded = record.get("data_dir")
    return datasets.load(record["graph"], data_dir=data_dir or (Path(recorded) if recorded else None))


def recorded_model(record: Mapping[str, Any], path: Path) -> tuple[str, dict[str, object]]:
    """Name and options of the model of a recorded run.

    Raises:
        InputError: The run's model was not made by name.
    """
    if record["model"] is None:
        raise InputError(
            f"the model of the run in {path} was built in Python",
            needed="a run started by `outgrow train`, whose model has a name",
            got="a run started by og.train",
            repair="use og.train(..., resume=True) or og.predict with the same model",
        )
    return record["model"]["name"], dict(record["model"]["options"])


def seeded_model(name: str, graph: Graph, settings: Mapping[str, object], seed: int) -> Model:
    """A model by its name, with parameters that the seed decides."""
    torch.manual_seed(seed)
    return build_model(name, graph, settings)


def _spelled(options: Mapping[str, object], workers: int) -> str:
    """How a strategy runs, in words; its options matter where there are several workers."""
    said = [f"{name} {value}" for name, value in options.items()] if workers > 1 else []
    return ", ".join(["1 worker" if workers == 1 else f"{workers} workers", *said])
