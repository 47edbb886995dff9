"""Every form of edge tables is read right, or refused with words that help."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graph.readers.forms_edge_features import FORMS as EDGE_FEATURES
from graph.readers.forms_tables import FORMS as EDGES
from graph.readers.forms_tables import Edge
from graph.readers.table_mutants import MUTANTS
from outgrow.core.errors import InputError
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.graph import Graph
from outgrow.graph.readers.detect import detect_reader
from outgrow.graph.readers.tables.options import TableOptions, parse_columns
from outgrow.graph.store.verify import verify_graph

pytestmark = pytest.mark.filterwarnings("ignore:not read")
FORMS = [*EDGES, *EDGE_FEATURES]


def options_of(command: str) -> TableOptions:
    """The options of ``outgrow convert`` in a command."""
    words = shlex.split(command)
    columns = parse_columns(words[words.index("--columns") + 1]) if "--columns" in words else {}
    features = words[words.index("--edge-features") + 1] if "--edge-features" in words else ""
    return TableOptions(
        columns=columns, relabel="--relabel" in words, edge_features=tuple(features.split(",")) if features else ()
    )


def edges_of(graph: Graph) -> list[Edge]:
    """Edges by the ids of nodes and the names of relations."""
    topology = graph.topology
    ids: Any = graph.ids or range(graph.num_nodes)
    edges = []
    for node in range(graph.num_nodes):
        for at in range(int(topology.indptr[node]), int(topology.indptr[node + 1])):
            edge: Edge = (ids[int(topology.indices[at])], ids[node])
            if topology.relation is not None:
                edge += (graph.relation_names[int(topology.relation[at])],)
            edge = edge if topology.weight is None else (*edge, float(topology.weight[at]))
            features = topology.edge_features
            edges.append(edge if features is None else (*edge, tuple(features[at].tolist())))
    return sorted(edges)


def is_in_order(graph: Graph, edges: list[Edge]) -> bool:
    """Whether nodes are numbered as their ids first occur, or ascending if these are integers."""
    if graph.ids is None:
        return True
    known = list(dict.fromkeys(end for edge in edges for end in edge[:2]))
    return list(graph.ids) == (known if graph.ids.are_text else sorted(known))


@pytest.mark.parametrize(("make", "command", "expected"), [row[1:] for row in FORMS], ids=[row[0] for row in FORMS])
def test_forms(tmp_path: Path, make: Callable[[Path], Path], command: str, expected: list[Edge] | str) -> None:
    path = make(tmp_path)
    if isinstance(expected, str):
        with pytest.raises(InputError) as caught:
            assemble_graph(detect_reader(path, options_of(command)))
        assert expected in str(caught.value)
        assert path.name in str(caught.value) or "leave out" in expected
        return
    made = assemble_graph(detect_reader(path, options_of(command)))
    verify_graph(made)
    assert edges_of(made) == sorted(expected)
    assert is_in_order(made, expected)
    assert made.name == path.name.split(".")[0]


def is_right(path: Path, command: str, expected: list[Edge] | str) -> bool:
    """Whether a form is read, or refused, as it should be."""
    try:
        made = assemble_graph(detect_reader(path, options_of(command)))
    except InputError as error:
        return isinstance(expected, str) and expected in str(error)
    return not isinstance(expected, str) and edges_of(made) == sorted(expected) and is_in_order(made, expected)


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(tmp_path: Path, mutant: str) -> None:
    with MUTANTS[mutant]():
        wrong = []
        for at, (name, make, command, expected) in enumerate(FORMS):
            (tmp_path / str(at)).mkdir()
            if not is_right(make(tmp_path / str(at)), command, expected):
                wrong.append(name)
    assert wrong
