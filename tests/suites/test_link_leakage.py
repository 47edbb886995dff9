"""No strategy shows layers the links that they are asked about: on a graph where one that is seen gives the answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import outgrow as og
from outgrow.nn import Layer, Model, SAGEConv
from outgrow.strategies.base import Strategy

PAIRS, NEGATIVES = 150, 20
NODES = 2 * PAIRS
WAYS: dict[str, Strategy] = {
    "sampled": og.Sampled(),
    "split": og.SplitParallel(),
    "migrate": og.Migrate(),
    "orchestrate": og.Orchestrate(hot_ratio=0.5, super_batch=2),
}


class Crossed(og.nn.Decoder):
    """High exactly if the neighbours of one end are the other end: 40 for a link that is seen, 0 for others."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(20.0))

    def score(self, heads_PF: Tensor, relations_P: Tensor, tails_PF: Tensor) -> Tensor:
        (own, seen), (other, theirs) = (each.split(NODES, 1) for each in (heads_PF, tails_PF))
        return self.factor * (own * theirs + seen * other).sum(1)


def matching() -> og.Graph:
    """Each node has one partner, by chance: linked in both directions, by parallel edges and by another relation."""
    one, other = np.random.default_rng(4).permutation(NODES).reshape(2, PAIRS)
    ends = [(one, other), (one, other), (other, one), (one, other)]
    edges = np.stack([np.concatenate([pair[place] for pair in ends]) for place in (0, 1)])
    relation = np.repeat([0, 0, 1, 2], PAIRS)
    return og.from_arrays(edges, features=np.eye(NODES, dtype=np.float32), relation=relation, undirected=False)


def copier() -> Model:
    """A model whose rows are the node's own features and the mean of its neighbours'."""
    copying, keeping = SAGEConv(NODES, 2 * NODES), SAGEConv(2 * NODES, 2 * NODES)
    with torch.no_grad():
        for parameter in (*copying.parameters(), *keeping.parameters()):
            parameter.zero_()
        copying.itself.weight[:, :NODES] = torch.eye(NODES)
        copying.neighbour.weight[:, NODES:] = torch.eye(NODES)
        keeping.itself.weight.copy_(torch.eye(2 * NODES))
    return Model([Layer(copying), Layer(keeping)]).requires_grad_(False).with_decoder(Crossed())


def train(way: str, **options: object) -> og.Run:
    return og.train(
        matching(),
        copier(),
        strategy=WAYS[way],
        epochs=1,
        lr=1e-3,
        batch_size=60,
        link_loss="softmax",
        negatives=NEGATIVES,
        val_links=0.1,
        test_links=0.1,
        device="cpu",
        progress=False,
        **options,
    )


@pytest.mark.parametrize("fanout", [None, (1, 1)], ids=["all", "one"])
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_that_excludes_its_links_knows_nothing(way: str, fanout: tuple[int, int] | None) -> None:
    hidden, seen = (train(way, fanout=fanout, exclude=exclude) for exclude in ("target", "none"))
    # Every node has one partner: without the batch's links it has no neighbour.
    [loss] = hidden.summary["loss"]
    assert loss == pytest.approx(math.log(1 + NEGATIVES), abs=1e-3)
    [loss] = seen.summary["loss"]
    assert loss < 0.2


@pytest.mark.parametrize("way", WAYS)
def test_held_out_links_are_as_good_as_chance(way: str) -> None:
    scores = train(way).summary["scores"]["test"]
    chance = sum(1 / rank for rank in range(1, NODES)) / NODES
    assert scores["mrr"] < 2 * chance
    assert scores["auc"] == pytest.approx(0.5, abs=0.05)
