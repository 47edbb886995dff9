"""A layer on a worker's share: the same rows with and without overlap, and an overlap that is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import torch
from layer_table import CONVS, EDGE_DIM, IN, RELATIONS, layer_of, one_of_each
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.ledger import Kind
from outgrow.engine.full_graph import layer_forward
from outgrow.engine.shard import FullGraphShard, PartitionShard, layer_topology
from outgrow.nn import GCNConv
from outgrow.nn.layer import Layer
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.memory_pool import LARGE_ROWS
from outgrow.runtime.distributed.async_exchange import AsyncAllToAll
from outgrow.runtime.distributed.comm import Comm
from suites.checks import named, on_workers
from support import normal, random_topology, with_edge_features, with_relations

NODES, WORKERS, KEY = 30, 3, 12345
GRAPH = with_edge_features(with_relations(random_topology(NODES, 160, weighted=True), RELATIONS), EDGE_DIM)
OWNER = torch.arange(NODES) * 7 % NODES % WORKERS
ADDITIVE = [name for name, conv in one_of_each().items() if conv.aggregation.additive]


def results(layer: Layer, share: PartitionShard | FullGraphShard, *, overlap: bool) -> tuple[Tensor, Tensor]:
    """The output for own nodes and the gradient of their input, for one fixed gradient of the output."""
    x = normal(NODES, IN)[share.owned_nodes].requires_grad_()
    out = layer_forward(layer, share, x, KEY, overlap=overlap)
    probe = normal(NODES, out.shape[1], seed=1)[share.owned_nodes]
    [grad] = torch.autograd.grad((out * probe).sum(), x)
    return out.detach(), grad


def same_layer(name: str, finish: str) -> Layer:
    """A layer with the same parameters on all workers."""
    torch.manual_seed(0)
    return layer_of(CONVS[name](), finish)


def both_ways_are_right(comm: Comm) -> None:
    """Every layer against the layer on the whole graph, with draws."""
    share, whole = PartitionShard(GRAPH, OWNER, comm), FullGraphShard(GRAPH)
    wrong = []
    for name, overlap in product(CONVS, (True, False)):
        layer = same_layer(name, "finished")
        got = results(layer, share, overlap=overlap)
        expected = [rows[share.owned_nodes] for rows in results(layer, whole, overlap=True)]
        close = (torch.allclose(*pair, rtol=1e-11, atol=1e-11) for pair in zip(got, expected, strict=True))
        wrong += [] if all(close) else [(name, overlap)]
    assert wrong == []


def padded_rows_are_right(comm: Comm) -> None:
    """Rows of 47 columns, so many that each begins at a cache line of its own: they are views of wider ones."""
    nodes = 3 * LARGE_ROWS
    graph = random_topology(nodes, 4 * nodes, seed=5)
    torch.manual_seed(0)
    layer = Layer(GCNConv(IN, 47, project_first=True)).double()
    both = []
    for share in (PartitionShard(graph, torch.arange(nodes) % comm.size, comm), FullGraphShard(graph)):
        x = normal(nodes, IN)[share.owned_nodes].requires_grad_()
        out = layer_forward(layer, share, x, None)
        [grad] = torch.autograd.grad((out * normal(nodes, 47, seed=1)[share.owned_nodes]).sum(), x)
        both.append((out.detach(), grad))
    mine = torch.arange(nodes)[comm.rank :: comm.size]
    for got, expected in zip(*both, strict=True):
        torch.testing.assert_close(got, expected[mine], rtol=1e-11, atol=1e-11)


Log = list[str]


@contextmanager
def recorded(comm: Comm) -> Iterator[Log]:
    """Names, in order, of what leaves and arrives and of what is aggregated from own rows, the halo, or both."""
    log: Log = []
    share = PartitionShard(GRAPH, OWNER, comm)
    names = {
        len(share.owned_nodes): "own edges",
        len(share.halo_nodes): "halo edges",
        len(share.owned_nodes) + len(share.halo_nodes): "all edges",
    }
    assert len(names) == 3
    aggregate, send, unload = WeightedSum.__call__, AsyncAllToAll.send_rows, AsyncAllToAll.receive

    def noted_aggregate(self: WeightedSum, block: Block, *given: Any) -> Tensor:
        log.append(names[block.edges.num_src])
        out = aggregate(self, block, *given)
        out.register_hook(lambda grad: log.append(f"{names[block.edges.num_src]} backward"))
        return out

    def noted_send(self: Any, rows: Tensor, *, is_gradient: bool) -> None:
        log.append("gradients depart" if is_gradient else "rows depart")
        send(self, rows, is_gradient=is_gradient)

    def noted_unload(self: Any) -> Tensor:
        cargo = unload(self)
        backward = torch._C._current_graph_task_id() != -1
        log.append("gradients arrive" if backward else "rows arrive")
        return cargo

    with ExitStack() as stack:
        stack.enter_context(patch.object(WeightedSum, "__call__", noted_aggregate))
        stack.enter_context(patch.object(AsyncAllToAll, "send_rows", noted_send))
        stack.enter_context(patch.object(AsyncAllToAll, "receive", noted_unload))
        yield log


def order_of(comm: Comm, name: str, *, overlap: bool) -> Log:
    """What happens on a worker in a layer, forward and backward."""
    share, layer = PartitionShard(GRAPH, OWNER, comm), same_layer(name, "bare")
    share.with_halo(torch.zeros(len(share.owned_nodes), 1), Kind.FEATURES)  # the first time ids travel, too
    with recorded(comm) as log:
        results(layer, share, overlap=overlap)
    return log


def own_edges_are_aggregated_meanwhile(comm: Comm) -> None:
    """Forward and backward."""
    log = order_of(comm, "gin-project-first", overlap=True)
    assert log == [
        "rows depart",
        "own edges",
        "rows arrive",
        "halo edges",
        "halo edges backward",
        "gradients depart",
        "own edges backward",
        "gradients arrive",
    ]


def scores_travel_beside_columns(comm: Comm) -> None:
    """Attention needs all scores before it weighs edges; the columns are under way meanwhile."""
    log = order_of(comm, "gat-concatenated", overlap=True)
    assert log[:6] == ["rows depart", "rows depart", "rows arrive", "own edges", "rows arrive", "halo edges"]
    assert log[6:9] == ["halo edges backward", "gradients depart", "own edges backward"]
    assert sorted(log[9:]) == ["gradients arrive", "gradients arrive", "gradients depart"]


def without_overlap_rows_arrive_first(comm: Comm) -> None:
    """Then all edges are aggregated at once."""
    log = order_of(comm, "gin-project-first", overlap=False)
    forward = ["rows depart", "rows arrive", "all edges"]
    assert log == [*forward, "all edges backward", "gradients depart", "gradients arrive"]


def fixed_weights_are_dealt_out_once(comm: Comm) -> None:
    """Later steps take them from where the first put them."""
    share, layer = PartitionShard(GRAPH, OWNER, comm), same_layer("gcn", "bare")
    kept: list[Any] = []
    for _ in range(2):
        results(layer, share, overlap=True)
        kept.append(share.layer_view(layer).block.edges.cache["weights by part"])
    assert kept[0] is kept[1]
    view = share.layer_view(layer)
    assert view.local_graph is not None
    parts = view.local_graph.local_edges, view.local_graph.halo_edges
    assert [len(part) for part in kept[0][1:]] == [part.edges.num_edges for part in parts]


CHECKS = named(
    both_ways_are_right,
    padded_rows_are_right,
    own_edges_are_aggregated_meanwhile,
    scores_travel_beside_columns,
    without_overlap_rows_arrive_first,
    fixed_weights_are_dealt_out_once,
)


test_three_workers = on_workers(CHECKS, WORKERS)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("name", CONVS)
def test_one_worker_is_the_layer_itself(name: str, overlap: bool) -> None:
    layer, x = same_layer(name, "finished"), normal(NODES, IN)
    expected = layer(layer_topology(GRAPH, layer).block.with_rng_key(KEY), x, x)
    assert torch.equal(layer_forward(layer, FullGraphShard(GRAPH), x, KEY, overlap=overlap), expected)


def test_the_layers_that_overlap() -> None:
    assert {"gcn", "gin-project-first", "gat-concatenated"} <= set(ADDITIVE)
    assert "sage-max" not in ADDITIVE
