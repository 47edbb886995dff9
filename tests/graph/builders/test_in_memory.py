import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from graph.bad_input import BAD_EDGES, BAD_TABLES
from graph.handmade import Edge, Listed, edges_of, expected, source, tables
from outgrow.core.errors import InputError
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.readers.source import NodeTableSource

ids = st.integers(0, 6)
edge_lists = st.lists(st.builds(Edge, ids, ids, st.integers(0, 2), st.integers(0, 3).map(float)), max_size=60)


@given(edges=edge_lists, undirected=st.booleans(), typed=st.booleans(), weighted=st.booleans())
@settings(deadline=None, max_examples=150)
def test_edges_are_those_of_the_definition(edges, undirected, typed, weighted):
    names = ("p", "q", "r") if typed else ()
    listed = Listed(edges, NodeTableSource(num_nodes=7, relation_names=names), typed=typed, weighted=weighted)
    made = assemble_graph(listed, undirected=undirected)
    wanted = expected(edges, undirected=undirected, num_relations=len(names))
    assert [e[:3] for e in edges_of(made)] == [e[:3] for e in wanted]
    if weighted and edges:
        assert [e.weight for e in edges_of(made)] == [e.weight for e in wanted]
    assert made.relation_names == ((*names, "p^-1", "q^-1", "r^-1") if typed and undirected else names)


def test_types_are_the_narrowest():
    made = assemble_graph(source())
    assert made.topology.indices.dtype == torch.int32
    assert made.topology.relation.dtype == torch.int8
    assert made.topology.weight.dtype == torch.float32
    assert made.labels.dtype == torch.int16
    many = Listed([Edge(0, 1, 100), Edge(1, 0, 3)], NodeTableSource(), typed=True)
    assert assemble_graph(many).topology.relation.dtype == torch.int8
    assert assemble_graph(many, undirected=True).topology.relation.dtype == torch.int16
    assert assemble_graph(many).relation_names == tuple(map(str, range(101)))


@pytest.mark.parametrize(
    ("given_dtype", "kept"),
    [("f2", "float16"), ("f4", "float32"), ("f8", "float64"), ("i8", "float32"), ("?", "float32")],
)
def test_features_keep_their_floating_type(given_dtype, kept):
    features = np.ones((40, 2), dtype=given_dtype)
    assert str(assemble_graph(source(features=features)).features.dtype) == f"torch.{kept}"
    if given_dtype != "f2":  # SciPy has no such matrices
        assert str(assemble_graph(source(features=csr_array(features))).features.dtype) == f"torch.{kept}"


def test_sparse_rows_are_put_in_order_and_duplicates_are_summed():
    rows = csr_array((np.array([1.0, 2, 3, 4], "f4"), np.array([2, 0, 2, 1]), np.array([0, 3, 4])), shape=(2, 9))
    made = assemble_graph(Listed([Edge(0, 1)], NodeTableSource(features=rows))).features
    assert made.indptr.tolist() == [0, 2, 3]
    assert made.indices.tolist() == [0, 2, 1]
    assert made.values.tolist() == [2.0, 4.0, 4.0]


def test_number_of_nodes_comes_from_what_is_known():
    assert assemble_graph(Listed([Edge(0, 5)])).num_nodes == 6
    assert assemble_graph(Listed([Edge(0, 5)], NodeTableSource(labels=np.zeros(9, int)))).num_nodes == 9
    assert assemble_graph(Listed([], NodeTableSource(num_nodes=3))).topology.indptr.tolist() == [0, 0, 0, 0]
    with pytest.raises(InputError, match="no nodes"):
        assemble_graph(Listed([]))


@pytest.mark.parametrize(("changes", "what", "got"), BAD_TABLES)
def test_bad_tables_are_refused_with_their_numbers(changes, what, got):
    with pytest.raises(InputError) as caught:
        assemble_graph(Listed([Edge(0, 1)], tables(**changes)))
    assert what in caught.value.what
    assert got in caught.value.got
    assert caught.value.needed
    assert caught.value.repair


@pytest.mark.parametrize(("edges", "what", "got"), BAD_EDGES)
def test_bad_edges_are_refused_with_their_numbers(edges, what, got):
    with pytest.raises(InputError) as caught:
        assemble_graph(source(edges))
    assert what in caught.value.what
    assert got in caught.value.got


def test_ids_that_cannot_be_numbered_are_refused():
    with pytest.raises(InputError, match="node ids cannot be used"):
        assemble_graph(Listed([Edge(0, 1), Edge(2**40, 1)]))
