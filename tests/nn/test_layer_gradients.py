"""Gradients of whole layers and of a model against float64 finite differences, over input and parameters."""

from __future__ import annotations

import pytest
import torch
from layer_table import CONVS, FINISHES, IN, RELATIONS, layer_of
from torch import Tensor
from torch.func import functional_call

from outgrow.engine.shard import view_of
from outgrow.nn import GAT, GCN, GGCN, GGNN, GIN, RGCN, SAGE, CommNet, FiLM, Model, RGCNDiagonal
from support import normal, random_topology, whole_blocks, with_relations


@pytest.mark.parametrize("finish", FINISHES)
@pytest.mark.parametrize("conv", CONVS)
def test_a_layer(conv: str, finish: str) -> None:
    layer = layer_of(CONVS[conv](), finish)
    topology = with_relations(random_topology(7, 16), RELATIONS)
    block = view_of(topology, layer).block.keyed(99)
    names = [name for name, _ in layer.named_parameters()]

    def output(x: Tensor, *values: Tensor) -> Tensor:
        return functional_call(layer, dict(zip(names, values, strict=True)), (block, x, x))

    leaves = [normal(7, IN), *(parameter.detach().clone() for parameter in layer.parameters())]
    assert torch.autograd.gradcheck(output, [leaf.requires_grad_() for leaf in leaves], fast_mode=finish == "finished")


@pytest.mark.parametrize("conv", ["gin-project-first", "gin-aggregate-first"])
def test_the_gradient_of_a_single_number_does_not_depend_on_threads(conv: str) -> None:
    layer, topology = layer_of(CONVS[conv](), "bare", dtype=torch.float32), random_topology(60_000, 100_000)
    x, before = normal(60_000, IN, dtype=torch.float32), torch.get_num_threads()
    (eps,) = (parameter for parameter in layer.parameters() if parameter.dim() == 0)
    gradients = []
    for threads in (1, 2, before):
        torch.set_num_threads(threads)
        gradients += torch.autograd.grad(layer(topology.block, x, x).square().sum(), eps)
    assert torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[0], gradients[2])


@pytest.mark.parametrize(
    "model",
    [
        GCN(4, 5, 3, layers=3, input_dropout=0.2, norm=True, residual=True, activation=torch.tanh),
        SAGE(4, 5, 3, layers=2, activation=torch.tanh),
        SAGE(4, 5, 3, layers=2, pool="max", activation=torch.tanh),
        GAT(4, 6, 3, heads=2, out_heads=2, layers=2, attention_dropout=0.3),
        GIN(4, 5, 3, activation=torch.tanh),
        CommNet(4, 5, 3),
        GGCN(4, 5, 3, activation=torch.tanh),
        GGNN(4, 5, 3, layers=3),
        FiLM(4, 5, 3, layers=3, norm=True, residual=True, activation=torch.tanh),
        RGCN(4, 5, 3, num_relations=RELATIONS, bases=2, activation=torch.tanh),
        RGCNDiagonal(4, 5, 3, num_relations=RELATIONS, activation=torch.tanh),
    ],
    ids=["gcn", "sage", "sage-max", "gat", "gin", "commnet", "ggcn", "ggnn", "film", "rgcn", "rgcn-diagonal"],
)
def test_a_model(model: Model) -> None:
    model = model.double()
    topology = with_relations(random_topology(8, 20), RELATIONS)
    blocks = whole_blocks(model, topology)
    names = [name for name, _ in model.named_parameters()]

    def output(x: Tensor, *values: Tensor) -> Tensor:
        return functional_call(model, dict(zip(names, values, strict=True)), (blocks, x, 12345))

    leaves = [normal(8, 4), *(parameter.detach().clone() for parameter in model.parameters())]
    assert torch.autograd.gradcheck(output, [leaf.requires_grad_() for leaf in leaves], fast_mode=True)
