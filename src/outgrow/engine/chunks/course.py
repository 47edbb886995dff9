"""The waves of a worker one after another, as they lie in a scratch file, or in memory where there is room."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.ledger import Ledger
from outgrow.core.types import Kind, Link
from outgrow.engine.chunks.wave import ARRIVES, Form, Wave, unpacked
from outgrow.graph.chunk import ChunkGraph
from outgrow.runtime.host_rows import HostRows


class Course:
    """The waves of a worker in one view of the graph. Final.

    Args:
        graph: The view.
        own: ``[n]`` int64, the own nodes.
        forms: How each wave lies in the file.
        bytes_: ``[B, 1]`` uint8, all waves one after another, in the HOST tier.
        kept: How many waves, from the first on, stay in memory once they were read, with what is derived from them.
        ledger: Where bytes are counted.

    Attributes:
        places: Places that a buffer must have.
    """

    def __init__(
        self, graph: ChunkGraph, own: Tensor, forms: Sequence[Form], bytes_: HostRows, kept: int, ledger: Ledger
    ) -> None:
        self.places = forms[0].num_src
        self._graph, self._own, self._forms, self._bytes, self._ledger = graph, own, forms, bytes_, ledger
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
        given = torch.empty(form.num_bytes, dtype=torch.uint8)
        self._bytes.read_range(self._begins[number], self._begins[number + 1], given[:, None])
        self._ledger.move(Link.HOST_TO_DEVICE, Kind.TOPOLOGY, form.num_bytes)
        found = unpacked(form, given)
        if number < self._num_kept:
            self._kept[number] = found
        return found

    def enter(self, wave: Wave, key: int | None) -> Block:
        """The chunk of a wave as layers see it, once its rows are about to take their places."""
        for held in (wave.loads, wave.remote):
            new = held.only(ARRIVES)
            at = new.at.long()
            self._src_nodes[at] = new.node
            self._src_degree[at] = self._graph.degree[new.node]
        nodes = self._own[wave.first : wave.last]
        return wave.block(nodes, self._src_nodes, self._src_degree, self._graph.degree[nodes]).keyed(key)

    def close(self) -> None:
        """Close the file."""
        self._kept.clear()
        self._bytes.close()
