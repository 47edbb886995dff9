"""Checks that graph, model and options fit together, made before anything is written or started."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch

from outgrow.app.graph_parts import require_trainable_part
from outgrow.app.link_batch_checks import validate_link_batches
from outgrow.app.link_task import count_targets, ranks_all_nodes, validate_link_problem
from outgrow.app.node_task import make_node_task, require_numbers
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import warn_about_data
from outgrow.engine.batches import BatchConfig
from outgrow.graph.builders.validate import require_trainable
from outgrow.graph.edge_types import count_relation_edges
from outgrow.graph.graph import Graph
from outgrow.graph.sampling.edge_sampler import NEIGHBOR, Fanout, require_fanouts_for_sampler
from outgrow.inference.modes import validate_evaluation
from outgrow.nn.attention import GATConv
from outgrow.nn.decoder import Decoder
from outgrow.nn.edge_decoder import EdgeDecoder
from outgrow.nn.encoder import Encoder
from outgrow.nn.layer import Conv, Layer
from outgrow.nn.model import Model
from outgrow.nn.node_embedding import find_embeddings
from outgrow.nn.pyg import PyGAggregation
from outgrow.nn.tasks import NodeRegression, NodeTask
from outgrow.nn.type_tasks import TypeTasks
from outgrow.ops.edge_weight import require_divisible_weights
from outgrow.ops.sparse import SparseRows
from outgrow.strategies.base import Strategy
from outgrow.training.config import TrainConfig


def validate_problem(graph: Graph, model: Model, task: NodeTask | None = None) -> None:
    """Check that a model can be trained on a graph.

    Args:
        graph: The graph.
        model: The model.
        task: The task of a model of nodes; None for classes, as the labels are.

    Raises:
        InputError: The graph cannot be trained on, or the model or the task does not fit it.
    """
    validate_argument_types(graph, model)
    graph = select_read_features(graph, model)
    if model.decoder is not None:
        validate_link_problem(graph, model)
        validate_model_fits_graph(graph, model)
        _validate_trainable(model)
        return
    require_trainable(graph)
    validate_model_fits_graph(graph, model)
    _validate_trained_types(graph, model)
    _validate_trainable(model)
    _validate_task(graph, model, task or make_node_task(graph, TrainConfig()))


def validate_argument_types(graph: Graph, model: Model) -> None:
    """Check that these are a graph and a model.

    Raises:
        InputError: One of them is something else.
    """
    for name, given, kind, repair in (
        ("graph", graph, Graph, "load it first: graph = og.load(...)"),
        ("model", model, Model, "make one of og.nn, such as og.nn.GCN(graph.num_features, 64, graph.num_classes)"),
    ):
        if not isinstance(given, kind):
            raise InputError(
                f"the {name} has the wrong type",
                needed=f"{name}: outgrow's {kind.__name__}",
                got=f"{type(given).__module__}.{type(given).__qualname__}",
                repair=repair,
            )


def validate_model_fits_graph(graph: Graph, model: Model) -> None:
    """Check that a model fits the features, relations and weights of a graph.

    Last, where features are sparse, its first layer is made to project before it aggregates
    (`Model.accept_sparse_features`).

    Raises:
        InputError: It does not fit; the model is as it was.
    """
    _validate_parameters(model)
    graph = select_read_features(graph, model)
    if model.reads_types:
        # First: inputs per type say what they miss by the names of the types.
        _validate_types(graph)
        model.bind_types(graph.types)
    if model.in_features != graph.num_features:
        raise InputError(
            f"the model does not fit the graph {graph.name!r}",
            needed=f"{graph.num_features} inputs, one for each feature",
            got=f"{model.in_features} inputs",
            repair="build the model with graph.num_features",
        )
    _validate_relations(graph, model)
    _validate_weights(graph, model)
    _validate_edge_features(graph, model)
    _validate_vectors(graph, model)
    # Aggregating sparse rows before projecting them would make them dense, and as wide as the features.
    if graph.sparse and not model.accept_sparse_features():
        what = "sparse features" if isinstance(graph.features, SparseRows) else "features by type"
        raise InputError(
            f"the first layer of the model cannot take the {what} of {graph.name!r}",
            needed="a first layer that projects before it aggregates, and has no residual",
            got=stage_name(model.first_reader),
            repair="leave the residual out, choose sparse_input=True where there is one, put an encoder before it, or "
            "give dense features",
        )


def select_read_features(graph: Graph, model: Model) -> Graph:
    """Return the graph as a model reads it: without features if vectors of nodes replace them."""
    if model.reads_features:
        return graph
    none = torch.empty(graph.num_nodes, 0, dtype=model.dtype)
    types = tuple(replace(each, num_columns=0) for each in graph.node_types)
    return replace(graph, features=none, node_types=types)


def stage_name(stage: Encoder | Layer) -> str:
    """Return the name of the class of an encoder, or of the convolution of a layer."""
    return type(stage.conv if isinstance(stage, Layer) else stage).__name__


def _validate_vectors(graph: Graph, model: Model) -> None:
    for name, embedding in find_embeddings(model).items():
        weight = embedding.weight
        num_rows = sum(last - first for first, last in embedding.embedded_ranges(graph.num_nodes))
        if weight is not None and len(weight) > num_rows:
            raise InputError(
                f"the vectors of {name} are those of another graph than {graph.name!r}",
                needed=f"the graph of the training, with {len(weight):,} nodes, or one that was appended to it",
                got=f"{num_rows:,} nodes",
                repair="give that graph, or train a model without vectors of nodes for new graphs",
            )


def _validate_parameters(model: Model) -> None:
    dtype = model.dtype
    if dtype not in (torch.float32, torch.float64):
        raise InputError(
            "models with parameters of this type cannot be computed",
            needed="parameters in float32 or float64; features may be in half precision",
            got=str(dtype).removeprefix("torch."),
            repair="give model.float()",
        )


def _validate_trainable(model: Model) -> None:
    counts = [each.requires_grad for each in model.parameters()]
    if not any(counts) and not find_embeddings(model):
        raise InputError(
            "the model has nothing to train",
            needed="at least one parameter that requires gradients",
            got=f"{len(counts)} parameters, all of them frozen" if counts else "no parameters",
            repair="call model.requires_grad_(), or og.predict if the model is as it should be",
        )


def _validate_relations(graph: Graph, model: Model) -> None:
    for conv in (layer.conv for layer in model.layers_list()):
        # Fewer relations than the convolution knows are fine: some of its weights are then unused.
        if conv.num_relations and (graph.topology.relation is None or graph.num_relations > conv.num_relations):
            raise InputError(
                f"{type(conv).__name__} does not fit the edges of {graph.name!r}",
                needed=f"edges of at most {conv.num_relations} relations, at least 1",
                got=f"{graph.num_relations} relations",
                repair="build the model with graph.num_relations, for a graph whose edges have relations: "
                "`outgrow info` tells, `outgrow convert` keeps a relation column",
            )


def _validate_types(graph: Graph) -> None:
    """Check that no type lacks nodes and no edge type edges: their modules would train on nothing."""
    types = graph.types
    empty = [name for name, (first, last) in zip(types.names, pairwise(types.borders), strict=True) if first == last]
    edges = count_relation_edges(graph.topology, types.num_relations)
    unused = [str(each) for each, count in zip(types.edge_types, edges, strict=True) if not count]
    if empty or unused:
        found = [f"no nodes of {', '.join(empty)}"] * bool(empty) + [f"no edges of {', '.join(unused)}"] * bool(unused)
        raise InputError(
            f"modules per type do not fit {graph.name!r}: they would be trained on nothing",
            needed="at least one node of each type, and one edge of each edge type",
            got="; ".join(found),
            repair="leave these types out of the graph, and out of the model",
        )


def _validate_trained_types(graph: Graph, model: Model) -> None:
    """Check that the last layer gives something of each type that the loss reads."""
    last = model.layers_list()[-1].conv
    if last.types is None:
        return
    for name in last.types_without_output:
        first, end = last.types.type_nodes(name)
        train = graph.split.train
        if count := int(((train >= first) & (train < end)).sum()):
            raise InputError(
                f"no relation enters {name!r}, of which the last layer therefore gives nothing",
                needed="an edge type into each type that has nodes to train on",
                got=f"{count:,} of them are nodes of {name}",
                repair="give the graph reverse edges with relations of their own, or another split",
            )


def _validate_weights(graph: Graph, model: Model) -> None:
    topology = graph.topology
    if topology.weight is not None and any(layer.conv.normalizes_weights for layer in model.layers_list()):
        require_divisible_weights(topology.indptr, topology.weight, topology.degree)


def _validate_edge_features(graph: Graph, model: Model) -> None:
    for conv in (layer.conv for layer in model.layers_list()):
        if conv.edge_dim and conv.edge_dim != graph.num_edge_features:
            raise InputError(
                f"{_wrapped_name(conv)} does not fit the features of the edges of {graph.name!r}",
                needed=f"{conv.edge_dim} features of each edge",
                got=f"{graph.num_edge_features}",
                repair="build the model with edge_dim=graph.num_edge_features; `outgrow info` tells what edges have",
            )


def warn_of_unread_weights(graph: Graph, model: Model) -> None:
    """Warn if edges have weights that a layer of the model does not read, or features that no layer reads."""
    in_decoder = isinstance(model.decoder, EdgeDecoder) and model.decoder.edge_dim
    if graph.num_edge_features and not in_decoder and not any(layer.conv.edge_dim for layer in model.layers_list()):
        warn_about_data(
            f"the features of the edges of {graph.name!r} are read by no layer of the model; "
            "edge_dim=graph.num_edge_features lets a layer that can read them do so"
        )
    convs = [layer.conv for layer in model.layers_list() if not layer.conv.reads_weights]
    if graph.topology.weight is not None and convs:
        names = dict.fromkeys(_wrapped_name(conv) for conv in convs)
        how = "; edge_weights=True lets it read them" if any(isinstance(conv, GATConv) for conv in convs) else ""
        warn_about_data(f"the weights of the edges of {graph.name!r} are not read by {', '.join(names)}{how}")


def _wrapped_name(conv: Conv) -> str:
    return type(conv.aggregation.conv if isinstance(conv.aggregation, PyGAggregation) else conv).__name__


def _validate_task(graph: Graph, model: Model, task: NodeTask) -> None:
    labels = graph.task_labels
    assert labels is not None
    task.validate_labels(labels, graph.name)
    require_numbers(graph, task)
    last = model.layers_list()[-1]
    needed = task.count_outputs(labels, graph.num_classes)
    if last.spec.out_features != needed:
        raise InputError(
            f"the model does not fit the graph {graph.name!r}",
            needed=f"{needed} outputs, {_describe_outputs(task)}",
            got=f"{last.spec.out_features} outputs",
            repair="build the model with graph.num_classes, of graph.select_targets(...) where targets are chosen"
            if needed == graph.num_classes and isinstance(task, TypeTasks)
            else "build the model with graph.num_classes"
            if needed == graph.num_classes
            else f"build the model with {needed} outputs",
        )
    task.validate(labels, graph.split.train, needed, graph.name, model.dtype)


def _describe_outputs(task: NodeTask) -> str:
    if isinstance(task, TypeTasks):
        return f"those of {', '.join(f'{each.name} ({each.num_outputs})' for each in task.targets)}"
    return f"one for each {'target' if task.kind == NodeRegression.kind else 'class'}"


def validate_strategy(
    graph: Graph, model: Model, strategy: Strategy, config: TrainConfig, *, num_targets: int | None = None
) -> None:
    """Check that a strategy can train a model on a graph, with the mini-batches and evaluations of ``config``.

    Args:
        graph: The graph.
        model: The model.
        strategy: The strategy.
        config: Options of the training loop.
        num_targets: Number of nodes or links to train on; None to count them.

    Raises:
        InputError: It does not support the mini-batches, the graph or the model; or the model cannot be evaluated so.
    """
    count = 0
    if strategy.uses_minibatches:
        # Of targets of edges: see `outgrow.app.edge_task.validate_edge_training`.
        count = count_targets(graph, model, config) if num_targets is None else num_targets
    if isinstance(model.decoder, Decoder):
        validate_link_batches(strategy, config, count)
    require_trainable_part(graph, strategy)
    strategy.validate_graph(graph, config.batch_config)
    strategy.validate_model(model)
    needs_all = isinstance(model.decoder, Decoder) and ranks_all_nodes(graph, config)
    validate_evaluation(config.evaluation, ranks_all_nodes=needs_all, patience=config.patience)


def validate_fanout(graph: Graph, model: Model, config: TrainConfig) -> None:
    """Check that fan-outs, if given, match the layers of a model, the relations of a graph and the sampler.

    Raises:
        InputError: They do not, or there are none and the sampler would draw nothing.
    """
    for option, hops in (("--fanout ", config.fanout), ("--set eval_fanout=", config.eval_fanout)):
        if hops is not None:
            _validate_hops(graph, model, hops, option)
    every = (*(config.fanout or ()), *(config.eval_fanout or ()))
    for hop in every:
        if not isinstance(hop, int):
            require_fanouts_for_sampler(config.sampler, len(hop))
    if config.sampler != NEIGHBOR and all(hop == -1 for hop in every):
        raise InputError(
            f"sampler {config.sampler} has nothing to draw",
            needed="a fan-out other than -1 for a hop at least",
            got=f"fan-outs {config.batch_config.describe()}",
            repair="give --fanout, such as 10,10, or leave the sampler out",
        )


def _validate_hops(graph: Graph, model: Model, hops: tuple[Fanout, ...], option: str) -> None:
    # One hop for each layer: a layer must have the sampled neighbours of all nodes of the next.
    layers = len(model.layers_list())
    given = BatchConfig(fanout=hops).describe()
    if len(hops) != layers:
        raise InputError(
            "the fan-outs do not fit the model",
            needed=f"{layers} hops, one for each layer, outward from the seeds",
            got=f"{len(hops)} hops: {given}",
            repair=f"give {layers} numbers, such as {option}{','.join(['10'] * layers)}",
        )
    if any(not isinstance(hop, int) and len(hop) != graph.num_relations for hop in hops):
        raise InputError(
            f"the fan-outs do not fit the relations of {graph.name!r}",
            needed=f"one number, or {graph.num_relations} of them joined by colons, for each hop",
            got=given,
            repair="give as many numbers as `outgrow info` shows relations, or one for all",
        )
