"""A pass of a whole model in which every worker aggregates a slice of the columns over all nodes and edges.

Between aggregations each worker computes its own nodes, whole. A layer takes a split before its aggregation and a
gather behind it. Layers that only propagate (see `outgrow.nn.propagation`) need neither between them: a decoupled model
takes one split and one gather, however many rounds it propagates, and its attention one exchange of scores.
Ai et al.: NeutronTP, PVLDB 18(2), 2024.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.features.inputs import features_for
from outgrow.engine.full_graph import is_constant
from outgrow.engine.shard import Share
from outgrow.nn.layer import Features, Finish, Layer
from outgrow.nn.model import Model, layer_key
from outgrow.nn.propagation import Propagation
from outgrow.strategies.tensor.aggregation import Sums


class SlicePass:
    """Passes of a model over a graph, of which every worker holds all edges. Final.

    Counted in the ledger: ``rows_computed``, and what `Sums` counts.

    Args:
        model: The model.
        share: The nodes that the worker owns.
        features: ``[V, D]``, as the graph has them.
        sums: Aggregates over the graph.
        constant: Whether a first aggregate that is constant is computed once; else in every pass.
    """

    def __init__(self, model: Model, share: Share, features: Features, sums: Sums, *, constant: bool = True) -> None:
        self.model, self.sums, self.ledger = model, sums, share.comm.ledger
        home = sums.deal.home
        self.nodes = share.own.to(home)
        self.given = features_for(model, share.rows(features)).to(home)
        self.raw = self.known = None
        if model.passes_features_on and model.input_dropout == 0:
            assert isinstance(self.given, Tensor)
            self.raw, first = sums.deal.split(self.given[:, None], Kind.FEATURES).wait(), model.stages()[0]
            if constant and is_constant(model, features) and not only_propagates(first):
                with torch.no_grad():
                    self.known, self.raw = sums.of_slices(first, None, self.raw, Kind.FEATURES), None

    def logits(self, key: int | None) -> Tensor:
        """``[n, C]`` of the own nodes, differentiable in the parameters. All workers together.

        Args:
            key: Key of (seed, epoch, step); None draws nothing.
        """
        x = self.model.input(self.given, self.nodes, key)
        index = 0
        for run in runs_of(self.model.stages()):
            self.ledger.count("rows_computed", len(run) * len(self.nodes))
            if only_propagates(run[0]):
                x = self._propagated(index, run, x)
            else:
                [layer], drawn = run, layer_key(key, index)
                x = layer.update_nodes(x, self._aggregate(index, layer, x, drawn), self.nodes, drawn)
            index += len(run)
        assert isinstance(x, Tensor)
        return x

    def _aggregate(self, index: int, layer: Layer, x: Features, key: int | None) -> Tensor:
        """``[n, C, F]``: the aggregate of the own nodes."""
        if index == 0 and self.known is not None:
            return self.known
        if index == 0 and self.raw is not None:
            return self.sums.of_slices(layer, key, self.raw)
        return self.sums.of_rows(layer, key, *layer.ends(x, x), self._kind(index))

    def _propagated(self, index: int, layers: list[Layer], x: Features) -> Tensor:
        """``[n, O]``: what own nodes are after layers that only propagate, the first of which is layer ``index``."""
        assert isinstance(x, Tensor)
        raw = self.raw if index == 0 else None
        out = self.sums.propagated(layers, x, self._kind(index), raw)
        carried = layers[-1].widths.out_features - out.shape[1]
        return torch.cat([out, x[:, x.shape[1] - carried :]], 1) if carried else out

    def _kind(self, index: int) -> Kind:
        """What the source rows of a layer are."""
        return Kind.FEATURES if index == 0 and self.model.passes_features_on else Kind.ACTIVATIONS


def runs_of(layers: Sequence[Layer]) -> list[list[Layer]]:
    """Layers one by one, but those together that only propagate, and all the same columns."""
    runs: list[list[Layer]] = []
    for layer in layers:
        if runs and _columns(layer) is not None and _columns(layer) == _columns(runs[-1][0]):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return runs


def _columns(layer: Layer) -> int | None:
    """How many columns a layer passes on that does nothing else; None for others."""
    return layer.widths.source[1] if only_propagates(layer) else None


def only_propagates(layer: Layer) -> bool:
    """Whether a layer is nothing but propagation: nothing follows that mixes columns."""
    return isinstance(layer.conv, Propagation) and layer.finish == Finish()
