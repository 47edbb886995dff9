"""The waves of a worker one after another, as they lie in a scratch file, or in memory where there is room.

A wave is loaded beside the computation of the chunk before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.ledger import Kind, Link
from outgrow.engine.hidden_edges import HiddenEdges
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.nn.layer import Features
from outgrow.ops.csc import cached_transpose
from outgrow.ops.memory_pool import pooled_empty
from outgrow.ops.rows.gather import scatter_nodes
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.storage.row_storage import RowStorage
from outgrow.strategies.offload.row_layouts import WaveChunkIndex
from outgrow.strategies.offload.wave import LOADED, RowList, Wave, WaveHeader, unpack_wave
from outgrow.strategies.offload.wave_transposes import WaveTransposes

_ON_CPU = torch.empty(0)


class ChunkInputs(NamedTuple):
    """What a wave computes with.

    Attributes:
        number: Of the wave.
        wave: The wave.
        block: Its chunk.
        x: ``[n, D]`` input of the destinations; empty where the layer does not read it.
        source: ``[B, W]`` source rows, where they were brought; else None.
        aggregate: ``[n, C, F]`` aggregate, where it was read; else None.
        gradients: Gradients of what the layer's output goes into: ``[n, W]`` of the next layer's source rows,
            and ``[n, O]`` of the input that its destinations read; empty forward and in the last layer.
    """

    number: int
    wave: Wave
    block: Block
    x: Features
    source: Tensor | None
    aggregate: Tensor | None
    gradients: tuple[Tensor, ...]


class WaveFile:
    """The waves of a worker in one view of the graph. Final.

    Args:
        graph: The view.
        own: ``[n]`` int64, the own nodes.
        headers: How each wave lies in the file.
        bytes_: ``[B, 1]`` uint8, all waves one after another, in the HOST tier.
        num_cached: How many waves, from the first on, stay in memory once they were read, with what is
            derived from them.
        comm: The line to the other workers, for what is counted, and the device.
        indexes: Own rows that arrive at each wave, and those whose gradients leave.
        transposes: The out-edges of waves that do not stay in memory; None if no backward pass needs them.

    Attributes:
        load_index: Own rows that arrive at each wave.
        evict_index: Own rows whose gradients leave at each wave.
        num_slots: Places that a buffer must have.
    """

    def __init__(
        self,
        graph: ChunkGraph,
        own: Tensor,
        headers: Sequence[WaveHeader],
        bytes_: RowStorage,
        num_cached: int,
        comm: Comm,
        indexes: tuple[WaveChunkIndex, WaveChunkIndex],
        transposes: WaveTransposes | None = None,
    ) -> None:
        self.load_index, self.evict_index = indexes
        self.num_slots = headers[0].num_src
        self._graph = graph
        self._own = own
        self._own_degree = graph.degree[own]
        self._headers = headers
        self._bytes = bytes_
        self._transposes = transposes
        self._ledger = comm.ledger
        self._device = comm.device
        self._begins = list(accumulate((form.num_bytes for form in headers), initial=0))
        self._num_cached = num_cached
        self._cached_waves = dict[int, Wave]()
        self._src_nodes = torch.zeros(self.num_slots, dtype=torch.int64)
        self._src_degree = torch.zeros(self.num_slots, dtype=torch.float64)
        self._hidden: HiddenEdges | None = None
        self._degree: Tensor | None = None

    @property
    def wave_numbers(self) -> range:
        """Numbers of all waves."""
        return range(len(self._headers))

    def read_wave(self, number: int) -> Wave:
        """A wave; read, unless it was kept."""
        if number in self._cached_waves:
            return self._cached_waves[number]
        form = self._headers[number]
        given = pooled_empty((form.num_bytes,), _ON_CPU, torch.uint8)
        self._bytes.read_range(self._begins[number], self._begins[number + 1], given[:, None])
        self._ledger.add_bytes(Link.HOST_TO_DEVICE, Kind.TOPOLOGY, form.num_bytes)
        found = unpack_wave(form, given).to(self._device)
        if number < self._num_cached:
            self._cached_waves[number] = found
        return found

    def prepare_transpose(self, number: int, wave: Wave) -> None:
        """Keep the out-edges with the edges of a wave: those from the file, or else new ones."""
        if self._transposes is not None and self._transposes.keeps(number):
            wave.edges.cache["transpose"] = self._transposes.read(number, wave)
        else:
            cached_transpose(wave.edges)

    def prefetch_ids(self, wave: Wave) -> None:
        """Note what takes the places of the rows from HOST that arrive; before, or while these are brought."""
        self._record_slots(wave.rows_at("loads", LOADED))

    def block_for(self, wave: Wave, key: int | None) -> Block:
        """The chunk of a wave as layers see it, once the rows of others are about to take their places."""
        self._record_slots(wave.rows_at("remote", LOADED))
        own = slice(wave.first, wave.last)
        block = wave.make_block(self._own[own], self._src_nodes, self._src_degree, self._own_degree[own])
        if self._hidden is not None and self._degree is not None:
            # The numbers of slots are known only now: those of rows from other workers have just been noted.
            block = self._hidden.remove_from(block)
            of_sources, of_own = self._degree[self._src_nodes], self._degree[self._own[own]]
            block = replace(block, src_degree=of_sources.to(self._device), dst_degree=of_own.to(self._device))
        return block.with_rng_key(key)

    @property
    def hides_edges(self) -> bool:
        """Whether blocks lack some edges, so that nothing that is derived from those of a wave is of use."""
        return self._hidden is not None

    def hide_edges(self, hidden: HiddenEdges, comm: Comm) -> None:
        """Leave edges out of all blocks until `show_edges`. All workers together."""
        # Each worker adds the degrees of its own nodes.
        degree = torch.zeros(self._graph.num_nodes, dtype=torch.float64)
        degree[self._own] = hidden.compute_degrees(self._graph, self._own)
        self._degree = comm.all_reduce(degree, Kind.TOPOLOGY)
        self._hidden = hidden

    def show_edges(self) -> None:
        """Let blocks have all edges again."""
        self._hidden = self._degree = None

    def _record_slots(self, new: RowList) -> None:
        scatter_nodes(new.node, new.slot, self._graph.degree, self._src_nodes, self._src_degree)

    def close(self) -> None:
        """Close the file."""
        self._cached_waves.clear()
        self._bytes.close()
        if self._transposes is not None:
            self._transposes.close()


def load_wave(wave_file: WaveFile, number: int, *, transposes: bool) -> Wave:
    """Read a wave, with all that can be computed of it while the wave before is computed."""
    wave = wave_file.read_wave(number)
    wave_file.prefetch_ids(wave)
    if transposes:
        wave_file.prepare_transpose(number, wave)
    return wave
