"""The constant aggregate of the first layer."""

from collections.abc import Callable

import pytest
import torch

from outgrow.engine.full_graph import cached_first_aggregate
from outgrow.engine.inference import infer_full_graph
from outgrow.engine.shard import FullGraphShard
from outgrow.nn import GAT, GCN, GIN, SAGE, CommNet, Layer
from outgrow.nn.model import Model
from outgrow.nn.tasks import NodeClassification
from outgrow.ops.rng import fold_in
from outgrow.strategies.base import Problem
from outgrow.strategies.full import Full
from support import normal, random_topology, whole_blocks

TOPOLOGY = random_topology(40, 200)


@pytest.mark.parametrize("make", [GCN, SAGE, GIN, CommNet])
def test_training_with_it_gives_the_gradients_without_it(make: type[Model]) -> None:
    torch.manual_seed(0)
    model = make(6, 9, 3, dropout=0.3).double()
    x, labels, train = normal(40, 6), torch.arange(40) % 3, torch.arange(0, 40, 2)
    blocks = whole_blocks(model, TOPOLOGY)
    assert cached_first_aggregate(model, blocks[0], x) is not None
    NodeClassification().loss(model(blocks, x, fold_in(5, 1, 0))[train], labels[train], len(train)).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    problem = Problem.from_node_labels(
        FullGraphShard(TOPOLOGY), features=x, labels=labels, train=train, task=NodeClassification(), model=model, seed=5
    )
    next(iter(Full().prepare(problem).steps(1)))
    for ours, theirs in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(ours.grad, theirs, rtol=1e-12, atol=1e-14)


def test_it_is_computed_once_and_again_for_other_features() -> None:
    model = SAGE(6, 9, 3).double()
    block, x = TOPOLOGY.block, normal(40, 6)
    once = cached_first_aggregate(model, block, x)
    assert cached_first_aggregate(model, block, x) is once
    other = cached_first_aggregate(model, block, 2 * x)
    assert other is not once
    torch.testing.assert_close(other, 2 * once)


@pytest.mark.parametrize(
    "make", [lambda: GAT(6, 8, 3), lambda: SAGE(6, 4, 3), lambda: SAGE(6, 9, 3, input_dropout=0.5)]
)
def test_there_is_none_where_parameters_or_dropout_come_first(make: Callable[[], Model]) -> None:
    model = make()
    assert cached_first_aggregate(model, whole_blocks(model, TOPOLOGY)[0], normal(40, 6).float()) is None


@pytest.mark.parametrize("make", [GCN, SAGE, GIN])
def test_evaluation_takes_it_where_training_kept_it(make: type[Model], monkeypatch: pytest.MonkeyPatch) -> None:
    topology, x = random_topology(40, 200, seed=3), normal(40, 6)
    model = make(6, 9, 9, layers=1).double()
    expected = infer_full_graph(model, topology, x)
    assert cached_first_aggregate(model, whole_blocks(model, topology)[0], x) is not None
    monkeypatch.setattr(Layer, "aggregate", lambda *args: pytest.fail("the aggregate is known"))
    for chunk_bytes in (1000, 1 << 30):
        logits = infer_full_graph(model, topology, x, chunk_bytes=chunk_bytes)
        torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)
