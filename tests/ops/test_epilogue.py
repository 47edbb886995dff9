"""Norm, activation, residual and dropout in one pass against one torch operation for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numba
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from outgrow.ops import memory_pool
from outgrow.ops.epilogue import DropoutSpec, LayerNormSpec, epilogue
from outgrow.ops.rng import dropout
from support import normal

Activation = Callable[[Tensor], Tensor]
ROWS, COLUMNS, EPS, KEY, P = 70, 9, 1e-5, 1234, 0.4
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def softened(y: Tensor) -> Tensor:
    return y * y.sigmoid()


ACTIVATIONS: dict[str, Activation | None] = {
    "none": None,
    "relu": torch.relu,
    "functional-relu": functional.relu,
    "elu": functional.elu,
    "custom": softened,
}
STEPS = list(product([False, True], repeat=3))


def nodes(rows: int) -> Tensor:
    return (torch.arange(rows) * 37 + 11) % 1000


def leaves(rows: int, columns: int, dtype: torch.dtype) -> list[Tensor]:
    """Rows, the norm's weight and bias, and a residual."""
    shapes = [(rows, columns), (columns,), (columns,), (rows, columns)]
    y, *others = (normal(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes))
    y[3::8] = 0
    return [y, *others]


def ours(
    given: list[Tensor], steps: tuple[bool, bool, bool], activation: Activation | None, shift: Tensor | None = None
) -> Tensor:
    (y, weight, bias, residual), (norms, adds, drops) = given, steps
    return epilogue(
        y,
        bias_F=shift,
        norm=LayerNormSpec(weight, bias, EPS) if norms else None,
        activation=activation,
        residual_NF=residual if adds else None,
        drop=DropoutSpec(nodes(len(y)), KEY, P) if drops else None,
    )


def plain(given: list[Tensor], steps: tuple[bool, bool, bool], activation: Activation | None) -> Tensor:
    (y, weight, bias, residual), (norms, adds, drops) = given, steps
    if norms:
        y = functional.layer_norm(y, y.shape[1:], weight, bias, EPS)
    if activation is not None:
        y = activation(y)
    if adds:
        y = y + residual
    return dropout(y, nodes(len(y)), KEY, P) if drops else y


def results(
    function: Callable[..., Tensor],
    given: list[Tensor],
    steps: tuple[bool, bool, bool],
    activation: Activation | None,
    dtype: torch.dtype,
    grad: Tensor,
) -> list[Tensor]:
    """Result and gradients, in the order of the leaves; those that nothing depends on are left out."""
    trained = [x.detach().to(dtype).requires_grad_() for x in given]
    out = function(trained, steps, activation)
    found = torch.autograd.grad(out, trained, grad.to(dtype), allow_unused=True)
    return [out.detach(), *(gradient for gradient in found if gradient is not None)]


def assert_same(
    given: list[Tensor], steps: tuple[bool, bool, bool], activation: Activation | None, grad: Tensor | None = None
) -> None:
    dtype = given[0].dtype
    grad = normal(*given[0].shape, seed=9, dtype=dtype) if grad is None else grad
    mine = results(ours, given, steps, activation, dtype, grad)
    expected = results(plain, given, steps, activation, torch.float64, grad)
    assert len(mine) == len(expected) == 2 + 2 * steps[0] + steps[1]
    for found, other in zip(mine, expected, strict=True):
        assert found.dtype == dtype
        tolerance = TOLERANCE[dtype] * max([1.0, *other.abs().flatten().tolist()])
        torch.testing.assert_close(found.double(), other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("steps", STEPS)
def test_every_combination(steps: tuple[bool, bool, bool], name: str) -> None:
    assert_same(leaves(ROWS, COLUMNS, torch.float64), steps, ACTIVATIONS[name])


@pytest.mark.parametrize("steps", [(True, True, True), (True, False, False), (False, False, True)])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_single_precision(name: str, steps: tuple[bool, bool, bool]) -> None:
    assert_same(leaves(ROWS, COLUMNS, torch.float32), steps, ACTIVATIONS[name])


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(("rows", "columns"), [(0, 5), (1, 1), (6, 1), (1, 40), (300, 33)])
def test_every_shape(rows: int, columns: int, steps: tuple[bool, bool, bool], name: str) -> None:
    assert_same(leaves(rows, columns, torch.float64), steps, ACTIVATIONS[name])


@pytest.mark.parametrize("name", ["none", "relu", "elu"])
@pytest.mark.parametrize("steps", STEPS)
def test_rows_and_gradients_that_are_not_contiguous(steps: tuple[bool, bool, bool], name: str) -> None:
    rows = memory_pool.LARGE_ROWS
    y, weight, bias, residual = leaves(rows, 31, torch.float64)
    padded = [memory_pool.pooled_empty_rows(rows, (31,), y).copy_(x) for x in (y, residual, normal(rows, 31, seed=9))]
    assert padded[0].stride() == (32, 1)
    assert_same([padded[0], weight, bias, padded[1]], steps, ACTIVATIONS[name], padded[2])
    turned = [x.T.contiguous().T for x in (y, residual)]
    assert_same(
        [turned[0], weight, bias, turned[1]], steps, ACTIVATIONS[name], torch.full((1, 1), 0.5).expand(rows, 31)
    )


def combine(*given: Tensor) -> Tensor:
    return ours(list(given), (True, True, True), torch.relu)


def test_gradients_are_those_of_finite_differences() -> None:
    assert torch.autograd.gradcheck(combine, [x.requires_grad_() for x in leaves(5, 6, torch.float64)])


def test_gradients_of_what_trains_only() -> None:
    for wanted in range(4):
        given = [x.requires_grad_(at == wanted) for at, x in enumerate(leaves(5, 6, torch.float64))]
        combine(*given).sum().backward()
        assert [at for at, x in enumerate(given) if x.grad is not None] == [wanted]


def test_nothing_to_do_gives_the_rows_themselves() -> None:
    y = normal(3, 4)
    assert epilogue(y) is y
    assert epilogue(y, drop=DropoutSpec(nodes(3), KEY, 0.0)) is y


def test_the_rows_and_the_residual_are_not_written() -> None:
    given = leaves(ROWS, COLUMNS, torch.float64)
    before = [x.clone() for x in given]
    grad = normal(ROWS, COLUMNS, seed=9)
    same = grad.clone()
    for steps, activation in product(STEPS, (None, torch.relu, functional.elu)):
        results(ours, given, steps, activation, torch.float64, grad)
    assert all(map(torch.equal, [*given, grad], [*before, same]))


NOT_NUMBERS = pytest.mark.parametrize(("steps", "activation"), list(product(STEPS[:4], (torch.relu, functional.elu))))


def with_what_is_no_number() -> list[Tensor]:
    given = leaves(ROWS, COLUMNS, torch.float64)
    for first, value in enumerate((torch.nan, torch.inf, -torch.inf)):
        given[0][first::4, ::2] = value
    return given


@NOT_NUMBERS
def test_what_is_not_a_number_stays_so(steps: tuple[bool, bool, bool], activation: Activation) -> None:
    given = with_what_is_no_number()
    found, expected = ours(given, steps, activation), plain(given, steps, activation)
    assert found.isnan().any()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@NOT_NUMBERS
def test_gradients_pass_what_is_not_a_number(steps: tuple[bool, bool, bool], activation: Activation) -> None:
    given, grad = with_what_is_no_number(), normal(ROWS, COLUMNS, seed=9)
    both = (results(function, given, steps, activation, torch.float64, grad) for function in (ours, plain))
    for found, other in zip(*both, strict=True):
        # what is dropped has no gradient, though ELU's slope is NaN there
        unknown = found == 0 if activation is functional.elu and steps[2] else torch.zeros_like(found, dtype=torch.bool)
        expected = other.masked_fill(unknown, 0)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("activation", [None, torch.relu, functional.elu, softened])
@pytest.mark.parametrize("steps", STEPS)
def test_a_bias_before_all(steps: tuple[bool, bool, bool], activation: Activation | None, dtype: torch.dtype) -> None:
    y, *others = leaves(ROWS, COLUMNS, dtype)
    shift, grad = normal(COLUMNS, seed=7, dtype=dtype), normal(ROWS, COLUMNS, seed=9, dtype=dtype)
    found = []
    for fused in (True, False):
        given = [x.clone().requires_grad_() for x in (y, *others, shift)]
        late = given.pop()
        apart = [given[0] + late, *given[1:]]
        out = ours(given, steps, activation, late) if fused else plain(apart, steps, activation)
        wanted = [x for x, used in zip((*given, late), (True, steps[0], steps[0], steps[1], True), strict=True) if used]
        found.append([out, *torch.autograd.grad(out, wanted, grad)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=TOLERANCE[dtype], atol=10 * TOLERANCE[dtype])


def test_what_is_not_a_number_spreads_over_its_row_in_a_norm() -> None:
    given = leaves(ROWS, COLUMNS, torch.float64)
    given[0][4, 2] = torch.nan
    out = ours(given, (True, True, False), torch.relu)
    assert out.isnan().nonzero()[:, 0].tolist() == [4] * COLUMNS


@pytest.mark.parametrize("name", ["relu", "elu"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_activations_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    activation = ACTIVATIONS[name]
    assert activation is not None
    y = torch.cat([normal(ROWS, COLUMNS, dtype=dtype), torch.zeros(1, COLUMNS, dtype=dtype)])
    grad = normal(*y.shape, seed=1, dtype=dtype)
    found = []
    for function in (lambda x: epilogue(x, activation=activation), activation):
        leaf = y.clone().requires_grad_()
        out = function(leaf)
        found.append((out.detach(), *torch.autograd.grad(out, leaf, grad)))
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("activation", [torch.relu, functional.elu])
def test_activations_keep_their_result_only(activation: Activation) -> None:
    y, kept = normal(ROWS, COLUMNS).requires_grad_(), []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = epilogue(y, activation=activation)
    assert [tensor.data_ptr() for tensor in kept] == [out.data_ptr()]


@pytest.fixture
def threads() -> Iterator[list[int]]:
    before = numba.get_num_threads()
    yield [1, min(2, numba.config.NUMBA_NUM_THREADS)]
    numba.set_num_threads(before)


def test_the_number_of_threads_changes_no_bit(threads: list[int]) -> None:
    given, grad = leaves(999, 33, torch.float32), normal(999, 33, seed=9, dtype=torch.float32)
    by_threads = []
    for count in threads:
        numba.set_num_threads(count)
        by_threads.append(results(ours, given, (True, True, True), torch.relu, torch.float32, grad))
    assert all(map(torch.equal, *by_threads))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("bias must", {"bias_F": torch.zeros(1)}),
        ("residual", {"residual_NF": torch.zeros(1, 4)}),
        ("weight of the norm", {"norm": LayerNormSpec(torch.ones(3), torch.zeros(4), EPS)}),
        ("bias of the norm", {"norm": LayerNormSpec(torch.ones(4), torch.zeros(3), EPS)}),
        ("ids of the rows", {"drop": DropoutSpec(torch.arange(1), KEY, P)}),
    ],
)
@pytest.mark.parametrize("activation", [torch.relu, softened])
def test_shapes_that_do_not_fit(name: str, given: dict[str, Any], activation: Activation) -> None:
    with pytest.raises(ValueError, match=name):
        epilogue(torch.zeros(3, 4), activation=activation, **given)
