"""Decoders of links by their formulas, and models that have one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.nn import GCN, Decoder, Decoupled, DistMult, Dot, Model
from outgrow.ops.link_scores import NodePairs
from support import normal, random_topology, whole_blocks

ROWS, COLUMNS, RELATIONS, PAIRS = 12, 5, 3, 80
FIRST, SECOND = torch.randint(ROWS, (2, PAIRS), generator=torch.Generator().manual_seed(0))
RELATION = torch.arange(PAIRS) % RELATIONS


def distmult() -> DistMult:
    torch.manual_seed(3)
    return DistMult(COLUMNS, RELATIONS).double()


DECODERS = {"dot": Dot, "distmult": distmult}


def by_formula(decoder: Decoder, x: Tensor) -> Tensor:
    """A score for each pair, as it was given."""
    product = x[FIRST] * x[SECOND]
    if isinstance(decoder, DistMult):
        return (product * decoder.relation[RELATION]).sum(1)
    return product.sum(1) / COLUMNS**0.5


def scores(decoder: Decoder, x: Tensor, first: Tensor = FIRST, second: Tensor = SECOND) -> Tensor:
    """A score for each pair, as it was given."""
    pairs = NodePairs.from_endpoints(first, second, RELATION, ROWS)
    found = decoder(x, pairs)
    return torch.zeros_like(found).index_put((pairs.order.long(),), found)


@pytest.mark.parametrize("name", DECODERS)
def test_scores_and_their_gradients_are_those_of_the_formula(name: str) -> None:
    decoder, x = DECODERS[name](), normal(ROWS, COLUMNS).requires_grad_()
    wanted, probe = [x, *decoder.parameters()], normal(PAIRS, seed=1)
    ours, theirs = scores(decoder, x), by_formula(decoder, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    pairs_of_gradients = (torch.autograd.grad((out * probe).sum(), wanted) for out in (ours, theirs))
    for mine, expected in zip(*pairs_of_gradients, strict=True):
        assert expected.abs().max() > 0
        torch.testing.assert_close(mine, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", DECODERS)
def test_queries_times_rows_are_scores(name: str) -> None:
    decoder, x = DECODERS[name](), normal(ROWS, COLUMNS)
    table = decoder.link_queries(x[FIRST], RELATION) @ x.T
    torch.testing.assert_close(table[torch.arange(PAIRS), SECOND], by_formula(decoder, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", DECODERS)
def test_a_link_and_its_reverse_have_one_score(name: str) -> None:
    decoder, x = DECODERS[name](), normal(ROWS, COLUMNS)
    torch.testing.assert_close(scores(decoder, x), scores(decoder, x, SECOND, FIRST), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_dot_product_knows_no_relations_and_is_of_the_type_of_its_rows(dtype: torch.dtype) -> None:
    x, far = normal(ROWS, COLUMNS, dtype=dtype), 1000 + RELATION
    pairs = NodePairs.from_endpoints(FIRST, SECOND, far, ROWS)
    found = Dot()(x, pairs)
    assert found.dtype == dtype
    torch.testing.assert_close(found, by_formula(Dot(), x)[pairs.order.long()])
    assert torch.equal(
        Dot().link_queries(x, torch.full((ROWS,), 77)), Dot().link_queries(x, torch.zeros(ROWS, dtype=torch.int64))
    )
    assert Dot().num_relations == 0
    assert not list(Dot().parameters())


def test_what_decoders_take() -> None:
    assert all(Dot().accepts_width(columns) for columns in (1, 5, 64))
    assert [columns for columns in range(1, 9) if distmult().accepts_width(columns)] == [COLUMNS]
    assert distmult().num_relations == RELATIONS


def test_scores_of_unit_rows_begin_with_a_deviation_of_one() -> None:
    torch.manual_seed(0)
    heads, tails = normal(4000, 32), normal(4000, 32, seed=1)
    score = DistMult(32, 50).double().score(heads, torch.arange(4000) % 50, tails)
    assert 0.9 < score.std().item() < 1.1


@pytest.mark.parametrize(("columns", "relations"), [(4, 0), (4, -1), (0, 3), (-2, 3)])
def test_scales_of_nothing_are_refused(columns: int, relations: int) -> None:
    with pytest.raises(InputError, match="out of range"):
        DistMult(columns, relations)


def models() -> dict[str, Model]:
    torch.manual_seed(0)
    options: dict[str, Any] = {"dropout": 0.3, "input_dropout": 0.4}
    return {"layers": GCN(6, 7, COLUMNS, **options).double(), "encoder": Decoupled(6, 7, COLUMNS, **options).double()}


@pytest.mark.parametrize("name", ["layers", "encoder"])
def test_a_model_with_a_decoder_has_the_parameters_of_the_one_without(name: str) -> None:
    model, decoder = models()[name], distmult()
    both = model.with_decoder(decoder)
    assert both.decoder is decoder
    assert model.decoder is None
    shared = dict(both.named_parameters())
    assert all(shared.pop(key) is parameter for key, parameter in model.named_parameters())
    assert list(shared) == ["decoder.relation"]
    assert shared["decoder.relation"] is decoder.relation
    assert all(mine is theirs for mine, theirs in zip(both.layers_list(), model.layers_list(), strict=True))
    assert both.encoder is model.encoder


@pytest.mark.parametrize("key", [None, 77])
@pytest.mark.parametrize("name", ["layers", "encoder"])
def test_a_decoder_does_not_change_what_nodes_are(name: str, key: int | None) -> None:
    model, topology, x = models()[name], random_topology(20, 80), normal(20, 6)
    blocks = whole_blocks(model, topology)
    assert torch.equal(model.with_decoder(Dot())(blocks, x, key), model(blocks, x, key))


def test_a_decoder_of_another_width_is_refused() -> None:
    model = models()["layers"]
    with pytest.raises(InputError, match=f"got:    {COLUMNS} columns"):
        model.with_decoder(DistMult(COLUMNS + 1, RELATIONS))
    with pytest.raises(InputError, match="does not take"):
        Model(model.layers_list(), decoder=DistMult(COLUMNS - 1, RELATIONS))
    assert Model(model.layers_list(), decoder=distmult()).decoder is not None
