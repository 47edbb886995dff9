"""Plans of models with modules per type: matrices, widths and halos are counted by type and relation."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import outgrow as og
from outgrow.app.cli.main import app
from outgrow.graph.graph import Graph
from outgrow.planning.dataset_sizes import dataset_sizes
from outgrow.planning.graph_stats.partition_counts import count_partition
from outgrow.planning.matrix_sizes import count_matrix_numbers
from outgrow.planning.model_sizes import model_sizes


@pytest.fixture(scope="module")
def graph() -> Graph:
    return og.load("ogbn-mag@0.002")


def test_nodes_and_edges_are_counted_by_type_and_relation(graph: Graph) -> None:
    sizes = dataset_sizes(graph)
    assert sizes.type_nodes == tuple(np.diff(graph.types.borders).tolist())
    assert sizes.relation_edges == tuple(torch.bincount(graph.topology.relation.long(), minlength=8).tolist())
    assert sum(sizes.relation_edges) == sizes.edges


def test_the_halo_of_a_partition_is_counted_by_type(graph: Graph) -> None:
    part = torch.arange(graph.num_nodes) % 3
    found = count_partition(graph.topology, part, 3, graph.type_borders)
    assert found.typed_halo is not None
    assert np.array_equal(found.typed_halo.sum(0), found.halo)
    kinds = graph.types.types_of(torch.arange(graph.num_nodes))
    src, dst = graph.edge_index
    for kind, halo in enumerate(found.typed_halo):
        crosses = (kinds[src] == kind) & (part[src] == 1) & (part[dst] == 0)
        assert halo[0, 1] == len(torch.unique(src[crosses]))


def test_a_row_is_multiplied_by_the_matrices_of_its_type(graph: Graph) -> None:
    """Against a sum over nodes: papers by 128 columns; each node by those of its relations; learned rows by nothing."""
    hidden, types = 16, graph.types
    nodes = {name: last - first for name in types.names for first, last in [types.type_nodes(name)]}
    others = {name: count for name, count in nodes.items() if name != "paper"}
    encoder = og.nn.HeteroEncoder({"paper": 128}, hidden, embeddings=others)
    expected = nodes["paper"] * 128 * hidden
    assert count_matrix_numbers(encoder, graph) == pytest.approx(expected / graph.num_nodes, abs=1)
    conv = og.nn.HeteroConv({each: og.nn.SAGEConv(hidden, hidden) for each in types.edge_types})
    # One matrix for the mean, applied to the destination where the input is sent as it is; one for the node itself.
    by_relation = sum(2 * hidden * hidden * nodes[target] for _, _, target in types.edge_types)
    assert count_matrix_numbers(conv, graph) == pytest.approx(by_relation / graph.num_nodes, abs=1)
    linear = og.nn.TypedLinear(hidden, 8, types.names)
    assert count_matrix_numbers(linear, graph) == hidden * 8


def test_learned_rows_are_no_matrix_of_the_encoder(graph: Graph) -> None:
    model = og.nn.HGT(graph.num_features, 16, graph.num_classes, types=graph.types, heads=2)
    model.bind_types(graph.types)
    assert model_sizes(model, graph).encoder_numbers < 128 * 16


@pytest.mark.parametrize("model", ["hgt", "rgcn-typed"])
def test_typed_models_are_planned_on_the_command_line(model: str) -> None:
    command = ["plan", "ogbn-mag@0.002", "--model", model, "--hardware", "2-core-cpu", "--workers", "2", "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    whole = next(each for each in found["strategies"] if each["strategy"] == "full")
    assert 0 < whole["epoch_seconds"] < 60
