"""A pass of a whole model in which every worker aggregates a slice of the columns over all nodes and edges.

Between aggregations each worker computes its own nodes, whole. A layer takes a split before its aggregation and a
gather behind it. Layers that only propagate (`propagation_conv` in `nn/propagation.py`) need neither between them: a
decoupled model takes one split and one gather, however many rounds it propagates, and its attention one exchange of
scores.
Ai et al.: NeutronTP, PVLDB 18(2), 2024.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.features.inputs import cast_features
from outgrow.engine.full_graph import has_static_first_aggregate
from outgrow.engine.shard import GraphShard
from outgrow.nn.layer import Epilogue, Features, Layer
from outgrow.nn.model import Model, layer_key
from outgrow.nn.propagation import PropagationBase
from outgrow.strategies.tensor.aggregation import SlicedAggregation


class SlicedModelPass:
    """Passes of a model over a graph, of which every worker holds all edges. Final.

    Counted in the ledger: ``rows_computed``, and what `SlicedAggregation` counts.

    Args:
        model: The model.
        shard: The nodes that the worker owns.
        features: ``[V, D]``, as the graph has them.
        aggregation: Aggregates over the graph.
        cache_first_aggregate: Whether a first aggregate that is constant is computed once; else in every pass.
    """

    def __init__(
        self,
        model: Model,
        shard: GraphShard,
        features: Features,
        aggregation: SlicedAggregation,
        *,
        cache_first_aggregate: bool = True,
    ) -> None:
        self.model = model
        self.aggregation = aggregation
        self.ledger = shard.comm.ledger
        home = aggregation.column_exchange.row_device
        self.nodes = shard.owned_nodes.to(home)
        self.features = cast_features(model, shard.select_owned(features)).to(home)
        self.feature_slices = self.first_aggregate = None
        if model.source_is_features and model.input_dropout == 0:
            assert isinstance(self.features, Tensor)
            self.feature_slices = aggregation.column_exchange.to_slices(self.features[:, None], Kind.FEATURES).wait()
            first = model.layers_list()[0]
            if cache_first_aggregate and has_static_first_aggregate(model, features) and not only_propagates(first):
                with torch.no_grad():
                    self.first_aggregate = aggregation.aggregate_slices(first, None, self.feature_slices, Kind.FEATURES)
                    self.feature_slices = None

    def compute_logits(self, key: int | None) -> Tensor:
        """``[n, C]`` of the own nodes, differentiable in the parameters. All workers together.

        Args:
            key: Key of (seed, epoch, step); None draws nothing.
        """
        x = self.model.encode_input(self.features, self.nodes, key)
        index = 0
        for run in group_propagation_runs(self.model.layers_list()):
            self.ledger.add_count("rows_computed", len(run) * len(self.nodes))
            if only_propagates(run[0]):
                x = self._propagate_run(index, run, x)
            else:
                [layer], drawn = run, layer_key(key, index)
                x = layer.update_nodes(x, self._aggregate_layer(index, layer, x, drawn), self.nodes, drawn)
            index += len(run)
        assert isinstance(x, Tensor)
        return x

    def _aggregate_layer(self, index: int, layer: Layer, x: Features, key: int | None) -> Tensor:
        """``[n, C, F]``: the aggregate of the own nodes."""
        if index == 0 and self.first_aggregate is not None:
            return self.first_aggregate
        if index == 0 and self.feature_slices is not None:
            return self.aggregation.aggregate_slices(layer, key, self.feature_slices)
        return self.aggregation.aggregate_rows(layer, key, *layer.source_and_target(x, x), self._source_kind(index))

    def _propagate_run(self, index: int, layers: list[Layer], x: Features) -> Tensor:
        """``[n, O]``: what own nodes are after layers that only propagate, the first of which is layer ``index``."""
        assert isinstance(x, Tensor)
        raw = self.feature_slices if index == 0 else None
        out = self.aggregation.propagate_layers(layers, x, self._source_kind(index), raw)
        carried = layers[-1].spec.out_features - out.shape[1]
        return torch.cat([out, x[:, x.shape[1] - carried :]], 1) if carried else out

    def _source_kind(self, index: int) -> Kind:
        """What the source rows of a layer are."""
        return Kind.FEATURES if index == 0 and self.model.source_is_features else Kind.ACTIVATIONS


def group_propagation_runs(layers: Sequence[Layer]) -> list[list[Layer]]:
    """Layers one by one, but those together that only propagate, and all the same columns."""
    runs: list[list[Layer]] = []
    for layer in layers:
        if (
            runs
            and _propagated_columns(layer) is not None
            and _propagated_columns(layer) == _propagated_columns(runs[-1][0])
        ):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return runs


def _propagated_columns(layer: Layer) -> int | None:
    """How many columns a layer passes on that does nothing else; None for others."""
    return layer.spec.source[1] if only_propagates(layer) else None


def only_propagates(layer: Layer) -> bool:
    """Whether a layer is nothing but propagation: nothing follows that mixes columns."""
    return isinstance(layer.conv, PropagationBase) and layer.epilogue == Epilogue()
