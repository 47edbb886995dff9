"""Links that are not there: what they depend on, and how they are spread."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outgrow.ops.link_scores import sample_negatives
from outgrow.ops.rng import fold_in

ENDS = torch.tensor([0, 1, 4, 20])
ONE_TYPE = torch.tensor([0, 20])


def links(count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Heads, tails, and numbers, which are neither consecutive nor in order."""
    random = np.random.default_rng(seed)
    ends = random.integers(0, 20, (2, count))
    return *map(torch.from_numpy, ends), torch.from_numpy(random.permutation(3 * count)[:count])


def kept_heads(head: Tensor, number: Tensor, key: int) -> Tensor:
    """Whether a link keeps its head: the first of the draws that it has, in plain Python."""
    drawn = [fold_in(fold_in(key, each), 0) >> 11 for each in number.tolist()]
    return torch.tensor([each < 1 << 52 for each in drawn], dtype=torch.bool)


@given(count=st.integers(0, 40), key=st.integers(0, 2**64 - 1), chosen=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_neither_order_nor_company_changes_a_draw(count: int, key: int, chosen: Random) -> None:
    head, tail, number = links(count)
    whole = sample_negatives(head, tail, number, ENDS, key)
    some = torch.tensor(chosen.sample(range(count), chosen.randint(0, count)), dtype=torch.int64)
    part = sample_negatives(head[some], tail[some], number[some], ENDS, key)
    for mine, expected in zip(part, whole, strict=True):
        assert mine.dtype == torch.int64
        assert torch.equal(mine, expected[some])


@given(count=st.integers(0, 40), key=st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=60)
def test_one_end_is_kept_and_the_other_replaced_by_a_node_of_its_type(count: int, key: int) -> None:
    head, tail, number = links(count)
    kept, drawn = sample_negatives(head, tail, number, ENDS, key)
    keeps_head = kept_heads(head, number, key)
    assert torch.equal(kept, torch.where(keeps_head, head, tail))
    replaced = torch.where(keeps_head, tail, head)
    assert torch.equal(*(torch.bucketize(nodes, ENDS, right=True) for nodes in (drawn, replaced)))


def test_a_type_of_one_node_is_replaced_by_itself_and_one_without_nodes_is_never_drawn() -> None:
    ends = torch.tensor([0, 1, 1, 3])
    head, tail, number = torch.zeros(200, dtype=torch.int64), torch.full((200,), 2), torch.arange(200)
    kept, drawn = sample_negatives(head, tail, number, ends, 5)
    assert not drawn[kept == 2].any()
    assert set(drawn[kept == 0].tolist()) == {1, 2}


def test_both_ends_are_replaced_about_equally_and_nodes_are_drawn_about_alike() -> None:
    count = 100_000
    number = torch.arange(count)
    head, tail = torch.full((count,), 5), torch.full((count,), 2)
    kept, drawn = sample_negatives(head, tail, number, ENDS, 17)
    keeps_head = kept == 5
    assert abs(keeps_head.double().mean().item() - 0.5) < 0.01
    for nodes, (first, last) in ((drawn[keeps_head], (1, 4)), (drawn[~keeps_head], (4, 20))):
        counts = nodes.bincount(minlength=20)[first:last].double()
        expected = len(nodes) / (last - first)
        assert counts.sum() == len(nodes)
        chi_square = ((counts - expected) ** 2 / expected).sum().item()
        assert chi_square < 3 * (last - first)


def test_which_end_says_nothing_of_which_node() -> None:
    number = torch.arange(40_000)
    both = torch.full((40_000,), 3)
    head = torch.zeros_like(both)
    kept, drawn = sample_negatives(head, both, number, ONE_TYPE, 3)
    means = [drawn[kept == node].double().mean().item() for node in (0, 3)]
    assert means == pytest.approx([9.5, 9.5], abs=0.2)


@pytest.mark.parametrize("other", ["key", "number"])
def test_another_key_or_number_is_another_draw(other: str) -> None:
    head, tail, number = links(5000)
    first = sample_negatives(head, tail, number, ONE_TYPE, 1)
    changed = (number, 2) if other == "key" else (number + 15_000, 1)
    second = sample_negatives(head, tail, changed[0], ONE_TYPE, changed[1])
    alike = (first[1] == second[1]).double().mean().item()
    assert alike == pytest.approx(1 / 20, abs=0.02)
    assert (first[0] == second[0]).double().mean().item() == pytest.approx(0.5, abs=0.1)


def test_the_same_links_with_numbers_of_their_own_differ() -> None:
    head, tail = torch.full((1000,), 1), torch.full((1000,), 2)
    _, drawn = sample_negatives(head, tail, torch.arange(1000), ONE_TYPE, 9)
    assert len(drawn.unique()) == 20
    _, same = sample_negatives(head, tail, torch.zeros(1000, dtype=torch.int64), ONE_TYPE, 9)
    assert len(same.unique()) == 1
