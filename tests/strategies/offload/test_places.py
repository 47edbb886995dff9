"""Rows that stay keep their places, no two share one, and there are no more places than rows that meet."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outgrow.strategies.offload.wave import EVICTED, LOADED
from outgrow.strategies.offload.wave_plan import SlotAllocator, load_evict_events
from strategies.offload.cut_graphs import ids

NODES = 24
Waves = list[set[int]]
needed = st.lists(st.sets(st.integers(0, NODES - 1), max_size=12), min_size=1, max_size=7)


@st.composite
def split(draw: st.DrawFn) -> tuple[Waves, Waves]:
    """Rows from HOST and rows from others, wave by wave; a node is always the one or the other."""
    own = draw(st.sets(st.integers(0, NODES - 1)))
    waves = draw(needed)
    return [nodes & own for nodes in waves], [nodes - own for nodes in waves]


def around(waves: Waves, j: int) -> tuple[set[int], set[int]]:
    """What is held before and after a wave."""
    return (waves[j - 1] if j else set()), (waves[j + 1] if j + 1 < len(waves) else set())


def tensors(waves: Waves) -> list[Tensor]:
    """In an order of their own: not ascending."""
    return [ids(nodes).flip(0) for nodes in waves]


def marked(nodes: Tensor, turn: Tensor, what: int) -> set[int]:
    return set(nodes[(turn & what).bool()].tolist())


@given(needed)
def test_who_comes_and_who_goes(waves: Waves) -> None:
    lists = tensors(waves)
    for j, (nodes, turn) in enumerate(zip(lists, load_evict_events(lists, reuse=True), strict=True)):
        before, after = around(waves, j)
        assert turn.dtype == torch.uint8
        assert marked(nodes, turn, LOADED) == waves[j] - before
        assert marked(nodes, turn, EVICTED) == waves[j] - after


@given(needed)
def test_without_reuse_all_come_and_go(waves: Waves) -> None:
    lists = tensors(waves)
    for nodes, turn in zip(lists, load_evict_events(lists, reuse=False), strict=True):
        assert turn.tolist() == [LOADED | EVICTED] * len(nodes)


@given(split(), st.booleans(), st.booleans())
def test_places(rows: tuple[Waves, Waves], ahead: bool, reuse: bool) -> None:
    loads, remote = (tensors(waves) for waves in rows)
    turns = [load_evict_events(lists, reuse=reuse) for lists in (loads, remote)]
    places, held, most = SlotAllocator(NODES, loads_ahead=ahead), dict[int, int](), 0
    for wave in zip(loads, turns[0], remote, turns[1], strict=True):
        both, new = torch.cat(wave[::2]).tolist(), (torch.cat(wave[1::2]) & LOADED).bool().tolist()
        own_new = {v for v, comes in zip(wave[0].tolist(), new, strict=False) if comes}
        at_loads, at_remote = places.next_wave(*wave)
        at = dict(zip(both, torch.cat([at_loads, at_remote]).tolist(), strict=True))
        assert len(set(at.values())) == len(at)
        assert all(at[v] == held[v] for v, comes in zip(both, new, strict=True) if not comes)
        if ahead:
            assert not {at[v] for v in own_new} & set(held.values())
        assert places.slot_V.tolist() == [at.get(v, -1) for v in range(NODES)]
        most = max(most, len(held) + len(own_new) if ahead else 0, len(at))
        assert places.num_slots == most
        assert all(0 <= place < places.num_slots for place in at.values())
        held = at


def test_places_that_were_left_are_taken_again() -> None:
    """Wave 1 keeps node 1 and brings 3, ahead: beside 0, 1 and 2. Wave 2 takes what 0 and 2 left before a new one."""
    waves = tensors([{0, 1, 2}, {1, 3}, {1, 4, 5}])
    none = [torch.empty(0, dtype=torch.int64)] * 3
    turns, no_turns = load_evict_events(waves, reuse=True), load_evict_events(none, reuse=True)
    found = []
    places = SlotAllocator(6, loads_ahead=True)
    for wave in zip(waves, turns, none, no_turns, strict=True):
        at, _ = places.next_wave(*wave)
        found.append(dict(zip(wave[0].tolist(), at.tolist(), strict=True)))
    assert found == [{2: 0, 1: 1, 0: 2}, {1: 1, 3: 3}, {1: 1, 5: 0, 4: 2}]
    assert places.num_slots == 4
