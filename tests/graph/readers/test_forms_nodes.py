"""Every form of node table is read right, or refused with the option that reads it; in memory and as a store."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.graph.readers.forms_nodes import FORMS, Form

from outgrow.core.errors import InputError
from outgrow.core.user_warnings import DataWarning
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.graph import Graph
from outgrow.graph.readers.detect import detect_reader
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.store.verify import verify_graph


def describe(graph: Graph, name: str) -> Any:
    """An attribute of a graph as lists."""
    split = (graph.split.train, graph.split.val, graph.split.test)
    found: dict[str, Any] = {
        "ids": None if graph.ids is None else list(graph.ids),
        "split": [part.tolist() for part in split],
        "split_sizes": [len(part) for part in split],
        "num_splits": len(graph.splits),
        "node_types": [[kind.name, kind.first, kind.last] for kind in graph.node_types],
        "class_names": list(graph.class_names),
        "unread": list(graph.origin.unread),
        "num_features": graph.num_features,
        "multi_label": graph.multi_label,
        "has_targets": graph.has_targets,
        "edge_index": graph.edge_index.tolist(),
        "features": None if graph.features is None or graph.sparse else np.asarray(graph.features).tolist(),
    }
    if name == "labels" and graph.labels is not None:
        values = graph.labels.numpy()
        return np.where(np.isnan(values), None, values).tolist()
    return found[name]


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
@pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])
def test_a_form(form: Form, stored: bool, tmp_path: Path) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    path = form.make(folder)
    options = TableOptions(**form.options)

    def read() -> Graph:
        source = detect_reader(path, options)
        return convert_to_store(source, tmp_path / "store") if stored else assemble_graph(source)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        if isinstance(form.expected, tuple):
            with pytest.raises(InputError) as refused:
                read()
            assert all(word in str(refused.value) for word in form.expected), str(refused.value)
            assert not (tmp_path / "store").exists()
            return
        graph = read()
    verify_graph(graph)
    for name, expected in form.expected.items():
        assert describe(graph, name) == expected, name
