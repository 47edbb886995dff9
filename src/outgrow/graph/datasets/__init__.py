"""Graphs by name: what data sets there are, where their files are looked for, and how they are loaded."""

from outgrow.graph.datasets.dataset import Dataset
from outgrow.graph.datasets.load import ResolvedSource, list_presets, load_graph, resolve_source
from outgrow.graph.datasets.locate import FileOrigin, find_origin
from outgrow.graph.datasets.registry import datasets

__all__ = [
    "Dataset",
    "FileOrigin",
    "ResolvedSource",
    "datasets",
    "find_origin",
    "list_presets",
    "load_graph",
    "resolve_source",
]
