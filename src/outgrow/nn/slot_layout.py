"""`SlotLayout`: where in the rows of each node type the parts are that belong to its relations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from outgrow.core.graph_types import GraphTypes
from outgrow.nn.layer import Features
from outgrow.nn.projection import project_rows
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.row_slots import Slot, gather_slots, scatter_slots
from outgrow.ops.segment_matmul import segment_matmul
from outgrow.ops.sparse import PartialRows, SparseRows

Shape = tuple[int, int]
Rows = Tensor | slice
NOTHING: Shape = (0, 0)


class SlotLayout:
    """Places of the parts ``[C, F]`` of several relations in rows ``[C', F']`` of the nodes of one end. Final.

    Parts of equal columns have channels of their own, of which columns may be sliced. Others are laid flat into one
    channel, one after another. Rows are as wide as those of the type with the most.

    Args:
        shapes: ``(C, F)`` of each relation; (0, 0) for none.
        types: Type of the nodes at this end of each relation.
        num_types: ``T``.
        shared: Whether the part of a relation is the input of the node, which relations with the same type share.

    Attributes:
        shape: ``(C', F')``; (0, 0) if no relation has a part.
        used: ``[T]``: numbers that are used of a row of each type, its first ones.
    """

    def __init__(
        self, shapes: Sequence[Shape], types: Sequence[int], num_types: int, shared: Sequence[bool] | None = None
    ) -> None:
        shared = [False] * len(shapes) if shared is None else shared
        columns = {shape[1] for shape in shapes if shape != NOTHING}
        self.by_channel = len(columns) == 1
        self.shapes = shapes
        self.shared = shared
        self._unit = next(iter(columns)) if self.by_channel else 1
        # Of each relation, its first unit: a channel, or a number of a flat row.
        self._first = [0] * len(shapes)
        ends = [0] * num_types
        # What relations share comes first, once for each type.
        for is_shared in (True, False):
            for number, (shape, kind) in enumerate(zip(shapes, types, strict=True)):
                if shared[number] == is_shared and shape != NOTHING:
                    self._first[number] = 0 if is_shared else ends[kind]
                    ends[kind] = max(ends[kind], self._first[number] + self._count(shape))
        self.units = max(ends, default=0)
        self.shape = NOTHING if not self.units else ((self.units, self._unit) if self.by_channel else (1, self.units))
        self.used = tuple(end * self._unit for end in ends)

    @property
    def is_input(self) -> bool:
        """Whether rows are the input of the nodes, and nothing else."""
        return all(self.shared) and self.units == self._count(self.shapes[0]) if self.shapes else False

    def _count(self, shape: Shape) -> int:
        return shape[0] if self.by_channel else shape[0] * shape[1]

    def slot(self, relation: int, rows: Rows) -> Slot:
        """Return the slot of a relation in some rows."""
        first = self._first[relation]
        return Slot(rows, first, first + self._count(self.shapes[relation]))

    def to_units(self, rows_VCF: Tensor) -> Tensor:
        """Return rows ``[V, C', F']`` as the table of slots, without a copy."""
        return rows_VCF if self.by_channel else rows_VCF.transpose(1, 2)

    def from_units(self, table_VSF: Tensor) -> Tensor:
        """Return the table of slots as rows ``[V, C', F']``, without a copy."""
        return table_VSF if self.by_channel else table_VSF.transpose(1, 2)

    def gather(self, rows_VCF: Tensor, asked: Mapping[int, Rows]) -> dict[int, Tensor]:
        """Return the part ``[n, C, F]`` of each of some relations, in the rows asked for."""
        parts = gather_slots(self.to_units(rows_VCF), [self.slot(*pair) for pair in asked.items()])
        return {
            number: part if self.by_channel else part.reshape(len(part), *self.shapes[number])
            for number, part in zip(asked, parts, strict=True)
        }

    def flatten(self, part_VCF: Tensor) -> Tensor:
        """Return a part ``[n, C, F]`` as it is in the table of slots."""
        return part_VCF if self.by_channel else part_VCF.flatten(1)[:, :, None]


class TypedRows:
    """The rows of each node type among some nodes. Final.

    Args:
        types: The types.
        nodes_V: ``[V]`` int64, global ids.

    Attributes:
        rows: By type, ``[n]`` int64 or a range; for types that have rows among the nodes.
    """

    def __init__(self, types: GraphTypes, nodes_V: Tensor) -> None:
        self.nodes = nodes_V
        # Own nodes ascend, and with them their types; those of a batch do not.
        if len(nodes_V) < 2 or bool((nodes_V[1:] >= nodes_V[:-1]).all()):
            borders = torch.tensor(types.borders[1:-1], dtype=torch.int64, device=nodes_V.device)
            ends = [0, *torch.searchsorted(nodes_V.contiguous(), borders).tolist(), len(nodes_V)]
            found: list[Rows] = [slice(first, last) for first, last in pairwise(ends)]
            counts = [last - first for first, last in pairwise(ends)]
        else:
            kinds = types.types_of(nodes_V)
            counts = torch.bincount(kinds, minlength=types.num_types).tolist()
            found = list(torch.split(kinds.argsort(stable=True), counts))
        self.rows = {kind: rows for kind, (rows, count) in enumerate(zip(found, counts, strict=True)) if count}

    def index(self, kind: int) -> Tensor:
        """Return the rows of a type, ``[n]`` int64, ascending."""
        rows = self.rows.get(kind, slice(0, 0))
        if isinstance(rows, slice):
            return torch.arange(rows.start, rows.stop, device=self.nodes.device)
        return rows

    def nodes_of(self, kind: int) -> Tensor:
        """Return the nodes of a type, ``[n]`` int64."""
        return self.nodes[self.rows[kind]]

    def spread(self, values_T: Tensor) -> Tensor:
        """Return ``[V, 1]``: the value of the type of each node."""
        out = values_T.new_empty(len(self.nodes), 1)
        for kind, rows in self.rows.items():
            out[rows] = values_T[kind]
        return out

    def split(self, x_VD: Features) -> dict[int, Features]:
        """Return the input of the nodes of each type, ``[n, D]``."""
        if isinstance(x_VD, Tensor):
            ranges = [rows.stop - rows.start for rows in self.rows.values() if isinstance(rows, slice)]
            # Ranges make up all rows: views of them, whose gradients are joined.
            parts = (
                torch.split(x_VD, ranges)
                if len(ranges) == len(self.rows) > 0
                else gather_slots(x_VD, [Slot(rows, 0, x_VD.shape[1]) for rows in self.rows.values()])
            )
            return dict(zip(self.rows, parts, strict=True))
        return {kind: select_partial_rows(x_VD, rows) for kind, rows in self.rows.items()}

    def split_columns(self, x_VD: Features, types: GraphTypes) -> dict[int, Features]:
        """Return the columns of each type in the rows of its nodes; dense where all of a type are filled."""
        found = dict[int, Features]()
        for kind, rows in self.rows.items():
            first, last = types.type_columns(types.names[kind])
            if isinstance(x_VD, Tensor):
                found[kind] = x_VD[rows, first:last]
            else:
                found[kind] = select_part(x_VD, rows, first, last)
        return found


def select_partial_rows(x_VD: PartialRows, rows: Rows) -> PartialRows:
    """Return rows of a matrix: a range without a copy, or ``[n]`` int64 of them."""
    return x_VD.index_rows(rows) if isinstance(rows, Tensor) else x_VD.slice_rows(rows.start, rows.stop)


def select_part(x_VD: PartialRows, rows: Rows, first: int, last: int) -> Features:
    """Return columns ``first`` to ``last - 1`` of rows that have no others; dense if none of these numbers is missing.

    A part of a matrix that is kept is made once, if its rows are a range.
    """
    if isinstance(x_VD, BlockRows):
        return x_VD.select_part(rows, first, last)
    if isinstance(rows, Tensor):
        return _slice_columns(x_VD.index_rows(rows), first, last)
    name = f"rows {rows.start} to {rows.stop}, columns {first} to {last}"
    return x_VD.derive(name, lambda: _slice_columns(x_VD.slice_rows(rows.start, rows.stop), first, last))


def project_slots(
    x_VD: Features,
    slots: Sequence[Slot],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    added_VO: Tensor | None = None,
) -> Tensor:
    """Return ``[V, O]``: the product of each slot with its weight, plus its bias; zeros in rows of no slot.

    Args:
        x_VD: Rows of nodes; if sparse, without numbers in other columns of the rows of a slot.
        slots: Rows and columns of each product; no row twice.
        weights: ``[d, O]`` of each.
        biases: ``[O]`` of each, or none at all.
        added_VO: What is added to all rows; None for nothing.
    """
    if isinstance(x_VD, Tensor):
        return segment_matmul(x_VD, slots, weights, biases, added_VO)
    of_slots: Sequence[Tensor | None] = biases or [None] * len(slots)
    products = [
        project_rows(select_part(x_VD, *slot), weight, bias)
        for slot, weight, bias in zip(slots, weights, of_slots, strict=True)
    ]
    width = weights[0].shape[1]
    out = scatter_slots(products, [Slot(slot.rows, 0, width) for slot in slots], (len(x_VD), width))
    return out if added_VO is None else added_VO + out


def _slice_columns(x_VD: SparseRows, first: int, last: int) -> Features:
    width = last - first
    # Features of a type of dense tables fill all its columns: their product needs no look-up of columns.
    if len(x_VD.values) == len(x_VD) * width and bool((x_VD.indptr.diff() == width).all()):
        return x_VD.values.view(len(x_VD), width)
    return replace(x_VD, indices=x_VD.indices - first, num_columns=width)
