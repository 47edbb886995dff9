"""Waves read back one after another: the graph's edges, from wherever their sources lie."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.core.ledger import Kind, Link
from outgrow.ops.csc import transpose_csc
from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from outgrow.runtime.storage.row_storage import InMemoryRows
from outgrow.strategies.offload.row_layouts import WaveChunkIndex
from outgrow.strategies.offload.wave import EVICTED, LOADED, pack_wave
from outgrow.strategies.offload.wave_file import WaveFile, load_wave
from outgrow.strategies.offload.wave_plan import TransferOptions
from outgrow.strategies.offload.wave_transposes import WaveTransposes, transpose_file_bytes
from strategies.offload.cut_graphs import Cut, cuts, dressed, edges_in, edges_of, together
from support import random_topology

CUT = Cut(random_topology(20, 70, weighted=True), torch.zeros(20, dtype=torch.int8), 1, 4, True)
techniques = st.builds(TransferOptions, sharing=st.booleans(), reuse=st.booleans(), overlap=st.booleans())


def course_of(
    cut: Cut, comm: Comm, used: TransferOptions, *, kept: int = 0, transposes: WaveTransposes | None = None
) -> WaveFile:
    share = cut.share(comm)
    waves, size = cut.waves(share, used)
    for wave in waves[kept:] if transposes is not None else ():
        assert transposes is not None
        transposes.append(wave)
    forms, parts = zip(*map(pack_wave, waves), strict=True)
    forms = [form._replace(num_src=size) for form in forms]
    lists = [
        WaveChunkIndex.from_waves(
            [wave.loads.filter_event(turn).row for wave in waves], [(wave.first, wave.last) for wave in waves]
        )
        for turn in (LOADED, EVICTED)
    ]
    return WaveFile(
        cut.graph,
        share.owned_nodes,
        forms,
        InMemoryRows(torch.cat(parts)[:, None]),
        kept,
        comm,
        tuple(lists),
        transposes,
    )


@settings(deadline=None)
@given(cuts(), techniques, st.integers(0, 5))
def test_chunks_are_the_edges_of_the_view(cut: Cut, used: TransferOptions, kept: int) -> None:
    """In a second pass as in the first, whatever stayed in memory."""
    view = cut.view

    def check(comm: Comm) -> None:
        course = course_of(cut, comm, used, kept=kept)
        own, seen = cut.own(comm.rank), list[int]()
        for _ in range(2):
            for number in course.wave_numbers:
                wave = course.read_wave(number)
                course.prefetch_ids(wave)
                block = course.block_for(wave, 77)
                seen += block.dst_nodes.tolist()
                assert block.key == 77
                assert block.dst_nodes.tolist() == own[wave.first : wave.last]
                assert edges_in(block) == [edges_of(view, v) for v in block.dst_nodes.tolist()]
                assert torch.equal(block.dst_degree, view.degree[block.dst_nodes])
                used_places = block.edges.indices.long()
                assert torch.equal(block.src_degree[used_places], view.degree[block.src_nodes[used_places]])
                assert len(block.src_nodes) == block.edges.num_src == course.num_slots
        assert sorted(seen) == sorted(2 * own)
        course.close()

    together(cut.size, check)


@pytest.mark.parametrize("kept", [0, 2, 4])
def test_waves_that_are_kept_are_read_once(kept: int) -> None:
    comm = SingleProcessComm()
    sizes = [pack_wave(wave)[0].num_bytes for wave in CUT.waves(CUT.share(comm), TransferOptions())[0]]
    course = course_of(CUT, comm, TransferOptions(), kept=kept)
    read = []
    for _ in range(2):
        for number in course.wave_numbers:
            course.read_wave(number)
            read.append(comm.ledger.bytes_by_link[Link.HOST_TO_DEVICE, Kind.TOPOLOGY])
    assert read == list(accumulate([*sizes, *[0] * kept, *sizes[kept:]]))
    same = [course.read_wave(number).edges is course.read_wave(number).edges for number in course.wave_numbers]
    assert same == [number < kept for number in course.wave_numbers]


def test_without_a_key_nothing_is_drawn() -> None:
    course = course_of(CUT, SingleProcessComm(), TransferOptions())
    assert course.block_for(course.read_wave(0), None).key is None


def test_a_closed_course_reads_nothing() -> None:
    course = course_of(CUT, SingleProcessComm(), TransferOptions(), kept=4)
    course.read_wave(0)
    course.close()
    with pytest.raises((RuntimeError, ValueError)):
        course.read_wave(0)


def test_relations_and_weights_come_along() -> None:
    """Which the cut of these tests lacks in part: the property above would hold of a course that forgot them."""
    topology = dressed(random_topology(20, 70), weights=True, relations=3)
    course = course_of(CUT._replace(topology=topology), SingleProcessComm(), TransferOptions())
    edges = course.read_wave(1).edges
    assert edges.relation is not None
    assert edges.relation.unique().tolist() == [-1, 0, 1, 2]
    assert edges.weight is not None
    assert len(edges.weight.unique()) > 3


@settings(deadline=None)
@given(cuts(), techniques, st.integers(0, 5))
def test_out_edges_from_the_file_are_those_of_the_wave(cut: Cut, used: TransferOptions, kept: int) -> None:
    """Also of slots that later waves add, and counted by the formula; those of waves in memory are made there."""

    def check(comm: Comm) -> None:
        room = InMemoryRows(torch.zeros(1 << 16, 1, dtype=torch.uint8))
        course = course_of(
            cut, comm, used, kept=kept, transposes=WaveTransposes(room, min(kept, cut.count), comm.ledger)
        )
        for number in course.wave_numbers:
            course.read_wave(number)
            plain = comm.ledger.bytes_by_link[Link.HOST_TO_DEVICE, Kind.TOPOLOGY]
            again = course.read_wave(number).edges is course.read_wave(number).edges
            size = comm.ledger.bytes_by_link[Link.HOST_TO_DEVICE, Kind.TOPOLOGY] - plain
            wave = load_wave(course, number, transposes=True)
            edges = wave.edges
            right = transpose_csc(edges.indptr, edges.indices, edges.num_src, edges.num_dst)
            assert all(map(torch.equal, edges.cache["transpose"], right))
            added = comm.ledger.bytes_by_link[Link.HOST_TO_DEVICE, Kind.TOPOLOGY] - plain - size - size // 2
            listed = len(wave.loads.slot) + len(wave.remote.slot)
            assert added == (0 if again else transpose_file_bytes(listed, edges.num_edges))
        course.close()

    together(cut.size, check)
