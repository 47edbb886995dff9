"""The seeds of the steps, and the fan-outs that a user may give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import outgrow as og
from outgrow.engine.batches import EVERYTHING, Batches, hops_of

NODES = torch.tensor([9, 2, 40, 7, 11, 3, 5, 28])


@settings(deadline=None)
@given(seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 1000), size=st.integers(1, 10))
def test_every_node_is_a_seed_once(seed: int, epoch: int, size: int) -> None:
    steps = Batches(size=size).of_epoch(NODES, seed, epoch)
    assert [len(step) for step in steps[:-1]] == [size] * (len(steps) - 1)
    assert 1 <= len(steps[-1]) <= size
    assert sorted(torch.cat(steps).tolist()) == sorted(NODES.tolist())


def test_the_order_depends_on_the_key_and_on_nothing_else() -> None:
    batches = Batches(size=3)
    [first, *_] = steps = batches.of_epoch(NODES, 5, 1)
    again = batches.of_epoch(NODES.flip(0), 5, 1)
    assert all(torch.equal(one, other) for one, other in zip(steps, again, strict=True))
    assert torch.equal(torch.cat(Batches(size=4).of_epoch(NODES, 5, 1)), torch.cat(steps))
    assert torch.equal(EVERYTHING.of_epoch(NODES, 5, 1)[0], torch.cat(steps))
    others = [batches.of_epoch(NODES, 5, 2)[0], batches.of_epoch(NODES, 6, 1)[0]]
    assert not any(torch.equal(first, other) for other in others)


def test_every_place_is_as_likely_for_every_node() -> None:
    epochs = 4000
    found = torch.stack([EVERYTHING.of_epoch(NODES, 1, epoch)[0] for epoch in range(epochs)])
    expected = epochs / len(NODES)
    for node in NODES.tolist():
        counts = (found == node).sum(0)
        chi_square = ((counts - expected) ** 2 / expected).sum().item()
        assert chi_square < 24.3  # 7 degrees of freedom: one in a thousand is above


@pytest.mark.parametrize(
    ("given", "hops", "spelled"),
    [
        ("10,10", (10, 10), "10,10"),
        ("4:2,-1", ((4, 2), -1), "4:2,-1"),
        ([5, [1, 2]], (5, (1, 2)), "5,1:2"),
        ((3,), (3,), "3"),
        (None, None, "all"),
    ],
)
def test_fan_outs(given: object, hops: Any, spelled: str) -> None:
    assert hops_of(given) == hops
    assert Batches(fanout=hops).spelled() == spelled
    config = og.TrainConfig(fanout=given)  # type: ignore[arg-type]
    assert config.batches == Batches(fanout=hops)
    assert config.with_options(epochs=3).fanout == hops


@pytest.mark.parametrize("given", ["", "10,", "a", "0", "-2,3", 10, 2.5, [], [1.5], [True], {"a": 1}, [[]], ["1:0"]])
def test_what_is_no_fan_out(given: Any) -> None:
    with pytest.raises(og.InputError, match="fan-outs"):
        og.TrainConfig(fanout=given)


@pytest.mark.parametrize("size", [0, -1, 2.5, "many"])
def test_what_is_no_batch_size(size: Any) -> None:
    with pytest.raises(og.InputError, match="batch_size"):
        og.TrainConfig(batch_size=size)


def test_all_neighbours_of_all_hops() -> None:
    assert Batches(size=3).hops(3) == (-1, -1, -1)
    assert EVERYTHING.everything
    assert not Batches(size=3).everything
    assert not Batches(fanout=(-1,)).everything
