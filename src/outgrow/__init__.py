"""Train graph neural networks on graphs that have outgrown one device, one memory or one machine.

    import outgrow as og
    graph = og.load("cora")
    model = og.nn.GCN(graph.num_features, 64, graph.num_classes)
    run = og.train(graph, model, epochs=200)
    run.test_accuracy

Names are imported at their first use, so that ``import outgrow`` is quick.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from outgrow._version import __version__ as __version__
from outgrow.core.old_names import install_moved_modules
from outgrow.runtime.system.environment import configure_threads, gc_paused_import

if TYPE_CHECKING:
    from outgrow import nn, strategies
    from outgrow.app import loggers as loggers
    from outgrow.app.api import convert as convert
    from outgrow.app.api import embed as embed
    from outgrow.app.api import load as load
    from outgrow.app.api import plan as plan
    from outgrow.app.api import predict as predict
    from outgrow.app.api import train as train
    from outgrow.app.append_tables import append as append
    from outgrow.app.edge_task import hide_edge_target as hide_edge_target
    from outgrow.app.export_inputs import export_inputs as export_inputs
    from outgrow.app.graph_sources import from_arrays as from_arrays
    from outgrow.app.graph_sources import save_graph as save_graph
    from outgrow.app.neighbor_loader import NeighborLoader as NeighborLoader
    from outgrow.app.own_loop import Training as Training
    from outgrow.app.own_loop import launch as launch
    from outgrow.app.own_loop import prepare as prepare
    from outgrow.app.plan.table import PlanReport as PlanReport
    from outgrow.app.prediction_run import save_embeddings as save_embeddings
    from outgrow.app.runs.load_run import load_run as load_run
    from outgrow.app.runs.result import Run as Run
    from outgrow.app.runs.workers import Workers as Workers
    from outgrow.app.top_links import TopLinks as TopLinks
    from outgrow.app.top_links import top_links as top_links
    from outgrow.core.errors import InputError as InputError
    from outgrow.core.errors import OutgrowError as OutgrowError
    from outgrow.core.errors import StoreError as StoreError
    from outgrow.core.errors import TrainingError as TrainingError
    from outgrow.core.errors import WorkerError as WorkerError
    from outgrow.core.user_warnings import DataWarning as DataWarning
    from outgrow.core.user_warnings import ModelWarning as ModelWarning
    from outgrow.graph.builders.inverse_edges import add_inverse_relations as add_inverse_relations
    from outgrow.graph.datasets import datasets as datasets
    from outgrow.graph.graph import Graph as Graph
    from outgrow.graph.graph import NodeType as NodeType
    from outgrow.graph.graph import Split as Split
    from outgrow.graph.type_labels import TypeLabels as TypeLabels
    from outgrow.nn.edge_tasks import EdgeClassification as EdgeClassification
    from outgrow.nn.edge_tasks import EdgeRegression as EdgeRegression
    from outgrow.nn.regression import NodeRegression as NodeRegression
    from outgrow.nn.tasks import LinkPrediction as LinkPrediction
    from outgrow.nn.tasks import MultiLabel as MultiLabel
    from outgrow.nn.tasks import NodeClassification as NodeClassification
    from outgrow.strategies.full import Full as Full
    from outgrow.strategies.migrate.strategy import Migrate as Migrate
    from outgrow.strategies.offload.strategy import Offload as Offload
    from outgrow.strategies.orchestrate.strategy import Orchestrate as Orchestrate
    from outgrow.strategies.sampled import Sampled as Sampled
    from outgrow.strategies.split.strategy import SplitParallel as SplitParallel
    from outgrow.strategies.tensor.strategy import TensorParallel as TensorParallel
    from outgrow.training.callbacks import Callback as Callback
    from outgrow.training.config import TrainConfig as TrainConfig


_HOME = {
    "add_inverse_relations": "outgrow.graph.builders.inverse_edges",
    "append": "outgrow.app.append_tables",
    "convert": "outgrow.app.api",
    "embed": "outgrow.app.api",
    "export_inputs": "outgrow.app.export_inputs",
    "from_arrays": "outgrow.app.graph_sources",
    "hide_edge_target": "outgrow.app.edge_task",
    "load": "outgrow.app.api",
    "plan": "outgrow.app.api",
    "predict": "outgrow.app.api",
    "save_embeddings": "outgrow.app.prediction_run",
    "save_graph": "outgrow.app.graph_sources",
    "train": "outgrow.app.api",
    "Training": "outgrow.app.own_loop",
    "launch": "outgrow.app.own_loop",
    "prepare": "outgrow.app.own_loop",
    "TopLinks": "outgrow.app.top_links",
    "top_links": "outgrow.app.top_links",
    "Workers": "outgrow.app.runs.local_workers",
    "NeighborLoader": "outgrow.app.neighbor_loader",
    "PlanReport": "outgrow.app.plan.table",
    "load_run": "outgrow.app.runs.load_run",
    "Run": "outgrow.app.runs.result",
    "DataWarning": "outgrow.core.user_warnings",
    "ModelWarning": "outgrow.core.user_warnings",
    "InputError": "outgrow.core.errors",
    "OutgrowError": "outgrow.core.errors",
    "StoreError": "outgrow.core.errors",
    "TrainingError": "outgrow.core.errors",
    "WorkerError": "outgrow.core.errors",
    "datasets": "outgrow.graph.datasets",
    "Graph": "outgrow.graph.graph",
    "NodeType": "outgrow.graph.graph",
    "Split": "outgrow.graph.graph",
    "TypeLabels": "outgrow.graph.type_labels",
    "EdgeClassification": "outgrow.nn.edge_tasks",
    "EdgeRegression": "outgrow.nn.edge_tasks",
    "LinkPrediction": "outgrow.nn.tasks",
    "MultiLabel": "outgrow.nn.tasks",
    "NodeClassification": "outgrow.nn.tasks",
    "NodeRegression": "outgrow.nn.regression",
    "Full": "outgrow.strategies.full",
    "Migrate": "outgrow.strategies.migrate.strategy",
    "Offload": "outgrow.strategies.offload.strategy",
    "Orchestrate": "outgrow.strategies.orchestrate.strategy",
    "Sampled": "outgrow.strategies.sampled",
    "SplitParallel": "outgrow.strategies.split.strategy",
    "TensorParallel": "outgrow.strategies.tensor.strategy",
    "Callback": "outgrow.training.callbacks",
    "TrainConfig": "outgrow.training.config",
}
__all__ = [
    "Callback",
    "DataWarning",
    "EdgeClassification",
    "EdgeRegression",
    "Full",
    "Graph",
    "InputError",
    "LinkPrediction",
    "Migrate",
    "ModelWarning",
    "MultiLabel",
    "NeighborLoader",
    "NodeClassification",
    "NodeRegression",
    "NodeType",
    "Offload",
    "Orchestrate",
    "OutgrowError",
    "PlanReport",
    "Run",
    "Sampled",
    "Split",
    "SplitParallel",
    "StoreError",
    "TensorParallel",
    "TopLinks",
    "TrainConfig",
    "Training",
    "TrainingError",
    "TypeLabels",
    "WorkerError",
    "Workers",
    "add_inverse_relations",
    "append",
    "convert",
    "datasets",
    "embed",
    "export_inputs",
    "from_arrays",
    "hide_edge_target",
    "launch",
    "load",
    "load_run",
    "loggers",
    "nn",
    "plan",
    "predict",
    "prepare",
    "save_embeddings",
    "save_graph",
    "strategies",
    "top_links",
    "train",
]
# Before torch is imported by any of the names: OpenMP reads its settings when it is loaded.
configure_threads()
install_moved_modules()


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'outgrow' has no attribute {name!r}")
    # Packages are themselves the value; all other names are looked up in their module.
    if name in ("nn", "strategies"):
        return _import_module(f"outgrow.{name}")
    if name == "loggers":
        return _import_module("outgrow.app.loggers")
    return getattr(_import_module(_HOME[name]), name)


def _import_module(module_name: str) -> ModuleType:
    if module_name in sys.modules:
        return importlib.import_module(module_name)
    # Imports create many objects and no garbage: collecting in between only costs time.
    with gc_paused_import():
        return importlib.import_module(module_name)


def __dir__() -> list[str]:
    return sorted(__all__)
