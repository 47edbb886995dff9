"""The gradient of the bottom layer from hot nodes, computed by the CPU from what it has kept.

Where no parameters precede the aggregate, that is the aggregate. Else it is the features of the nodes' sources, from
which the CPU computes their output again.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from outgrow.core.ledger import Kind, Link
from outgrow.nn.layer import Layer
from outgrow.nn.model import Model
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.orchestrate.host_side import bottom_model, bottom_parameters
from outgrow.strategies.orchestrate.hot_embeddings import HotEmbeddings, HotEmbeddingTable, gradient_weights
from outgrow.strategies.orchestrate.hot_inputs import HotRows, aggregate_hot_rows
from outgrow.strategies.orchestrate.parameter_history import ParameterVersion


class HotGradient:
    """Adds the CPU's part of a gradient to that of the device. Final.

    Aggregates are as wide as raw features and embeddings are not, so that the gradient of embeddings takes fewer bytes
    to the CPU than the aggregates would take to the device (NeutronOrch 4.1.1 sends these).

    Args:
        model: The model; its parameters get the gradient.
        bottom: The bottom layer in the form that hot nodes use.
        comm: Communicator; gives the device and the ledger.
    """

    def __init__(self, model: Model, bottom: Layer, comm: Comm) -> None:
        self._parameters = bottom_parameters(model)
        # A copy in host memory, like that of the thread that computes embeddings, which changes its own meanwhile.
        self._copy = copy.deepcopy(bottom_model(model, bottom)).to("cpu")
        self._comm = comm

    def add(self, rows: HotEmbeddings, gradient_hO: Tensor, version: ParameterVersion, hot: HotEmbeddingTable) -> None:
        """Add to the gradients of the parameters what hot nodes of a batch contribute.

        Args:
            rows: The nodes.
            gradient_hO: ``[h, O]`` of the loss, by the outputs of the bottom layer before its dropout.
            version: The current parameters.
            hot: The table that the rows are of; has the inputs of the nodes if `rows` has no aggregates.
        """
        ledger = self._comm.ledger
        ledger.add_bytes(Link.DEVICE_TO_HOST, Kind.GRADIENTS, gradient_hO.nbytes)
        own = bottom_parameters(self._copy)
        with torch.no_grad():
            for parameter, value in zip(own, version.values, strict=True):
                parameter.copy_(value)
        gradient_hO = gradient_hO.cpu() * gradient_weights(rows, version.updates, gradient_hO.dtype)
        found = self._differentiate(rows, gradient_hO, hot, [each for each in own if each.requires_grad])
        trained = [into for into, each in zip(self._parameters, own, strict=True) if each.requires_grad]
        for gradient, parameter in zip(found, trained, strict=True):
            if gradient is not None:
                ledger.add_bytes(Link.HOST_TO_DEVICE, Kind.GRADIENTS, gradient.nbytes)
                moved = gradient.to(parameter.device)
                parameter.grad = moved if parameter.grad is None else parameter.grad.add_(moved)

    def _differentiate(
        self, rows: HotEmbeddings, gradient_hO: Tensor, hot: HotEmbeddingTable, trained: list[nn.Parameter]
    ) -> Sequence[Tensor | None]:
        """Return the gradient of each parameter of the copy; None for one that has no part in the outputs."""
        if rows.aggregate is not None:
            target = rows.aggregate.new_empty(len(rows.nodes), 0) if rows.target is None else rows.target
            outputs, gradients = [self._update(rows.nodes, HotRows(target, rows.aggregate))], [gradient_hO]
        else:
            outputs, gradients = [], []
            for places, inputs in hot.select_inputs(rows.nodes):
                outputs.append(self._update(inputs.block.dst_nodes, aggregate_hot_rows(self._copy, inputs)))
                gradients.append(gradient_hO[places])
        if not trained or not any(output.requires_grad for output in outputs):
            return [None] * len(trained)
        return torch.autograd.grad(outputs, trained, gradients, allow_unused=True)

    def _update(self, nodes: Tensor, rows: HotRows) -> Tensor:
        """Return the output of nodes without dropout."""
        [layer] = self._copy.layers_list()
        return layer.update_nodes(rows.target, rows.aggregate, nodes, None)
