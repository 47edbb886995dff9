"""The columns of the rounds that layers which only propagate still read or give back: as rows, slices, or both.

Letters: ``n`` own nodes, ``V`` all nodes, ``F`` columns, ``f`` those of the worker's slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.nn.layer import Layer
from outgrow.nn.propagation import PropagationBase
from outgrow.strategies.tensor.all_to_all import ColumnExchange


@dataclass
class _Hop:
    """Columns of a round: rows of own nodes, ``[n, 1, F]``, slices of all nodes, ``[V, 1, f]``, or both."""

    rows: Tensor | None
    slices: Tensor | None


class PropagatedHops:
    """The columns of the last round, and of the earlier ones that are carried, the initial ones last. Final.

    Columns are exchanged where they are read in the other form, and once: slices of the initial ones serve all rounds.

    Args:
        exchange: Exchanges rows and slices.
        rows_nD: Own rows: the columns of each round side by side.
        width: ``F``.
        feature_slices: ``[V, 1, f]`` slices of the only columns if the worker has them; None to exchange them.
        kind: Kind of the rows, for the ledger.
    """

    def __init__(
        self, exchange: ColumnExchange, rows_nD: Tensor, width: int, feature_slices: Tensor | None, kind: Kind
    ) -> None:
        self.exchange = exchange
        self.width = width
        self.kind = kind
        self._hops = [_Hop(rows_nD[:, None, at : at + width], None) for at in range(0, rows_nD.shape[1], width)]
        self._hops[0].slices = feature_slices

    @property
    def newest(self) -> Tensor:
        """``[V, 1, f]``: the worker's slices of the last round."""
        return self._slices_of(self._hops[0])

    @property
    def initial(self) -> Tensor:
        """``[V, 1, f]``: its slices of the initial columns."""
        return self._slices_of(self._hops[-1])

    @property
    def newest_rows(self) -> Tensor:
        """``[n, 1, F]``: the own rows of the last round, where the worker has rows of all rounds."""
        return self._rows_of(self._hops[0])

    @property
    def initial_rows(self) -> Tensor:
        """``[n, 1, F]``: the own rows of the initial columns, likewise."""
        return self._rows_of(self._hops[-1])

    def add(self, slices_V1f: Tensor, carried: int) -> None:
        """Add a round, and forget the earlier ones but the last ``carried``."""
        self._hops = [_Hop(None, slices_V1f), *self._hops[len(self._hops) - carried :]]

    def add_rows(self, rows_n1F: Tensor, carried: int) -> None:
        """Add rounds of which the worker has the rows of its own nodes."""
        self._hops = [_Hop(rows_n1F, None), *self._hops[len(self._hops) - carried :]]

    def gather(self, kind: Kind) -> Tensor:
        """Return the own rows of all rounds side by side, ``[n, D]``; those that are missing in one exchange."""
        missing = [hop for hop in self._hops if hop.rows is None]
        if missing:
            # A channel for each round.
            slices = torch.cat([self._slices_of(hop) for hop in missing], 1)
            for hop, rows in zip(
                missing, torch.split(self.exchange.to_rows(slices, self.width, kind), 1, 1), strict=True
            ):
                hop.rows = rows
        return torch.cat([hop.rows[:, 0] for hop in self._hops if hop.rows is not None], 1)

    @staticmethod
    def _rows_of(hop: _Hop) -> Tensor:
        assert hop.rows is not None
        return hop.rows

    def _slices_of(self, hop: _Hop) -> Tensor:
        if hop.slices is None:
            assert hop.rows is not None
            hop.slices = self.exchange.to_slices(hop.rows, self.kind).wait()
        return hop.slices


def carry_own_rows(convs: Sequence[PropagationBase]) -> bool:
    """Whether rounds read and carry of earlier ones only what the input of the first has: one round is gathered.

    The initial columns, which a restart reads, are then the input of the first round.
    """
    given = convs[0].hops_in + 1
    if any(conv.alpha for conv in convs) and (given > 1 or not all(conv.hops_in for conv in convs[1:])):
        return False
    for conv in convs:
        # What is carried is last in a row, and so is what was given.
        if conv.hops_out > given:
            return False
        given = conv.hops_out
    return True


def count_new_hops(layers: Sequence[Layer]) -> list[int]:
    """Return for each of some consecutive layers how many of their rounds its output has the columns of."""
    made, given, counts = 0, 1, list[int]()
    for number, conv in enumerate(layer.conv for layer in layers):
        if isinstance(conv, PropagationBase):
            given = conv.hops_in + 1 if number == 0 else given
            # What was given is last in a row, and so is what is carried.
            given, made = min(given, conv.hops_out), max(0, conv.hops_out - given)
        counts.append(made + 1)
        made += 1
    return counts


def propagation_conv(layer: Layer) -> PropagationBase:
    """Return the convolution of a layer that propagates."""
    assert isinstance(layer.conv, PropagationBase)
    return layer.conv
