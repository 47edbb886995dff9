"""The kernels of the sampler: sets of bits, numbers of nodes, lent memory, and the statistics of what they draw."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outgrow.ops.backend import serial_kernel
from outgrow.ops.memory_pool import ArrayPool
from outgrow.ops.rng import fold_in
from outgrow.ops.sampling.bitset import (
    add_bit,
    drain_bitset,
    empty_bitset,
    has_bit,
    lowest_bit,
    mark_word,
    scale_to_range,
)
from outgrow.ops.sampling.by_relation import sample_by_relation
from outgrow.ops.sampling.renumber import renumber_seeds, renumber_sources
from outgrow.ops.sampling.uniform import fill_uniform, find_row_bounds, sample_uniform
from outgrow.ops.sampling.weighted import sample_weighted

Draws = tuple[NDArray[np.int64], NDArray[np.float32]]
WORD = st.integers(0, 2**64 - 1)


def draw(kind: str, data: NDArray | None, count: int, most: int | list[int], key: int, nodes: int | list[int]) -> Draws:
    """What nodes choose whose rows are all the same ``count`` edges: ``[n, k]`` positions, and what they stand for."""
    ids = np.arange(nodes) if isinstance(nodes, int) else np.array(nodes)
    rows = ids, np.zeros(len(ids), np.int64), np.full(len(ids), count)
    room = len(ids) * (most if isinstance(most, int) else count)
    out = np.empty(len(ids) + 1, np.int64), np.empty(room, np.int64), np.empty(room, np.float32)
    bits = empty_bitset(count + 64 * 8)
    if kind == "uniform":
        kept = sample_uniform(rows, most, np.uint64(key), bits, out)
    elif kind == "weighted":
        kept = sample_weighted(rows, data, most, np.uint64(key), bits, out)
    else:
        kept = sample_by_relation(rows, data, np.array(most), np.uint64(key), bits, out)
    assert not bits[0].any()
    assert not bits[1].any()
    assert (np.diff(out[0]) == kept // len(ids)).all()
    return out[1][:kept].reshape(len(ids), -1), out[2][:kept].reshape(len(ids), -1)


def inclusion(chosen: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """``[n, d]``: whether each node chose each edge, as 0 or 1."""
    out = np.zeros((len(chosen), count))
    np.put_along_axis(out, chosen, 1, axis=1)
    return out


def assert_like_chi_square(statistic: float, freedom: int) -> None:
    """Neither more nor less than chance gives; 5 standard deviations."""
    assert abs(statistic - freedom) < 5 * (2 * freedom) ** 0.5 + 5


@pytest.mark.parametrize(("count", "most"), [(2, 1), (5, 2), (12, 11), (64, 25), (65, 10), (300, 10), (6000, 40)])
def test_uniform_choice(count: int, most: int) -> None:
    """Every edge and every pair of edges is chosen as often as any other; none twice; in graph order."""
    number = 20_000
    chosen, stands_for = draw("uniform", None, count, most, 7, number)
    assert (np.diff(chosen, axis=1) > 0).all()
    assert chosen.min() >= 0
    assert chosen.max() < count
    assert (stands_for == np.float32(count / most)).all()
    p = most / count
    often = np.bincount(chosen.ravel(), minlength=count)
    assert_like_chi_square(((often - number * p) ** 2).sum() / (number * p * (1 - p)) * (count - 1) / count, count - 1)
    if most >= 2 and count <= 300:
        kept = inclusion(chosen, count)
        pairs = (kept.T @ kept)[np.triu_indices(count, 1)]
        p2 = most * (most - 1) / (count * (count - 1))
        score = (pairs - number * p2) / (number * p2 * (1 - p2)) ** 0.5
        assert abs(score).max() < 5.5
        assert abs((score**2).mean() - 1) < 6 * (2 / min(len(score), 2 * count)) ** 0.5


def test_uniform_over_keys_of_one_node() -> None:
    chosen = np.concatenate([draw("uniform", None, 9, 3, fold_in(1, step), [4])[0] for step in range(4000)])
    often, expected = np.bincount(chosen.ravel(), minlength=9), 4000 / 3
    assert_like_chi_square(((often - expected) ** 2).sum() / (expected * 2 / 3) * 8 / 9, 8)


@pytest.mark.parametrize(
    "parts", [((0, 0, 1, 2), (0, 0, 2, 2)), ((0, 0, 1, 2), (1, 0, 1, 2)), ((0, 0, 1, 2), (0, 1, 1, 2))]
)
@pytest.mark.parametrize("count", [6, 80])
def test_layers_epochs_and_steps_are_independent(parts: tuple[tuple[int, ...], ...], count: int) -> None:
    """The joint choice of one in-edge for two keys: all pairs are equally frequent."""
    number = 40_000
    one, other = (draw("uniform", None, count, 1, fold_in(3, *part), number)[0][:, 0] * 6 // count for part in parts)
    size = np.bincount(np.arange(count) * 6 // count)
    expected = number * np.outer(size, size) / count**2
    joint = np.bincount(one * 6 + other, minlength=36).reshape(6, 6)
    assert_like_chi_square(((joint - expected) ** 2 / expected).sum(), 35)


def in_turn(weight: list[float], most: int) -> NDArray[np.float64]:
    """Probability that each edge is among those taken one after the other by the weight that is left."""
    out = np.zeros(len(weight))
    for order in permutations(range(len(weight)), most):
        p, left = 1.0, sum(weight)
        for j in order:
            p, left = p * weight[j] / left, left - weight[j]
        out[list(order)] += p
    return out


@pytest.mark.parametrize(("weight", "most"), [([1, 2, 3, 4], 2), ([5, 0.1, 1, 1, 0.5], 3), ([1, 1, 1, 1, 30], 1)])
def test_weighted_choice(weight: list[float], most: int) -> None:
    number, p = 30_000, in_turn(weight, most)
    chosen, stands_for = draw("weighted", np.float32(weight), len(weight), most, 11, number)
    often = np.bincount(chosen.ravel(), minlength=len(weight))
    assert (abs(often - number * p) < 5 * (number * p * (1 - p)) ** 0.5).all()
    np.testing.assert_allclose(stands_for * np.float32(weight)[chosen], sum(np.float32(weight)) / most, rtol=1e-5)


def test_edges_of_weight_zero_are_not_drawn() -> None:
    weight = np.float32([0, 2, 0, 1, 1, 0])
    chosen, _ = draw("weighted", weight, 6, 2, 0, 2000)
    assert set(chosen.ravel()) == {1, 3, 4}
    for most in (3, 4, 5):
        chosen, stands_for = draw("weighted", weight, 6, most, 0, 5)
        assert (chosen == [1, 3, 4]).all()
        assert (stands_for == 1).all()
    assert (draw("weighted", weight, 6, 6, 0, 5)[0] == range(6)).all()


def test_equal_weights_are_drawn_alike() -> None:
    chosen, _ = draw("weighted", np.full(200, 0.3, np.float32), 200, 10, 5, 10_000)
    often, p = np.bincount(chosen.ravel(), minlength=200), 10 / 200
    assert_like_chi_square(((often - 10_000 * p) ** 2).sum() / (10_000 * p * (1 - p)) * 199 / 200, 199)


def test_choice_by_relation() -> None:
    relation = np.array([0, 1, 0, 2, 0, 1, 0, 1, 0, -1], np.int8)
    chosen, stands_for = draw("related", relation, 10, [2, 2, 5, 2**62], 3, 20_000)
    kept, share = inclusion(chosen, 10), np.array([5 / 2, 3 / 2, 1, 1])[relation]
    for r, most in ((0, 2), (1, 2), (2, 1), (-1, 1)):
        assert (kept[:, relation == r].sum(1) == most).all()
    np.testing.assert_allclose(stands_for, share[chosen], rtol=1e-6)
    p = 1 / share
    assert (abs(kept.sum(0) - 20_000 * p) <= 5 * (20_000 * p * (1 - p)) ** 0.5).all()
    both = (kept[:, 0] * kept[:, 1]).mean()
    assert abs(both - p[0] * p[1]) < 5 * (both / 20_000) ** 0.5


@pytest.mark.parametrize(("kind", "most"), [("uniform", 3), ("related", [1, 2, 2**62])])
def test_the_mean_of_estimates_is_the_sum(kind: str, most: int | list[int]) -> None:
    x = np.random.default_rng(0).standard_normal(9)
    relation = np.array([0, 0, 1, 0, 1, 1, 0, 1, 1], np.int16)
    chosen, stands_for = draw(kind, relation, 9, most, 13, 40_000)
    sums = (x[chosen] * stands_for).sum(1)
    assert abs(sums.mean() - x.sum()) < 4 * sums.std() / 200
    assert sums.std() > 0.1


def test_draws_of_numbers() -> None:
    out = np.empty(20_000)
    fill_uniform(np.uint64(5), out)
    assert out[3] == (fold_in(5, 3) >> 11) / 2**53
    assert_like_chi_square(((np.bincount((out * 50).astype(int)) - 400) ** 2).sum() / 400, 49)


def test_rows_are_measured() -> None:
    nodes = np.array([3, 0, 2])
    rows = nodes, np.empty(3, np.int64), np.empty(3, np.int64)
    assert find_row_bounds(rows, np.array([0, 4, 4, 5, 9]), 3) == (7, 9)
    assert rows[1].tolist() == [5, 0, 4]
    assert rows[2].tolist() == [4, 4, 1]


@serial_kernel
def scaled_and_lowest(hashed: np.uint64, count: np.uint64, word: np.uint64) -> tuple[np.uint64, int]:
    return scale_to_range(hashed, count), lowest_bit(word)


@given(WORD, WORD, st.integers(1, 2**64 - 1))
@settings(deadline=None)
def test_words(hashed: int, count: int, word: int) -> None:
    number, place = scaled_and_lowest(np.uint64(hashed), np.uint64(count), np.uint64(word))
    assert int(number) == hashed * count >> 64
    assert place == (word & -word).bit_length() - 1


@serial_kernel
def sorted_set(numbers: NDArray, words: NDArray, groups: NDArray, most: int, out: NDArray) -> tuple[int, int]:
    repeated = 0
    for number in numbers:
        repeated += has_bit(words, 0, number)
        mark_word(groups, add_bit(words, 0, number))
    return drain_bitset(words, groups, most, 5, out, 1), repeated


@given(st.lists(st.integers(0, 20_000)))
@settings(deadline=None)
def test_sets_of_bits(numbers: list[int]) -> None:
    bits, out = empty_bitset(20_001), np.full(len(numbers) + 1, -1)
    end, repeated = sorted_set(np.array(numbers, dtype=np.uint64), *bits, 20_001, out)
    wanted = sorted(set(numbers))
    assert out[1:end].tolist() == [number + 5 for number in wanted]
    assert repeated == len(numbers) - len(wanted)
    assert not bits[0].any()
    assert not bits[1].any()


def test_nodes_are_numbered_by_first_appearance() -> None:
    table, indices = np.array([0, 99, 7, 0, 100, 3], np.int32), np.array([5, 2, 4, 1, 5, 0])
    assert renumber_seeds(np.array([2, 4]), table, 101) == 2
    nodes, local = np.array([2, 4, 0, 0, 0, 0, 0]), np.empty(5, np.int32)
    assert renumber_sources(np.array([4, 1, 3, 0, 2]), indices, table, 101, nodes, 2, local) == 4
    assert nodes[:4].tolist() == [2, 4, 5, 1]
    assert local.tolist() == [2, 0, 3, 2, 1]


@pytest.mark.parametrize(("seeds", "good"), [([1, 0, 1], 2), ([0, 2], 1), ([-1], 0), ([1, 0], 2)])
def test_bad_seeds_are_found(seeds: list[int], good: int) -> None:
    assert renumber_seeds(np.array(seeds), np.zeros(2, np.int32), 1) == good


def test_memory_is_lent_again_once_nothing_refers_to_it() -> None:
    memory = ArrayPool()
    first = memory.empty_array(100_000, np.float32)
    place, part = first.ctypes.data, first[10:20]
    assert first.shape == (100_000,)
    assert first.dtype == np.float32
    del first
    assert memory.empty_array(90_000, np.float32).ctypes.data != place
    del part
    assert place in {memory.empty_array(count, np.int64).ctypes.data for count in (40_000, 50_000)}
    assert memory.empty_array(0, np.int64).shape == (0,)
    assert memory.empty_array(3, np.int32).shape == (3,)
