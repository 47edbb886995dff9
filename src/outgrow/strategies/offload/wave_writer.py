"""Waves are made one after another, before training, and written to a worker's scratch files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from outgrow.engine.shard import GraphShard
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.runtime.storage.row_file import IoPool, RowFile
from outgrow.strategies.offload.row_layouts import WaveChunkIndex
from outgrow.strategies.offload.wave import EVICTED, LOADED, WaveHeader, pack_wave
from outgrow.strategies.offload.wave_file import WaveFile
from outgrow.strategies.offload.wave_plan import (
    SlotAllocator,
    TransferOptions,
    WaveLayout,
    WaveRequirements,
    assign_slots,
    build_wave,
)
from outgrow.strategies.offload.wave_transposes import WaveTransposes, transpose_file_bytes

_HELD_BYTES, _EDGE_BYTES, _ROW_BYTES, _WAVE_BYTES = 21, 20, 16, 2048


def write_wave_file(
    share: GraphShard,
    where: tuple[IoPool, Path],
    graph: ChunkGraph,
    requirements: WaveRequirements,
    transfer_options: TransferOptions,
    *,
    num_cached: int,
    transposes: bool,
) -> WaveFile:
    """Write the waves of a worker in one view of the graph.

    Args:
        share: What the worker owns.
        where: The threads that read, and the folder of scratch files.
        graph: The view of the graph.
        requirements: What the worker needs in each wave.
        transfer_options: Which techniques are used.
        num_cached: How many waves stay in memory once they were read.
        transposes: Whether backward passes need the out-edges of waves that do not.
    """
    io_pool, folder = where
    own, name = share.owned_nodes, int(graph.self_loops)
    size = _max_file_bytes(graph, own, requirements)
    rows = RowFile.create(io_pool, folder / f"waves-{name}", size, 1, torch.uint8)
    back: WaveTransposes | None = None
    if transposes and num_cached < len(requirements.chunks):
        size = _max_transpose_bytes(graph, own, requirements)
        file = RowFile.create(io_pool, folder / f"out-edges-{name}", size, 1, torch.uint8)
        back = WaveTransposes(file, num_cached, share.comm.ledger)
    forms, arriving, leaving = list[WaveHeader](), list[Tensor](), list[Tensor]()
    written = 0

    def write_wave(number: int, layout: WaveLayout, allocator: SlotAllocator) -> None:
        nonlocal written
        arriving.append(layout.loads.filter_event(LOADED).row)
        leaving.append(layout.loads.filter_event(EVICTED).row)
        wave = build_wave(graph, own, requirements.chunks[number], layout, allocator.slot_V, allocator.num_slots)
        form, given = pack_wave(wave)
        forms.append(form)
        rows.write_range(written, given[:, None])
        written += form.num_bytes
        if back is not None and number >= num_cached:
            back.append(wave)

    num_slots = assign_slots(share, requirements, transfer_options, write_wave)
    forms = [form._replace(num_src=num_slots) for form in forms]
    lists = (
        WaveChunkIndex.from_waves(arriving, requirements.chunks),
        WaveChunkIndex.from_waves(leaving, requirements.chunks),
    )
    return WaveFile(graph, own, forms, rows, num_cached, share.comm, lists, back)


def _max_file_bytes(graph: ChunkGraph, own: Tensor, requirements: WaveRequirements) -> int:
    """Return more bytes than the waves take in a file, of which only those that are written take room."""
    held = sum(len(nodes) for lists in (requirements.loads, requirements.remote) for nodes in lists)
    held += sum(len(nodes) for lists in requirements.sent for nodes in lists)
    edges = int(graph.row_sizes(own).sum())
    nodes = len(own) + len(requirements.chunks)
    return (
        held * _HELD_BYTES
        + edges * (_EDGE_BYTES + graph.edge_row_bytes)
        + nodes * _ROW_BYTES
        + len(requirements.chunks) * _WAVE_BYTES
    )


def _max_transpose_bytes(graph: ChunkGraph, own: Tensor, requirements: WaveRequirements) -> int:
    """Return at least the bytes of the out-edges of all waves in a file."""
    return sum(
        transpose_file_bytes(len(loads) + len(remote), int(graph.row_sizes(own[first:last]).sum()))
        for (first, last), loads, remote in zip(*requirements[:3], strict=True)
    )
