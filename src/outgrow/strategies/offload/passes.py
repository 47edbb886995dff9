"""Passes over a whole graph, layer by layer and wave by wave.

All work between two aggregations is node-wise. Each chunk therefore computes the update of a layer and the
source rows of the next layer together, and the backward pass recomputes the update from the cached aggregate, but
not a projection that follows it: its gradient needs no value of it. The activations never leave the device.

The last layer runs forward and backward in one wave: the loss of a chunk is known as soon as its logits are.
Wang et al.: HongTu, SIGMOD 2023, algorithms 1 to 3.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from outgrow.engine.layer_plan import AggregatePolicy, LayerPlan
from outgrow.engine.link_objective import LinksOfStep
from outgrow.engine.objective import GradientObjective, RowwiseObjective, StepObjective, index_output_rows, row_range
from outgrow.nn.layer import Features, NodeMessages
from outgrow.nn.model import layer_key
from outgrow.nn.source_products import source_for_gradient
from outgrow.strategies.offload.state import OffloadState
from outgrow.strategies.offload.wave import LOADED, Wave
from outgrow.strategies.offload.wave_buffer import (
    GradientAdder,
    GradientBuffer,
    SourceBuffer,
    backward_through,
    detached_leaf,
    grad_or_zeros,
    no_gradient,
)
from outgrow.strategies.offload.wave_file import ChunkInputs, load_wave


class OffloadEpoch:
    """The forward and backward pass of one epoch on one worker. All workers run them together. Final.

    Counts in the ledger: ``edges_aggregated``, ``rows_computed``, ``rows_loaded``, ``remote_rows``,
    ``reused_bytes``.

    Args:
        state: Tables, waves and I/O of the worker.
    """

    def __init__(self, state: OffloadState) -> None:
        self.state = state
        self.row_objective: RowwiseObjective | None = None

    @torch.no_grad()
    def prepare_constants(self) -> None:
        """Compute the first layer's aggregate once, if it is constant."""
        first = self.state.layer_plans[0]
        if first.aggregate_policy is AggregatePolicy.CONSTANT:
            for chunk in self._chunks_with_sources(0, None, backward=False):
                self._store_aggregate(0, chunk, self._compute_aggregate(first, chunk))
            self.state.finish_layer()

    @torch.no_grad()
    def forward(self, key: int) -> None:
        """Run all layers except the last, which the backward pass starts with."""
        self._compute_first_sources(key)
        for index in range(len(self.state.layer_plans) - 1):
            self._forward_layer(index, key)

    def backward(self, objective: StepObjective, key: int) -> Tensor:
        """Return the loss of the worker's nodes; gradients accumulate in the parameters."""
        known = None
        self.row_objective = objective.as_rowwise
        if isinstance(objective, LinksOfStep):
            # A loss that couples rows is known before the waves run; its row gradients then drive them.
            known, self.row_objective = self._nonrow_loss(objective, key)
        # Losses of chunks add up in float64, so that the sum depends little on the number of chunks.
        loss = torch.zeros((), dtype=torch.float64)
        for index in reversed(range(len(self.state.layer_plans))):
            # Gradients of layer `index` are complete only after every wave of that layer has run.
            loss += self._backward_layer(index, key).cpu()
        self._first_sources_backward(key)
        return loss if known is None else known

    def _nonrow_loss(self, objective: LinksOfStep, key: int) -> tuple[Tensor, GradientObjective]:
        """Return the loss of links, whose ends are in several chunks, and the gradient of the rows that it reads."""
        state = self.state
        rows = objective.find_rows(key)
        shape = len(rows), state.layer_plans[-1].layer.spec.out_features
        out = torch.empty(shape, dtype=state.dtype, device=state.device)
        with torch.no_grad():
            for first, values in self._compute_last_layer(key):
                here = row_range(rows, first, first + len(values))
                out[here] = index_output_rows(values, rows[here] - first)
            state.finish_layer()
        loss = objective.loss(out.requires_grad_(), key, rows)
        # Cut the graph at the logits: only their gradient is kept, not the activations of all chunks.
        torch.autograd.backward(loss)
        return loss.detach().double().cpu(), GradientObjective(grad_or_zeros(out), rows)

    def _compute_last_layer(self, key: int | None) -> Iterator[tuple[int, Tensor]]:
        """Yield the output of each chunk with its first own row."""
        last = len(self.state.layer_plans) - 1
        plan = self.state.layer_plans[last]
        for chunk in self._forward_chunks(last, key):
            aggregate = self._compute_aggregate(plan, chunk) if chunk.aggregate is None else chunk.aggregate
            yield chunk.wave.first, plan.layer.update(chunk.x, aggregate, chunk.block)

    @torch.no_grad()
    def inference(self) -> Iterator[tuple[int, Tensor]]:
        """Yield logits ``[n, C]`` of each chunk, without dropout, in host memory, with its first own row."""
        self._compute_first_sources(None)
        last = len(self.state.layer_plans) - 1
        for index in range(last):
            self._forward_layer(index, None)
        for first, rows in self._compute_last_layer(None):
            yield first, rows.cpu()

    def _compute_first_sources(self, key: int | None) -> None:
        """Store the first layer's source rows unless they are the features, and any encoded input."""
        state, first = self.state, self.state.layer_plans[0]
        if first.source_is_features:
            return
        load = state.async_io.load_ahead
        for low, high, x in load(lambda piece: (*piece, state.features.read_range(*piece)), state.chunk_ranges):
            with state.timeline.span("compute"):
                given = self._encode_input(x, low, high, key)
                rows = first.layer.source(given, state.own_nodes(low, high))
            state.store_sources(0, low, rows)
            if first.keeps_input and not first.reads_features:
                # Later passes read the encoded input back instead of encoding it again.
                assert isinstance(given, Tensor)
                state.store_rows(state.inputs[0], low, given)
        state.finish_layer()

    def _first_sources_backward(self, key: int) -> None:
        state, first = self.state, self.state.layer_plans[0]
        if first.source_is_features:
            return

        def load_chunk(piece: tuple[int, int]) -> tuple[int, int, Features, tuple[Tensor, ...]]:
            return (*piece, state.features.read_range(*piece), self._read_gradients(0, *piece))

        for low, high, x, (grad, *others) in state.async_io.load_ahead(load_chunk, state.chunk_ranges):
            with state.timeline.span("compute"):
                given = self._encode_input(x, low, high, key)
                rows = source_for_gradient(first.layer, given, state.own_nodes(low, high))
                backward_through(rows, first.unflatten_source(grad), *((given, each) for each in others))

    def _forward_layer(self, index: int, key: int | None) -> None:
        state, plan = self.state, self.state.layer_plans[index]
        for chunk in self._forward_chunks(index, key):
            with state.timeline.span("compute"):
                known = chunk.aggregate
                aggregate = self._compute_aggregate(plan, chunk) if known is None else known
                out = plan.layer.update(chunk.x, aggregate, chunk.block)
                rows = state.layer_plans[index + 1].layer.source(out, chunk.block.dst_nodes)
            # Inference (no key) has no backward pass, so nothing reads the aggregate again.
            if key is not None and plan.aggregate_policy is AggregatePolicy.CACHED:
                self._store_aggregate(index, chunk, aggregate)
            state.store_sources(index + 1, chunk.wave.first, rows)
            if state.layer_plans[index + 1].keeps_input:
                state.store_rows(state.inputs[index + 1], chunk.wave.first, out)
        state.finish_layer()

    def _backward_layer(self, index: int, key: int) -> Tensor:
        state, plan = self.state, self.state.layer_plans[index]
        loss = self._zero_loss()
        gradients = state.new_gradient_buffer(index) if plan.source_requires_grad else None
        chunks = self._chunks_with_sources if plan.needs_sources_backward else self._chunks_with_aggregates
        for chunk in chunks(index, key):
            with state.timeline.span("compute"):
                x = detached_leaf(chunk.x, trains=plan.input_requires_grad and plan.reads_input)
                # Attention needs its source rows again; a weighted sum needs only its cached aggregate.
                compute = self._backward_recomputing if plan.needs_sources_backward else self._backward_from_cache
                found, add = compute(index, chunk, x)
                loss += found
            if plan.reads_input and plan.input_requires_grad and isinstance(x, Tensor):
                state.store_rows(state.input_gradients[index], chunk.wave.first, grad_or_zeros(x))
            if gradients is not None:
                self._accumulate_source_grads(index, chunk, gradients, add)
        state.finish_layer()
        return loss

    def _backward_recomputing(self, index: int, chunk: ChunkInputs, x: Features) -> tuple[Tensor, GradientAdder]:
        plan = self.state.layer_plans[index]
        rows = detached_leaf(chunk.source, trains=plan.source_requires_grad)
        assert isinstance(rows, Tensor)
        aggregate = plan.layer.aggregate(
            chunk.block, plan.unflatten_source(rows), plan.layer.target(x, chunk.block.dst_nodes)
        )
        self._count_edges(chunk)
        loss = self._update_and_backward(index, chunk, x, aggregate)
        grad = rows.grad
        return loss, no_gradient if grad is None else lambda gradients: gradients.add_wave_grad(grad)

    def _backward_from_cache(self, index: int, chunk: ChunkInputs, x: Features) -> tuple[Tensor, GradientAdder]:
        plan = self.state.layer_plans[index]
        layer = plan.layer
        aggregate = detached_leaf(chunk.aggregate, trains=plan.source_requires_grad)
        assert isinstance(aggregate, Tensor)
        loss = self._update_and_backward(index, chunk, x, aggregate)
        if not plan.source_requires_grad:
            return loss, no_gradient
        # The weights take only their type from these values.
        none = NodeMessages(aggregate.detach(), None)
        weight = layer.conv.edge_weight(chunk.block, none, NodeMessages(None, None))
        # Delay the transposed sum until the buffer has zeroed the slots of this wave.
        grad, channels = grad_or_zeros(aggregate), layer.spec.source[0]
        return loss, lambda gradients: gradients.add_weighted_sums(chunk.block.edges, weight, grad, channels)

    def _update_and_backward(self, index: int, chunk: ChunkInputs, x: Features, aggregate: Tensor) -> Tensor:
        """Run from one aggregation to the next, or to the loss, and back; return the loss, or 0."""
        plan, wave = self.state.layer_plans[index], chunk.wave
        out = plan.layer.update(x, aggregate, chunk.block)
        if index == len(self.state.layer_plans) - 1:
            assert self.row_objective is not None
            aim = self.row_objective.for_row_range(wave.first, wave.last).to(self.state.device)
            if aim.is_empty:
                return self._zero_loss()
            loss = aim.loss(out)
            torch.autograd.backward(loss)
            return loss.detach().double()
        following = self.state.layer_plans[index + 1]
        given, *others = chunk.gradients
        rows = source_for_gradient(following.layer, out, chunk.block.dst_nodes)
        backward_through(rows, following.unflatten_source(given), *((out, grad) for grad in others))
        return self._zero_loss()

    def _zero_loss(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=self.state.device)

    def _accumulate_source_grads(
        self, index: int, chunk: ChunkInputs, gradients: GradientBuffer, add_gradient: GradientAdder
    ) -> None:
        state, wave = self.state, chunk.wave
        with state.timeline.span("accumulate"):
            # Zero before adding: rows that stay in their slot keep the partial sums of earlier waves.
            gradients.zero_new_rows(wave)
            add_gradient(gradients)
        with state.timeline.span("exchange"):
            gradients.send_remote(wave)
        with state.timeline.span("accumulate"):
            held, values = gradients.evicted_rows(wave)
        state.add_gradients(index, chunk.number, held, values)

    def _forward_chunks(self, index: int, key: int | None) -> Iterator[ChunkInputs]:
        """Yield the chunks of a forward pass, with their aggregates if these are constant."""
        constant = self.state.layer_plans[index].aggregate_policy is AggregatePolicy.CONSTANT
        return (
            self._chunks_with_aggregates(index, key, backward=False)
            if constant
            else self._chunks_with_sources(index, key, backward=False)
        )

    def _chunks_with_sources(self, index: int, key: int | None, *, backward: bool = True) -> Iterator[ChunkInputs]:
        """Yield the chunks of a layer, with their source rows in one device buffer."""
        state, plan = self.state, self.state.layer_plans[index]
        waves = state.wave_file(plan.layer)
        kind, widths = state.source_kind(index), plan.layer.row_widths()
        buffer = SourceBuffer(waves.num_slots, state.sources[index], kind, state.comm, widths, state.votes)
        transposes = backward and plan.needs_transpose and not waves.hides_edges

        def load_sources(number: int) -> tuple[int, Wave, Features, tuple[Tensor, ...]]:
            wave = load_wave(waves, number, transposes=transposes)
            buffer.load_rows(wave, number)
            x = self._read_input(index, wave)
            return number, wave, x, self._next_layer_gradients(index, wave) if backward else ()

        for number, wave, x, gradients in state.async_io.load_ahead(
            # A layer that reads unreferenced rows must not see a later wave's rows in the shared buffer.
            load_sources,
            waves.wave_numbers,
            overlap=not plan.reads_unreferenced_rows,
        ):
            with state.timeline.span("compute"):
                block = waves.block_for(wave, layer_key(key, index))
                given = self._encode_if_features(index, x, wave, key)
                # Drop before the exchange, so that peers receive the same dropped rows.
                self._apply_input_dropout(index, buffer, wave, key)
            with state.timeline.span("exchange"):
                buffer.exchange_rows(wave)
            yield ChunkInputs(number, wave, block, given, buffer.rows, None, gradients)

    def _chunks_with_aggregates(self, index: int, key: int | None, *, backward: bool = True) -> Iterator[ChunkInputs]:
        """Yield the chunks of a layer, with their stored aggregates."""
        state, plan = self.state, self.state.layer_plans[index]
        waves, shape = state.wave_file(plan.layer), plan.layer.spec.aggregate
        transposes = backward and plan.needs_transpose and not waves.hides_edges

        def load_aggregate(number: int) -> tuple[int, Wave, Features, Tensor, tuple[Tensor, ...]]:
            wave = load_wave(waves, number, transposes=transposes)
            aggregate = state.aggregates[index].read_range(wave.first, wave.last)
            x = self._read_input(index, wave)
            return number, wave, x, aggregate, self._next_layer_gradients(index, wave) if backward else ()

        for number, wave, x, aggregate, gradients in state.async_io.load_ahead(load_aggregate, waves.wave_numbers):
            with state.timeline.span("compute"):
                block = waves.block_for(wave, layer_key(key, index))
                given = self._encode_if_features(index, x, wave, key)
            yield ChunkInputs(number, wave, block, given, None, torch.unflatten(aggregate, 1, shape), gradients)

    def _read_input(self, index: int, wave: Wave) -> Features:
        state = self.state
        if not state.layer_plans[index].reads_input:
            return torch.empty(wave.last - wave.first, 0, dtype=state.dtype, device=state.device)
        features = state.layer_plans[index].reads_features
        return (state.features if features else state.inputs[index]).read_range(wave.first, wave.last)

    def _next_layer_gradients(self, index: int, wave: Wave) -> tuple[Tensor, ...]:
        last = index + 1 == len(self.state.layer_plans)
        return () if last else self._read_gradients(index + 1, wave.first, wave.last)

    def _read_gradients(self, index: int, first: int, last: int) -> tuple[Tensor, ...]:
        """Return gradients of own source rows of a layer, and of its destinations' input if it has one."""
        state, plan = self.state, self.state.layer_plans[index]
        found = [state.source_gradients[index].read_range(first, last)]
        if plan.reads_input and plan.input_requires_grad:
            found.append(state.input_gradients[index].read_range(first, last))
        return tuple(found)

    def _compute_aggregate(self, layer_plan: LayerPlan, chunk: ChunkInputs) -> Tensor:
        assert chunk.source is not None
        source = layer_plan.unflatten_source(chunk.source)
        self._count_edges(chunk)
        target = layer_plan.layer.target(chunk.x, chunk.block.dst_nodes)
        return layer_plan.layer.aggregate(chunk.block, source, target)

    def _store_aggregate(self, index: int, chunk: ChunkInputs, aggregate: Tensor) -> None:
        self.state.store_rows(self.state.aggregates[index], chunk.wave.first, aggregate.flatten(1))

    def _encode_input(self, x: Features, first: int, last: int, key: int | None) -> Features:
        return self.state.model.encode_input(x, self.state.own_nodes(first, last), key)

    def _encode_if_features(self, index: int, x: Features, wave: Wave, key: int | None) -> Features:
        plan = self.state.layer_plans[index]
        reads = plan.reads_features and plan.reads_input
        return self._encode_input(x, wave.first, wave.last, key) if reads else x

    def _apply_input_dropout(self, index: int, buffer: SourceBuffer, wave: Wave, key: int | None) -> None:
        state = self.state
        if key is None or state.model.input_dropout == 0 or not state.layer_plans[index].source_is_features:
            return
        # Only new rows: rows that stayed in the buffer were already dropped in an earlier wave.
        at, nodes = wave.slots_at("loads", LOADED).long(), buffer.rows_to_load(wave).node.to(state.device)
        dropped = state.model.encode_input(buffer.rows[at], nodes, key)
        assert isinstance(dropped, Tensor)
        buffer.rows.index_copy_(0, at, dropped)

    def _count_edges(self, chunk: ChunkInputs) -> None:
        self.state.comm.ledger.add_count("edges_aggregated", chunk.block.edges.num_edges)
        self.state.comm.ledger.add_count("rows_computed", chunk.block.edges.num_dst)
