"""Waves against Python's sets: which chunk is run when, and the rows that are moved for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outgrow.strategies.offload.reorder import (
    Bandwidths,
    TransferVolumes,
    count_transfer_volumes,
    estimate_transfer_seconds,
    node_bitsets,
    reorganize_chunks,
    sample_for_bitsets,
)

Sets = list[list[set[int]]]
"""What each chunk of each part reads."""
NODES = 90


def bits(reads: Sets, num_nodes: int = NODES, sample: torch.Tensor | None = None) -> NDArray[np.uint64]:
    tensors = [[torch.tensor(sorted(nodes), dtype=torch.int64) for nodes in row] for row in reads]
    return np.stack([node_bitsets(row, num_nodes, sample) for row in tensors])


def owners(part: list[int], num_parts: int) -> NDArray[np.uint64]:
    return bits([[{v for v, p in enumerate(part) if p == i}] for i in range(num_parts)])[:, 0]


@st.composite
def chunks(draw: st.DrawFn) -> Sets:
    """Chunks that are often empty, or alike."""
    num_parts, num_chunks = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    nodes = st.sets(st.integers(0, NODES - 1), max_size=draw(st.sampled_from([3, 60])))
    row = st.lists(nodes, min_size=num_chunks, max_size=num_chunks)
    return draw(st.lists(row, min_size=num_parts, max_size=num_parts))


def first_phase(reads: Sets) -> list[list[int]]:
    """The chunks of each wave."""
    waves, unions = [[c] for c in range(len(reads[0]))], [set(nodes) for nodes in reads[0]]
    for row in reads[1:]:
        left = list(range(len(row)))
        for wave, union in zip(waves, unions, strict=True):
            chosen = max(left, key=lambda c: len(union & row[c]))  # the first of several, as `left` ascends
            left.remove(chosen)
            wave.append(chosen)
            union.update(row[chosen])
    return waves


def second_phase(reads: Sets, waves: list[list[int]]) -> list[list[int]]:
    unions = [set().union(*(row[c] for row, c in zip(reads, wave, strict=True))) for wave in waves]
    path, left = [0], list(range(1, len(waves)))
    while left:
        path.append(max(left, key=lambda w: len(unions[w] & unions[path[-1]])))
        left.remove(path[-1])
    return [waves[w] for w in path]


def counted(reads: Sets, part: list[int], order: NDArray[np.int64]) -> TransferVolumes:
    """The formulas, over sets."""
    n = [[reads[i][c] for c in row] for i, row in enumerate(order)]
    own = [{v for v, p in enumerate(part) if p == i} for i in range(len(n))]
    u = [set().union(*(row[j] for row in n)) for j in range(len(n[0]))]
    u_ij = [[wave & mine for wave in u] for mine in own]
    pairs = [(i, j) for i in range(len(n)) for j in range(len(u))]
    return TransferVolumes(
        vanilla=sum(len(n[i][j]) for i, j in pairs),
        shared=sum(len(wave) for wave in u),
        reused=sum(len(wave - (u[j - 1] if j else set())) for j, wave in enumerate(u)),
        peer=sum(len(n[i][j] - u_ij[i][j]) for i, j in pairs),
        peer_reused=sum(len(n[i][j] - u_ij[i][j] - (n[i][j - 1] if j else set())) for i, j in pairs),
        reuse=sum(len(wave & u[j - 1]) for j, wave in enumerate(u) if j),
    )


@settings(deadline=None)
@given(chunks())
def test_chunks_are_chosen_as_sets_choose_them(reads: Sets) -> None:
    order = reorganize_chunks(bits(reads))
    assert order.dtype == np.int64
    assert order.T.tolist() == second_phase(reads, first_phase(reads))
    assert np.sort(order).tolist() == [list(range(len(reads[0])))] * len(reads)


@settings(deadline=None)
@given(chunks(), st.integers(0, 9))
def test_volumes_are_those_of_sets(reads: Sets, seed: int) -> None:
    rng = np.random.default_rng(seed)
    part = rng.integers(0, len(reads), NODES).tolist()
    given_bits, owner_bits = bits(reads), owners(part, len(reads))
    before = given_bits.copy()
    drawn = rng.permuted(np.tile(np.arange(len(reads[0])), (len(reads), 1)), axis=1)
    for order in (drawn, reorganize_chunks(given_bits)):
        assert count_transfer_volumes(given_bits, owner_bits, order) == counted(reads, part, order)
    assert (given_bits == before).all()


@settings(deadline=None)
@given(chunks(), st.integers(0, 9))
def test_volumes_hang_together(reads: Sets, seed: int) -> None:
    part = np.random.default_rng(seed).integers(0, len(reads), NODES).tolist()
    got = count_transfer_volumes(bits(reads), owners(part, len(reads)), reorganize_chunks(bits(reads)))
    assert got.vanilla >= got.shared >= got.reused
    assert got.reuse == got.shared - got.reused
    assert got.vanilla - got.shared <= got.peer  # the paper's middle term of Equation 4 is a lower bound
    assert got.peer >= got.peer_reused


def test_of_one_chunk_nothing_is_saved() -> None:
    reads, part = [[{0, 3, 70}]], [0] * NODES
    assert reorganize_chunks(bits(reads)).tolist() == [[0]]
    rows = TransferVolumes(vanilla=3, shared=3, reused=3, peer=0, peer_reused=0, reuse=0)
    assert count_transfer_volumes(bits(reads), owners(part, 1), np.zeros((1, 1), dtype=np.int64)) == rows


def test_equal_chunks_stay_in_order() -> None:
    for nodes in (set(), {1, 2}):
        assert reorganize_chunks(bits([[nodes] * 4] * 3)).tolist() == [[0, 1, 2, 3]] * 3


def test_a_reversed_part_and_mixed_waves_are_put_right() -> None:
    """Part 1 has the chunks of part 0 in another order, and waves 0 and 2 have a node in common, as have 2 and 1."""
    reads = [[{0, 1}, {10, 11}, {20, 1, 10}], [{10, 12}, {20, 21}, {0, 2}]]
    part = [0 if v in (0, 1, 10, 20) else 1 for v in range(NODES)]
    order = reorganize_chunks(bits(reads))
    assert order.tolist() == [[0, 2, 1], [2, 1, 0]]
    given_order = np.tile(np.arange(3), (2, 1))
    # unions as given: {0 1 10 12} {10 11 20 21} {0 1 2 10 20}; put right: {0 1 2} {1 10 20 21} {10 11 12}
    before = TransferVolumes(vanilla=13, shared=13, reused=10, peer=4, peer_reused=4, reuse=3)
    after = TransferVolumes(vanilla=13, shared=10, reused=8, peer=4, peer_reused=4, reuse=2)
    assert count_transfer_volumes(bits(reads), owners(part, 2), given_order) == before
    assert count_transfer_volumes(bits(reads), owners(part, 2), order) == after


def test_a_worker_without_nodes() -> None:
    reads: Sets = [[{0, 1}, {2}], [set(), set()]]
    assert reorganize_chunks(bits(reads)).tolist() == [[0, 1], [0, 1]]
    got = count_transfer_volumes(bits(reads), owners([0] * NODES, 2), np.array([[0, 1], [0, 1]]))
    assert got == TransferVolumes(vanilla=3, shared=3, reused=3, peer=0, peer_reused=0, reuse=0)


def test_cost_by_hand() -> None:
    """100 of 1,000 rows are loaded, 500 are fetched from other workers, 200 stay; rows of 8 bytes."""
    rows = TransferVolumes(vanilla=1000, shared=300, reused=100, peer=800, peer_reused=500, reuse=200)
    rates = Bandwidths(host=100.0, device=1000.0, reuse=4000.0)
    assert estimate_transfer_seconds(rows, 8, rates) == pytest.approx(8 + 4.0 + 0.4)


def test_a_sample_counts_its_own_nodes() -> None:
    sample = torch.tensor([3, 64, 65, 89])
    got = bits([[{3, 4, 65}, {89}]], sample=sample)
    assert got.tolist() == [[[0b0101], [0b1000]]]


def test_a_sample_fits_and_is_spread() -> None:
    num_nodes, num_sets, most = 100_000, 10, 10 * 8 * 50
    sample = sample_for_bitsets(num_nodes, num_sets, most)
    assert sample is not None
    assert sample.dtype == torch.int64
    assert len(sample) == 50 * 64
    assert torch.equal(sample, sample.unique())
    assert torch.equal(sample, sample_for_bitsets(num_nodes, num_sets, most + 79))
    assert node_bitsets([sample] * num_sets, num_nodes, sample).nbytes == most
    tenths = torch.bincount(sample * 10 // num_nodes, minlength=10)
    assert len(tenths) == 10
    assert tenths.min() > 250
    assert tenths.max() < 390


def test_no_sample_where_all_nodes_fit() -> None:
    assert sample_for_bitsets(64 * 50, 10, 10 * 8 * 50) is None
    assert sample_for_bitsets(64 * 50 + 1, 10, 10 * 8 * 50) is not None
    assert node_bitsets([torch.tensor([64 * 50])], 64 * 50 + 1, None).shape == (1, 51)


def test_a_set_takes_a_word_at_least() -> None:
    assert sample_for_bitsets(1000, 10, 80) is not None
    with pytest.raises(ValueError, match="80 bytes, got 79"):
        sample_for_bitsets(1000, 10, 79)


def test_a_sample_estimates_the_volumes() -> None:
    num_nodes, parts, count = 20_000, 3, 6
    rng = np.random.default_rng(0)
    reads = [[set(rng.integers(0, num_nodes, 3000).tolist()) for _ in range(count)] for _ in range(parts)]
    own = [[set(range(num_nodes * i // parts, num_nodes * (i + 1) // parts))] for i in range(parts)]
    sample = sample_for_bitsets(num_nodes, parts * count, parts * count * 8 * 60)
    assert sample is not None
    order = np.tile(np.arange(count), (parts, 1))
    whole = count_transfer_volumes(bits(reads, num_nodes), bits(own, num_nodes)[:, 0], order)
    some = count_transfer_volumes(bits(reads, num_nodes, sample), bits(own, num_nodes, sample)[:, 0], order)
    scale = num_nodes / len(sample)
    for name in ("vanilla", "shared", "reused", "peer", "peer_reused", "reuse"):
        assert getattr(some, name) * scale == pytest.approx(getattr(whole, name), rel=0.06), name
