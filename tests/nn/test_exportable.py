"""Exported models give the logits of `og.predict`, with torch alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import outgrow as og
from outgrow.core.errors import InputError
from support import normal, random_topology

NODES = torch.tensor([7, 3, 41])


def graph_of(*, weights: bool) -> og.Graph:
    topology = random_topology(60, 400)
    if weights:
        topology = replace(
            topology, weight=torch.rand(topology.num_edges, generator=torch.Generator().manual_seed(1)) + 0.5
        )
    nodes = torch.arange(60)
    return og.Graph(
        name="random",
        topology=topology,
        features=normal(60, 6),
        labels=nodes % 4,
        split=og.Split(train=nodes[:40], val=nodes[40:50], test=nodes[50:]),
        num_classes=4,
    )


def build(kind: str) -> Any:
    torch.manual_seed(0)
    models = {
        "gcn": lambda: og.nn.GCN(6, 8, 4, norm=True, residual=True, layers=3),
        "sage": lambda: og.nn.SAGE(6, 8, 4),
        "gin": lambda: og.nn.GIN(6, 8, 4),
        "gat": lambda: og.nn.GAT(6, 8, 4, heads=2),
        "gat of weights": lambda: og.nn.Model([og.nn.Layer(og.nn.GATConv(6, 4, 2, edge_weights=True, average=True))]),
        "max": lambda: og.nn.Model([og.nn.Layer(og.nn.SAGEMaxConv(6, 4))]),
        "commnet": lambda: og.nn.CommNet(6, 8, 4),
    }
    model = models[kind]().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, dtype=parameter.dtype))
    return model.eval()


KINDS = ["gcn", "sage", "gin", "gat", "gat of weights", "max", "commnet"]


@pytest.mark.filterwarnings("ignore:the weights of the edges")
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_predict(kind: str, weights: bool) -> None:
    graph, model = graph_of(weights=weights), build(kind)
    plain = og.nn.ExportableModel(model)
    for nodes in (None, NODES):
        x, layers = og.export_inputs(graph, model, nodes)
        torch.testing.assert_close(plain(x, layers), og.predict(graph, model, nodes), rtol=1e-9, atol=1e-10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat"])
def test_a_program_needs_torch_alone_and_any_number_of_nodes(kind: str, tmp_path: Path) -> None:
    graph, model = graph_of(weights=False), build(kind)
    inputs = og.export_inputs(graph, model, NODES)
    shapes = torch.utils._pytree.tree_map(lambda each: dict.fromkeys(range(each.dim()), torch.export.Dim.AUTO), inputs)
    program = torch.export.export(og.nn.ExportableModel(model), inputs, dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "model.pt2")
    whole = [*og.export_inputs(graph, model)]
    torch.save(whole, tmp_path / "inputs.pt")
    script = (
        "import sys, torch\n"
        "x, layers = torch.load('inputs.pt')\n"
        "module = torch.export.load('model.pt2').module()\n"
        "torch.save(module(x, layers), 'logits.pt')\n"
        "assert not [name for name in sys.modules if name.startswith('outgrow')]\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=200)
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), og.predict(graph, model), rtol=1e-9, atol=1e-10)


def test_what_cannot_be_exported_is_said() -> None:
    with pytest.raises(InputError, match="RGCNConv"):
        og.nn.ExportableModel(og.nn.RGCN(6, 8, 4, num_relations=2))
    with pytest.raises(InputError, match="a decoder"):
        og.nn.ExportableModel(og.nn.SAGE(6, 8, 4).with_decoder(og.nn.Dot()))
    with pytest.raises(InputError, match="no features"):
        og.export_inputs(replace(graph_of(weights=False), features=None), build("sage"))
