"""A pass of a whole model in which every worker aggregates a slice of the columns over all nodes and edges.

Between aggregations each worker computes its own nodes, whole. A layer takes a split before its aggregation and a
gather behind it. Layers that keep columns apart (see `Widths.columnwise`) need neither between them: a decoupled model
takes one split and one gather, however many rounds it propagates, and its attention one exchange of scores.
Ai et al.: NeutronTP, PVLDB 18(2), 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.types import Kind
from outgrow.engine.constant import is_constant
from outgrow.engine.inputs import features_for
from outgrow.engine.share import Share, view_of
from outgrow.engine.slices.deal import Deal
from outgrow.nn.layer import Features, Finish, Layer, Rows
from outgrow.nn.model import Model, layer_key

Run = Sequence[tuple[int, Layer]]
"""Layers that follow one another, each with its number."""


class SlicePass:
    """Passes of a model over a graph, of which every worker holds all edges. Final.

    Counted in the ledger: ``edges_aggregated``, a worker's share of the edges being that of the columns which it
    aggregates; ``edge_columns``, edges times numbers of a source row in the slice; ``rows_computed``.

    Args:
        model: The model.
        share: The nodes that the worker owns; least is copied where these are ranges, in the workers' order.
        features: ``[V, D]``, as the graph has them.
        constant: Whether a first aggregate that is constant is computed once; else in every pass.
    """

    def __init__(self, model: Model, share: Share, features: Features, *, constant: bool = True) -> None:
        self.model, self.share, self.comm = model, share, share.comm
        self.deal = Deal(share.comm, share.own)
        self.nodes = share.own.to(share.comm.device)
        self.given = features_for(model, share.rows(features)).to(share.comm.device)
        self.blocks = {
            layer.widths.self_loops: view_of(share.topology, layer).block.to(self.comm.device)
            for layer in model.stages()
        }
        self.raw = self.known = None
        if model.passes_features_on and model.input_dropout == 0:
            assert isinstance(self.given, Tensor)
            self.raw = self.deal.split(self.given[:, None], Kind.FEATURES).wait()
            alone = propagates_alone(model.stages()[0])
            if constant and is_constant(model, features) and not alone:
                self.known, self.raw = self._known(self.raw), None

    def logits(self, key: int | None) -> Tensor:
        """``[n, C]`` of the own nodes, differentiable in the parameters. All workers together.

        Args:
            key: Key of (seed, epoch, step); None draws nothing.
        """
        x = self.model.input(self.given, self.nodes, key)
        for propagates, layers in groupby(enumerate(self.model.stages()), lambda pair: propagates_alone(pair[1])):
            run = list(layers)
            if propagates:
                assert isinstance(x, Tensor)
                x = self._propagated(run, x, key)
            else:
                for index, layer in run:
                    x = self._coupled(index, layer, x, layer_key(key, index))
        assert isinstance(x, Tensor)
        return x

    def _coupled(self, index: int, layer: Layer, x: Features, key: int | None) -> Tensor:
        """``[n, O]``: a layer whose update needs whole rows."""
        if index == 0 and self.known is not None:
            own = self.known
        else:
            source, target = self._ends(index, layer, x)
            block = self._keyed(layer, key)
            slices = self._aggregate(layer, block, source, target, layer.conv.weigh(block, source, target))
            own = self.deal.gather(slices, layer.widths.aggregate[1], Kind.ACTIVATIONS)
        self.comm.ledger.count("rows_computed", len(own))
        return layer.update_nodes(x, own, self.nodes, key)

    def _propagated(self, run: Run, x_nD: Tensor, key: int | None) -> Tensor:
        """``[n, O]``: layers that keep columns apart, one after the other, on a slice of them."""
        columns = x_nD.shape[1] - run[0][1].widths.carries
        width, out_features = self._width(columns), run[-1][1].widths.out_features
        z_VD, weight = self._columns(run[0][0], x_nD, columns), None
        for index, layer in run:
            source, target = layer.ends(z_VD, z_VD)
            block = self._keyed(layer, layer_key(key, index))
            if weight is None or not layer.widths.carries:
                weight = layer.conv.weigh(block, source, target)
            aggregate = self._aggregate(layer, block, source, target, weight)
            self.comm.ledger.count("rows_computed", len(self.nodes))
            z_VD = layer.conv.update(z_VD, aggregate)
        out = self.deal.gather(z_VD[:, None, :width], columns, Kind.ACTIVATIONS)[:, 0]
        return out if out_features == columns else torch.cat([out, x_nD[:, columns:]], 1)

    def _columns(self, index: int, x_nD: Tensor, columns: int) -> Tensor:
        """``[V, f + K]``: the worker's columns of all nodes, and behind them the scores that they carry."""
        if index == 0 and self.raw is not None:
            return self.raw[:, 0]
        under = self.deal.split(x_nD[:, None, :columns], self._kind(index))
        if x_nD.shape[1] == columns:
            return under.wait()[:, 0]
        carried = self.deal.everywhere(x_nD[:, columns:], Kind.ACTIVATIONS)
        return torch.cat([under.wait()[:, 0], carried], 1)

    def _kind(self, index: int) -> Kind:
        """What the source rows of a layer are."""
        return Kind.FEATURES if index == 0 and self.model.passes_features_on else Kind.ACTIVATIONS

    def _ends(self, index: int, layer: Layer, x: Features) -> tuple[Rows, Rows]:
        """What all nodes give as sources and as destinations: the worker's columns, and all scores."""
        if index == 0 and self.raw is not None:
            return Rows(self.raw, None), Rows(None, None)
        kind, ends = self._kind(index), layer.ends(x, x)
        under = [None if rows.columns is None else self.deal.split(rows.columns, kind) for rows in ends]
        scores = self._scores([rows.score for rows in ends])
        source, target = (Rows(None if u is None else u.wait(), s) for u, s in zip(under, scores, strict=True))
        return source, target

    def _scores(self, own: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Scores of all nodes, in one exchange, in the order of those of the own ones."""
        given = [score for score in own if score is not None]
        if not given:
            return [None for _ in own]
        whole = self.deal.everywhere(torch.cat(given, 1), Kind.ACTIVATIONS)
        found = iter(torch.split(whole, [score.shape[1] for score in given], 1))
        return [None if score is None else next(found) for score in own]

    def _aggregate(self, layer: Layer, block: Block, source: Rows, target: Rows, weight: Tensor | None) -> Tensor:
        """``[V, C, f]``: the worker's columns of the aggregates of all nodes."""
        assert source.columns is not None
        channels, columns = layer.widths.source
        first, last = self.deal.mine(columns)
        self._count(block.edges.num_edges, channels, first, last, columns)
        aggregate = layer.conv.aggregation.on_columns(first, last)
        return aggregate(block, source.columns, target.columns, weight)

    def _count(self, edges: int, channels: int, first: int, last: int, columns: int) -> None:
        count = self.comm.ledger.count
        count("edges_aggregated", edges * last // columns - edges * first // columns)
        count("edge_columns", edges * channels * (last - first))

    @torch.no_grad()
    def _known(self, raw: Tensor) -> Tensor:
        """``[n, 1, D]``: the constant aggregate of the own nodes."""
        layer, nothing = self.model.stages()[0], Rows(None, None)
        source, block = Rows(raw, None), self._keyed(layer, None)
        slices = self._aggregate(layer, block, source, nothing, layer.conv.weigh(block, source, nothing))
        return self.deal.gather(slices, layer.widths.aggregate[1], Kind.FEATURES)

    def _keyed(self, layer: Layer, key: int | None) -> Block:
        return self.blocks[layer.widths.self_loops].keyed(key)

    def _width(self, columns: int) -> int:
        first, last = self.deal.mine(columns)
        return last - first


def propagates_alone(layer: Layer) -> bool:
    """Whether a layer is nothing but propagation: it keeps columns apart, and nothing follows that mixes them."""
    return layer.widths.columnwise and layer.finish == Finish()
