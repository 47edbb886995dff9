"""Own nodes and those of others told apart, against plain Python, over several hops and batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outgrow.ops.sampling.renumber import group_new_by_owner, map_sources, renumber_seeds, renumber_sources

NODES, WORKERS = 9, 3
ENDS = st.lists(st.integers(0, NODES - 1), max_size=12)
Table = NDArray[np.int32]


def numbered(ends: list[int], table: Table, base: int, known: list[int]) -> tuple[NDArray[np.int64], Table]:
    """Nodes with a number, and that of each edge's source, as a single worker numbers them."""
    nodes, local = np.full(len(known) + len(ends), -7, np.int64), np.empty(len(ends), np.int32)
    nodes[: len(known)] = known
    count = renumber_sources(
        np.arange(len(ends)), np.array(ends, dtype=np.int64), table, base, nodes, len(known), local
    )
    return nodes[:count], local


@given(
    st.lists(st.integers(0, WORKERS - 1), min_size=NODES, max_size=NODES),
    st.integers(0, WORKERS - 1),
    st.lists(st.lists(ENDS, max_size=3), max_size=4),
    st.sampled_from(["int8", "int16", "int64"]),
    st.integers(1, 2**30),
)
@settings(deadline=None, max_examples=200)
def test_hops_of_batches(owner: list[int], rank: int, batches: list[list[list[int]]], dtype: str, base: int) -> None:
    """Own nodes keep their numbers over the hops of a batch, those of others over none; nothing stays afterwards."""
    table, held = np.zeros(NODES, dtype=np.int32), np.array(owner, dtype=dtype)
    for hops in batches:
        known = [node for node in range(NODES) if owner[node] == rank][:2]
        assert renumber_seeds(np.array(known, dtype=np.int64), table, base) == len(known)
        for ends in hops:
            nodes, local = numbered(ends, table, base, known)
            new = group_new_by_owner(nodes, len(known), held, rank, WORKERS, table, base)
            own = [*known, *dict.fromkeys(end for end in ends if owner[end] == rank and end not in known)]
            others = [*dict.fromkeys(end for end in ends if owner[end] != rank)]
            assert nodes[: new.num_own].tolist() == own
            assert new.others.tolist() == sorted(others, key=lambda node: owner[node])
            assert new.sizes == tuple(sum(owner[node] == peer for node in others) for peer in range(WORKERS))
            assert {node for node in range(NODES) if table[node] >= base} == set(own)
            asked, _ = numbered([*own[-1:] * 2, *known], table, base, own)  # others want some that have numbers
            assert asked.tolist() == own
            far = sum(owner[end] != rank for end in ends)
            assert map_sources(local, len(known), len(own), new.remap) == len(ends) - far
            sources = [*own, *new.others.tolist()]
            assert [sources[row] for row in local] == ends
            known = own
        base += len(known)


@pytest.mark.parametrize("more", [0, 3])
def test_rows_of_others_follow_all_own_ones(more: int) -> None:
    """Those too that are asked for after the others were found."""
    local, remap = np.array([0, 1, 2, 3, 1], dtype=np.int32), np.array([1, -1, -2], dtype=np.int32)
    assert map_sources(local, 1, 2 + more, remap) == 3
    assert local.tolist() == [0, 1, 2 + more, 3 + more, 1]
