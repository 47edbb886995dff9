"""`GINConv` multiplies rows that are sources and destinations at once by its first matrix once."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from outgrow.nn import GIN, Layer, Model
from outgrow.nn.gin import GINConv
from outgrow.nn.layer import Features
from outgrow.nn.projection import Projection
from outgrow.ops import linear_of_sum
from support import normal, sparse_rows, topology_of, whole_blocks

TOPOLOGY = topology_of(5, [(0, 1), (1, 2), (2, 0), (3, 3), (4, 1)])
FEATURES = normal(5, 6)
ROWS: dict[str, Features] = {"dense": FEATURES, "sparse": sparse_rows(FEATURES, least=0.0)}


@contextmanager
def counted_products() -> Iterator[list[Projection]]:
    """The projections that are made, in turn."""
    made: list[Projection] = []
    forward = Projection.forward

    def count(projection: Projection, x: Features) -> Tensor:
        made.append(projection)
        return forward(projection, x)

    with patch.object(Projection, "forward", count):
        yield made


def model_of(features: Features) -> Model:
    torch.manual_seed(0)
    model: Model = GIN(6, 3, 2, sparse_input=not isinstance(features, Tensor))
    return model.double()


def gradients_of(model: Model, features: Features) -> list[Tensor]:
    model(whole_blocks(model, TOPOLOGY), features).square().sum().backward()
    return [each.grad for each in model.parameters() if each.grad is not None]


@pytest.mark.parametrize("form", ROWS)
def test_the_first_product_of_a_layer_is_made_once(form: str) -> None:
    model = model_of(ROWS[form])
    with counted_products() as made:
        found = gradients_of(model, ROWS[form])
    convs = [layer.conv for layer in model.layers_list()]
    assert all(isinstance(conv, GINConv) and made.count(conv.first) == 1 for conv in convs)
    again = model_of(ROWS[form])
    with patch("outgrow.nn.gin._OwnProduct.take", lambda self, rows: None), counted_products() as made:
        expected = gradients_of(again, ROWS[form])
    assert len(made) == 2 * len(convs) + len(convs)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_rows_that_are_others_get_a_product_of_their_own() -> None:
    layer = Layer(GINConv(6, 3).double())
    block = TOPOLOGY.block
    layer.source_and_target(FEATURES, FEATURES, block.src_nodes, block.dst_nodes)
    aggregate, others = torch.zeros(5, 1, 3, dtype=torch.float64), normal(5, 6, seed=1)
    with counted_products() as made:
        found = layer.update(others, aggregate, block)
        same = layer.update(others, aggregate, block)
    assert made.count(layer.conv.first) == 2
    torch.testing.assert_close(found, same, rtol=0, atol=0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda conv: pickle.loads(pickle.dumps(conv))])
def test_a_copy_has_no_product(copied: object) -> None:
    conv = GINConv(6, 3).double()
    conv.source_and_target(FEATURES)
    assert callable(copied)
    other = copied(conv)
    with counted_products() as made:
        other.update(FEATURES, torch.zeros(5, 1, 3, dtype=torch.float64))
    assert other.first in made


@pytest.mark.parametrize(("constant", "expected"), [(True, 1), (False, 0)])
def test_eps_takes_no_gradient_as_wide_as_constant_rows(constant: bool, expected: int) -> None:
    """A layer that sums first, from raw features and from rows that need a gradient; the result has the same bits."""
    torch.manual_seed(0)
    layer = Layer(GINConv(6, 3, project_first=False).double())
    with torch.no_grad():
        layer.conv.get_parameter("eps").fill_(0.3)
    block, rows = TOPOLOGY.block, FEATURES.clone().requires_grad_(not constant)
    with patch("outgrow.nn.gin.matmul_of_sum", wraps=linear_of_sum.matmul_of_sum) as used:
        out = layer(block, rows, rows)
        found = torch.autograd.grad(out.square().sum(), list(layer.parameters()))
    assert used.call_count == expected
    tracked = FEATURES.clone().requires_grad_()
    other = layer(block, tracked, tracked)
    assert torch.equal(out, other)
    torch.testing.assert_close(
        found, torch.autograd.grad(other.square().sum(), list(layer.parameters())), rtol=1e-12, atol=1e-14
    )
