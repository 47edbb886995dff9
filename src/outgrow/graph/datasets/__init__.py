"""Graphs by name: what data sets there are, where their files are looked for, and how they are loaded."""

from outgrow.graph.datasets.dataset import Dataset
from outgrow.graph.datasets.load import Loadable, load, resolve
from outgrow.graph.datasets.locate import Origin, origin
from outgrow.graph.datasets.registry import datasets

__all__ = ["Dataset", "Loadable", "Origin", "datasets", "load", "origin", "resolve"]
