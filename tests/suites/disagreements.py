"""Random graphs and models of the kinds that silently gave wrong numbers, and what they must agree on.

Each check draws a graph and a model from a seed and compares one worker with three, positions with names, or a layer
with PyG's. Refusing is right where what is asked for has no value; another number is not. A check returns what came of
the case, so that a suite can see that no kind is only refused.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

import outgrow as og
from outgrow.graph.alignment import describe_schema

WORKERS, EPOCHS, COLUMNS, CLASSES = 3, 2, 4, 3
CLOSE = 1e-8
"""Of losses in float64 after two steps; sums of some dozens of terms are added in another order."""
REFUSED, AGREED, INEXACT = "refused", "agreed", "told to be inexact"


class Disagreement(AssertionError):
    """Two ways to compute the same have given different numbers, and nothing was said."""


def train(graph: og.Graph, model: og.nn.Model, workers: int) -> og.Run:
    """Train a copy of the model, so that every way begins with the same parameters."""
    begun = copy.deepcopy(model)
    return og.train(graph, begun, epochs=EPOCHS, workers=workers, strategy="full", progress=False)


def compare_workers(graph: og.Graph, model: og.nn.Model) -> str:
    """Train on one worker and on three."""
    try:
        alone, together = train(graph, model, 1), train(graph, model, WORKERS)
    except og.InputError:
        # Whoever refuses on one worker refuses on three.
        for workers in (1, WORKERS):
            try:
                train(graph, model, workers)
            except og.InputError:
                continue
            raise Disagreement(f"{workers} workers train what another number refuses") from None
        return REFUSED
    apart = max(abs(one - other) for one, other in zip(alone.loss, together.loss, strict=True))
    if alone.summary["exact"] != together.summary["exact"]:
        raise Disagreement("only one of both is said to be exact")
    if not all(map(np.isfinite, (*alone.loss, *together.loss))):
        raise Disagreement(f"losses that are no numbers: {alone.loss}, {together.loss}")
    if alone.summary["exact"] and apart > CLOSE:
        raise Disagreement(f"losses of one and of {WORKERS} workers are {apart} apart, and said to be exact")
    return AGREED if alone.summary["exact"] else INEXACT


def draw_arrays(draw: np.random.Generator) -> dict[str, Any]:
    """Arrays of a graph without parallel edges, which libraries treat in ways of their own."""
    nodes = int(draw.integers(12, 30))
    pairs = draw.choice(nodes * nodes, size=int(draw.integers(20, 4 * nodes)), replace=False)
    split = np.split(draw.permutation(nodes), [nodes // 2, 3 * nodes // 4])
    return {
        "edge_index": np.stack([pairs // nodes, pairs % nodes]),
        "features": draw.normal(size=(nodes, COLUMNS)),
        "labels": draw.integers(0, CLASSES, nodes),
        "split": dict(zip(("train", "val", "test"), split, strict=True)),
        "num_nodes": nodes,
    }


def draw_weights(draw: np.random.Generator, number: int) -> np.ndarray:
    """Weights of one sign, of both, or with zeros, some of whose sums vanish."""
    kind = draw.integers(4)
    sizes = draw.uniform(0.1, 2, number) if kind < 3 else draw.integers(1, 3, number).astype(float)
    signs = draw.choice([-1.0, 1.0], number, p=[0.3, 0.7]) if kind in (1, 3) else np.ones(number)
    return sizes * signs * (draw.random(number) > 0.3 if kind == 2 else 1)


def check_weights(seed: int) -> str:
    """Signed and vanishing weights: refused by layers that divide by their sums, or as PyG's layer has them."""
    draw = np.random.default_rng((1, seed))
    arrays = draw_arrays(draw)
    weight = draw_weights(draw, arrays["edge_index"].shape[1])
    graph = og.from_arrays(**arrays, weight=weight)
    make = (og.nn.GCN, og.nn.SAGE, og.nn.GIN)[draw.integers(3)]
    model = make(COLUMNS, 5, CLASSES, dropout=0.2).double()
    try:
        found = og.predict(graph, model)
    except og.InputError:
        found = None
    if make is og.nn.GCN:
        expected = gcn_of_pyg(graph, model, arrays, weight)
        # PyG gives zero rows, or worse, where a sum of weights is not positive; nothing is what that should be.
        if found is not None and not torch.allclose(found, expected, rtol=1e-6, atol=1e-6):
            raise Disagreement(f"logits are {(found - expected).abs().max()} from PyG's")
        if (found is not None) != _can_be_divided(arrays, weight):
            raise Disagreement(f"weights are {'refused' if found is None else 'taken'}: {weight}")
    return compare_workers(graph, model)


def _can_be_divided(arrays: dict[str, Any], weight: np.ndarray) -> bool:
    """Whether weights are as `require_divisible_weights` says: of one sign, and not all 0 at any node."""
    dst, known = arrays["edge_index"][1], np.arange(arrays["num_nodes"])
    total = np.bincount(dst, weight, len(known))
    return bool((weight >= 0).all() and (total[np.isin(known, dst)] > 0).all())


def gcn_of_pyg(graph: og.Graph, model: og.nn.Model, arrays: dict[str, Any], weight: np.ndarray) -> Tensor:
    """Logits of PyG's layers with the parameters of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch_geometric.nn import GCNConv

    x = torch.from_numpy(arrays["features"])
    edges, each = torch.from_numpy(arrays["edge_index"]), torch.from_numpy(weight.astype("f4")).double()
    for layer in model.layers_list():
        conv: Any = layer.conv
        theirs = GCNConv(conv.spec.in_features, conv.spec.out_features).double()
        with torch.no_grad():
            theirs.lin.weight.copy_(conv.project.weight.T)
            theirs.bias.copy_(conv.bias)
            x = theirs(x, edges, each)
            x = x if layer.epilogue.activation is None else layer.epilogue.activation(x)
    return x


def check_types(seed: int) -> str:
    """Relations and columns of types in another order: what is predicted, and trained on, is the same by name."""
    draw = np.random.default_rng((2, seed))
    arrays, relations = draw_arrays(draw), int(draw.integers(2, 5))
    number = arrays["edge_index"].shape[1]
    relation, order = draw.integers(0, relations, number), draw.permutation(relations)
    names = [f"relation {each}" for each in range(relations)]
    plain = replace(og.from_arrays(**arrays, relation=relation), relation_names=tuple(names))
    # Where all relations occur in both: `order` says which number each has in the other graph.
    other_names = tuple(names[int(np.flatnonzero(order == each)[0])] for each in range(relations))
    other = replace(og.from_arrays(**arrays, relation=order[relation]), relation_names=other_names)
    model = og.nn.RGCN(COLUMNS, 5, CLASSES, num_relations=relations, bases=2).double()
    model.schema = describe_schema(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", og.DataWarning)
        one, two = og.predict(plain, model), og.predict(other, model)
        if not torch.allclose(one, two, rtol=1e-6, atol=1e-6):
            raise Disagreement(f"logits depend on the numbers of relations: {(one - two).abs().max()} apart")
        unknown = replace(other, relation_names=(*other_names[:-1], "unknown"))
        try:
            og.predict(unknown, model)
        except og.InputError:
            pass
        else:
            raise Disagreement("a relation that the model does not know is taken for another one")
        first, second = train(plain, model, 1).loss, train(other, model, WORKERS).loss
    if max(abs(a - b) for a, b in zip(first, second, strict=True)) > CLOSE:
        raise Disagreement("losses depend on the numbers of relations")
    return AGREED


FORMS: dict[str, Callable[[np.ndarray, int], Any]] = {
    "mask": lambda ids, nodes: np.isin(np.arange(nodes), ids),
    "byte mask": lambda ids, nodes: np.isin(np.arange(nodes), ids).astype("u1"),
    "signed byte mask": lambda ids, nodes: np.isin(np.arange(nodes), ids).astype("i1"),
    "mask of torch": lambda ids, nodes: torch.from_numpy(np.isin(np.arange(nodes), ids)).byte(),
    "ids": lambda ids, nodes: ids,
    "short ids": lambda ids, nodes: ids.astype("u1"),
    "ids of torch": lambda ids, nodes: torch.from_numpy(ids),
    "list": lambda ids, nodes: ids.tolist(),
}


def check_masks(seed: int) -> str:
    """Parts of a split as masks of bytes, or as ids of any type: each means what its values say."""
    draw = np.random.default_rng((3, seed))
    arrays = draw_arrays(draw)
    ids = {name: np.sort(part) for name, part in arrays["split"].items()}
    chosen = {name: str(draw.choice(list(FORMS))) for name in ids}
    given = {name: FORMS[form](ids[name], arrays["num_nodes"]) for name, form in chosen.items()}
    expected = og.from_arrays(**arrays)
    try:
        graph = og.from_arrays(**{**arrays, "split": given})
    except og.InputError as error:
        raise Disagreement(f"a split of {chosen} is refused") from error
    for name, form in chosen.items():
        if getattr(graph.split, name).tolist() != ids[name].tolist():
            raise Disagreement(f"{name} as {form} is {getattr(graph.split, name).tolist()}, not {ids[name].tolist()}")
    # What is no mask, though as long as one, or names nodes that are not there, is no split.
    for wrong in (np.full(arrays["num_nodes"], 2, "u1"), np.array([arrays["num_nodes"]]), np.array([0.5])):
        try:
            og.from_arrays(**{**arrays, "split": {**given, "train": wrong}})
        except og.InputError:
            continue
        raise Disagreement(f"a split of {wrong} is taken")
    model = og.nn.SAGE(COLUMNS, 5, CLASSES).double()
    if train(graph, model, WORKERS).loss != train(expected, model, WORKERS).loss:
        raise Disagreement("losses depend on the form of a split")
    return compare_workers(graph, model)


class Update(nn.Module):
    """An activation that a user has written as a function of rows."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


ACTIVATIONS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "batch norm": (lambda: nn.BatchNorm1d(5), False),
    "dropout": (lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.5)), False),
    "softmax over nodes": (lambda: nn.Softmax(0), False),
    "mean of nodes": (lambda: Update(lambda x: x - x.mean(0)), False),
    "running sum": (lambda: Update(lambda x: x.cumsum(0)), False),
    "largest of nodes": (lambda: Update(lambda x: x / x.abs().max()), False),
    "place among nodes": (lambda: Update(lambda x: x * torch.linspace(0, 1, len(x), dtype=x.dtype)[:, None]), False),
    "softmax of a node": (lambda: nn.Softmax(1), True),
    "layer norm": (lambda: nn.LayerNorm(5), True),
    "prelu": (nn.PReLU, True),
    "power": (lambda: Update(lambda x: x.clamp(-1, 1) ** 3), True),
    "linear": (lambda: nn.Linear(5, 5), True),
}
"""By name, what makes it, and whether it computes each row by itself."""


def check_modules(seed: int) -> str:
    """A module of the user's between layers: exact only if it computes each row by itself."""
    draw = np.random.default_rng((4, seed))
    graph = og.from_arrays(**draw_arrays(draw))
    name = str(draw.choice(list(ACTIVATIONS)))
    make, by_row = ACTIVATIONS[name]
    options = {"activation": make(), "dropout": 0.0}
    model = (og.nn.GCN, og.nn.SAGE)[draw.integers(2)](COLUMNS, 5, CLASSES, **options).double()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        outcome = compare_workers(graph, model)
    named = any(issubclass(each.category, og.ModelWarning) for each in told)
    if (outcome == AGREED) != by_row or named == by_row:
        raise Disagreement(f"{name}: {outcome}, {'with' if named else 'without'} a warning")
    return outcome


CHECKS = {"weights": check_weights, "types": check_types, "masks": check_masks, "modules": check_modules}


MUTANTS: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "trains_what_cannot_be_divided": (
        "Sums of weights are not checked before training.",
        "weights",
        lambda: patch("outgrow.app.compatibility.require_divisible_weights", lambda *_, **__: None),
    ),
    "gives_relations_by_number": (
        "Relations are given to a model by number.",
        "types",
        lambda: patch("outgrow.app.runs.data.align_graph", lambda graph, *_, **__: graph),
    ),
    "takes_bytes_for_ids": (
        "Masks of bytes are taken for ids.",
        "masks",
        lambda: patch("outgrow.graph.builders.validate.to_node_ids", lambda nodes, *_: np.unique(nodes)),
    ),
    "claims_exactness": (
        "What looks across rows is called exact.",
        "modules",
        lambda: patch("outgrow.app.model_probe._difference", lambda run: None),
    ),
}
"""By name, what is wrong, the kind of case that must find it, and what breaks the code in a context."""
