"""Probes of a model on a toy graph: do its results depend on how work is split, and which parameters are trained?

Strategies compute rows of nodes in parts, in other orders and on several workers. Layers of this library give the same
rows whichever way; a module of the user's may look across rows (a batch norm), draw from torch's generator (a dropout)
or depend on the order of edges (an LSTM over neighbours). Nothing but a call tells, so each layer is called on eight
nodes, in two modes, in several ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from outgrow.app.compatibility import stage_name
from outgrow.core.block import Block, Edges
from outgrow.core.user_warnings import warn_about_model
from outgrow.nn.convolution import SAGEConv
from outgrow.nn.decoder import Decoder
from outgrow.nn.edge_decoder import EdgeDecoder
from outgrow.nn.encoder import Encoder, LinearEncoder
from outgrow.nn.hetero import HeteroConv
from outgrow.nn.hetero_encoder import HeteroEncoder
from outgrow.nn.layer import Conv, Layer
from outgrow.nn.model import Model, layer_key
from outgrow.nn.pyg import PyGConv

_HALF = 4
_NODES = 2 * _HALF
_KEY = 20_240_611
_LOOP = 100
"""Id of the self-loop of the first node."""
_ORDER = (5, 2, 7, 0, 6, 1, 4, 3)
_ELEMENT_WISE = {
    None,
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    functional.relu,
    functional.elu,
    functional.gelu,
    functional.leaky_relu,
    functional.silu,
}
_SHOWN = 8
_TOLERANCE = 1e-3
"""Relative; far above what the order of a sum changes, and far below what another set of rows does."""


class ModelProbe(NamedTuple):
    """What calls of a model have shown.

    Attributes:
        inexact: Sentences on modules whose results depend on how work is split.
        untrained: Names of trainable parameters that receive no gradient.
    """

    inexact: tuple[str, ...]
    untrained: tuple[str, ...]


def warn_of_probe(model: Model) -> None:
    """Warn of what makes results depend on how work is split, and of parameters that are not trained."""
    probe = probe_model(model)
    if probe.inexact:
        warn_about_model(
            "results depend on the strategy and the number of workers, and the summary says exact: false: "
            + "; ".join(probe.inexact)
        )
    if probe.untrained:
        shown = ", ".join(probe.untrained[:_SHOWN]) + (", ..." if len(probe.untrained) > _SHOWN else "")
        warn_about_model(f"{len(probe.untrained)} parameters receive no gradient and stay as they are: {shown}")


def probe_model(model: Model, *, trust_own: bool = True) -> ModelProbe:
    """Call the parts of a model on a toy graph; its modes and buffers and torch's generator stay as they were.

    Args:
        model: The model.
        trust_own: Whether to leave out layers that have no part of the user's: tests have called these.
    """
    with _restore_afterwards(model):
        stages = [stage for stage in _list_stages(model) if not (trust_own and _is_own(stage[1]))]
        inexact = [text for stage in stages for text in _probe_stage(*stage)]
        # Layers of this library use all of their parameters.
        return ModelProbe(tuple(dict.fromkeys(inexact)), tuple(_find_untrained(model)) if stages else ())


@contextmanager
def _restore_afterwards(model: Model) -> Iterator[None]:
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[]), model.keeping_modes():
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)


def _list_stages(model: Model) -> Iterator[tuple[str, Encoder | Layer]]:
    if model.encoder is not None:
        yield "encoder", model.encoder
    for number, layer in enumerate(model.layers_list()):
        yield from _list_parts(f"layers.{number}", layer)


def _list_parts(name: str, layer: Layer) -> Iterator[tuple[str, Layer]]:
    """Yield a layer; of one with modules per edge type each of them, since toy edges have no types."""
    conv = layer.conv
    if not isinstance(conv, HeteroConv):
        yield name, layer
        return
    for part, each in conv.convs.items():
        # Convolutions with two input widths are all of this library.
        if isinstance(each, Conv) and each.spec.target_in_features is None:
            yield f"{name}.conv.convs.{part}", Layer(each)
    if layer.epilogue.activation not in _ELEMENT_WISE:
        width, dtype = conv.spec.out_features, next((each.dtype for each in conv.parameters()), torch.float32)
        yield name, Layer(SAGEConv(width, width), layer.epilogue).to(dtype)


def _is_own(module: Encoder | Layer) -> bool:
    """Whether all of a stage is of this library, but for activations that torch applies to each number."""
    parts = [part for part in module.modules() if isinstance(part, Conv | Encoder | Layer)]
    epilogues = [part.epilogue for part in parts if isinstance(part, LinearEncoder | HeteroEncoder | Layer)]
    return all(epilogue.activation in _ELEMENT_WISE for epilogue in epilogues) and all(
        type(part).__module__.startswith("outgrow.") and not isinstance(part, PyGConv) for part in parts
    )


def _probe_stage(name: str, module: Encoder | Layer) -> Iterator[str]:
    for trains in (True, False):
        module.train(trains)
        try:
            with torch.no_grad():
                why = _difference(partial(_run_stage, module, _toy_rows(module), _KEY if trains else None))
        except Exception as error:  # a module of the user's may raise anything, and is then not known to be exact
            yield f"{name} cannot be called on {_NODES} nodes ({type(error).__name__}: {str(error)[:100]})"
            return
        if why:
            yield from _name_parts(name, module, trains) or [f"{name} ({stage_name(module)}) {why}"]


def _run_stage(
    module: Encoder | Layer,
    x_ND: Tensor,
    key: int | None,
    nodes: Sequence[int],
    *,
    reverse: bool = False,
    seed: int = _KEY,
) -> Tensor:
    torch.manual_seed(seed)
    rows = x_ND[list(nodes)]
    if isinstance(module, Encoder):
        out: Tensor = module(rows, torch.tensor(nodes), key)
    else:
        out = module(_toy_block(module, nodes, reverse).with_rng_key(key), rows, rows)
    return out


def _difference(run: Callable[..., Tensor]) -> str | None:
    """Return how the rows of a stage depend on the way in which they are computed; None if they do not."""
    everything = range(_NODES)
    whole = run(everything)
    if not _alike(run(everything, seed=_KEY + 1), whole):
        return "draws random numbers that are not keyed by node"
    if not _alike(run(everything, reverse=True), whole):
        return "depends on the order of the edges of a node"
    halves = torch.cat([run(range(_HALF)), run(range(_HALF, _NODES))])
    if not _alike(halves, whole):
        return "looks across rows, of which a part of the graph has others"
    if not _alike(run(_ORDER), whole[list(_ORDER)]):
        return "depends on the order of the rows"
    return None


def _name_parts(name: str, module: Encoder | Layer, trains: bool) -> list[str]:
    """Return sentences on the innermost modules that look across rows or draw, by calling each on what it was given."""
    seen: dict[str, tuple[nn.Module, Tensor]] = {}

    def listen(path: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def record(part: nn.Module, given: tuple[object, ...], out: object) -> None:
            rows = given[0] if len(given) == 1 else None
            # Of a module with other inputs, such as those of a convolution, it is not known which are rows.
            if all(isinstance(each, Tensor) and each.dim() and len(each) == _NODES for each in (rows, out)):
                assert isinstance(rows, Tensor)
                seen.setdefault(path, (part, rows.detach().clone()))

        return record

    leaves = [(path, part) for path, part in module.named_modules() if path and not list(part.children())]
    hooks = [part.register_forward_hook(listen(path)) for path, part in leaves]
    try:
        with torch.no_grad():
            _run_stage(module, _toy_rows(module), _KEY if trains else None, range(_NODES))
    finally:
        for hook in hooks:
            hook.remove()
    found = []
    for path, (part, given) in seen.items():
        with torch.no_grad():
            if why := _difference(partial(_run_part, part, given)):
                found.append(f"{name}.{path} ({type(part).__name__}) {why}")
    return found


def _run_part(
    part: nn.Module, given: Tensor, nodes: Sequence[int], *, reverse: bool = False, seed: int = _KEY
) -> Tensor:
    torch.manual_seed(seed)
    out: Tensor = part(given[list(nodes)])
    return out


def _find_untrained(model: Model) -> list[str]:
    if model.reads_types:
        # Which modules per type are trained depends on the types that have targets.
        return []
    named = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    model.train()
    try:
        x = model.encode_input(_toy_rows(model.first_reader), torch.arange(_NODES), _KEY)
        for number, layer in enumerate(model.layers_list()):
            x = layer(_toy_block(layer, range(_NODES)).with_rng_key(layer_key(_KEY, number)), x, x)
        assert isinstance(x, Tensor)
        # Different factors, so that no gradient cancels.
        total = (x * torch.linspace(1, 2, x.numel(), dtype=x.dtype).view_as(x)).sum()
        if model.decoder is not None:
            # Not of a node with itself: a distance of zero has no gradient.
            total = total + _score_toy_edge(model.decoder, x)
        grads: Sequence[Tensor | None] = (
            torch.autograd.grad(total, [each for _, each in named], allow_unused=True) if named else ()
        )
    except Exception:  # reported by `_probe_stage`
        return []
    return [name for (name, _), grad in zip(named, grads, strict=True) if grad is None]


def _score_toy_edge(decoder: Decoder | EdgeDecoder, x: Tensor) -> Tensor:
    ends = x[:1], torch.zeros(1, dtype=torch.int64), x[1:2]
    if isinstance(decoder, Decoder):
        return decoder.score(*ends).sum()
    return decoder.score(*ends, x.new_ones(1, decoder.edge_dim) if decoder.edge_dim else None).sum()


def _toy_rows(module: Encoder | Layer) -> Tensor:
    width = module.in_features if isinstance(module, Encoder) else module.spec.in_features
    dtype = next((each.dtype for each in module.parameters()), torch.float32)
    return torch.randn(_NODES, width, dtype=dtype, generator=torch.Generator().manual_seed(_KEY))


def _toy_block(layer: Layer, nodes: Sequence[int], reverse: bool = False) -> Block:
    """Return the in-edges of some nodes; those of the first and of the second half are in graphs of their own."""
    row = {node: at for at, node in enumerate(nodes)}
    relations = layer.conv.num_relations
    ends, sources, kinds, ids = [0], list[int](), list[int](), list[int]()
    for node in nodes:
        first = node - node % _HALF
        # Three edges from the other nodes of the half, a self-loop last if the layer has them.
        edges = [(first + (node + step) % _HALF, 3 * node + step) for step in (1, 2, 3)]
        edges = sorted(edges, key=lambda edge: row[edge[0]], reverse=reverse)
        sources += [row[source] for source, _ in edges]
        kinds += [number % relations if relations else 0 for _, number in edges]
        ids += [number for _, number in edges]
        if layer.spec.self_loops:
            sources.append(row[node])
            kinds.append(-1)
            ids.append(_LOOP + node)
        ends.append(len(sources))
    count = len(nodes)
    degree = torch.tensor(ends, dtype=torch.float64).diff()
    where = torch.tensor(list(nodes))
    return Block(
        edges=Edges(
            indptr=torch.tensor(ends),
            indices=torch.tensor(sources, dtype=torch.int32),
            num_src=count,
            relation=torch.tensor(kinds, dtype=torch.int32) if relations else None,
            features=_toy_edge_features(layer, ids) if layer.conv.edge_dim else None,
        ),
        src_nodes=where,
        dst_nodes=where,
        src_degree=degree,
        dst_degree=degree,
        edge_ids=torch.tensor(ids),
    )


def _toy_edge_features(layer: Layer, ids: Sequence[int]) -> Tensor:
    """Return the features of edges by their ids: the same in every block; zeros for self-loops."""
    features = torch.zeros(_LOOP + _NODES, layer.conv.edge_dim)
    features[: 4 * _NODES] = torch.randn(
        4 * _NODES, layer.conv.edge_dim, generator=torch.Generator().manual_seed(_KEY + 1)
    )
    return features[list(ids)]


def _alike(one: Tensor, other: Tensor) -> bool:
    scale = max(1.0, float(other.abs().max()))
    return one.shape == other.shape and bool(((one - other).abs() <= _TOLERANCE * scale).all())
