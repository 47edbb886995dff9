"""The tables of a worker, and which of them lie in pinned memory beside a GPU where not all of them fit there.

A table that is read and written much for its size gains most. Letters: ``n`` own nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from outgrow.engine.layer_plan import AggregatePolicy, LayerPlan
from outgrow.ops.rows.row_encoding import FULL, stored_row_bytes

FEATURES = "features"
"""Name of the table of raw features."""


class TableBytes(NamedTuple):
    """A table of rows of own nodes.

    Attributes:
        name: As its file is called.
        num_bytes: What it takes by node, as in pinned memory.
        disk_bytes: What it takes in the order of the waves or chunks, as on a disk.
        epoch_bytes: What crosses between it and the device in an epoch.
    """

    name: str
    num_bytes: int
    disk_bytes: int
    epoch_bytes: int


def list_tables(
    layer_plans: Sequence[LayerPlan],
    num_own: int,
    num_loaded: int,
    number_bytes: int,
    feature_row_bytes: int,
    precision: str = FULL,
) -> list[TableBytes]:
    """Return all tables of a worker.

    Args:
        layer_plans: The layers.
        num_own: ``n``.
        num_loaded: Rows that arrive in the waves of a layer; as many gradients leave.
        number_bytes: Of a number of a row.
        feature_row_bytes: Of a row of dense features; 0 where features are not in a table.
        precision: In which other rows are stored.
    """
    found = list[TableBytes]()

    def add(name: str, size: int, lying: int, moved: int) -> None:
        if size:
            found.append(TableBytes(name, num_own * size, lying * size, moved * size))

    first = layer_plans[0]
    waves = num_loaded * _count_wave_passes(first)
    # Features that are no source rows are projected in both passes, and destinations may read them besides.
    chunks = num_own * (2 * (not first.source_is_features) + 2 * (first.reads_features and first.reads_input))
    add(FEATURES, feature_row_bytes, 0, (waves if first.source_is_features else 0) + chunks)
    for index, plan in enumerate(layer_plans):
        for name, width, by_wave, moved in _list_layer_tables(plan, num_own, num_loaded):
            add(
                f"{name}-{index}",
                stored_row_bytes(width, number_bytes, precision),
                num_loaded if by_wave else num_own,
                moved,
            )
    return found


def _list_layer_tables(plan: LayerPlan, own: int, loaded: int) -> Iterator[tuple[str, int, bool, int]]:
    """Yield name, numbers of a row, whether waves read or write it, and rows that move in an epoch."""
    inputs = plan.layer.spec.in_features
    both = 1 + (plan.aggregate_policy is not AggregatePolicy.LAST)
    if not plan.source_is_features:
        moved = own + loaded * _count_wave_passes(plan) + own * both * plan.shares_input
        yield "source", plan.source_width, True, moved
    if not plan.reads_features and plan.keeps_input:
        yield "input", inputs, False, own * (1 + both)
    if plan.aggregate_policy in (AggregatePolicy.CONSTANT, AggregatePolicy.CACHED):
        yield "aggregate", plan.aggregate_width, False, 2 * own
    if plan.source_requires_grad:
        yield "source-gradient", plan.source_width, True, loaded + own
    if plan.input_requires_grad and plan.reads_input:
        yield "input-gradient", inputs, False, 2 * own


def _count_wave_passes(plan: LayerPlan) -> int:
    """Return how often waves load the source rows of a layer in an epoch."""
    if plan.aggregate_policy is AggregatePolicy.CONSTANT:
        return 0
    return (plan.aggregate_policy is not AggregatePolicy.LAST) + plan.needs_sources_backward


def choose_pinned_tables(tables: Sequence[TableBytes], max_bytes: int) -> frozenset[str]:
    """Return the names of the tables that are pinned: those with the most traffic for each of their bytes.

    A table that does not fit into what is left is passed over; ties go to the table that comes first.

    Args:
        tables: All tables of a worker.
        max_bytes: The most that it may pin.
    """
    chosen, left = set[str](), max_bytes
    for table in sorted(tables, key=lambda each: -each.epoch_bytes / max(1, each.num_bytes)):
        if table.num_bytes <= left:
            chosen.add(table.name)
            left -= table.num_bytes
    return frozenset(chosen)
