"""Ways to get modules per type wrong without any error, each a context in which some of the code is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor

from outgrow.core.graph_types import RowWidths
from outgrow.engine.packed_rows import RowPacking
from outgrow.nn import hetero
from outgrow.nn.relation_convs import HeteroAggregation
from outgrow.nn.slot_layout import SlotLayout
from outgrow.ops.aggregation.base import Aggregate
from outgrow.ops.row_slots import Slot, gather_slots
from suites import edge_feature_mutants
from suites.hits import Hits


@contextmanager
def slot_of_another_relation() -> Iterator[Hits]:
    """Rows are read from the first slot, whichever relation has it."""
    hits = Hits()

    def misread(layout: SlotLayout, rows_VCF: Tensor, asked: Mapping[int, Any]) -> dict[int, Tensor]:
        slots = [layout.slot(*pair) for pair in asked.items()]
        hits.note(any(slot.first for slot in slots))
        moved = [Slot(slot.rows, 0, slot.last - slot.first) for slot in slots]
        parts = gather_slots(layout.to_units(rows_VCF), moved)
        return {
            number: part if layout.by_channel else part.reshape(len(part), *layout.shapes[number])
            for number, part in zip(asked, parts, strict=True)
        }

    with patch.object(SlotLayout, "gather", misread):
        yield hits


@contextmanager
def sum_for_mean() -> Iterator[Hits]:
    """The results of relations are added up where their mean is asked for."""
    hits = Hits()

    def add(parts: Sequence[Tensor]) -> Tensor:
        hits.note(len(parts) > 1)
        return hetero.COMBINE["sum"](parts)

    with patch.dict(hetero.COMBINE, {"mean": add}):  # type: ignore[arg-type]
        yield hits


@contextmanager
def widths_one_short() -> Iterator[Hits]:
    """One column less than a type uses crosses between workers."""
    hits, make = Hits(), RowPacking.__init__

    def trim(packing: RowPacking, widths: RowWidths, nodes: Tensor, counts: Sequence[int]) -> None:
        hits.note(len(nodes) > 0)
        parts = tuple((whole, tuple(max(0, used - 1) for used in each)) for whole, each in widths.parts)
        make(packing, RowWidths(widths.borders, parts), nodes, counts)

    with patch.object(RowPacking, "__init__", trim):
        yield hits


@contextmanager
def parameters_of_the_first_columns() -> Iterator[Hits]:
    """Whatever the columns of a worker's slice, the aggregations of relations are cut to the first ones."""
    hits, cut = Hits(), HeteroAggregation.restrict_to_columns

    def first_ones(aggregation: HeteroAggregation, first: int, last: int) -> Aggregate:
        hits.note(first > 0)
        return cut(aggregation, 0, last - first)

    with patch.object(HeteroAggregation, "restrict_to_columns", first_ones):
        yield hits


READ_FROM_PARTS = edge_feature_mutants.features_by_place_in_the_part
READ_FROM_SAMPLES = edge_feature_mutants.features_by_place_in_the_sample
MUTANTS: dict[str, tuple[Callable[[], AbstractContextManager[Hits]], tuple[str, ...], str]] = {
    "slot_of_another_relation": (slot_of_another_relation, ("full", "split"), "mixed"),
    "sum_for_mean": (sum_for_mean, ("full",), "mixed"),
    "widths_one_short": (widths_one_short, ("full", "split", "offload-3"), "mixed"),
    "parameters_of_the_first_columns": (parameters_of_the_first_columns, ("tensor",), "sums-read-edges"),
    "features_of_types_by_place_in_the_part": (READ_FROM_PARTS, ("full", "offload-3"), "sums-read-edges"),
    "features_of_types_by_place_in_the_sample": (READ_FROM_SAMPLES, ("sampled", "split"), "gat-one-reads-edges"),
}
"""The broken code, the ways that it breaks, and a model in which it does."""
