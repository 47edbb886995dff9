"""Mutants of `orchestrate`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from outgrow.engine.features.remote import RemoteFeatureStore
from outgrow.engine.features.store import FeatureRequest, PendingFeatures
from outgrow.nn.layer import Layer
from outgrow.strategies.orchestrate import device_side, hot_gradient
from outgrow.strategies.orchestrate.host_side import HostSide
from outgrow.strategies.orchestrate.hot_embeddings import HotEmbeddings, HotEmbeddingTable, compute_hot_output
from outgrow.strategies.orchestrate.hot_gradient import HotGradient
from outgrow.strategies.orchestrate.hot_inputs import HotInputs
from outgrow.strategies.orchestrate.parameter_history import EpochStart, ParameterHistory, ParameterVersion
from outgrow.strategies.orchestrate.sampling import HotColdSampler, SampledBatch
from suites.hits import Hits


@contextmanager
def hot_rows_misplaced() -> Iterator[Hits]:
    """Of what was made of hot nodes each gets that of the one before."""
    hits, right = Hits(), HotEmbeddingTable.select_nodes

    def take(self: HotEmbeddingTable, nodes: Tensor) -> HotEmbeddings:
        hits.note(len(nodes) > 1)
        return right(self, nodes.roll(1))._replace(nodes=nodes)

    with patch.object(HotEmbeddingTable, "select_nodes", take):
        yield hits


@contextmanager
def aggregates_of_other_nodes() -> Iterator[Hits]:
    """The CPU hands over sums one place off."""
    hits, right = Hits(), HostSide._compute_embeddings

    def made(self: HostSide, inputs: HotInputs, updates: int) -> HotEmbeddings:
        found = right(self, inputs, updates)
        assert found.aggregate is not None
        hits.note(len(found.nodes) > 1)
        return found._replace(aggregate=found.aggregate.roll(1, 0))

    with patch.object(HostSide, "_compute_embeddings", made):
        yield hits


@contextmanager
def hot_rows_without_gradient() -> Iterator[Hits]:
    """Hot nodes add nothing to the gradient of the bottom layer."""
    hits = Hits()

    def constant(layer: Layer, rows: HotEmbeddings, *given: Any) -> Tensor:
        hits.note(len(rows.nodes) > 0)
        return compute_hot_output(layer, rows, *given).detach()

    with patch.object(device_side, "compute_hot_output", constant):
        yield hits


@contextmanager
def hot_rows_without_dropout() -> Iterator[Hits]:
    """What is reused is used as it was made, in every batch."""
    hits = Hits()

    def kept(layer: Layer, rows: HotEmbeddings, key: int | None, updates: int) -> Tensor:
        hits.note(len(rows.nodes) > 0)
        return compute_hot_output(layer, rows, None, updates)

    with patch.object(device_side, "compute_hot_output", kept):
        yield hits


@contextmanager
def rows_for_the_cpu_misplaced() -> Iterator[Hits]:
    """Rows that other workers send to the CPU's thread are one place off."""
    hits, right = Hits(), RemoteFeatureStore._answer_request

    def answered(self: RemoteFeatureStore, request: FeatureRequest, *given: Any) -> PendingFeatures:
        remote = request.remote
        if remote is not None and threading.current_thread() is not threading.main_thread():
            hits.note(len(remote.positions) > 1)
            request = replace(request, remote=remote._replace(positions=remote.positions.roll(1)))
        return right(self, request, *given)

    with patch.object(RemoteFeatureStore, "_answer_request", answered):
        yield hits


@contextmanager
def gradients_left_on_the_cpu() -> Iterator[Hits]:
    """What the CPU computes of the gradient does not reach the parameters."""
    hits = Hits()

    def add(self: HotGradient, rows: HotEmbeddings, *given: Any) -> None:
        hits.note(len(rows.nodes) > 0)

    with patch.object(HotGradient, "add", add):
        yield hits


@contextmanager
def gradients_of_older_parameters() -> Iterator[Hits]:
    """The CPU computes the gradient with the parameters of the batch before."""
    hits, right, before = Hits(), HotGradient.add, list[ParameterVersion]()

    def add(
        self: HotGradient, rows: HotEmbeddings, gradient_hO: Tensor, version: ParameterVersion, hot: HotEmbeddingTable
    ) -> None:
        hits.note(bool(before))
        right(self, rows, gradient_hO, before[-1] if before else version, hot)
        before.append(version)

    with patch.object(HotGradient, "add", add):
        yield hits


@contextmanager
def parameters_forgotten_after_an_epoch() -> Iterator[Hits]:
    """The first super-batch of each epoch has nothing to reuse."""
    hits, right = Hits(), ParameterHistory.start_epoch

    def start(self: ParameterHistory, epoch: int, first: int, supers: Sequence[range]) -> EpochStart:
        found = right(self, epoch, first, supers)
        hits.note(found.earlier is not None)
        return found._replace(earlier=None)

    with patch.object(ParameterHistory, "start_epoch", start):
        yield hits


def hot_rows_in_the_place_of_others() -> AbstractContextManager[Hits]:
    """Rows of hot nodes are put where those of other hot nodes belong."""
    return _other_draws(
        lambda draw: draw._replace(hot_positions=draw.hot_positions.roll(1)), lambda draw: len(draw.hot_positions) > 1
    )


def mean_over_own_seeds() -> AbstractContextManager[Hits]:
    """The loss is the mean over the worker's own seeds."""
    return _other_draws(
        lambda draw: draw._replace(num_seeds=max(1, len(draw.seeds))),
        lambda draw: len(draw.seeds) not in (0, draw.num_seeds),
    )


@contextmanager
def _other_draws(
    change: Callable[[SampledBatch], SampledBatch], changed: Callable[[SampledBatch], bool]
) -> Iterator[Hits]:
    hits, right = Hits(), HotColdSampler.sample_batch

    def draw(self: HotColdSampler, step: int, *, all_cold: bool) -> SampledBatch:
        found = right(self, step, all_cold=all_cold)
        hits.note(changed(found))
        return change(found)

    with patch.object(HotColdSampler, "sample_batch", draw):
        yield hits


@contextmanager
def edges_of_hot_nodes_renumbered() -> Iterator[Hits]:
    """Where the CPU computes rows of hot nodes again, attention drops other edges."""
    hits, right = Hits(), HotInputs.select_nodes

    def select(self: HotInputs, positions: Tensor) -> HotInputs:
        found = right(self, positions)
        ids = torch.arange(found.block.edges.num_edges)
        hits.note(not torch.equal(ids, found.block.edge_ids) if found.block.edge_ids is not None else True)
        return found._replace(block=replace(found.block, edge_ids=ids))

    with patch.object(HotInputs, "select_nodes", select):
        yield hits


@contextmanager
def gradients_of_other_hot_nodes() -> Iterator[Hits]:
    """Rows that the CPU computes again get the gradients of one another."""
    hits, right = Hits(), HotEmbeddingTable.select_inputs

    def select(self: HotEmbeddingTable, nodes: Tensor) -> Iterator[tuple[Tensor, HotInputs]]:
        for places, inputs in right(self, nodes):
            hits.note(len(places) > 1)
            yield places.roll(1), inputs

    with patch.object(HotEmbeddingTable, "select_inputs", select):
        yield hits


@contextmanager
def gradients_without_regard_to_age() -> Iterator[Hits]:
    """The gradient of an old row counts as much as that of a new one."""
    hits = Hits()

    def weights(rows: HotEmbeddings, updates: int, dtype: torch.dtype) -> Tensor:
        hits.note(int(rows.versions.min()) < updates)
        return torch.ones(len(rows.versions), 1, dtype=dtype)

    with patch.object(hot_gradient, "gradient_weights", weights):
        yield hits


MUTANTS = {
    each.__name__: each
    for each in (
        parameters_forgotten_after_an_epoch,
        gradients_left_on_the_cpu,
        gradients_of_older_parameters,
        edges_of_hot_nodes_renumbered,
        gradients_of_other_hot_nodes,
        gradients_without_regard_to_age,
    )
}
"""Those of one worker, which a serial reference finds."""
