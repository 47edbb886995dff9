"""Whether features are copied into the order of the waves, or of the chunks, on a worker's scratch disk.

A store has features by node, and a wave needs rows of nodes that lie far apart. Such rows are read as runs: rows with
small gaps at once, gaps included, and whole pages. Where rows are narrow that is several times what is needed, in every
pass. A copy in which the rows of a wave lie side by side is written once. Which of both asks less of the files is
counted before training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.features.inputs import keeps_half
from outgrow.engine.layer_plan import AggregatePolicy, LayerPlan
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.ops.rows.file_io import PAGE_BYTES
from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from outgrow.runtime.storage.segment_file import SegmentFile
from outgrow.strategies.offload.node_tables import FeatureRows
from outgrow.strategies.offload.row_layouts import ChunkRows, WaveChunkIndex, WaveOrderedRows
from outgrow.strategies.offload.wave_plan import RowRange, WaveRequirements

_EPOCHS = 4
"""A copy must have paid for itself after so many epochs, unless the features are read but once in a run."""
_COUNTED_WAVES = 5
"""Waves, spread evenly, whose runs are counted: those of the others are about as long."""


class FeatureCopies(NamedTuple):
    """Bytes of copies of a worker's features; 0 for a copy that does not pay.

    Attributes:
        wave_bytes: Of the rows that arrive at each wave, wave by wave.
        chunk_bytes: Of the own rows, chunk by chunk.
        run_bytes: What one pass over all waves asks of the store without a copy, about.
    """

    wave_bytes: int = 0
    chunk_bytes: int = 0
    run_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all copies."""
        return self.wave_bytes + self.chunk_bytes


def count_run_bytes(rows: Tensor, row_bytes: int, gap_bytes: int) -> int:
    """Return the bytes that reading rows of a file as runs asks for: see `outgrow.runtime.storage.row_file.RowFile`.

    Args:
        rows: ``[N]`` int64, ascending and distinct.
        row_bytes: Of a row.
        gap_bytes: Largest gap between rows of one run.
    """
    if not len(rows):
        return 0
    given = as_numpy(rows)
    breaks = np.flatnonzero(np.diff(given) > gap_bytes // row_bytes + 1)
    first = given[np.concatenate(([0], breaks + 1))] * row_bytes
    end = (given[np.concatenate((breaks, [len(given) - 1]))] + 1) * row_bytes
    pages = (end + PAGE_BYTES - 1) // PAGE_BYTES - first // PAGE_BYTES
    return int(pages.sum()) * PAGE_BYTES


def are_stored_as_computed(model: Model, features: Features) -> bool:
    """Whether a model computes with dense features of the type in which a store has them."""
    return isinstance(features, Tensor) and (features.dtype == model.dtype or keeps_half(model, features))


def plan_feature_copies(
    plan: LayerPlan, requirements: WaveRequirements, own: Tensor, row_bytes: int, gap_bytes: int, *, reuse: bool
) -> FeatureCopies:
    """Return which copies of dense features in a file pay, by the bytes that are asked of files.

    Args:
        plan: The first layer.
        requirements: What the worker needs in each wave, in the view of that layer.
        own: ``[n]`` int64, the own nodes.
        row_bytes: Of the features of a node.
        gap_bytes: Largest gap between rows of one run.
        reuse: Whether waves keep rows of the wave before.
    """
    in_turn = _count_chunks(requirements.chunks, own, row_bytes, gap_bytes)
    table = len(own) * row_bytes
    wave_bytes = chunk_bytes = by_runs = 0
    if plan.source_is_features:
        arriving, by_runs = _count_waves(requirements.loads, row_bytes, gap_bytes, reuse=reuse)
        passes = _count_wave_passes(plan)
        # The own rows are read once, and all copies of them written once.
        if passes * by_runs > in_turn + (1 + passes) * arriving:
            wave_bytes = arriving
    passes = _count_chunk_passes(plan)
    if passes * in_turn > in_turn + (1 + passes) * table:
        chunk_bytes = table
    return FeatureCopies(wave_bytes, chunk_bytes, by_runs)


def _count_waves(loads: Sequence[Tensor], row_bytes: int, gap_bytes: int, *, reuse: bool) -> tuple[int, int]:
    """Return the bytes of rows that arrive in a pass, and those that are asked of the store, from some waves."""
    chosen = np.unique(np.linspace(0, len(loads) - 1, min(len(loads), _COUNTED_WAVES)).round().astype(int)).tolist()
    arriving = asked = 0
    for wave in chosen:
        rows = loads[wave]
        if reuse and wave:
            new = np.isin(as_numpy(rows), as_numpy(loads[wave - 1]), assume_unique=True, invert=True)
            rows = rows[as_tensor(new)]
        arriving += len(rows) * row_bytes
        asked += count_run_bytes(rows, row_bytes, gap_bytes)
    return arriving * len(loads) // len(chosen), asked * len(loads) // len(chosen)


def _count_chunks(chunks: Sequence[RowRange], own: Tensor, row_bytes: int, gap_bytes: int) -> int:
    return sum(count_run_bytes(own[first:last], row_bytes, gap_bytes) for first, last in chunks)


def _count_wave_passes(plan: LayerPlan) -> int:
    """Return how often waves load the features within the epochs in which a copy must pay."""
    if plan.aggregate_policy is AggregatePolicy.CONSTANT:
        return 1
    forward = plan.aggregate_policy is not AggregatePolicy.LAST
    return _EPOCHS * (forward + plan.needs_sources_backward)


def _count_chunk_passes(plan: LayerPlan) -> int:
    """Return how often chunks read the features of their own nodes within these epochs."""
    if not plan.source_is_features:
        return 2 * _EPOCHS
    return 2 * _EPOCHS * (plan.reads_features and plan.reads_input)


def feature_row_bytes(features: Features) -> int:
    """Return the bytes of a row of dense features."""
    assert isinstance(features, Tensor)
    return features.shape[1] * features.itemsize


def write_feature_copies(
    features: FeatureRows,
    chunk_ranges: Sequence[RowRange],
    by_wave: tuple[SegmentFile, WaveChunkIndex] | None,
    by_chunk: SegmentFile | None,
    comm: Comm,
) -> tuple[WaveOrderedRows | None, ChunkRows | None]:
    """Copy the features of own nodes in one pass over them, chunk by chunk. Ledgers do not count it.

    Args:
        features: As the store has them.
        chunk_ranges: First and last own row (plus 1) of each chunk.
        by_wave: A file with the segments of an index, for the rows that arrive at each wave; None for no such copy.
        by_chunk: A file with a segment for each chunk; None for no such copy.
        comm: The communicator by which later reads are counted.
    """
    uncounted = SingleProcessComm()
    tables = list[WaveOrderedRows | ChunkRows]()
    if by_wave is not None:
        tables.append(WaveOrderedRows(*by_wave, None, uncounted, Kind.FEATURES))
    if by_chunk is not None:
        tables.append(ChunkRows(by_chunk, chunk_ranges, Kind.FEATURES, uncounted))
    reader = features.without_ledger()
    for first, last in chunk_ranges if tables else ():
        if first < last:
            rows = reader.read_range(first, last)
            assert isinstance(rows, Tensor)
            for table in tables:
                table.write_rows(first, rows)
    return (
        None if by_wave is None else WaveOrderedRows(*by_wave, None, comm, Kind.FEATURES),
        None if by_chunk is None else ChunkRows(by_chunk, chunk_ranges, Kind.FEATURES, comm),
    )
