"""Every form of typed graph or object is read right, or refused with what would be read; also as a store."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import outgrow as og
from graph.readers.forms_typed import FORMS, Form
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import DataWarning
from outgrow.graph.graph import Graph
from outgrow.graph.store.verify import verify_graph

for package in ("pyarrow", "pandas", "networkx", "torch_geometric"):
    pytest.importorskip(package)


def describe(graph: Graph, name: str) -> Any:
    """An attribute of a graph as lists."""
    topology = graph.topology
    relations = [] if topology.relation is None else topology.relation.tolist()
    counts = [[each, relations.count(number)] for number, each in enumerate(graph.relation_names)]
    if name == "weights" and topology.weight is not None:
        weights = list(zip(relations, topology.weight.tolist(), strict=True))
        return [sorted(w for r, w in weights if r == number) for number in range(graph.num_relations)]
    if name == "edge_index":
        return graph.edge_index.tolist()
    found = {
        "ids": None if graph.ids is None else list(graph.ids),
        "types": [[kind.name, kind.last - kind.first] for kind in graph.node_types],
        "widths": [kind.num_columns for kind in graph.node_types],
        "edges": counts,
        "unread": list(graph.origin.unread),
        "count": graph.num_nodes,
        "labels": None if graph.labels is None else graph.labels.tolist(),
    }
    return found[name]


@pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])
def test_a_form(form: Form, tmp_path: Path) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    made = form.make(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        if isinstance(form.expected, tuple):
            with pytest.raises(InputError) as refused:
                og.load(made, **form.options)
            assert all(word in str(refused.value) for word in form.expected), str(refused.value)
            return
        graphs = [og.load(made, **form.options)]
        if isinstance(made, Path):
            og.convert(made, tmp_path / "store", **form.options)
            graphs.append(og.load(tmp_path / "store"))
    for graph in graphs:
        verify_graph(graph)
        for name, expected in form.expected.items():
            if name != "unread" or graph is graphs[0]:
                assert describe(graph, name) == expected, name
