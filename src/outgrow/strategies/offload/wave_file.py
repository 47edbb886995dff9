"""The waves of a worker one after another, as they lie in a scratch file, or in memory where there is room."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.ledger import Kind, Link
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.ops.memory_pool import empty
from outgrow.ops.rows.gather import note_nodes
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.storage.row_storage import HostRows
from outgrow.strategies.offload.row_layouts import Lists
from outgrow.strategies.offload.wave import ARRIVES, Form, Held, Wave, unpacked

_ON_CPU = torch.empty(0)


class Course:
    """The waves of a worker in one view of the graph. Final.

    Args:
        graph: The view.
        own: ``[n]`` int64, the own nodes.
        forms: How each wave lies in the file.
        bytes_: ``[B, 1]`` uint8, all waves one after another, in the HOST tier.
        kept: How many waves, from the first on, stay in memory once they were read, with what is derived from them.
        comm: The line to the other workers, for what is counted, and the device.
        lists: Own rows that arrive at each wave, and those whose gradients leave.

    Attributes:
        arriving: Own rows that arrive at each wave.
        leaving: Own rows whose gradients leave at each wave.
        places: Places that a buffer must have.
    """

    def __init__(
        self,
        graph: ChunkGraph,
        own: Tensor,
        forms: Sequence[Form],
        bytes_: HostRows,
        kept: int,
        comm: Comm,
        lists: tuple[Lists, Lists],
    ) -> None:
        self.arriving, self.leaving = lists
        self.places = forms[0].num_src
        self._graph, self._own, self._own_degree = graph, own, graph.degree[own]
        self._forms, self._bytes = forms, bytes_
        self._ledger, self._device = comm.ledger, comm.device
        self._begins = list(accumulate((form.num_bytes for form in forms), initial=0))
        self._num_kept, self._kept = kept, dict[int, Wave]()
        self._src_nodes = torch.zeros(self.places, dtype=torch.int64)
        self._src_degree = torch.zeros(self.places, dtype=torch.float64)

    @property
    def numbers(self) -> range:
        """Of all waves."""
        return range(len(self._forms))

    def wave(self, number: int) -> Wave:
        """A wave; read, unless it was kept."""
        if number in self._kept:
            return self._kept[number]
        form = self._forms[number]
        given = empty((form.num_bytes,), _ON_CPU, torch.uint8)
        self._bytes.read_range(self._begins[number], self._begins[number + 1], given[:, None])
        self._ledger.move(Link.HOST_TO_DEVICE, Kind.TOPOLOGY, form.num_bytes)
        found = unpacked(form, given).to(self._device)
        if number < self._num_kept:
            self._kept[number] = found
        return found

    def bring(self, wave: Wave) -> None:
        """Note what takes the places of the rows from HOST that arrive; before, or while these are brought."""
        self._note(wave.turning("loads", ARRIVES))

    def enter(self, wave: Wave, key: int | None) -> Block:
        """The chunk of a wave as layers see it, once the rows of others are about to take their places."""
        self._note(wave.turning("remote", ARRIVES))
        own = slice(wave.first, wave.last)
        return wave.block(self._own[own], self._src_nodes, self._src_degree, self._own_degree[own]).keyed(key)

    def _note(self, new: Held) -> None:
        note_nodes(new.node, new.at, self._graph.degree, self._src_nodes, self._src_degree)

    def close(self) -> None:
        """Close the file."""
        self._kept.clear()
        self._bytes.close()
