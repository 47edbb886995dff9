"""How the batches of an epoch become super-batches, whoever asks for them first, and which nodes are hot."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outgrow.core.block import Block
from outgrow.engine.batches import BatchConfig
from outgrow.engine.features.cache import hottest_nodes
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.strategies.orchestrate.sampling import (
    HotColdSampler,
    SampledBatch,
    SuperBatches,
    count_bottom_nodes,
    plan_super_batches,
)
from support import random_topology

NODES, SEED, EPOCH = 60, 4, 2
NOTHING = torch.empty(0, dtype=torch.int64)
STEPS = st.integers(0, 60)


@given(steps=STEPS, size=st.integers(1, 9))
def test_super_batches_cover_all_steps_once(steps: int, size: int) -> None:
    supers = plan_super_batches(steps, size)
    assert [step for each in supers for step in each] == [*range(steps)]
    assert all(1 <= len(each) <= size for each in supers)
    assert all(len(each) == size for each in supers[:-1])


def draws_of(count: int) -> Generator[SampledBatch]:
    for step in range(count):
        yield SampledBatch(step, NOTHING, 0, [], None, None, NOTHING, NOTHING)  # type: ignore[arg-type]


@given(sizes=st.lists(st.integers(1, 4), max_size=8), ahead=st.integers(0, 1))
def test_whoever_asks_first_the_draws_are_the_same(sizes: list[int], ahead: int) -> None:
    """One thread takes them one by one; the other asks for a super-batch or the one after it."""
    batches, taken, asked = SuperBatches(draws_of(sum(sizes)), sizes), list[int](), list[list[int]]()
    one_by_one = iter(batches)
    for number, size in enumerate(sizes):
        wanted = min(number + ahead, len(sizes) - 1)
        asked.append([draw.step for draw in batches.get_super_batch(wanted)])
        taken += [next(one_by_one).step for _ in range(size)]
    assert taken == [*range(sum(sizes))]
    begins = [sum(sizes[:number]) for number in range(len(sizes))]
    expected = [[*range(begin, begin + size)] for begin, size in zip(begins, sizes, strict=True)]
    assert asked == expected[ahead:] + expected[-1:] * min(ahead, len(sizes))
    batches.close()


@pytest.mark.timeout(60)
def test_several_threads_may_ask_at_once() -> None:
    sizes = [3, 2, 4, 1, 3] * 8
    batches, meeting = SuperBatches(draws_of(sum(sizes)), sizes), threading.Barrier(3)

    def work(number: int) -> list[list[int]]:
        found = []
        for each in range(len(sizes)):
            meeting.wait()
            found.append([draw.step for draw in batches.get_super_batch(each)])
        return found

    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(work, range(3))
    assert others == [first, first]
    assert [step for each in first for step in each] == [*range(sum(sizes))]


def test_what_draws_ends_with_them() -> None:
    ended = []

    def draws() -> Generator[SampledBatch]:
        try:
            yield from draws_of(9)
        finally:
            ended.append(True)

    batches = SuperBatches(draws(), [2, 2])
    assert len(batches.get_super_batch(0)) == 2
    assert ended == []
    batches.close()
    assert ended == [True]


@given(counts=st.lists(st.integers(0, 3), max_size=12), most=st.integers(0, 14))
def test_hottest(counts: list[int], most: int) -> None:
    expected = sorted((node for node, count in enumerate(counts) if count), key=lambda node: (-counts[node], node))
    assert hottest_nodes(torch.tensor(counts, dtype=torch.int64), most).tolist() == expected[:most]


def drawing_of(is_hot: torch.Tensor, epoch: int = EPOCH) -> HotColdSampler:
    topology = random_topology(NODES, 400)
    sampler = NeighborSampler([topology] * 3, (2, 3, 2), SEED)
    batches = BatchConfig(size=5).seeds_of_epoch(torch.arange(0, NODES, 2), SEED, epoch)
    return HotColdSampler(sampler, epoch, batches, lambda seeds: seeds[seeds % 4 == 0], is_hot)


def in_edges(block: Block) -> dict[int, list[int]]:
    """The edges that each destination keeps."""
    assert block.edge_ids is not None
    ends, edges = block.edges.indptr.tolist(), block.edge_ids.tolist()
    return {node: sorted(edges[a:b]) for node, (a, b) in zip(block.dst_nodes.tolist(), pairwise(ends), strict=True)}


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("all_cold", [False, True])
def test_a_draw_is_that_of_the_sampler_without_hot_nodes(share: float, all_cold: bool) -> None:
    """Each source of the second layer is hot or cold, and the cold ones have the in-edges that they have anyway."""
    is_hot = torch.arange(NODES) * 7 % NODES < share * NODES
    drawing, hot_ones = drawing_of(is_hot), 0
    for step, seeds in enumerate(drawing.batches):
        draw = drawing.sample_batch(step, all_cold=all_cold)
        bottom, *above = drawing.sampler.sample_blocks(drawing.select_seeds(seeds), EPOCH, step)
        assert (draw.step, draw.num_seeds) == (step, len(seeds))
        assert torch.equal(draw.seeds, drawing.select_seeds(seeds))
        for mine, theirs in zip(draw.upper_blocks, above, strict=True):
            assert torch.equal(mine.src_nodes, theirs.src_nodes)
            assert torch.equal(mine.edges.indices, theirs.edges.indices)
        nodes = above[0].src_nodes
        cold_to = torch.arange(len(nodes)) if draw.cold_positions is None else draw.cold_positions
        assert sorted([*cold_to.tolist(), *draw.hot_positions.tolist()]) == [*range(len(nodes))]
        assert torch.equal(nodes[cold_to], draw.cold_block.dst_nodes)
        assert torch.equal(nodes[draw.hot_positions], draw.hot_nodes)
        assert not all_cold or not len(draw.hot_nodes)
        assert all_cold or bool(is_hot[draw.hot_nodes].all())
        assert all_cold or not bool(is_hot[draw.cold_block.dst_nodes].any())
        hot_ones += len(draw.hot_nodes)
        whole = in_edges(bottom)
        assert in_edges(draw.cold_block) == {node: whole[node] for node in draw.cold_block.dst_nodes.tolist()}
    assert (hot_ones > 0) == (share > 0 and not all_cold)


def test_what_is_counted_is_what_the_bottom_layer_computes() -> None:
    drawings = [drawing_of(torch.zeros(NODES, dtype=torch.bool), epoch) for epoch in (0, -1)]
    expected = [0] * NODES
    for drawing in drawings:
        for step, seeds in enumerate(drawing.batches):
            for node in drawing.sampler.sample_blocks(drawing.select_seeds(seeds), drawing.epoch, step)[
                0
            ].dst_nodes.tolist():
                expected[node] += 1
    assert count_bottom_nodes(drawings).tolist() == expected
    assert max(expected) > 1
