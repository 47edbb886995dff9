"""Graphs by name: what data sets there are, where their files are looked for, and how they are loaded."""

from outgrow.graph.datasets.dataset import Dataset
from outgrow.graph.datasets.load import ResolvedSource, load_graph, resolve_source
from outgrow.graph.datasets.locate import FileOrigin, find_origin
from outgrow.graph.datasets.registry import datasets

__all__ = ["Dataset", "ResolvedSource", "FileOrigin", "datasets", "load_graph", "find_origin", "resolve_source"]
