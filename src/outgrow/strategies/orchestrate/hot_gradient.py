"""The gradient of the bottom layer from hot nodes, computed by the CPU from the aggregates that it has kept."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from outgrow.core.ledger import Kind, Link
from outgrow.nn.layer import Layer
from outgrow.nn.model import Model
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.orchestrate.host_side import bottom_model, bottom_parameters
from outgrow.strategies.orchestrate.hot_embeddings import HotEmbeddings
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

    def add(self, rows: HotEmbeddings, gradient_hO: Tensor, version: ParameterVersion) -> None:
        """Add to the gradients of the parameters what hot nodes of a batch contribute.

        Args:
            rows: The nodes, with their aggregates and, if the layer reads it, their input, in host memory.
            gradient_hO: ``[h, O]`` of the loss, by the outputs of the bottom layer before its dropout.
            version: The current parameters.
        """
        ledger, aggregate = self._comm.ledger, rows.aggregate
        assert aggregate is not None
        ledger.add_bytes(Link.DEVICE_TO_HOST, Kind.GRADIENTS, gradient_hO.nbytes)
        own = bottom_parameters(self._copy)
        with torch.no_grad():
            for parameter, value in zip(own, version.values, strict=True):
                parameter.copy_(value)
        [layer] = self._copy.layers_list()
        target = aggregate.new_empty(len(rows.nodes), 0) if rows.target is None else rows.target
        output = layer.update_nodes(target, aggregate, rows.nodes, None)
        trained = [pair for pair in zip(own, self._parameters, strict=True) if pair[0].requires_grad]
        # Where a layer projects first, and in the encoder, what precedes the aggregate gets none.
        if not trained or not output.requires_grad:
            return
        found = torch.autograd.grad(output, [mine for mine, _ in trained], gradient_hO.cpu(), allow_unused=True)
        for gradient, (_, parameter) in zip(found, trained, strict=True):
            if gradient is not None:
                ledger.add_bytes(Link.HOST_TO_DEVICE, Kind.GRADIENTS, gradient.nbytes)
                moved = gradient.to(parameter.device)
                parameter.grad = moved if parameter.grad is None else parameter.grad.add_(moved)
