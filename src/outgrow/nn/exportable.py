"""`ExportableModel`: a model in plain operations of torch, for `torch.export` and for serving without this package.

Letters as in `outgrow.nn.layer`; ``S`` source rows of a layer, ``T`` its target rows, which are the first source rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.nn.attention import GATConv
from outgrow.nn.convolution import CommNetConv, GCNConv, SAGEConv, SAGEMaxConv
from outgrow.nn.gin import GINConv
from outgrow.nn.layer import Conv, Layer
from outgrow.nn.model import Model
from outgrow.nn.projection import Projection

_SLOPE = 0.2  # of the leaky ReLU of attention


ExportableLayerInput = tuple[Tensor, Tensor, Tensor, Tensor]
"""The in-edges of a layer, all of them of each target row: ``[2, E]`` int64, the source row and the target row of each
edge; ``[E]`` their weights in the graph, 1 where it has none; the sums of in-edge weights in the graph, ``[S]`` of the
source rows and ``[T]`` of the target rows. A plain tuple, which programs of torch can be saved with."""


@check_arguments()
class ExportableModel(nn.Module):
    """A trained model of nodes in plain operations of torch, without dropout. Final.

    ``torch.export.export(exportable, inputs)`` gives a program that needs torch alone; `og.export_inputs` makes the
    inputs from a graph. Parameters are shared with the model.

    Args:
        model: A model of layers `GCNConv`, `SAGEConv`, `SAGEMaxConv`, `CommNetConv`, `GINConv` or `GATConv` (without
            relations and features of edges), with any epilogue whose activation torch can export.

    Raises:
        InputError: The model has another layer, an encoder or a decoder.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        for part in ("encoder", "decoder"):
            if getattr(model, part) is not None:
                raise _refusal(f"a model with {'an' if part[0] == 'e' else 'a'} {part}")
        self.layers = nn.ModuleList([_PlainLayer(layer) for layer in model.layers_list()])

    def forward(self, x_SD: Tensor, layers: Sequence[ExportableLayerInput]) -> Tensor:
        """Return the logits ``[T, C]`` of the target rows of the last layer.

        Args:
            x_SD: ``[S, D]`` features of the source rows of the first layer.
            layers: The in-edges of each layer; the target rows of one are the source rows of the next.
        """
        for layer, given in zip(self.layers, layers, strict=True):
            x_SD = layer(x_SD, *given)
        return x_SD


class _PlainLayer(nn.Module):
    """A layer with its epilogue."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        conv = layer.conv
        if type(conv) not in _PLAIN or conv.num_relations or conv.edge_dim:
            reads = "features of edges" if conv.edge_dim else "relations"
            raise _refusal(f"a layer {type(conv).__name__}{f' with {reads}' if type(conv) in _PLAIN else ''}")
        self.conv = conv
        self.norm = layer.norm
        self.epilogue = layer.epilogue
        self.activation = layer.activation
        self._compute = _PLAIN[type(conv)]

    def forward(self, x_SD: Tensor, index: Tensor, weight: Tensor, source_degree: Tensor, degree: Tensor) -> Tensor:
        x_TD = x_SD[: degree.shape[0]]
        y = self._compute(self.conv, x_SD, x_TD, _In(index[0], index[1], weight, source_degree, degree))
        if self.norm is not None:
            y = self.norm(y)
        if self.epilogue.activation is not None:
            y = self.epilogue.activation(y)
        return y + x_TD if self.epilogue.residual else y


class _In(NamedTuple):
    source: Tensor
    target: Tensor
    weight: Tensor
    source_degree: Tensor
    degree: Tensor

    def sum_rows(self, rows_SF: Tensor, weight: Tensor) -> Tensor:
        """Return ``[T, F]``: the weighted sum of the rows of the sources of each target."""
        out = rows_SF.new_zeros(self.degree.shape[0], rows_SF.shape[1])
        return out.index_add(0, self.target, rows_SF[self.source] * weight.to(rows_SF.dtype)[:, None])

    def largest(self, values_EF: Tensor, least: float) -> Tensor:
        """Return ``[T, F]``: the largest value of the edges of each target; ``least`` for none."""
        out = values_EF.new_full((self.degree.shape[0], values_EF.shape[1]), least)
        return out.scatter_reduce(0, self.target[:, None].expand_as(values_EF), values_EF, "amax")


def _project(x_ND: Tensor, projection: Projection) -> Tensor:
    y_NO = x_ND @ projection.weight
    return y_NO if projection.bias is None else y_NO + projection.bias


def _gcn(conv: GCNConv, x_SD: Tensor, x_TD: Tensor, edges: _In) -> Tensor:
    scale = edges.degree.rsqrt()[edges.target] * edges.source_degree.rsqrt()[edges.source]
    return edges.sum_rows(x_SD @ conv.project.weight, edges.weight * scale) + conv.bias


def _mean(conv: SAGEConv | CommNetConv, x_SD: Tensor, x_TD: Tensor, edges: _In) -> Tensor:
    mean = edges.sum_rows(x_SD @ conv.neighbour.weight, edges.weight / edges.degree[edges.target])
    return _project(x_TD, conv.itself) + mean


def _largest(conv: SAGEMaxConv, x_SD: Tensor, x_TD: Tensor, edges: _In) -> Tensor:
    pooled = torch.relu(_project(x_SD, conv.pool))
    # Not below zero, so zero is the maximum of none.
    most = edges.largest(pooled[edges.source], 0.0)
    return _project(x_TD, conv.itself) + most @ conv.neighbour.weight


def _gin(conv: GINConv, x_SD: Tensor, x_TD: Tensor, edges: _In) -> Tensor:
    total = edges.sum_rows(x_SD, edges.weight) + (1 + conv.eps) * x_TD
    return _project(torch.relu(total @ conv.first.weight + conv.bias), conv.second)


def _gat(conv: GATConv, x_SD: Tensor, x_TD: Tensor, edges: _In) -> Tensor:
    h_SKF = torch.unflatten(x_SD @ conv.project.weight, 1, (conv.heads, conv.columns))
    source, target = (h_SKF * conv.source_score).sum(-1), (h_SKF * conv.target_score).sum(-1)
    score_EK = source[edges.source] + target[edges.target]
    if conv.weight_score is not None:
        score_EK = score_EK + edges.weight.to(score_EK.dtype)[:, None] * conv.weight_score
    score_EK = functional.leaky_relu(score_EK, _SLOPE)
    rows = edges.degree.shape[0]
    # Subtracting the largest score of each target changes nothing but the range of the exponential.
    most = edges.largest(score_EK, -torch.inf)
    power_EK = (score_EK - most[edges.target]).exp()
    total = power_EK.new_zeros(rows, conv.heads).index_add(0, edges.target, power_EK)
    alpha_EK = power_EK / total[edges.target]
    out = h_SKF.new_zeros(rows, conv.heads, conv.columns)
    out = out.index_add(0, edges.target, h_SKF[edges.source] * alpha_EK[..., None])
    return (out.mean(1) if conv.average else out.flatten(1)) + conv.bias


_PLAIN: dict[type[Conv], Callable[..., Tensor]] = {
    GCNConv: _gcn,
    SAGEConv: _mean,
    CommNetConv: _mean,
    SAGEMaxConv: _largest,
    GINConv: _gin,
    GATConv: _gat,
}


def _refusal(got: str) -> InputError:
    return InputError(
        "the model cannot be exported",
        needed=f"layers {', '.join(kind.__name__ for kind in _PLAIN)}, which read no relations or features of edges, "
        "and nothing around them",
        got=got,
        repair="serve it by og.predict, or build the model of these layers",
    )
