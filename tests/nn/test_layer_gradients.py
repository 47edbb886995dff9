"""Gradients of whole layers and of a model against float64 finite differences, over input and parameters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from layer_table import CONVS, EDGE_DIM, FINISHES, IN, RELATIONS, layer_of
from torch import Tensor, nn
from torch.func import functional_call

from generators import apart
from outgrow.engine.shard import layer_topology
from outgrow.nn import (
    GAT,
    GCN,
    GGCN,
    GGNN,
    GIN,
    GINE,
    RGCN,
    SAGE,
    CommNet,
    EdgeNetwork,
    FiLM,
    GATv2,
    Model,
    RGCNDiagonal,
    Transformer,
)
from support import normal, random_topology, whole_blocks, with_edge_features, with_relations

POINTS = 4


def require_gradients(make: Callable[[int], nn.Module], given: tuple[object, ...], *places: int, fast: bool) -> None:
    """Gradients of what a module makes of its arguments, by those that are tensors at some places and by parameters.

    ReLU and maxima have kinks, at which finite differences are wrong. So parameters are drawn until differences over
    ten times the usual step are right, too, which keeps kinks as far away as that: on another machine, which rounds
    otherwise, they do not come near either. A gradient that is wrong is so at every one of a few points.
    """
    for seed in range(POINTS):
        with apart(str(seed)):
            module = make(seed)
        names = [name for name, _ in module.named_parameters()]

        def output(x: Tensor, *values: Tensor, module: nn.Module = module, names: list[str] = names) -> Tensor:
            arguments = tuple(x if place in places else each for place, each in enumerate(given))
            found: Tensor = functional_call(module, dict(zip(names, values, strict=True)), arguments)
            return found

        x = given[places[0]]
        assert isinstance(x, Tensor)
        leaves = [x.clone(), *(parameter.detach().clone() for parameter in module.parameters())]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        last = seed == POINTS - 1
        if torch.autograd.gradcheck(output, leaves, eps=1e-5, fast_mode=fast, raise_exception=last):
            assert torch.autograd.gradcheck(output, leaves, fast_mode=fast)
            return


@pytest.mark.parametrize("finish", FINISHES)
@pytest.mark.parametrize("conv", CONVS)
def test_a_layer(conv: str, finish: str) -> None:
    def make(seed: int) -> nn.Module:
        return layer_of(CONVS[conv](), finish, seed)

    topology = with_edge_features(with_relations(random_topology(7, 16), RELATIONS), EDGE_DIM)
    block, x = layer_topology(topology, make(0)).block.with_rng_key(99), normal(7, IN)
    require_gradients(make, (block, x, x), 1, 2, fast=finish == "finished")


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


MODELS: dict[str, Callable[[], Model]] = {
    "gcn": lambda: GCN(4, 5, 3, layers=3, input_dropout=0.2, norm=True, residual=True, activation=torch.tanh),
    "sage": lambda: SAGE(4, 5, 3, layers=2, activation=torch.tanh),
    "sage-max": lambda: SAGE(4, 5, 3, layers=2, pool="max", activation=torch.tanh),
    "gat": lambda: GAT(4, 6, 3, heads=2, out_heads=2, layers=2, attention_dropout=0.3),
    "gin": lambda: GIN(4, 5, 3, activation=torch.tanh),
    "gatv2": lambda: GATv2(4, 6, 3, heads=2, out_heads=2, edge_dim=EDGE_DIM, attention_dropout=0.3),
    "transformer": lambda: Transformer(4, 6, 3, heads=2, edge_dim=EDGE_DIM, activation=torch.tanh),
    "gine": lambda: GINE(4, 5, 3, edge_dim=EDGE_DIM, activation=torch.tanh),
    "edge-network": lambda: EdgeNetwork(4, 5, 3, edge_dim=EDGE_DIM, activation=torch.tanh),
    "commnet": lambda: CommNet(4, 5, 3),
    "ggcn": lambda: GGCN(4, 5, 3, activation=torch.tanh),
    "ggnn": lambda: GGNN(4, 5, 3, layers=3),
    "film": lambda: FiLM(4, 5, 3, layers=3, norm=True, residual=True, activation=torch.tanh),
    "rgcn": lambda: RGCN(4, 5, 3, num_relations=RELATIONS, bases=2, activation=torch.tanh),
    "rgcn-diagonal": lambda: RGCNDiagonal(4, 5, 3, num_relations=RELATIONS, activation=torch.tanh),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model(name: str) -> None:
    def make(seed: int) -> nn.Module:
        return MODELS[name]().double()

    topology = with_edge_features(with_relations(random_topology(8, 20), RELATIONS), EDGE_DIM)
    blocks = whole_blocks(MODELS[name](), topology)
    require_gradients(make, (blocks, normal(8, 4), 12345), 1, fast=True)
