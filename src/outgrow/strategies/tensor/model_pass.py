"""A pass of a whole model where every worker aggregates a slice of the columns over all nodes and edges.

Between aggregations each worker computes whole rows of its own nodes. A layer takes a split before its
aggregation and a gather after it. Layers that only propagate (`nn/propagation.py`) need neither between them:
a decoupled model takes one split and one gather, however many rounds it propagates, and its attention one
exchange of scores. Ai et al.: NeutronTP, PVLDB 18(2), 2024.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.constant_sums import has_static_first_aggregate
from outgrow.engine.shard import GraphShard
from outgrow.nn.layer import Features, Layer
from outgrow.nn.model import Model, layer_key
from outgrow.nn.propagation import only_propagates, propagates_without_parameters
from outgrow.ops.aggregation.no_messages import zero_aggregate
from outgrow.strategies.tensor.aggregation import SlicedAggregation
from outgrow.strategies.tensor.owned_edges import reads_features_of_all_edges
from outgrow.strategies.tensor.row_files import own_features


class SlicedModelPass:
    """Passes of a model over a graph, where every worker holds all edges. Final.

    Counted in the ledger: ``rows_computed``, and what `SlicedAggregation` counts.

    Args:
        model: The model.
        shard: Gives the nodes that the worker owns.
        features: ``[V, D]``, as the graph stores them.
        aggregation: Aggregates over the graph.
        cache_first_aggregate: Whether a constant first aggregate is computed once; else in every pass.
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
        device = aggregation.column_exchange.row_device
        self.nodes = shard.owned_nodes.to(device)
        self.features = own_features(model, shard, features, device, aggregation.mapped_graph)
        self.feature_slices = self.first_aggregate = self.constant_rows = None
        # Without dropout raw features never change, so their slices are exchanged once and kept.
        if model.source_is_features and model.input_dropout == 0:
            assert isinstance(self.features, Tensor)
            slices = aggregation.column_exchange.to_slices(self.features[:, None], Kind.FEATURES).wait()
            self.feature_slices = (
                slices if aggregation.mapped_graph is None else aggregation.mapped_graph.keep_slices(slices)
            )
            first = model.layers_list()[0]
            if cache_first_aggregate and has_static_first_aggregate(model, features) and not only_propagates(first):
                with torch.no_grad():
                    self.first_aggregate = aggregation.aggregate_slices(first, None, self.feature_slices, Kind.FEATURES)
                    # Passes read the aggregate alone.
                    self.feature_slices = None
            run = group_propagation_runs(model.layers_list())[0]
            if cache_first_aggregate and all(propagates_without_parameters(layer) for layer in run):
                with torch.no_grad():
                    self.constant_rows = self._propagate_run(0, run, self.features, Kind.FEATURES)
                self.feature_slices = None

    @property
    def constants(self) -> list[Tensor]:
        """Rows that are held from pass to pass."""
        held = self.features, self.first_aggregate, self.constant_rows
        return [each for each in held if isinstance(each, Tensor)]

    def compute_logits(self, key: int | None) -> Tensor:
        """Return logits of the own nodes, ``[n, C]``, differentiable in the parameters. All workers together.

        Args:
            key: Random key of (seed, epoch, step); None for no random draws.
        """
        x = self.model.encode_input(self.features, self.nodes, key)
        index = 0
        for run in group_propagation_runs(self.model.layers_list()):
            self.ledger.add_count("rows_computed", len(run) * len(self.nodes))
            if index == 0 and self.constant_rows is not None:
                x = self.constant_rows
            elif only_propagates(run[0]):
                x = self._propagate_run(index, run, x)
            else:
                [layer] = run
                layer_rng = layer_key(key, index)
                x = layer.update_nodes(x, self._aggregate_layer(index, layer, x, layer_rng), self.nodes, layer_rng)
            index += len(run)
        assert isinstance(x, Tensor)
        return x

    def _aggregate_layer(self, index: int, layer: Layer, x: Features, key: int | None) -> Tensor:
        """Return the aggregate of the own nodes, ``[n, C, F]``."""
        if index == 0 and self.first_aggregate is not None:
            return self.first_aggregate
        if not layer.conv.aggregation.reads_sources:
            return zero_aggregate(x, *layer.spec.aggregate)
        if index == 0 and self.feature_slices is not None:
            return self.aggregation.aggregate_slices(layer, key, self.feature_slices)
        return self.aggregation.aggregate_rows(
            layer, key, *layer.source_and_target(x, x, self.nodes, self.nodes), self._source_kind(index)
        )

    def _propagate_run(
        self, index: int, layers: list[Layer], x: Features, gathered_kind: Kind = Kind.ACTIVATIONS
    ) -> Tensor:
        """Return the output of layers that only propagate, ``[n, O]``, starting with layer ``index``."""
        assert isinstance(x, Tensor)
        raw = self.feature_slices if index == 0 else None
        out = self.aggregation.propagate_layers(layers, x, self._source_kind(index), raw, gathered_kind)
        # Scores that later layers read are not propagated: they are passed on as they are.
        carried = layers[-1].spec.out_features - out.shape[1]
        return torch.cat([out, x[:, x.shape[1] - carried :]], 1) if carried else out

    def _source_kind(self, index: int) -> Kind:
        """Return the kind of a layer's source rows, for the ledger."""
        return Kind.FEATURES if index == 0 and self.model.source_is_features else Kind.ACTIVATIONS


def group_propagation_runs(layers: Sequence[Layer]) -> list[list[Layer]]:
    """Group consecutive layers that only propagate the same columns over the same edges; others are groups of one."""
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


def _propagated_columns(layer: Layer) -> tuple[int, bool, bool] | None:
    """Return the columns and the view of the edges of a layer that only propagates; None for other layers."""
    if not only_propagates(layer):
        return None
    return layer.spec.source[1], layer.spec.self_loops, reads_features_of_all_edges(layer)
