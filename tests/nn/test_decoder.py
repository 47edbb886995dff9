"""Decoders of links by their formulas, and models that have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outgrow.core.errors import InputError
from outgrow.nn import (
    GCN,
    Bilinear,
    ComplEx,
    Decoder,
    Decoupled,
    DistMult,
    Dot,
    MLPDecoder,
    Model,
    RotatE,
    TransE,
)
from outgrow.nn import decoder as decoders
from outgrow.ops.link_scores import NodePairs
from support import normal, random_topology, whole_blocks

ROWS, COLUMNS, RELATIONS, PAIRS = 12, 6, 3, 80
FIRST, SECOND = torch.randint(ROWS, (2, PAIRS), generator=torch.Generator().manual_seed(0))
RELATION = torch.arange(PAIRS) % RELATIONS
SYMMETRIC = ("dot", "distmult")


class OwnDecoder(Decoder):
    """A decoder of a user, who has read no more than the documentation."""

    num_relations = RELATIONS

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, RELATIONS * COLUMNS).view(RELATIONS, COLUMNS))

    def score(self, heads_PF: Tensor, relations_P: Tensor, tails_PF: Tensor) -> Tensor:
        return torch.sin(heads_PF + self.weight[relations_P] * tails_PF).sum(1)


MAKE: dict[str, Callable[[], Decoder]] = {
    "dot": Dot,
    "distmult": lambda: DistMult(COLUMNS, RELATIONS),
    "complex": lambda: ComplEx(COLUMNS, RELATIONS),
    "bilinear": lambda: Bilinear(COLUMNS, RELATIONS),
    "transe": lambda: TransE(COLUMNS, RELATIONS, margin=2.0),
    "transe-2": lambda: TransE(COLUMNS, RELATIONS, p=2),
    "rotate": lambda: RotatE(COLUMNS, RELATIONS),
    "rotate-2": lambda: RotatE(COLUMNS, RELATIONS, p=2, margin=-1.0),
    "mlp": lambda: MLPDecoder(COLUMNS, RELATIONS, hidden=4),
    "mlp-without-relations": lambda: MLPDecoder(COLUMNS),
    "own": OwnDecoder,
}


def make(name: str) -> Decoder:
    torch.manual_seed(3)
    return MAKE[name]().double()


def distmult() -> DistMult:
    torch.manual_seed(3)
    return DistMult(COLUMNS, RELATIONS).double()


def as_complex(row: Tensor) -> Tensor:
    half = len(row) // 2
    return row[:half] + 1j * row[half:]


def score_of(decoder: Decoder, h: Tensor, r: int, t: Tensor) -> Tensor:
    """The score of one link by the formula of its paper."""
    match decoder:
        case Dot():
            return h.dot(t) / COLUMNS**0.5
        case DistMult():
            return (h * decoder.relation[r] * t).sum()
        case ComplEx():
            return (as_complex(h) * as_complex(decoder.relation[r]) * as_complex(t).conj()).sum().real
        case Bilinear():
            return h @ decoder.relation[r] @ t
        case TransE():
            return decoder.margin - (h + decoder.relation[r] - t).abs().pow(decoder.p).sum() ** (1 / decoder.p)
        case RotatE():
            turned = as_complex(h) * torch.exp(1j * decoder.angle[r])
            return decoder.margin - (turned - as_complex(t)).abs().pow(decoder.p).sum() ** (1 / decoder.p)
        case MLPDecoder():
            weight = torch.cat([decoder.head.weight, decoder.tail.weight])
            assert decoder.head.bias is not None
            between = torch.cat([h, t]) @ weight + decoder.head.bias
            between = between if decoder.relation is None else between + decoder.relation[r]
            return between.clamp(min=0).dot(decoder.out) + decoder.out_bias
        case OwnDecoder():
            return torch.sin(h + decoder.weight[r] * t).sum()
    raise AssertionError(decoder)


def by_formula(decoder: Decoder, x: Tensor) -> Tensor:
    """A score for each pair, as it was given: from the second node to the first."""
    ends = zip(SECOND.tolist(), RELATION.tolist(), FIRST.tolist(), strict=True)
    return torch.stack([score_of(decoder, x[head], relation, x[tail]) for head, relation, tail in ends])


def scores(decoder: Decoder, x: Tensor, first: Tensor = FIRST, second: Tensor = SECOND) -> Tensor:
    """A score for each pair, as it was given."""
    pairs = NodePairs.from_endpoints(first, second, RELATION, ROWS)
    found = decoder(x, pairs)
    return torch.zeros_like(found).index_put((pairs.order.long(),), found)


def all_candidates(decoder: Decoder, x: Tensor, replaced: str) -> Tensor:
    """The scores of all pairs by what makes those of all candidates."""
    kept, other = (SECOND, FIRST) if replaced == "tail" else (FIRST, SECOND)
    table = decoder.score_candidates(x[kept], RELATION, x, replaced=replaced)
    assert table.shape == (PAIRS, ROWS)
    return table[torch.arange(PAIRS), other]


@pytest.mark.parametrize("name", MAKE)
def test_scores_and_their_gradients_are_those_of_the_formula(name: str) -> None:
    decoder, x = make(name), normal(ROWS, COLUMNS).requires_grad_()
    wanted, probe = [x, *decoder.parameters()], normal(PAIRS, seed=1)
    # A distance of zero, that of a node to itself, has one of many gradients.
    probe[FIRST == SECOND] = 0
    theirs = by_formula(decoder, x)
    expected = torch.autograd.grad((theirs.nan_to_num() * probe).sum(), wanted)
    ways = [scores(decoder, x), *(all_candidates(decoder, x, replaced) for replaced in ("tail", "head"))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoders, "BLOCK_BYTES", 8 * COLUMNS * 30)
        ways += [all_candidates(decoder, x, replaced) for replaced in ("tail", "head")]
    ways.append(decoder.score(x[SECOND], RELATION, x[FIRST]))
    for ours in ways:
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        found = torch.autograd.grad((ours * probe).sum(), wanted, retain_graph=True)
        for mine, gradient in zip(found, expected, strict=True):
            assert gradient.abs().max() > 0
            torch.testing.assert_close(mine, gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", MAKE)
def test_gradients_are_those_of_differences(name: str) -> None:
    decoder, x, relation = make(name), normal(4, COLUMNS).requires_grad_(), torch.tensor([0, 2, 0, 1])
    pairs = NodePairs.from_endpoints(torch.tensor([0, 0, 1, 3]), torch.tensor([1, 2, 2, 0]), relation, 4)
    assert torch.autograd.gradcheck(lambda rows: decoder(rows, pairs), x)
    others = normal(3, COLUMNS, seed=2).requires_grad_()
    for replaced in ("tail", "head"):
        assert torch.autograd.gradcheck(
            lambda rows, candidates, end: decoder.score_candidates(rows, relation, candidates, replaced=end),
            (x, others, replaced),
        )


@pytest.mark.parametrize("name", MAKE)
def test_scores_are_of_the_type_of_the_rows(name: str) -> None:
    decoder, x = make(name).float(), normal(ROWS, COLUMNS).float()
    assert scores(decoder, x).dtype == torch.float32
    assert all_candidates(decoder, x, "head").dtype == torch.float32
    torch.testing.assert_close(
        scores(decoder, x).double(), by_formula(decoder.double(), x.double()), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", SYMMETRIC)
def test_a_link_and_its_reverse_have_one_score(name: str) -> None:
    decoder, x = make(name), normal(ROWS, COLUMNS)
    torch.testing.assert_close(scores(decoder, x), scores(decoder, x, SECOND, FIRST), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in MAKE if name not in SYMMETRIC])
def test_a_link_and_its_reverse_have_two_scores(name: str) -> None:
    decoder, x = make(name), normal(ROWS, COLUMNS)
    apart = (scores(decoder, x) - scores(decoder, x, SECOND, FIRST)).abs()[FIRST != SECOND]
    assert apart.median() > 1e-3


@pytest.mark.parametrize("name", MAKE)
def test_rows_of_relations_are_their_parameters(name: str) -> None:
    decoder = make(name)
    rows = decoder.relation_rows(torch.tensor([2, 0, 2]))
    if name in ("dot", "own", "mlp-without-relations") or "rotate" in name:
        assert rows is None
        return
    assert rows is not None
    assert torch.equal(rows, dict(decoder.named_parameters())["relation"][[2, 0, 2]].flatten(1))
    assert rows.requires_grad


@pytest.mark.parametrize("name", MAKE)
def test_squares_of_rows_are_those_of_complex_numbers_where_rows_are_complex(name: str) -> None:
    rows = normal(ROWS, COLUMNS)
    if name == "complex" or "rotate" in name:
        expected = torch.complex(*rows.chunk(2, 1)).abs().square()
    else:
        expected = rows.abs().square()
    torch.testing.assert_close(make(name).squared_magnitudes(rows), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", MAKE)
def test_without_queries_or_candidates_there_are_no_scores(name: str) -> None:
    decoder, x, none = make(name), normal(ROWS, COLUMNS), torch.empty(0, dtype=torch.int64)
    assert decoder.score_candidates(x[:0], none, x, replaced="tail").shape == (0, ROWS)
    assert decoder.score_candidates(x[:2], RELATION[:2], x[:0], replaced="head").shape == (2, 0)
    assert decoder.score(x[:0], none, x[:0]).shape == (0,)


def test_the_end_that_candidates_replace_has_a_name() -> None:
    for decoder in (Dot(), OwnDecoder(), MLPDecoder(COLUMNS)):
        with pytest.raises(InputError, match="end of a link"):
            decoder.score_candidates(normal(2, COLUMNS), RELATION[:2], normal(3, COLUMNS), replaced="tails")


@pytest.mark.parametrize("kind", [TransE, RotatE])
def test_a_node_at_its_place_has_a_gradient(kind: type[TransE] | type[RotatE]) -> None:
    for p in (1, 2):
        decoder = kind(COLUMNS, 1, p=p)
        with torch.no_grad():
            next(decoder.parameters()).zero_()
        x = torch.ones(1, COLUMNS, requires_grad=True)
        total = decoder.score(x, torch.zeros(1, dtype=torch.int64), x).sum()
        total += decoder.score_candidates(x, torch.zeros(1, dtype=torch.int64), x, replaced="tail").sum()
        (found,) = torch.autograd.grad(total, x)
        assert found.isfinite().all()


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


@pytest.mark.parametrize("name", MAKE)
def test_what_decoders_take(name: str) -> None:
    decoder = make(name)
    accepted = [columns for columns in range(1, 9) if decoder.accepts_width(columns)]
    assert accepted == ([*range(1, 9)] if name in ("dot", "own") else [COLUMNS])
    assert decoder.num_relations == (0 if name in ("dot", "mlp-without-relations") else RELATIONS)


@pytest.mark.parametrize("kind", [DistMult, ComplEx, Bilinear, MLPDecoder])
def test_scores_of_unit_rows_begin_with_a_deviation_of_one(kind: Any) -> None:
    torch.manual_seed(0)
    heads, tails = normal(4000, 32), normal(4000, 32, seed=1)
    score = kind(32, 50).double().score(heads, torch.arange(4000) % 50, tails)
    assert (0.5 if kind is MLPDecoder else 0.9) < score.std().item() < 1.1


def test_a_complex_number_has_two_columns() -> None:
    for kind in (ComplEx, RotatE):
        with pytest.raises(InputError, match="an even number"):
            kind(5, RELATIONS)


def test_a_distance_has_one_of_two_norms() -> None:
    for kind in (TransE, RotatE):
        with pytest.raises(InputError, match="1 or 2"):
            kind(4, RELATIONS, p=3)


@pytest.mark.parametrize(("columns", "relations"), [(4, 0), (4, -1), (0, 3), (-2, 3)])
def test_relations_and_columns_of_nothing_are_refused(columns: int, relations: int) -> None:
    for kind in (DistMult, ComplEx, Bilinear, TransE, RotatE):
        with pytest.raises(InputError, match="out of range"):
            kind(columns, relations)
    with pytest.raises(InputError, match="out of range"):
        MLPDecoder(columns, min(relations, -1))


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
