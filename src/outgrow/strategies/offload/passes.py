"""Passes over a whole graph, layer by layer and wave by wave.

Between two aggregations everything is done node by node: the update of a layer and the source rows of the next are
made in one go for each chunk, and the backward pass computes both again from the cached aggregate. So a projection runs
once for each node, and what is between the two never leaves the device.

The last layer's waves are forward and backward at once: the loss of a chunk is known as soon as its logits are.
Wang et al.: HongTu, SIGMOD 2023, algorithms 1 to 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.layer_plan import Traits, Way
from outgrow.engine.objective import Goal, Pull
from outgrow.nn.layer import Features, Rows
from outgrow.nn.model import layer_key
from outgrow.ops.csc import transpose
from outgrow.strategies.offload.state import State
from outgrow.strategies.offload.wave import ARRIVES, Wave
from outgrow.strategies.offload.wave_buffer import Add, Buffer, Gradients, backward, grad_of, leaf, nothing
from outgrow.strategies.offload.wave_file import Course


class Chunk(NamedTuple):
    """What a wave computes with.

    Attributes:
        number: Of the wave.
        wave: The wave.
        block: Its chunk.
        x: ``[n, D]`` input of the destinations; empty where the layer does not read it.
        source: ``[B, W]`` source rows, where they were brought; else None.
        aggregate: ``[n, C, F]`` aggregate, where it was read; else None.
        gradients: Gradients of what the layer's output goes into: ``[n, W]`` of the next layer's source rows, and
            ``[n, O]`` of the input that its destinations read; empty forward and in the last layer.
    """

    number: int
    wave: Wave
    block: Block
    x: Features
    source: Tensor | None
    aggregate: Tensor | None
    gradients: tuple[Tensor, ...]


class Passes:
    """The passes of an epoch on a worker. All workers make them together. Final.

    Counted in the ledger: ``edges_aggregated``, ``rows_computed``, ``rows_loaded``, ``remote_rows``, ``reused_bytes``.

    Args:
        state: What the passes work on.
        goal: What is trained for.
    """

    def __init__(self, state: State, goal: Goal) -> None:
        self.state, self.goal = state, goal
        self.aim = goal.by_rows

    @torch.no_grad()
    def prepare(self) -> None:
        """Compute what is constant."""
        first = self.state.traits[0]
        if first.way is Way.CONSTANT:
            for chunk in self._assembled(0, None, backward=False):
                self._keep_aggregate(0, chunk, self._aggregate(first, chunk))
            self.state.finish_layer()

    @torch.no_grad()
    def forward(self, key: int) -> None:
        """All layers but the last, which the backward pass begins with."""
        self._first_sources(key)
        for index in range(len(self.state.traits) - 1):
            self._forward_layer(index, key)

    def backward(self, key: int) -> Tensor:
        """The loss of the worker's nodes; gradients add up in the parameters."""
        known = None
        if self.goal.by_rows is None:
            known, self.aim = self._pulled(key)
        loss = torch.zeros((), dtype=torch.float64)
        for index in reversed(range(len(self.state.traits))):
            loss += self._backward_layer(index, key).cpu()
        self._first_sources_backward(key)
        return loss if known is None else known

    def _pulled(self, key: int) -> tuple[Tensor, Pull]:
        """The loss of a goal that needs the output of all own nodes at once, and what it wants of each of them.

        The last layer is computed here and once more by the backward pass.
        """
        state = self.state
        widths = state.traits[-1].layer.widths
        out = torch.empty(len(state.own), widths.out_features, dtype=state.dtype, device=state.device)
        with torch.no_grad():
            for first, rows in self._last_layer(key):
                out[first : first + len(rows)] = rows
            state.finish_layer()
        loss = self.goal.loss(out.requires_grad_(), key)
        torch.autograd.backward(loss)
        return loss.detach().double().cpu(), Pull(grad_of(out))

    def _last_layer(self, key: int | None) -> Iterator[tuple[int, Tensor]]:
        """The output of all chunks, each with its first own row."""
        last = len(self.state.traits) - 1
        traits = self.state.traits[last]
        for chunk in self._chunks(last, key):
            aggregate = self._aggregate(traits, chunk) if chunk.aggregate is None else chunk.aggregate
            yield chunk.wave.first, traits.layer.update(chunk.x, aggregate, chunk.block)

    @torch.no_grad()
    def inference(self) -> Iterator[tuple[int, Tensor]]:
        """Logits ``[n, C]`` of all chunks without draws, in memory, each with its first own row."""
        self._first_sources(None)
        last = len(self.state.traits) - 1
        for index in range(last):
            self._forward_layer(index, None)
        for first, rows in self._last_layer(None):
            yield first, rows.cpu()

    def _first_sources(self, key: int | None) -> None:
        """The first layer's source rows, where these are not the features; and its input, where that is encoded."""
        state, first = self.state, self.state.traits[0]
        if first.from_features:
            return
        for low, high, x in state.flow.ahead(lambda piece: (*piece, state.features.piece(*piece)), state.pieces):
            with state.timeline.span("compute"):
                given = self._encoded(x, low, high, key)
                rows = first.layer.source(given)
            state.store_sources(0, low, rows)
            if first.own_input and not first.reads_features:
                assert isinstance(given, Tensor)
                state.store(state.inputs[0], low, given)
        state.finish_layer()

    def _first_sources_backward(self, key: int) -> None:
        state, first = self.state, self.state.traits[0]
        if first.from_features:
            return

        def load(piece: tuple[int, int]) -> tuple[int, int, Features, tuple[Tensor, ...]]:
            return (*piece, state.features.piece(*piece), self._gradients_of(0, *piece))

        for low, high, x, (grad, *others) in state.flow.ahead(load, state.pieces):
            with state.timeline.span("compute"):
                given = self._encoded(x, low, high, key)
                backward(first.layer.source(given), first.split(grad), *((given, each) for each in others))

    def _forward_layer(self, index: int, key: int | None) -> None:
        state, traits = self.state, self.state.traits[index]
        for chunk in self._chunks(index, key):
            with state.timeline.span("compute"):
                known = chunk.aggregate
                aggregate = self._aggregate(traits, chunk) if known is None else known
                out = traits.layer.update(chunk.x, aggregate, chunk.block)
                rows = state.traits[index + 1].layer.source(out)
            if key is not None and traits.way is Way.CACHED:
                self._keep_aggregate(index, chunk, aggregate)
            state.store_sources(index + 1, chunk.wave.first, rows)
            if state.traits[index + 1].own_input:
                state.store(state.inputs[index + 1], chunk.wave.first, out)
        state.finish_layer()

    def _backward_layer(self, index: int, key: int) -> Tensor:
        state, traits = self.state, self.state.traits[index]
        loss = self._no_loss()
        gradients = state.new_gradients(index) if traits.trains_source else None
        chunks = self._assembled(index, key) if traits.assembled_backward else self._read(index, key)
        for chunk in chunks:
            with state.timeline.span("compute"):
                x = leaf(chunk.x, trains=traits.trains_input and traits.reads_input)
                compute = self._recomputed if traits.assembled_backward else self._from_cache
                found, add = compute(index, chunk, x)
                loss += found
            if traits.reads_input and traits.trains_input and isinstance(x, Tensor):
                state.store(state.input_gradients[index], chunk.wave.first, grad_of(x))
            if gradients is not None:
                self._scatter(index, chunk, gradients, add)
        state.finish_layer()
        return loss

    def _recomputed(self, index: int, chunk: Chunk, x: Features) -> tuple[Tensor, Add]:
        traits = self.state.traits[index]
        rows = leaf(chunk.source, trains=traits.trains_source)
        assert isinstance(rows, Tensor)
        aggregate = traits.layer.aggregate(chunk.block, traits.split(rows), traits.layer.target(x))
        self._count_edges(chunk)
        loss = self._finish(index, chunk, x, aggregate)
        grad = rows.grad
        return loss, nothing if grad is None else lambda gradients: gradients.add(grad)

    def _from_cache(self, index: int, chunk: Chunk, x: Features) -> tuple[Tensor, Add]:
        traits = self.state.traits[index]
        layer = traits.layer
        aggregate = leaf(chunk.aggregate, trains=traits.trains_source)
        assert isinstance(aggregate, Tensor)
        loss = self._finish(index, chunk, x, aggregate)
        if not traits.trains_source:
            return loss, nothing
        none = Rows(aggregate.detach(), None)  # weights take their type from it, and nothing else
        weight = layer.conv.weigh(chunk.block, none, Rows(None, None))
        grad, channels = grad_of(aggregate), layer.widths.source[0]
        return loss, lambda gradients: gradients.add_sums(chunk.block.edges, weight, grad, channels)

    def _finish(self, index: int, chunk: Chunk, x: Features, aggregate: Tensor) -> Tensor:
        """What follows an aggregation up to the next one, or to the loss, and its gradients; gives the loss, or 0."""
        traits, wave = self.state.traits[index], chunk.wave
        out = traits.layer.update(x, aggregate, chunk.block)
        if index == len(self.state.traits) - 1:
            assert self.aim is not None
            aim = self.aim.between(wave.first, wave.last).to(self.state.device)
            if aim.empty:
                return self._no_loss()
            loss = aim.loss(out)
            torch.autograd.backward(loss)
            return loss.detach().double()
        following = self.state.traits[index + 1]
        given, *others = chunk.gradients
        backward(following.layer.source(out), following.split(given), *((out, grad) for grad in others))
        return self._no_loss()

    def _no_loss(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=self.state.device)

    def _scatter(self, index: int, chunk: Chunk, gradients: Gradients, add: Add) -> None:
        state, wave = self.state, chunk.wave
        with state.timeline.span("accumulate"):
            gradients.begin(wave)
            add(gradients)
        with state.timeline.span("exchange"):
            gradients.push(wave)
        with state.timeline.span("accumulate"):
            held, values = gradients.leaving(wave)
        state.add_gradients(index, chunk.number, held, values)

    def _chunks(self, index: int, key: int | None) -> Iterator[Chunk]:
        """The chunks of a layer forward, with what is known of their aggregates."""
        constant = self.state.traits[index].way is Way.CONSTANT
        return self._read(index, key, backward=False) if constant else self._assembled(index, key, backward=False)

    def _assembled(self, index: int, key: int | None, *, backward: bool = True) -> Iterator[Chunk]:
        """The chunks of a layer, with their source rows in the buffer of the course."""
        state, traits = self.state, self.state.traits[index]
        course = state.course(traits.layer)
        buffer = Buffer(course.places, state.sources[index], state.kind_of(index), state.comm)
        transposes = backward and traits.transposes

        def load(number: int) -> tuple[int, Wave, Features, tuple[Tensor, ...]]:
            wave = _brought(course, number, transposes=transposes)
            buffer.load(wave, number)
            return number, wave, self._input(index, wave), self._gradients(index, wave) if backward else ()

        for number, wave, x, gradients in state.flow.ahead(load, course.numbers, overlap=not traits.reads_all_rows):
            with state.timeline.span("compute"):
                block, given = course.enter(wave, layer_key(key, index)), self._as_input(index, x, wave, key)
                self._drop_arriving(index, buffer, wave, key)
            with state.timeline.span("exchange"):
                buffer.exchange(wave)
            yield Chunk(number, wave, block, given, buffer.rows, None, gradients)

    def _read(self, index: int, key: int | None, *, backward: bool = True) -> Iterator[Chunk]:
        """The chunks of a layer, with their aggregates as they were kept."""
        state, traits = self.state, self.state.traits[index]
        course, shape = state.course(traits.layer), traits.layer.widths.aggregate
        transposes = backward and traits.transposes

        def load(number: int) -> tuple[int, Wave, Features, Tensor, tuple[Tensor, ...]]:
            wave = _brought(course, number, transposes=transposes)
            aggregate = state.aggregates[index].piece(wave.first, wave.last)
            return number, wave, self._input(index, wave), aggregate, self._gradients(index, wave) if backward else ()

        for number, wave, x, aggregate, gradients in state.flow.ahead(load, course.numbers):
            with state.timeline.span("compute"):
                block, given = course.enter(wave, layer_key(key, index)), self._as_input(index, x, wave, key)
            yield Chunk(number, wave, block, given, None, torch.unflatten(aggregate, 1, shape), gradients)

    def _input(self, index: int, wave: Wave) -> Features:
        state = self.state
        if not state.traits[index].reads_input:
            return torch.empty(wave.last - wave.first, 0, dtype=state.dtype, device=state.device)
        features = state.traits[index].reads_features
        return (state.features if features else state.inputs[index]).piece(wave.first, wave.last)

    def _gradients(self, index: int, wave: Wave) -> tuple[Tensor, ...]:
        last = index + 1 == len(self.state.traits)
        return () if last else self._gradients_of(index + 1, wave.first, wave.last)

    def _gradients_of(self, index: int, first: int, last: int) -> tuple[Tensor, ...]:
        """Gradients of own source rows of a layer, and of the input that its destinations read, where it has one."""
        state, traits = self.state, self.state.traits[index]
        found = [state.source_gradients[index].piece(first, last)]
        if traits.reads_input and traits.trains_input:
            found.append(state.input_gradients[index].piece(first, last))
        return tuple(found)

    def _aggregate(self, traits: Traits, chunk: Chunk) -> Tensor:
        assert chunk.source is not None
        source = traits.split(chunk.source)
        self._count_edges(chunk)
        return traits.layer.aggregate(chunk.block, source, traits.layer.target(chunk.x))

    def _keep_aggregate(self, index: int, chunk: Chunk, aggregate: Tensor) -> None:
        self.state.store(self.state.aggregates[index], chunk.wave.first, aggregate.flatten(1))

    def _encoded(self, x: Features, first: int, last: int, key: int | None) -> Features:
        return self.state.model.input(x, self.state.nodes(first, last), key)

    def _as_input(self, index: int, x: Features, wave: Wave, key: int | None) -> Features:
        traits = self.state.traits[index]
        reads = traits.reads_features and traits.reads_input
        return self._encoded(x, wave.first, wave.last, key) if reads else x

    def _drop_arriving(self, index: int, buffer: Buffer, wave: Wave, key: int | None) -> None:
        state = self.state
        if key is None or state.model.input_dropout == 0 or not state.traits[index].from_features:
            return
        at, nodes = wave.places("loads", ARRIVES).long(), buffer.arriving(wave).node.to(state.device)
        dropped = state.model.input(buffer.rows[at], nodes, key)
        assert isinstance(dropped, Tensor)
        buffer.rows.index_copy_(0, at, dropped)

    def _count_edges(self, chunk: Chunk) -> None:
        self.state.comm.ledger.count("edges_aggregated", chunk.block.edges.num_edges)
        self.state.comm.ledger.count("rows_computed", chunk.block.edges.num_dst)


def _brought(course: Course, number: int, *, transposes: bool) -> Wave:
    """A wave with what can be found out beside the computation of the one before."""
    wave = course.wave(number)
    course.bring(wave)
    if transposes:
        transpose(wave.edges)
    return wave
