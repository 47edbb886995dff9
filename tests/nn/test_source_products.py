"""Source rows for their gradient alone: the same gradients, to the last bit, and no products."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outgrow.nn import Layer
from outgrow.nn.attention import GATConv
from outgrow.nn.convolution import CommNetConv, GCNConv, SAGEConv, SAGEMaxConv
from outgrow.nn.gin import GINConv
from outgrow.nn.layer import Conv, Features, NodeMessages
from outgrow.nn.source_products import skips_source_products, source_for_gradient
from outgrow.ops.linear import use_bfloat16_matmul
from support import normal, sparse_rows

NODES = torch.arange(9)
CONVS: dict[str, Callable[[], Conv]] = {
    "gcn": lambda: GCNConv(6, 4),
    "sage": lambda: SAGEConv(6, 4),
    "commnet": lambda: CommNetConv(6, 4),
    "gin": lambda: GINConv(6, 4),
    "gat": lambda: GATConv(6, 4, heads=2),
}


def gradients(layer: Layer, rows: NodeMessages, x: Tensor) -> list[Tensor | None]:
    """Of the input and all parameters, from gradients of what the rows have."""
    outs = [out for out in rows if out is not None]
    grads = [normal(*out.shape, seed=seed, dtype=out.dtype) for seed, out in enumerate(outs)]
    return list(torch.autograd.grad(outs, [x, *layer.parameters()], grads, allow_unused=True))


def assert_same_gradients(layer: Layer, x: Tensor) -> NodeMessages:
    found = source_for_gradient(layer, x, NODES)
    for mine, other in zip(gradients(layer, found, x), gradients(layer, layer.source(x, NODES), x), strict=True):
        assert (mine is None) == (other is None)
        assert mine is None or other is None or torch.equal(mine, other)
    return found


@pytest.mark.parametrize("kind", CONVS)
def test_gradients_need_no_products(kind: str) -> None:
    layer = Layer(CONVS[kind]()).double()
    found = assert_same_gradients(layer, normal(9, 6).requires_grad_())
    assert all(bool(out.isnan().all()) for out in found if out is not None)


def test_products_in_bfloat16_stay_so_in_the_backward_pass() -> None:
    layer, x = Layer(GCNConv(6, 4)), normal(9, 6, dtype=torch.float32).requires_grad_()
    with use_bfloat16_matmul():
        rows, whole = source_for_gradient(layer, x, NODES), layer.source(x, NODES)
    narrow = gradients(layer, rows, x)[0]
    assert narrow is not None
    assert torch.equal(narrow, gradients(layer, whole, x)[0])
    assert not torch.equal(narrow, gradients(layer, source_for_gradient(layer, x, NODES), x)[0])


def test_the_input_itself_is_no_product() -> None:
    layer, x = Layer(GCNConv(4, 6)).double(), normal(9, 4).requires_grad_()
    found = source_for_gradient(layer, x, NODES)
    assert found.values is not None
    assert torch.equal(found.values[:, 0], x)


def test_products_of_sparse_rows_are_computed() -> None:
    layer, rows = Layer(GCNConv(6, 4)).double(), sparse_rows(normal(9, 6), least=0.0)
    found, whole = source_for_gradient(layer, rows, NODES).values, layer.source(rows, NODES).values
    assert found is not None
    assert whole is not None
    assert torch.equal(found, whole)


class Doubled(GCNConv):
    """A convolution of a user, with other source rows than its base."""

    def source(self, x_VD: Features) -> NodeMessages:
        rows = super().source(x_VD)
        assert rows.values is not None
        return NodeMessages(2 * rows.values, None)


def test_a_class_with_a_source_of_its_own_computes_it() -> None:
    layer = Layer(Doubled(6, 4)).double()
    found = assert_same_gradients(layer, normal(9, 6).requires_grad_())
    assert found.values is not None
    assert not found.values.isnan().any()
    assert [skips_source_products(kind) for kind in (GCNConv, Doubled, SAGEMaxConv)] == [True, False, False]
