"""The constant aggregate of the first layer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from outgrow.core.graph_types import GraphTypes
from outgrow.engine.constant_sums import cached_first_aggregate
from outgrow.engine.inference import infer_full_graph
from outgrow.engine.shard import FullGraphShard
from outgrow.graph.topology import Topology
from outgrow.nn import GAT, GCN, GIN, SAGE, CommNet, Conv, GINConv, HeteroConv, Layer, NNConv, PropagateConv
from outgrow.nn.model import Model
from outgrow.nn.tasks import NodeClassification
from outgrow.ops.rng import fold_in
from outgrow.strategies.base import Problem
from outgrow.strategies.full import Full
from suites.typed import EDGE_TYPES
from support import normal, random_topology, topology_of, whole_blocks, with_edge_features

TOPOLOGY = random_topology(40, 200)


def typed_pair() -> Topology:
    """Edges from authors to papers, and from papers to authors."""
    draw = np.random.default_rng(0)
    ends = [(int(src), int(20 - 20 * (src // 20) + draw.integers(20))) for src in draw.integers(0, 40, 200)]
    plain = topology_of(40, ends)
    return replace(plain, relation=(plain.indices >= 20).to(torch.int8))


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


def other_sums() -> dict[str, Callable[[], Conv]]:
    """Convolutions whose classes do not tell how edges are weighed, or what is summed for an edge."""
    kinds = EDGE_TYPES[:2]
    of_types: list[Callable[[], Conv]] = [lambda: GINConv(6, 6, project_first=False), lambda: NNConv(6, 6, 4)]
    return {
        "sum": lambda: NNConv(6, 3, 4),
        "mean": lambda: NNConv(6, 3, 4, mean=True),
        "propagation": lambda: PropagateConv(6),
        "weaker propagation": lambda: PropagateConv(6, gamma=0.5),
        **{f"types {at}": lambda at=at: HeteroConv({each: of_types[at]() for each in kinds}) for at in (0, 1)},
        "types, one each": lambda: HeteroConv(dict(zip(kinds, (make() for make in of_types), strict=True))),
    }


OTHER_SUMS = other_sums()
TYPES = GraphTypes(names=("author", "paper"), borders=(0, 20, 40), columns=(0, 0, 6), edge_types=EDGE_TYPES[:2])


@pytest.mark.parametrize("second", OTHER_SUMS)
@pytest.mark.parametrize("first", OTHER_SUMS)
def test_it_is_computed_again_for_another_sum(first: str, second: str) -> None:
    topology = with_edge_features(typed_pair(), 4)
    x, found = normal(40, 6), []
    for name in (first, second):
        model = Model([Layer(OTHER_SUMS[name]())]).double()
        model.bind_types(TYPES)
        block = whole_blocks(model, topology)[0]
        found.append(cached_first_aggregate(model, block, x))
        fresh = cached_first_aggregate(model, replace(block, edges=replace(block.edges, cache={})), x)
        assert fresh is not None
        assert torch.equal(found[-1], fresh)  # type: ignore[arg-type]
    assert (found[0] is found[1]) == (first == second)


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


@contextmanager
def one_key_for_a_class() -> Iterator[None]:
    """Sums and means of edge networks are taken for the same."""
    with patch.object(NNConv, "edge_weight_key", property(lambda conv: (NNConv,))):
        yield


MUTANTS = {one_key_for_a_class.__name__: one_key_for_a_class}


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    with MUTANTS[name](), pytest.raises(AssertionError):
        test_it_is_computed_again_for_another_sum("sum", "mean")
