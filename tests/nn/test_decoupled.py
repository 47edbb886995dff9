"""Decoupled models against dense matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from outgrow.core.errors import InputError
from outgrow.engine.inference import infer_full_graph
from outgrow.graph.topology import Topology
from outgrow.nn import (
    SIGN,
    AttentionPropagateConv,
    AttentionScores,
    Decoupled,
    DecoupledGAT,
    LinearEncoder,
    Model,
    PropagateConv,
    RelationPropagateConv,
    SequentialEncoder,
)
from outgrow.ops.aggregation.relational import RelationScale
from support import (
    dense_adjacency,
    destinations_of,
    normal,
    random_topology,
    topology_of,
    whole_blocks,
    with_relations,
)

IN, HIDDEN, OUT, RELATIONS, HEADS = 6, 7, 4, 3, 2
GAMMA, ALPHA = 0.8, 0.3
GRAPHS = {
    "multi-graph": with_relations(random_topology(25, 140), RELATIONS),
    "weighted": with_relations(random_topology(25, 140, weighted=True), RELATIONS),
    "isolated": with_relations(topology_of(9, [(0, 4), (4, 0), (4, 4), (0, 4)]), RELATIONS),
    "no-edges": with_relations(topology_of(5, []), RELATIONS),
}
KINDS: dict[str, dict[str, Any]] = {
    "fixed": {},
    "attention": {"heads": HEADS},
    "relations": {"num_relations": RELATIONS},
    "mean": {"aggregator": "mean"},
    "sum": {"aggregator": "sum"},
    "restarts": {"alpha": ALPHA},
    "attention with restarts": {"heads": HEADS, "alpha": ALPHA},
    "relations with restarts": {"num_relations": RELATIONS, "alpha": ALPHA},
}


def model_of(kind: str, rounds: int = 3, gamma: float = GAMMA) -> Model:
    """Without dropout; no parameter is zero."""
    torch.manual_seed(0)
    model = Decoupled(IN, HIDDEN, OUT, rounds=rounds, gamma=gamma, dropout=0.0, **KINDS[kind]).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def encoded(model: Model, x: Tensor) -> Tensor:
    """``[V, C]``: a perceptron of two layers."""
    assert isinstance(model.encoder, SequentialEncoder)
    first, last = (each for each in model.encoder.encoders if isinstance(each, LinearEncoder))
    return torch.relu(x @ first.project.weight + first.bias) @ last.project.weight + last.bias


def normalised(topology: Topology) -> Tensor:
    """``[V, V]``: the weights with a self-loop for each node, over the roots of both degrees."""
    weight = torch.from_numpy(dense_adjacency(topology.with_self_loops))
    root = weight.sum(1).rsqrt()
    return root[:, None] * weight * root


def adjacency(aggregator: str, topology: Topology) -> Tensor:
    """``[V, V]``: the weights with a self-loop for each node, normalised as the aggregator does."""
    if aggregator == "symmetric":
        return normalised(topology)
    weight = torch.from_numpy(dense_adjacency(topology.with_self_loops))
    return weight if aggregator == "sum" else weight / weight.sum(1, keepdim=True)


def attention(topology: Topology, z: Tensor, score: Tensor) -> Tensor:
    """``[V, V]``: the mean of the heads' softmax over in-edges, of which several may have the same ends."""
    edges = torch.zeros(len(z), len(z), dtype=torch.float64)
    looped = topology.with_self_loops
    at = destinations_of(looped.block.edges), looped.indices.long()
    edges.index_put_(at, torch.ones(looped.num_edges, dtype=torch.float64), accumulate=True)
    source, target = (z @ score).split(HEADS, 1)
    heads = []
    for head in range(HEADS):
        raised = functional.leaky_relu(target[:, head, None] + source[:, head], 0.2).exp() * edges
        heads.append(raised / raised.sum(1, keepdim=True))
    return torch.stack(heads).mean(0)


def means(topology: Topology) -> list[Tensor]:
    """``[V, V]`` for each relation: the mean over its in-edges but loops; the last is of the loops that are added."""
    dst, src = destinations_of(topology.block.edges).numpy(), topology.indices.numpy()
    assert topology.relation is not None
    weight = np.ones(len(src)) if topology.weight is None else topology.weight.double().numpy()
    found = []
    for relation in range(RELATIONS):
        chosen = (topology.relation.numpy() == relation) & (dst != src)
        whole = np.zeros((topology.num_nodes,) * 2)
        np.add.at(whole, (dst[chosen], src[chosen]), weight[chosen])
        totals = whole.sum(1, keepdims=True)
        found.append(torch.from_numpy(np.divide(whole, totals, out=np.zeros_like(whole), where=totals > 0)))
    return [*found, torch.eye(topology.num_nodes, dtype=torch.float64)]


def expected(kind: str, model: Model, topology: Topology, x: Tensor) -> Tensor:
    """The logits by dense matrices."""
    z = initial = encoded(model, x)
    alpha = KINDS[kind].get("alpha", 0.0)
    if "attention" in kind:
        assert isinstance(model.encoder, SequentialEncoder)
        scores = model.encoder.encoders[-1]
        assert isinstance(scores, AttentionScores)
        weight = attention(topology, z, scores.score.weight)
    else:
        weight = adjacency(KINDS[kind].get("aggregator", "symmetric"), topology)
    for layer in model.layers_list():
        if "relations" in kind:
            assert isinstance(layer.conv.aggregation, RelationScale)
            pairs = zip(means(topology), layer.conv.aggregation.scale, strict=True)
            z = GAMMA * sum((mean @ z * scale for mean, scale in pairs), torch.zeros_like(z))
        else:
            z = GAMMA * weight @ z
        z = (1 - alpha) * z + alpha * initial
    return z


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_are_those_of_dense_matrices(kind: str, graph: str) -> None:
    topology, model = GRAPHS[graph], model_of(kind)
    x = normal(topology.num_nodes, IN)
    ours, theirs = model(whole_blocks(model, topology), x), expected(kind, model, topology, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    probe, parameters = normal(*ours.shape, seed=1), list(model.parameters())
    found, right = (torch.autograd.grad((out * probe).sum(), parameters) for out in (ours, theirs))
    for mine, other in zip(found, right, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)
    assert all(each.abs().max() > 0 for each in right) or graph in ("no-edges", "isolated")


@pytest.mark.parametrize("kind", KINDS)
def test_inference_is_the_model_in_small_chunks_too(kind: str) -> None:
    topology, model = GRAPHS["weighted"], model_of(kind)
    x = normal(topology.num_nodes, IN)
    for chunk_bytes in (700, 1 << 20):
        found = infer_full_graph(model, topology, x, chunk_bytes=chunk_bytes)
        torch.testing.assert_close(found, expected(kind, model, topology, x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", [kind for kind, options in KINDS.items() if "alpha" not in options])
def test_a_factor_of_each_round(kind: str) -> None:
    topology = GRAPHS["weighted"]
    x, outs = normal(topology.num_nodes, IN), []
    for gamma in (1.0, 0.5):
        model = model_of(kind, gamma=gamma)
        outs.append(model(whole_blocks(model, topology), x))
    torch.testing.assert_close(outs[1], outs[0] / 8, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_made_before_the_rounds_alone(kind: str) -> None:
    torch.manual_seed(0)
    given = {"rounds": 3, "gamma": GAMMA, "dropout": 0.4, "input_dropout": 0.3}
    model = Decoupled(IN, HIDDEN, OUT, **given, **KINDS[kind]).double()
    topology, key = GRAPHS["weighted"], 77
    x, blocks = normal(topology.num_nodes, IN), whole_blocks(model, topology)
    z = model.encode_input(x, topology.nodes, key)
    for layer, block in zip(model.layers_list(), blocks, strict=True):
        z = layer(block, z, z)
    assert torch.equal(model(blocks, x, key), z)
    assert not torch.allclose(z, model(blocks, x))


def test_the_rounds_are_as_many_as_asked_for_or_as_the_perceptron_has_layers() -> None:
    assert len(Decoupled(IN, HIDDEN, OUT).layers_list()) == 2
    assert len(Decoupled(IN, HIDDEN, OUT, layers=4).layers_list()) == 4
    model = Decoupled(IN, HIDDEN, OUT, layers=3, rounds=7)
    assert len(model.layers_list()) == 7
    assert isinstance(model.encoder, SequentialEncoder)
    assert [(each.in_features, each.out_features) for each in model.encoder.encoders] == [
        (IN, HIDDEN),
        (HIDDEN, HIDDEN),
        (HIDDEN, OUT),
    ]


def test_the_layers_of_each_kind() -> None:
    convs = {kind: [layer.conv for layer in model_of(kind).layers_list()] for kind in KINDS}
    assert {type(conv) for conv in convs["fixed"]} == {PropagateConv}
    assert {type(conv) for conv in convs["relations"]} == {RelationPropagateConv}
    assert [(conv.hops_in, conv.hops_out) for conv in convs["restarts"]] == [(0, 1), (1, 1), (1, 0)]
    assert not any(conv.hops_in or conv.hops_out or conv.spec.reads_target for conv in convs["fixed"])
    attending = [conv for conv in convs["attention"] if isinstance(conv, AttentionPropagateConv)]
    assert [conv.last for conv in attending] == [False, False, True]
    assert [conv.spec.out_features for conv in attending] == [OUT + 2 * HEADS] * 2 + [OUT]
    counts = {kind: len(list(model_of(kind, rounds=5).parameters())) for kind in KINDS}
    assert counts == {kind: 4 + ("attention" in kind) + 5 * ("relations" in kind) for kind in KINDS}


@pytest.mark.parametrize("alpha", [0.0, ALPHA])
@pytest.mark.parametrize("concat_hops", [False, True])
def test_features_are_propagated_before_the_perceptron(concat_hops: bool, alpha: float) -> None:
    """As in SGC, and with all hops as in SIGN, by dense matrices."""
    torch.manual_seed(0)
    model = SIGN(IN, HIDDEN, OUT, rounds=3, alpha=alpha, concat_hops=concat_hops, dropout=0.0).double()
    topology = GRAPHS["weighted"]
    x = normal(topology.num_nodes, IN)
    hops = [x]
    for _ in range(3):
        hops.insert(0, (1 - alpha) * normalised(topology) @ hops[0] + alpha * x)
    last, first = torch.cat(hops, 1) if concat_hops else hops[0], model.layers_list()[3:]
    one, other = (layer.conv.itself for layer in first)
    right = torch.relu(last @ one.weight + one.bias) @ other.weight + other.bias
    torch.testing.assert_close(model(whole_blocks(model, topology), x), right, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(infer_full_graph(model, topology, x, chunk_bytes=900), right, rtol=1e-11, atol=1e-11)


def test_dropout_of_the_input_is_that_of_the_perceptron_behind_the_propagation() -> None:
    model = SIGN(IN, HIDDEN, OUT, rounds=2, input_dropout=0.5, layers=1).double()
    topology = GRAPHS["weighted"]
    assert model.input_dropout == 0
    assert [type(layer.conv).__name__ for layer in model.layers_list()] == [
        *["PropagateConv"] * 2,
        *["NodewiseConv"] * 2,
    ]
    x, blocks = normal(topology.num_nodes, IN), whole_blocks(model, topology)
    drawn = [model(blocks, x, key) for key in (1, 1, 2)]
    assert torch.equal(*drawn[:2])
    assert not torch.allclose(drawn[0], drawn[2])


def test_decoupled_gat_is_decoupled_with_heads() -> None:
    outs, x = [], normal(25, IN)
    for make, options in ((DecoupledGAT, {}), (Decoupled, {"heads": 8})):
        torch.manual_seed(0)
        model = make(IN, HIDDEN, OUT, rounds=3, gamma=GAMMA, **options).double()
        outs.append(model(whole_blocks(model, GRAPHS["weighted"]), x))
    assert torch.equal(*outs)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"gamma": 0.0}, "option gamma is out of range"),
        ({"gamma": 1.5}, "above 0, at most 1\n  got:    1.5"),
        ({"gamma": -0.1}, "gamma"),
        ({"gamma": math.nan}, "gamma"),
        ({"gamma": 1.5, "heads": 2}, "gamma"),
        ({"gamma": 0.0, "num_relations": 2}, "gamma"),
        ({"rounds": 0}, "option rounds is out of range"),
        ({"rounds": -1}, "got:    -1"),
        ({"heads": 2, "num_relations": 3}, "got:    heads=2 and num_relations=3"),
        ({"alpha": 1.0}, "at least 0, below 1\n  got:    1.0"),
        ({"alpha": -0.1}, "option alpha is out of range"),
        ({"alpha": math.nan, "heads": 2}, "option alpha is out of range"),
        ({"aggregator": "max"}, "unknown aggregator 'max'"),
        ({"aggregator": "mean", "heads": 2}, "got:    heads=2 and aggregator=mean"),
        ({"num_relations": -1}, "option num_relations is out of range"),
        ({"heads": -1}, "option heads is out of range"),
        ({"layers": 0}, "option layers is out of range"),
        ({"dropout": 1.0}, "dropout"),
    ],
    ids=str,
)
def test_arguments_out_of_range(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        Decoupled(IN, HIDDEN, OUT, **options)


def test_widths_out_of_range() -> None:
    with pytest.raises(InputError, match="option hidden is out of range"):
        Decoupled(IN, 0, OUT)
