"""Which work is saved on a model, in words: for the log of a run."""

from __future__ import annotations

from itertools import groupby

from outgrow.engine.constant import is_constant
from outgrow.engine.inputs import stay_half
from outgrow.nn.layer import Features, Layer
from outgrow.nn.model import Model
from outgrow.nn.opaque import PyGConv
from outgrow.ops.epilogue import in_one_pass


def choices(model: Model, features: Features, *, keeps: bool = True) -> list[str]:
    """One line for each layer, or for several alike: in which order it works, what is kept, what is fused.

    Args:
        model: The model.
        features: ``[V, D]``, as the graph has them.
        keeps: Whether what is constant is kept, as where every step sees the whole graph.
    """
    lines = [_line(layer) for layer in model.stages()]
    found, first = [], 1
    if model.encoder is None:
        lines[0] += _of_features(model, features, keeps=keeps)
    else:
        widths = f"{model.in_features} to {model.encoder.out_features}"
        found = [f"encoder {widths}: node by node{_of_features(model, features, keeps=keeps)}"]
    for line, same in groupby(lines):
        last = first + len(list(same)) - 1
        name = f"layer {first}" if first == last else f"layers {first} to {last}"
        found.append(f"{name}, {line}")
        first = last + 1
    return found


def _line(layer: Layer) -> str:
    widths, steps = layer.widths, _steps(layer)
    kind, width_in, width_out = type(layer.conv).__name__, widths.in_features, widths.out_features
    channels, columns = widths.source
    moved = f"{channels} x {columns}" if channels > 1 else f"{columns}"
    if isinstance(layer.conv, PyGConv):
        order = "aggregates in its own way"
    else:
        order = (
            f"aggregates rows of {moved} as they come" if widths.raw_source else f"aggregates projected rows of {moved}"
        )
    fused = len(steps) > 1 and in_one_pass(layer.finish.activation)
    return f"{kind} {width_in} to {width_out}: {order}" + (f"; {', '.join(steps)} in one pass" if fused else "")


def _steps(layer: Layer) -> list[str]:
    finish = layer.finish
    given = {
        "bias": layer.conv.late_bias is not None,
        "norm": finish.norm,
        "activation": finish.activation is not None,
        "residual": finish.residual,
        "dropout": finish.dropout > 0,
    }
    return [name for name, wanted in given.items() if wanted]


def _of_features(model: Model, features: Features, *, keeps: bool) -> str:
    said = ""
    if keeps and is_constant(model, features):
        said += "; that aggregate of raw features is constant: computed once, not every epoch"
    if stay_half(model, features):
        said += f"; features stay in {str(features.dtype).removeprefix('torch.')}"
    return said + "; no gradient for the features"
