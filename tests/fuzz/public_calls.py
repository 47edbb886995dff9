"""Calls of public functions with wrong types and values, each drawn from a seed: only `InputError` may come out.

A call begins as a valid one, of `list_calls`; then some of its arguments are replaced by others from `odd_values`, left
out or joined by unknown ones.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array

import outgrow as og
from outgrow import nn
from outgrow.core.graph_types import GraphTypes

NODES, COLUMNS, CLASSES = 30, 4, 3


class Call(NamedTuple):
    """A valid call.

    Attributes:
        function: What is called.
        positional: Its positional arguments.
        named: Its arguments by name.
    """

    function: Callable[..., Any]
    positional: tuple[Any, ...] = ()
    named: Mapping[str, Any] = {}


def valued() -> og.Graph:
    """A graph whose edges have features."""
    return og.from_arrays(edges(), num_nodes=NODES, edge_features=np.ones((120, 2), "f4"))


def edges() -> np.ndarray:
    return np.random.default_rng(0).integers(0, NODES, (2, 120))


@cache
def graph() -> og.Graph:
    draw = np.random.default_rng(1)
    return og.from_arrays(
        edges(),
        features=draw.normal(size=(NODES, COLUMNS)).astype("f4"),
        labels=draw.integers(0, CLASSES, NODES),
        split={"train": np.arange(15), "val": np.arange(15, 22), "test": np.arange(22, 30)},
    )


def model() -> nn.Model:
    torch.manual_seed(0)
    return nn.GCN(COLUMNS, 4, CLASSES)


def list_calls(folder: Path) -> list[Call]:
    """Valid calls of every public function and class that users make objects of."""
    list_file = folder / "edges.csv"
    list_file.write_text("0 1\n1 2\n2 0\n")
    widths = (COLUMNS, 6, CLASSES)
    layer = nn.Layer(nn.GCNConv(COLUMNS, CLASSES))
    fast = {"epochs": 1, "progress": False}
    arrays = {
        "features": np.ones((NODES, 2), "f4"),
        "labels": np.arange(NODES) % 3,
        "split": {"train": np.arange(9)},
        "num_nodes": NODES,
        "relation": np.zeros(120, "i8"),
        "weight": np.ones(120, "f4"),
        "edge_features": np.zeros((120, 2), "i8"),
        "edge_feature_sizes": (3, 2),
        "undirected": False,
    }
    training = {"lr": 0.1, "weight_decay": 0.0, "optimizer": "adam", "patience": 3, "seed": 1, "eval_every": 1}
    batches = {"batch_size": 8, "fanout": (2, 2), "weighted": False, "sampler": "labor"}
    batches |= {"checkpoint_every": 2, "checkpoint_steps": None}
    places = {"out": None, "resume": False, "strategy": "full", "workers": 1, "device": "cpu", "config": None}
    og.save_graph(graph(), folder / "grown", overwrite=True)
    calls = [
        Call(og.from_arrays, (edges(),), arrays),
        Call(og.load, (str(list_file),), {"data_dir": None, "undirected": False}),
        Call(
            og.convert, (list_file, folder / "store"), {"undirected": False, "memory_bytes": 1 << 24, "overwrite": True}
        ),
        Call(og.train, (graph(), model()), {**fast, **training, **places}),
        Call(og.train, (graph(), model()), {**fast, **batches, "strategy": "sampled"}),
        Call(og.plan, (graph(), model()), {"workers": 1, "memory": "2GiB", "hardware": None, "config": None}),
        Call(og.predict, (graph(), model()), {"nodes": None, "device": "cpu", "workers": 1}),
        Call(og.embed, (graph(), model(), [3, 1]), {"device": "cpu", "workers": 1}),
        Call(
            og.top_links,
            (graph(), nn.GCN(COLUMNS, 4, 4).with_decoder(nn.Dot())),
            {"heads": [3, 1], "top": 2, "include_known": True, "device": "cpu", "workers": 1},
        ),
        Call(og.save_embeddings, (graph(), model(), folder / "rows.npy", [3, 1]), {"device": "cpu", "workers": 1}),
        Call(og.add_inverse_relations, (og.from_arrays(edges(), num_nodes=NODES, relation=np.zeros(120, "i8")),), {}),
        Call(og.prepare, (graph(), model()), {"strategy": "full", "config": None, "eval": "none", "device": "cpu"}),
        Call(og.NeighborLoader, (graph(), [1, 3]), {"batch_size": 2, "fanout": (2, 2), "output": "block", "seed": 1}),
        Call(og.save_graph, (graph(), folder / "saved"), {"overwrite": True}),
        Call(og.append, (folder / "grown",), {"edges": list_file, "undirected": False, "memory_bytes": 1 << 24}),
        Call(og.export_inputs, (graph(), model()), {"nodes": None}),
        Call(nn.ExportableModel, (model(),)),
        Call(og.NodeClassification, (), {"class_weight": [1.0, 2.0, 1.0], "label_smoothing": 0.1}),
        Call(og.MultiLabel, (), {"pos_weight": "balanced"}),
        Call(og.NodeRegression, (), {"loss": "huber", "sample_weight": None}),
        Call(og.EdgeClassification, (), {"target": 0, "class_weight": "balanced", "label_smoothing": 0.1}),
        Call(og.hide_edge_target, (valued(), 0), {}),
        Call(og.EdgeRegression, (), {"target": "stars", "unknown": -1.0, "loss": "mae", "val_links": 0.1}),
        Call(
            og.LinkPrediction,
            (),
            {"link_steps": 2, "hide": 0.1, "link_loss": "margin", "margin": 2.0, "adversarial_temperature": None},
        ),
        Call(
            og.LinkPrediction,
            (),
            {
                "negatives": 2,
                "negative_sampling": "shared",
                "filter_negatives": True,
                "regularizer": "n3",
                "regularizer_weight": 0.1,
            },
        ),
        Call(
            og.LinkPrediction,
            (),
            {"negatives": 2, "val_links": 0.1, "test_links": 0.1, "split_seed": 3, "link_relations": ["r"]},
        ),
        Call(og.TrainConfig, (), {"epochs": 3, **training, **batches, "precision": "full", "val_links": 0.1}),
        Call(og.Workers, (2,), {"device": "cpu", "max_restarts": 1, "heartbeat_seconds": 3.0, "grace_seconds": 1.0}),
        Call(og.Full, (), {"partition": "metis", "overlap": True, "first_aggregate": "once"}),
        Call(og.Offload, (), {"memory": "1GiB", "chunks": 2, "scratch_dir": None, "cache": True}),
        Call(og.TensorParallel, (), {"chunks": 2, "on_disk": "auto", "attention": "scores", "memory": None}),
        Call(og.Sampled, (), {"prefetch": 2, "cache": 0.1, "cache_by": "degree", "cache_scope": "worker"}),
        Call(og.SplitParallel, (), {"prefetch": 2, "cache": "1MiB", "partial_sums": True}),
        Call(og.Migrate, (), {"time_steps": 2, "move_model": True, "merge": False, "sampling_threads": 1}),
        Call(og.Orchestrate, (), {"hot_ratio": 0.1, "super_batch": 2, "reuse": "embedding", "cache": 0.5}),
        Call(og.datasets),
        Call(og.Graph, (), {"name": "g", "topology": graph().topology, "num_classes": 2, "split": graph().split}),
        Call(og.NodeType, (), {"name": "a", "first": 0, "last": 3, "num_columns": 2}),
        Call(
            og.TypeLabels,
            (),
            {"name": "a", "labels": torch.arange(3), "num_classes": 3, "class_names": ("x", "y", "z")},
        ),
        Call(og.Split, (), {name: torch.arange(3) for name in ("train", "val", "test")}),
        Call(nn.GCN, widths, {"layers": 3, "dropout": 0.1, "norm": True, "residual": True, "sparse_input": False}),
        Call(nn.SAGE, widths, {"pool": "mean", "num_layers": 2, "input_dropout": 0.1, "activation": torch.tanh}),
        Call(nn.GAT, (COLUMNS, 8, CLASSES), {"heads": 2, "attention_dropout": 0.1}),
        Call(nn.GIN, widths, {"layers": 1}),
        Call(nn.GATv2, (COLUMNS, 8, CLASSES), {"heads": 2, "edge_dim": 3, "share_weights": True}),
        Call(nn.Transformer, (COLUMNS, 8, CLASSES), {"heads": 2, "edge_dim": 3, "beta": True}),
        Call(nn.GINE, widths, {"edge_dim": 2}),
        Call(nn.EdgeNetwork, widths, {"edge_dim": 2, "mean": True}),
        Call(nn.CommNet, widths),
        Call(nn.GGCN, widths),
        Call(nn.GGNN, (COLUMNS, 6, CLASSES)),
        Call(nn.FiLM, widths, {"num_relations": 2}),
        Call(nn.RGCN, widths, {"num_relations": 2, "bases": 2}),
        Call(nn.RGCN, widths, {"num_relations": 2, "bases": None, "num_blocks": 2, "project_first": True}),
        Call(nn.TypedRGCN, widths, {"types": graph().types, "num_blocks": 2, "embeddings": True, "sparse_input": True}),
        Call(nn.MLP, widths, {"layers": 2}),
        Call(nn.Embedding, widths, {"combine": "add", "std": 0.5, "dropout": 0.1}),
        Call(nn.NodeEmbedding, (4, ["a"]), {"in_features": 3, "combine": "add", "std": 0.5}),
        Call(nn.NodewiseConv, (4, 3), {"linear": True}),
        Call(nn.RGCNDiagonal, widths, {"num_relations": 2}),
        Call(nn.CompGCN, widths, {"num_relations": 2, "composition": "sub", "inverses": True}),
        Call(nn.ComposedDistMult, (nn.CompGCN(4, 3, 3, num_relations=2),)),
        Call(nn.CompGCNConv, (4, 3, 2), {"composition": "mult", "inverses": False, "before": nn.CompGCNConv(4, 4, 2)}),
        Call(nn.HGT, widths, {"types": graph().types, "heads": 2, "embeddings": False, "num_layers": 1}),
        Call(nn.HGTConv, (COLUMNS, 6, ["a", "b"], [("a", "to", "b")]), {"heads": 2, "hidden": 8}),
        Call(nn.RGCNMatrixConv, (4, 6, 2), {"num_blocks": 2, "node_types": ["a"], "project_first": None}),
        Call(nn.TypedLinear, ({"a": 3, "b": 2}, 4, ["b", "a"]), {"bias": True}),
        Call(nn.Decoupled, widths, {"rounds": 2, "gamma": 0.9, "heads": 0, "num_relations": 0}),
        Call(nn.DecoupledGAT, widths, {"heads": 2, "rounds": 1, "alpha": 0.1}),
        Call(nn.SIGN, widths, {"rounds": 2, "alpha": 0.1, "aggregator": "mean", "concat_hops": True}),
        Call(nn.Stack, (), {"layers": 2, "dropout": 0.2, "norm": True}),
        Call(nn.Epilogue, (), {"norm": True, "activation": torch.relu, "residual": False, "dropout": 0.1}),
        Call(nn.Layer, (nn.GCNConv(4, 4), nn.Epilogue(residual=True))),
        Call(nn.Model, ([layer],), {"input_dropout": 0.1, "encoder": None, "decoder": None}),
        Call(nn.Model, ([layer],), {"encoder": nn.LinearEncoder(6, COLUMNS), "decoder": nn.DistMult(CLASSES, 2)}),
        Call(layer_model(layer).with_decoder, (nn.Dot(),)),
        Call(nn.LinearEncoder, (4, 3, nn.Epilogue(dropout=0.1))),
        Call(nn.SequentialEncoder, ([nn.LinearEncoder(4, 3), nn.LinearEncoder(3, 2)],)),
        Call(nn.AttentionScores, (4, 2)),
        Call(nn.DistMult, (4, 2)),
        Call(nn.Dot),
        Call(nn.ComplEx, (4, 2)),
        Call(nn.Bilinear, (4, 2)),
        Call(nn.TransE, (4, 2), {"p": 2, "margin": 6.0}),
        Call(nn.RotatE, (4, 2), {"p": 1, "margin": 6.0}),
        Call(nn.MLPDecoder, (4, 2), {"hidden": 3}),
        Call(nn.EdgeMLP, (4, 2), {"num_relations": 2, "edge_dim": 3, "hidden": 5}),
        Call(nn.Projection, (4, 3), {"bias": True}),
        Call(nn.HeteroEncoder, ({"a": 3}, 4), {"embeddings": {"b": 5}, "without_input": ["c"]}),
        Call(nn.to_hetero, (nn.SAGE(4, 3, 2), TYPES), {"combine": "mean"}),
        Call(nn.HeteroConv, ({("a", "to", "a"): nn.SAGEConv(4, 3)},), {"combine": "mean"}),
    ]
    convs: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (nn.GCNConv, {"project_first": True}),
        (nn.SAGEConv, {}),
        (nn.SAGEMaxConv, {}),
        (nn.GINConv, {}),
        (nn.GINEConv, {"edge_dim": 3, "hidden": 7, "project_first": True}),
        (nn.CommNetConv, {}),
        (nn.GGCNConv, {}),
        (nn.GGNNConv, {}),
        (
            nn.GATConv,
            {"heads": 2, "average": False, "num_relations": 2, "edge_weights": True, "edge_dim": 3},
        ),
        (nn.NNConv, {"edge_dim": 3, "mean": True, "project_first": False}),
        (nn.EdgeConv, {}),
        (nn.GATv2Conv, {"heads": 2, "edge_dim": 3, "share_weights": False, "self_loops": False}),
        (nn.TransformerConv, {"heads": 2, "edge_dim": 3, "beta": True, "root_weight": True}),
        (nn.FiLMConv, {"slope": 0.1, "num_relations": 2}),
        (nn.RGCNConv, {"num_relations": 2, "bases": 2}),
        (nn.RGCNDiagonalConv, {"num_relations": 2}),
    ]
    calls += [Call(conv, (4, 4), options) for conv, options in convs]
    calls += [
        Call(nn.PropagateConv, (4,), {"gamma": 0.5, "aggregator": "sum", "alpha": 0.1, "hops_in": 1, "hops_out": 1}),
        Call(nn.AttentionPropagateConv, (4,), {"heads": 2, "gamma": 0.5}),
        Call(nn.RelationPropagateConv, (4,), {"num_relations": 2, "gamma": 0.5}),
    ]
    return calls


def layer_model(layer: nn.Layer) -> nn.Model:
    return nn.Model([layer])


class Odd:
    """An object of a class that nobody knows."""


def _raise(*given: object, **named: object) -> None:
    raise RuntimeError("called")


@cache
def odd_values() -> tuple[Any, ...]:
    """What arguments are replaced by."""
    # fmt: off
    return (
        None, True, False, 0, 1, -1, 2, 3, 7, 1 << 40, -(1 << 70), 0.5, -0.5, 1.5, math.nan, math.inf, -math.inf,
        1e300, 2j, "", "x", "full", "cuda", "cpu", "tpu", "1GiB", "-2GiB", "2", "0.5", "metis", "auto", "none",
        "wordnet ", "\0", "a/b" * 99, b"", b"x", (), (1,), (2, 2), (0, 0), (-1, 3), (2.5, 2), ("a",), [], [3, "a"],
        [[1, 2], [3]], {}, {"a": 1}, {1: 2}, set(), {"train": None}, {"train": [0, 0.5]}, {"train": np.ones(NODES,
        bool)}, {"other": [1]}, {"train": "a", "val": [-1]}, range(3), np.int64(2), np.float32(0.5), np.zeros(0),
        np.ones(3), np.ones((2, 3)), np.ones((2, 3, 4)), np.array("a"), np.array(["a", "b"]), np.array([object()]),
        np.array([np.nan, 1.0]), np.arange(NODES), np.arange(NODES) - 3, np.zeros((2, 0), "i8"), np.full((2, 3), 1
        << 62), np.ones((NODES, 2), "f2"), np.ones((NODES, 2), "c8"), np.datetime64("2020-01-01"), torch.ones(3),
        torch.ones(()), torch.ones(2, 3), torch.empty(0), torch.arange(NODES), torch.ones(NODES, 2,
        dtype=torch.bfloat16), torch.ones(NODES, 2).to_sparse(), torch.ones(3, requires_grad=True), torch.ones(2, 3,
        device="meta"), csr_array(np.eye(NODES)), csr_array((3, 0)), Odd, Odd(), _raise, print, math, Path("x"),
        Path("/"), Path("/dev/null"), NotImplemented, ..., int, og, torch.relu, torch.float32, torch.nn.Linear(2,
        2), torch.nn.BatchNorm1d(3), nn.Dot(), nn.GCNConv(4, 2), nn.Layer(nn.GCNConv(4, 4)), nn.Epilogue(),
        og.Full(), og.Workers(2), og.TrainConfig(epochs=1), nn.LinearEncoder(3, 2),
    )
    # fmt: on


TYPES = GraphTypes(names=("a",), borders=(0, 5), columns=(0, 4), edge_types=(("a", "to", "a"),))
_NAMES = ("layres", "epochs", "dropout", "x", "lr", "self", "fanout", "num_layers", "edge_weight", "device")


def draw_call(calls: list[Call], seed: int) -> Call:
    """Return the call of a seed."""
    draw = Random(seed)
    base = draw.choice(calls)
    positional, named = list(base.positional), dict(base.named)
    # Few at a time: each replaced argument hides what is behind the next one.
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        places = [*range(len(positional)), *named]
        action = draw.random()
        if action < 0.85 and places:
            place = draw.choice(places)
            before = positional[place] if isinstance(place, int) else named[place]
            # Half of them of the same type, which come further.
            alike = [each for each in odd_values() if type(each) is type(before)]
            value = draw.choice(alike if alike and draw.random() < 0.5 else odd_values())
            if isinstance(place, int):
                positional[place] = value
            else:
                named[place] = value
        elif action < 0.90 and named:
            del named[draw.choice(list(named))]
        elif action < 0.93 and positional:
            positional.pop()
        elif action < 0.95:
            positional.append(draw.choice(odd_values()))
        else:
            named[draw.choice(_NAMES)] = draw.choice(odd_values())
    return Call(base.function, tuple(map(_own, positional)), named)


def _own(value: Any) -> Any:
    # Models are trained in place.
    return copy.deepcopy(value) if isinstance(value, nn.Model) else value


def judge(call: Call) -> BaseException | None:
    """Make a call; return what came out of it that should not, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call.function(*call.positional, **call.named)
        except (og.InputError, og.TrainingError):
            return None
        except BaseException as error:
            return error
    return None
