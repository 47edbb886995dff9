"""The seeds of the steps, and the fan-outs that a user may give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import outgrow as og
from outgrow.engine.batches import FULL_GRAPH, BatchConfig, parse_fanouts

NODES = torch.tensor([9, 2, 40, 7, 11, 3, 5, 28])


@settings(deadline=None)
@given(seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 1000), size=st.integers(1, 10))
def test_every_node_is_a_seed_once(seed: int, epoch: int, size: int) -> None:
    steps = BatchConfig(size=size).seeds_of_epoch(NODES, seed, epoch)
    assert [len(step) for step in steps[:-1]] == [size] * (len(steps) - 1)
    assert 1 <= len(steps[-1]) <= size
    assert sorted(torch.cat(steps).tolist()) == sorted(NODES.tolist())


def test_the_order_depends_on_the_key_and_on_nothing_else() -> None:
    batches = BatchConfig(size=3)
    [first, *_] = steps = batches.seeds_of_epoch(NODES, 5, 1)
    again = batches.seeds_of_epoch(NODES.flip(0), 5, 1)
    assert all(torch.equal(one, other) for one, other in zip(steps, again, strict=True))
    assert torch.equal(torch.cat(BatchConfig(size=4).seeds_of_epoch(NODES, 5, 1)), torch.cat(steps))
    assert torch.equal(FULL_GRAPH.seeds_of_epoch(NODES, 5, 1)[0], torch.cat(steps))
    others = [batches.seeds_of_epoch(NODES, 5, 2)[0], batches.seeds_of_epoch(NODES, 6, 1)[0]]
    assert not any(torch.equal(first, other) for other in others)


def test_every_place_is_as_likely_for_every_node() -> None:
    epochs = 4000
    found = torch.stack([FULL_GRAPH.seeds_of_epoch(NODES, 1, epoch)[0] for epoch in range(epochs)])
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
    assert parse_fanouts(given) == hops
    assert BatchConfig(fanout=hops).describe() == spelled
    config = og.TrainConfig(fanout=given)  # type: ignore[arg-type]
    assert config.batch_config == BatchConfig(fanout=hops)
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
    assert BatchConfig(size=3).fanout_per_hop(3) == (-1, -1, -1)
    assert FULL_GRAPH.is_full_graph
    assert not BatchConfig(size=3).is_full_graph
    assert not BatchConfig(fanout=(-1,)).is_full_graph
