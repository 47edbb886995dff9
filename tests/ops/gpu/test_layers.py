"""Layers and operations on the twins against the CPU kernels: dispatch, order of arguments, the code around them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from layer_table import CONVS, EDGE_DIM, IN, RELATIONS, layer_of
from torch import Tensor
from torch.autograd import grad

from outgrow.core.block import Block
from outgrow.graph.topology import Topology
from outgrow.nn import Layer
from outgrow.ops.aggregation.attention import attention_weight
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.epilogue import DropoutSpec, LayerNormSpec, epilogue, layer_norm
from outgrow.ops.linear import affine
from outgrow.ops.rng import dropout_sparse
from outgrow.ops.sparse import SparseRows
from support import normal, random_topology, topologies, topology_of, with_edge_features, with_relations

KEY = 0xFEDCBA9876543210
LIMIT = {torch.float64: 1e-12, torch.float32: 2e-5}
FEW_EDGES = random_topology(8, 20, weighted=True)
"""8 nodes, of which one has many edges."""
HUB = topology_of(9, [(u, 3) for u in range(9)] * 4 + [(3, 0)], weighted=True)
Work = Callable[..., Any]
Compare = Callable[..., None]


def moved(given: Any, device: str) -> Any:
    """Tensors, and records of them, on another device; nothing that was derived from them."""
    if isinstance(given, Tensor):
        return given.detach().to(device).requires_grad_(given.requires_grad)
    if not dataclasses.is_dataclass(given):
        return given
    fields = {field.name: getattr(given, field.name) for field in dataclasses.fields(given) if field.init}
    fields = {name: {} if name == "cache" else moved(value, device) for name, value in fields.items()}
    return type(given)(**fields)


def results(work: Work, given: list[Any]) -> list[Tensor]:
    """What a function gives, and the gradients of the tensors that it was given."""
    out = work(*given)
    leaves = [each for each in given if isinstance(each, Tensor) and each.requires_grad]
    probe = torch.linspace(-1, 2, out.numel(), dtype=out.dtype, device=out.device).sin().view_as(out)
    return [out.detach(), *(grad(out, leaves, probe) if leaves else [])]


@pytest.fixture
def compare(device: str, monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Runs a function on CPU kernels and on their twins, and compares results and gradients."""
    pytest.importorskip("triton", reason="the twins need triton")

    seen = []

    def is_tensor(value: object) -> bool:
        seen.append(value)
        return isinstance(value, Tensor)

    def both(work: Work, *given: Any, may_be_zero: bool = False) -> None:
        expected = results(work, [moved(each, "cpu") for each in given])
        assert may_be_zero or all(each.abs().sum() > 0 for each in expected)
        with monkeypatch.context() as patch:
            if device == "cpu":
                patch.setattr("outgrow.ops.gpu.launch.SEGMENT", 5)
                patch.setattr("outgrow.ops.backend._on_gpu", is_tensor)
                patch.setattr("outgrow.ops.epilogue.is_fused_activation", lambda activation: False)  # as on a GPU
            mine = results(work, [moved(each, device) for each in given])
        assert seen or device == "cuda"
        for one, other in zip(mine, expected, strict=True):
            limit = LIMIT[other.dtype]
            torch.testing.assert_close(one.cpu(), other, rtol=limit, atol=limit)

    return both


def block_for(layer: Layer | None = None, topology: Topology = FEW_EDGES) -> Block:
    """A block of a whole graph, with all that edges can have."""
    topology = with_edge_features(with_relations(topology, RELATIONS), EDGE_DIM)
    return (topology.with_self_loops if layer is not None and layer.spec.self_loops else topology).block


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, seed=seed).requires_grad_()


def compare_layer(compare: Compare, conv: str, topology: Topology = FEW_EDGES, *, may_be_zero: bool = False) -> None:
    layer = layer_of(CONVS[conv](), "finished")

    def forward(block: Block, x: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(dict(layer.named_parameters()), parameters, strict=True))
        return torch.func.functional_call(layer, named, (block.with_rng_key(KEY), x, x))

    given = block_for(layer, topology), leaf(topology.num_nodes, IN), *layer.parameters()
    compare(forward, *given, may_be_zero=may_be_zero)


@pytest.mark.parametrize("conv", CONVS)
def test_layers(compare: Compare, conv: str) -> None:
    compare_layer(compare, conv)


@pytest.mark.slow
@pytest.mark.parametrize("conv", CONVS)
@example(topology=topology_of(1, [], weighted=True))
@example(topology=topology_of(4, [], weighted=True))
@example(topology=HUB)
@given(topology=topologies(weighted=True))
@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_layers_on_any_graph(compare: Compare, conv: str, topology: Topology) -> None:
    """Also one node, no edges, parallel edges, and a hub whose row is cut."""
    compare_layer(compare, conv, topology, may_be_zero=True)


@pytest.mark.parametrize("edge_scores", [False, True])
def test_attention(compare: Compare, edge_scores: bool) -> None:
    block = block_for()
    scores = leaf(8, 6)  # of both ends, so that neither is contiguous

    def attend(block: Block, scores: Tensor, edge: Tensor | None) -> Tensor:
        return attention_weight(block.edges, scores[:, :3], scores[:, 3:], 0.2, edge)

    compare(attend, block, scores, leaf(block.edges.num_edges, 3, seed=1) if edge_scores else None)


@pytest.mark.parametrize(("channels", "weights"), [(1, None), (2, 2), (1, 2)])
def test_sums_of_column_slices(compare: Compare, channels: int, weights: int | None) -> None:
    block = block_for()
    weight = None if weights is None else leaf(block.edges.num_edges, weights, seed=1)
    x = leaf(8, channels, 6)
    compare(lambda block, x, weight: WeightedSum()(block, x[..., 2:5], None, weight), block, x, weight)


def test_gradients_of_weights_alone(compare: Compare) -> None:
    block = block_for()
    given = normal(8, 1, 3), leaf(block.edges.num_edges, 2)
    compare(lambda block, x, weight: WeightedSum()(block, x, None, weight), block, *given)


def test_half_precision(compare: Compare) -> None:
    block = block_for()
    x, weight = normal(8, 1, 3, dtype=torch.bfloat16), normal(block.edges.num_edges, 1, dtype=torch.float32)
    compare(lambda block, x, weight: WeightedSum()(block, x, None, weight), block, x, weight)


def test_norm_and_dropout(compare: Compare) -> None:
    wide, weight, bias = (leaf(*shape, seed=at) for at, shape in enumerate([(5, 14), (7,), (7,)]))

    def run(wide: Tensor, weight: Tensor, bias: Tensor, nodes: Tensor) -> Tensor:
        normed = layer_norm(wide[:, ::2], weight, bias, 1e-5)
        return epilogue(normed, drop=DropoutSpec(nodes, KEY, 0.4))

    compare(run, wide, weight, bias, torch.arange(5) * 10**9)


def test_everything_that_follows_a_layer(compare: Compare) -> None:
    shapes = [(5, 4), (5, 3), (4, 7), (3, 7), (7,), (7,), (7,), (5, 7)]

    def run(x: Tensor, y: Tensor, to_x: Tensor, to_y: Tensor, bias: Tensor, *then: Tensor) -> Tensor:
        weight, shift, residual, nodes = then
        out = affine((x, to_x), (y, to_y), bias_O=bias)
        norm, drop = LayerNormSpec(weight, shift, 1e-5), DropoutSpec(nodes, KEY, 0.4)
        return epilogue(out, norm=norm, activation=torch.nn.functional.elu, residual_NF=residual, drop=drop)

    compare(run, *(leaf(*shape, seed=at) for at, shape in enumerate(shapes)), torch.arange(5))


def test_sparse_rows(compare: Compare) -> None:
    rows = SparseRows(
        indptr=torch.tensor([0, 2, 2, 7]),
        indices=torch.tensor([0, 3, 0, 1, 2, 3, 4], dtype=torch.int32),
        values=normal(7),
        num_columns=5,
    )

    def run(rows: SparseRows, weight_OD: Tensor) -> Tensor:
        return dropout_sparse(rows, torch.arange(3, device=weight_OD.device), KEY, 0.3) @ weight_OD.T

    compare(run, rows, leaf(3, 5, seed=1))
