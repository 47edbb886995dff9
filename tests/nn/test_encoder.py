"""Encoders: what they make of each node alone, their draws, and models that begin with one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from outgrow.core.errors import InputError
from outgrow.engine.inference import infer_full_graph
from outgrow.nn import (
    GCN,
    AttentionScores,
    Encoder,
    Epilogue,
    GCNConv,
    Layer,
    LinearEncoder,
    Model,
    PropagateConv,
    SAGEConv,
    SequentialEncoder,
)
from outgrow.nn.layer import Features
from outgrow.ops.rng import dropout, fold_in
from outgrow.ops.sparse import SparseRows
from support import normal, random_topology

NODES, IN = 30, 6
KEY = 0xFEDCBA9876543210
IDS = torch.arange(NODES) * 3 + 1
HIDDEN = Epilogue(norm=True, activation=functional.elu, dropout=0.4)


def filled(encoder: Encoder) -> Encoder:
    """The encoder in float64; none of its parameters is zero."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return encoder.double()


def chain() -> SequentialEncoder:
    return SequentialEncoder(
        [
            LinearEncoder(IN, 5, HIDDEN),
            LinearEncoder(5, 5, Epilogue(residual=True, dropout=0.3)),
            LinearEncoder(5, 4),
            AttentionScores(4, 2),
        ]
    )


ENCODERS: dict[str, Callable[[], Encoder]] = {
    "dense": lambda: LinearEncoder(IN, 5, HIDDEN),
    "dense with a residual": lambda: LinearEncoder(IN, IN, Epilogue(activation=torch.relu, residual=True, dropout=0.4)),
    "chain": chain,
}


def sparse_and_dense() -> tuple[SparseRows, Tensor]:
    """The same rows; some have no values."""
    dense = normal(NODES, IN, seed=2) * (normal(NODES, IN, seed=1) > 0.5)
    stored = dense != 0
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), stored.sum(1).cumsum(0)])
    columns = stored.nonzero()[:, 1].int()
    return SparseRows(indptr=ends, indices=columns, values=dense[stored], num_columns=IN), dense


def test_a_dense_encoder_is_the_formula() -> None:
    encoder, x = LinearEncoder(IN, 5, HIDDEN), normal(NODES, IN)
    filled(encoder)
    assert encoder.norm is not None
    product = x @ encoder.project.weight + encoder.bias
    after = functional.elu(functional.layer_norm(product, (5,), encoder.norm.weight, encoder.norm.bias))
    torch.testing.assert_close(encoder(x, IDS, None), after, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(encoder(x, IDS, KEY), dropout(after, IDS, KEY, 0.4), rtol=1e-12, atol=1e-12)


def test_nothing_follows_by_default() -> None:
    encoder, x = LinearEncoder(IN, 5), normal(NODES, IN)
    filled(encoder)
    expected = x @ encoder.project.weight + encoder.bias
    torch.testing.assert_close(encoder(x, IDS, KEY), expected, rtol=1e-13, atol=1e-13)
    assert encoder.norm is None


def test_scores_are_beside_what_they_are_of() -> None:
    encoder, x = AttentionScores(IN, 2), normal(NODES, IN)
    filled(encoder)
    found = encoder(x, IDS, KEY)
    assert (encoder.in_features, encoder.out_features) == (IN, IN + 4)
    assert torch.equal(found[:, :IN], x)
    torch.testing.assert_close(found[:, IN:], x @ encoder.score.weight, rtol=1e-13, atol=1e-13)


def test_a_chain_is_its_encoders_each_with_a_key_of_its_own() -> None:
    encoder, x = chain(), normal(NODES, IN)
    filled(encoder)
    for key in (None, KEY):
        expected = x
        for index, each in enumerate(encoder.encoders):
            expected = each(expected, IDS, None if key is None else fold_in(key, index))
        assert torch.equal(encoder(x, IDS, key), expected)
    twins = SequentialEncoder(
        [LinearEncoder(IN, IN, Epilogue(dropout=0.5)), LinearEncoder(IN, IN, Epilogue(dropout=0.5))]
    )
    filled(twins)
    first, second = (each(x, IDS, fold_in(KEY, index)) == 0 for index, each in enumerate(twins.encoders))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_draw_does_not_depend_on_the_rows_computed_with_it(name: str) -> None:
    encoder, x = filled(ENCODERS[name]()), normal(NODES, IN)
    whole = encoder(x, IDS, KEY)
    some = torch.tensor([17, 3, 4, 29])
    torch.testing.assert_close(encoder(x[some], IDS[some], KEY), whole[some], rtol=1e-12, atol=1e-12)
    others = encoder(x[some], IDS[some] + 1, KEY)
    assert not torch.allclose(others, whole[some])
    assert not torch.allclose(encoder(x, IDS, KEY + 1), whole)


@pytest.mark.parametrize("name", ENCODERS)
def test_without_a_key_nothing_is_drawn(name: str) -> None:
    encoder, x = filled(ENCODERS[name]()), normal(NODES, IN)
    plain = encoder(x, IDS, None)
    assert torch.equal(plain, encoder(x, IDS.flip(0), None))
    assert not torch.allclose(plain, encoder(x, IDS, KEY))


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("make", [lambda: LinearEncoder(IN, 5, HIDDEN), chain], ids=["dense", "chain"])
def test_sparse_rows_give_what_dense_rows_give(make: Callable[[], Encoder], key: int | None) -> None:
    encoder = filled(make())
    assert encoder.accepts_sparse
    given: tuple[Features, ...] = sparse_and_dense()
    outs = [encoder(x, IDS, key) for x in given]
    torch.testing.assert_close(outs[0], outs[1], rtol=1e-12, atol=1e-12)
    ours, expected = (torch.autograd.grad(out.square().sum(), list(encoder.parameters())) for out in outs)
    for mine, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-11)


def test_what_takes_sparse_rows() -> None:
    first, second = LinearEncoder(IN, 5, HIDDEN), LinearEncoder(5, 5, Epilogue(residual=True))
    assert (first.accepts_sparse, second.accepts_sparse, AttentionScores(5, 1).accepts_sparse) == (True, False, False)
    assert SequentialEncoder([first, second]).accepts_sparse
    assert SequentialEncoder([first, second]).accepts_half
    assert not SequentialEncoder([second, second]).accepts_sparse
    assert not SequentialEncoder([second, second]).accepts_half


def test_widths_of_a_chain() -> None:
    encoder = chain()
    assert (encoder.in_features, encoder.out_features) == (IN, 8)
    assert encoder.activation_width == sum(
        each.activation_width
        for each in (LinearEncoder(IN, 5), LinearEncoder(5, 5), LinearEncoder(5, 4), AttentionScores(4, 2))
    )


@pytest.mark.parametrize(
    ("encoders", "told"),
    [
        (lambda: [], "a chain has no encoders"),
        (lambda: [LinearEncoder(4, 5), LinearEncoder(6, 2)], "6 columns, which an encoder takes\n  got:    5 columns"),
        (
            lambda: [LinearEncoder(4, 5), AttentionScores(5, 2), LinearEncoder(5, 2)],
            "5 columns, which an encoder takes\n  got:    9 columns",
        ),
    ],
)
def test_a_chain_that_does_not_fit(encoders: Callable[[], list[Encoder]], told: str) -> None:
    with pytest.raises(InputError, match=told):
        SequentialEncoder(encoders())


def test_a_residual_needs_equal_widths() -> None:
    with pytest.raises(InputError, match="in 4, out 5"):
        LinearEncoder(4, 5, Epilogue(residual=True))


def test_a_model_whose_encoder_does_not_fit() -> None:
    with pytest.raises(InputError, match="5 columns, which the first layer takes\n  got:    4 columns"):
        Model([Layer(GCNConv(5, 3))], encoder=LinearEncoder(IN, 4))


def model(dropped: float = 0.3) -> Model:
    """A model with an encoder, whose first layer would pass features on."""
    torch.manual_seed(0)
    encoder = SequentialEncoder([LinearEncoder(IN, 7, HIDDEN), LinearEncoder(7, 5)])
    layers = [Layer(PropagateConv(5, gamma=0.8)), Layer(SAGEConv(5, 9), HIDDEN), Layer(GCNConv(9, 3))]
    return Model(layers, input_dropout=dropped, encoder=encoder).double()


def test_what_a_model_with_an_encoder_reads() -> None:
    with_one, without = model(), GCN(IN, 8, 3)
    assert with_one.first_reader is with_one.encoder
    assert with_one.in_features == IN
    assert not with_one.source_is_features
    assert without.first_reader is without.layers_list()[0]
    assert without.source_is_features


def test_features_are_dropped_and_then_encoded() -> None:
    given, x = model(), normal(NODES, IN)
    assert given.encoder is not None
    expected = given.encoder(dropout(x, IDS, fold_in(KEY, 0), 0.3), IDS, fold_in(KEY, 0, 0))
    assert torch.equal(given.encode_input(x, IDS, KEY), expected)
    assert torch.equal(given.encode_input(x, IDS, None), given.encoder(x, IDS, None))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("chunk_bytes", [1, 1000, 5000])
def test_inference_in_chunks_is_inference_in_one_piece(chunk_bytes: int, dtype: torch.dtype) -> None:
    """Also of features in another type than the model's."""
    given, topology, x = model(), random_topology(NODES, 150, weighted=True), normal(NODES, IN, dtype=dtype)
    whole = infer_full_graph(given, topology, x.double())
    found = infer_full_graph(given, topology, x, chunk_bytes=chunk_bytes)
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-12)


def test_inference_of_features_in_half_precision() -> None:
    given, topology, x = model().float(), random_topology(NODES, 150), normal(NODES, IN).half()
    whole = infer_full_graph(given, topology, x)
    assert whole.dtype == torch.float32
    torch.testing.assert_close(whole, infer_full_graph(given, topology, x.float()), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(infer_full_graph(given, topology, x, chunk_bytes=900), whole, rtol=1e-6, atol=1e-6)


def test_inference_of_sparse_features_in_chunks() -> None:
    given, topology, (sparse, dense) = model(), random_topology(NODES, 150), sparse_and_dense()
    whole = infer_full_graph(given, topology, dense)
    for chunk_bytes in (900, 1 << 20):
        torch.testing.assert_close(
            infer_full_graph(given, topology, sparse, chunk_bytes=chunk_bytes), whole, rtol=1e-12, atol=1e-12
        )


def test_later_layers_begin_with_what_was_encoded_before() -> None:
    given, topology, x = model(), random_topology(NODES, 150), normal(NODES, IN)
    first, *others = given.layers_list()
    middle = infer_full_graph(given, topology, x, layers=[first])
    assert middle.shape == (NODES, 5)
    assert torch.equal(infer_full_graph(given, topology, middle, layers=others), infer_full_graph(given, topology, x))
