"""Graph attention that reads relations and weights of edges: against its formula, one destination at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.graph.topology import Topology
from outgrow.nn import GATConv, Layer
from support import normal, random_topology, with_relations

IN, OUT, HEADS, RELATIONS = 5, 6, 3, 4
TOPOLOGY = with_relations(random_topology(30, 160, weighted=True), RELATIONS)


def layer_of(**options: object) -> GATConv:
    torch.manual_seed(0)
    conv = GATConv(IN, OUT, HEADS, **options).double()  # type: ignore[arg-type]
    for parameter in conv.parameters():
        torch.nn.init.normal_(parameter)
    return conv


def by_formula(conv: GATConv, looped: Topology, x_VD: Tensor) -> Tensor:
    h_VKF = (x_VD @ conv.project.weight).unflatten(1, (HEADS, OUT // HEADS))
    src_VK, dst_VK = (h_VKF * conv.source_score).sum(2), (h_VKF * conv.target_score).sum(2)
    rows = []
    for v in range(looped.num_nodes):
        edges = slice(int(looped.indptr[v]), int(looped.indptr[v + 1]))
        sources = looped.indices[edges].long()
        score = src_VK[sources] + dst_VK[v]
        if conv.relation_score is not None:
            assert looped.relation is not None
            score = score + conv.relation_score[looped.relation[edges].long()]  # -1, a loop, is the last
        if conv.weight_score is not None:
            assert looped.weight is not None
            score = score + looped.weight[edges].double()[:, None] * conv.weight_score
        alpha = torch.nn.functional.leaky_relu(score, 0.2).softmax(0)
        rows.append((alpha[:, :, None] * h_VKF[sources]).sum(0).flatten())
    return torch.stack(rows) + conv.bias


@pytest.mark.parametrize(
    "options",
    [{"num_relations": RELATIONS}, {"edge_weights": True}, {"num_relations": RELATIONS, "edge_weights": True}],
    ids=["relations", "weights", "both"],
)
def test_scores_of_edges(options: dict[str, object]) -> None:
    conv, looped = layer_of(**options), TOPOLOGY.with_self_loops
    x_VD = normal(looped.num_nodes, IN).requires_grad_()
    wanted = [x_VD, *conv.parameters()]
    out, expected = Layer(conv)(looped.block, x_VD, x_VD), by_formula(conv, looped, x_VD)
    torch.testing.assert_close(out, expected)
    grad = normal(*out.shape, seed=3)
    for mine, other in zip(
        torch.autograd.grad(out, wanted, grad), torch.autograd.grad(expected, wanted, grad), strict=True
    ):
        torch.testing.assert_close(mine, other)


def test_loops_have_a_relation_of_their_own() -> None:
    looped = TOPOLOGY.with_self_loops
    assert TOPOLOGY.relation is not None
    assert looped.relation is not None
    assert looped.weight is not None
    ends = looped.indptr[1:] - 1
    assert (looped.relation[ends] == -1).all()
    assert (looped.weight[ends] == 1).sum() > 10  # the others have loops of their own, which keep their weights
    dst = torch.repeat_interleave(TOPOLOGY.indptr.diff())
    others = TOPOLOGY.relation[TOPOLOGY.indices != dst]
    assert torch.equal(looped.relation[looped.relation >= 0], others)
    assert looped.relation.dtype == TOPOLOGY.relation.dtype


def test_relations_that_the_layer_does_not_know() -> None:
    conv = layer_of(num_relations=RELATIONS - 1)
    looped = TOPOLOGY.with_self_loops
    x_VD = normal(looped.num_nodes, IN)
    with pytest.raises(InputError, match="relational"):
        Layer(conv)(looped.block, x_VD, x_VD)
    with pytest.raises(InputError, match="num_relations"):
        GATConv(IN, OUT, HEADS, num_relations=-1)
