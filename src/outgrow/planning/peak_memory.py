"""Peak bytes in the DEVICE tier of a worker.

On a CPU that is the resident memory of its process, the interpreter included; on a GPU the bytes of its tensors. The
factors below, copies of a number that exist at the same time, were counted in the layers of `outgrow.nn` and checked
against measured runs.
"""

from __future__ import annotations

from outgrow.engine.embeddings.row_sections import MEMORY_SHARE as EMBEDDING_SHARE
from outgrow.engine.minibatch_loop import EXCHANGED_AHEAD
from outgrow.inference.chunked import MEMORY_SHARE
from outgrow.planning.cost_model import CostModel
from outgrow.planning.evaluation_memory import (
    WHOLE_LAYERS,
    chunked_inference_bytes,
    evaluated_neighborhoods,
    evaluates_before_times,
    inference_before_times_bytes,
    time_order_bytes,
)
from outgrow.planning.link_memory import link_loss_bytes, ranking_bytes, whole_graph_link_bytes
from outgrow.planning.sizes import LayerSizes
from outgrow.planning.workload import (
    BatchStats,
    LinkStepStats,
    NeighborhoodStats,
    OrchestrateStats,
    PartitionStats,
    SplitBatchStats,
    Workload,
)

_PROCESS_BYTES = 238 << 20
"""Bytes of a process that has loaded its modules and compiled its kernels."""
_PER_SOURCE, _PER_AGGREGATE, _PER_OUT = 1.45, 0.36, 1.7
"""Copies of a layer's rows at the peak, gradients included: of sources, of aggregates, of the output."""
_PER_VECTOR = 3
"""Copies of vectors of nodes of which batches read some: with both moments."""
_PER_SPARSE_SOURCE = 0.5
"""Copies of source rows that are computed from sparse features, which have no gradient."""
_PER_SLICED = 3.0
"""Copies of aggregates that are computed in column slices: as slices, and as whole rows."""
_EVALUATED, _EVALUATED_APART, _EVALUATED_SLICED, _EVALUATED_TYPED = 0.95, 0.4, 0.5, 0.75
"""Copies of the widest layer's rows in an evaluation: on one worker; on several, by own nodes or by slices; beside the
fewer rows of the last layer that a model with modules per type trains."""
_EDGE_BYTES = 15
"""Bytes of an in-edge: its source, its weight, and both again in the transpose."""
_ENTRY_BYTES = 8
"""Bytes of an entry of sparse features in their order by columns, which gradients are computed by."""
_PART_BYTES = 27
"""Further bytes of an in-edge if edges from own nodes are stored apart from those of the halo."""
_LANE_BYTES = 6
"""Further bytes of an edge if columns are sliced and chunks of edges are kept."""
_LEFT = 0.1
"""Share of the memory of batches that is still allocated when the model is evaluated."""
_PER_SCORE, _PER_HEAD, _PER_SCORE_EVALUATED = 2.2, 1.2, 0.7
"""Numbers that attention holds for each score of an edge, for each weight that the aggregation computes by itself, and
for each of both in an evaluation."""
_ENCODED_BATCHES, _ENCODED_SPARSE_BATCHES = 2.0, 2.5
"""Bytes of batches for each of their own where an encoder has inputs per type, of dense or of sparse rows: their parts
come and go in every batch, and the allocator keeps some."""
_PER_PARAMETER = 5
"""Copies of a parameter: itself, its gradient, two moments of Adam, and the best one so far."""
_TYPED_BYTES = 16 << 20
"""Bytes of further kernels of models whose edges are grouped by relation."""
_PAIR_EDGE_BYTES, _PAIR_BYTES = 16, 32
"""Bytes of an edge and of a pair, of relation and row, where edges are grouped by the pairs of both ends."""
_RELATION_EDGE_BYTES = 24
"""Further bytes of an edge where the edges of each relation are a block of their own."""
_SHARE_BYTES = 8
"""Bytes of a node's share in the importance of all."""
_PREFETCH, _IN_USE, _COPIES, _AHEAD_OF_GPU = 4, 2, 1.0, 2
"""Batches sampled ahead unless a strategy says otherwise, batches besides, copies of the rows of the current batch, and
all together on a GPU."""
_OF_MANY_STEPS = 1.35
"""Bytes of batches of links for each of their own: over many steps of many sizes freed memory is left in between."""
_POOLED = 1.15
"""Bytes of a batch in the memory pool, sizes rounded up, for each of its own, where memory is limited: nothing else is
kept there, and a batch is freed before the next one."""
_NODE_BYTES = 20
"""Bytes of each node of the graph in a worker: its owner, its number in a batch, ids and labels of own nodes. Elsewhere
the factors of batches, fitted to whole runs, include them."""


def process_bytes(costs: CostModel) -> int:
    """Return the bytes of a worker before it holds anything of a graph."""
    # Memory of a GPU is counted by tensors, so neither interpreter nor CUDA context is part of it.
    return _PROCESS_BYTES if costs.shares_device else 0


def base_bytes(work: Workload, costs: CostModel) -> int:
    """Return the bytes of a worker before it trains, and of what metrics keep."""
    # A single worker trains in the process that read the graph; several get their parts only.
    read = work.graph.resident_bytes if costs.layout.workers == 1 else 0
    return process_bytes(costs) + read + metric_bytes(work, costs)


def metric_bytes(work: Workload, costs: CostModel) -> int:
    """Return the bytes that metrics keep in the DEVICE tier of worker 0: they are computed on the CPU."""
    return work.metric_bytes if costs.shares_device else 0


def model_bytes(work: Workload, costs: CostModel) -> int:
    """Return the bytes of the parameters, with what training keeps of each, and of kernels for types."""
    grouped = any(layer.groups_by_pair or layer.groups_by_relation for layer in work.model.layers)
    # Vectors of nodes are kept like parameters, but each by the owner of the node alone; in files if there are many.
    vectors = work.model.embedding_numbers // costs.layout.workers
    room = EMBEDDING_SHARE * costs.memory / work.model.number_bytes
    in_files = costs.shares_device and _PER_VECTOR * vectors > room
    held = _PER_PARAMETER * (work.model.parameters[1] + (0 if in_files else vectors)) * work.model.number_bytes
    return held + _TYPED_BYTES * (grouped and costs.shares_device)


def training_bytes(work: Workload, nodes: float, sources: float, edges: float, slices: int = 1) -> float:
    """Return the bytes of full-graph training and of an evaluation, input included.

    Args:
        work: The graph and the model.
        nodes: Nodes of a worker.
        sources: Its nodes and their in-neighbours.
        edges: Edges that it aggregates over.
        slices: Number of column slices that aggregation is divided into.
    """
    model = work.model
    # Sums by pair of relation and row hold what they add to, which layers of one matrix hold in parts.
    apart = sources > nodes and not any(layer.groups_by_pair for layer in model.layers)
    evaluated = _EVALUATED_SLICED if slices > 1 else _EVALUATED_APART if apart else _EVALUATED
    evaluated = min(evaluated, _EVALUATED_TYPED) if work.last_shares != (1.0, 1.0) else evaluated
    # The last layer of a model with modules per type computes the rows of types with targets.
    last_nodes, last_edges = work.last_shares if slices == 1 else (1.0, 1.0)
    shares = [(1.0, 1.0)] * (len(model.layers) - 1) + [(last_nodes, last_edges)]
    numbers = sum(_row_numbers(work, index, each * nodes, sources, slices) for index, (each, _) in enumerate(shares))
    numbers += _encoded_numbers(work, nodes)
    # The buffers of training stay allocated for the next epoch while the model is evaluated.
    numbers += evaluated * _widest_layer_numbers(work, nodes, sources)
    # Layers that aggregate their input hold the halo rows of the layer below.
    received = sum(layer.spec.in_features for layer in model.layers[1:] if layer.spec.source_is_input)
    numbers += _PER_SOURCE * (sources - nodes) * received
    held = numbers * model.number_bytes + (_edge_bytes(nodes, sources) + _LANE_BYTES * (slices > 1)) * edges
    held += (
        model.number_bytes
        * edges
        * sum(share * _edge_numbers(layer) for layer, (_, share) in zip(model.layers, shares, strict=True))
    )
    held += edges / max(1, work.graph.edges) * (_index_bytes(work) + last_edges * (last_edges < 1) * _index_bytes(work))
    held += edges * _edge_feature_copies(work, nodes, sources) * work.graph.edge_row_bytes
    if work.graph.sparse and slices == 1 and not model.has_input_dropout:
        held += _ENTRY_BYTES * nodes * work.graph.row_entries
    return held + input_bytes(work, nodes, sources)


def inference_bytes(work: Workload, nodes: float, sources: float, edges: float) -> float:
    """Return the bytes of evaluating whole layers, without gradients."""
    model = work.model
    # Layers run one after the other and free their memory, so the largest counts, not the sum.
    of_edge = max(_PER_SCORE_EVALUATED * (layer.attention + layer.heads) + layer.edge_numbers for layer in model.layers)
    held = (
        _EVALUATED * _widest_layer_numbers(work, nodes, sources) * model.number_bytes
        + _edge_bytes(nodes, sources) * edges
    )
    held += edges / max(1, work.graph.edges) * _index_bytes(work)
    held += edges * _edge_feature_copies(work, nodes, sources) * work.graph.edge_row_bytes
    return held + model.number_bytes * edges * of_edge + input_bytes(work, nodes, sources)


def full_graph_peak_bytes(
    work: Workload, costs: CostModel, partition: PartitionStats, links: LinkStepStats | None = None
) -> int:
    """Return the peak bytes of the largest worker that trains and evaluates whole layers; of links with their steps."""
    part = int(partition.edges.argmax())
    nodes = float(partition.nodes[part])
    # One self-loop for each node.
    edges = float(partition.edges[part] + partition.nodes[part])
    sources = nodes + float(partition.halo[part].sum())
    held = process_bytes(costs) + model_bytes(work, costs) + metric_bytes(work, costs)
    return held + round(training_bytes(work, nodes, sources, edges) + whole_graph_link_bytes(work, costs, links))


def minibatch_bytes(work: Workload, neighborhood: NeighborhoodStats, *, num_prefetched: float) -> float:
    """Return the bytes of the largest worker's batch, forward and backward, and of prefetched batches."""
    # The maximum of each layer by itself: the worker with most memory need not have most of every layer.
    rows = neighborhood.rows.max(0)
    edges = neighborhood.edges.max(0)
    model = work.model
    numbers = sum(_row_numbers(work, index, rows[index + 1], rows[index], 1) for index in range(len(model.layers)))
    numbers += _encoded_numbers(work, rows[0])
    of_edges = sum(_edge_numbers(layer) * edges[index] for index, layer in enumerate(model.layers))
    # Features of edges are gathered for the layers that read them.
    read = sum(float(edges[index]) for index, layer in enumerate(model.layers) if layer.edge_dim)
    of_batch = _EDGE_BYTES * edges.sum() + work.graph.edge_row_bytes * read
    held = (numbers + of_edges) * model.number_bytes + of_batch
    held += edges.sum() / max(1, work.graph.edges) * _index_bytes(work)
    held += num_prefetched * (rows[0] * work.input_row_bytes + of_batch)
    if model.reads_features or not any(layer.groups_by_pair for layer in model.layers):
        return float(held)
    return float(held) * (_ENCODED_SPARSE_BATCHES if work.graph.sparse else _ENCODED_BATCHES)


def num_prefetched_batches(
    costs: CostModel, steps: int = _PREFETCH + _IN_USE, prefetch: int = _PREFETCH, *, limited: bool = False
) -> float:
    """Return the number of batches whose features the DEVICE tier holds, copies included, in an epoch of ``steps``."""
    if not costs.shares_device:
        return _AHEAD_OF_GPU
    if limited:
        return _POOLED * min(max(prefetch, EXCHANGED_AHEAD if costs.layout.hosts > 1 else 0) + 1, steps)
    return min(prefetch + _IN_USE, steps) + _COPIES


def whole_layers_fit(work: Workload, costs: CostModel, partition: PartitionStats) -> bool:
    """Whether whole layers are evaluated in memory where mini-batches are trained, by every worker."""
    return _whole_layers_bytes(work, partition) <= MEMORY_SHARE * costs.memory


def _whole_layers_bytes(work: Workload, partition: PartitionStats) -> float:
    part = int(partition.edges.argmax())
    nodes = float(partition.nodes[part])
    return inference_bytes(work, nodes, nodes + float(partition.halo[part].sum()), float(partition.edges[part]))


def minibatch_peak_bytes(
    work: Workload,
    costs: CostModel,
    partition: PartitionStats,
    stats: BatchStats | SplitBatchStats | OrchestrateStats,
    prefetch: int = _PREFETCH,
    *,
    limited: bool = False,
    links: LinkStepStats | None = None,
) -> int:
    """Return the peak bytes of mini-batches and of evaluations.

    Args:
        work: The graph and the model.
        costs: The cost model.
        partition: Statistics of the partition.
        stats: Statistics of the batches.
        prefetch: Batches that are sampled ahead of the one being computed.
        limited: Whether the strategy has a limit of memory, and so keeps no freed memory beyond its peak.
        links: Statistics of the batches of links; None for nodes.
    """
    part = int(partition.edges.argmax())
    nodes = float(partition.nodes[part])
    prefetched = num_prefetched_batches(costs, stats.steps, prefetch, limited=limited)
    training = minibatch_bytes(work, stats.neighborhood, num_prefetched=prefetched)
    if links is not None and not limited:
        training *= _OF_MANY_STEPS
    if work.batches.is_temporal:
        training += time_order_bytes(work, costs.layout.workers)
    whole = _whole_layers_bytes(work, partition)
    chosen = evaluated_neighborhoods(work, whole_fits=whole_layers_fit(work, costs, partition))
    if WHOLE_LAYERS in chosen:
        # Features of own nodes, which the first evaluation reads, are kept for the next.
        training += input_bytes(work, nodes, nodes)
    else:
        training += work.graph.resident_bytes if costs.layout.workers == 1 else 0
    share = nodes / max(1, work.graph.nodes)
    held = [whole if each is WHOLE_LAYERS else chunked_inference_bytes(work, costs, each, share) for each in chosen]
    if evaluates_before_times(work):
        held.append(time_order_bytes(work, costs.layout.workers) + inference_before_times_bytes(work))
    evaluation = max(held, default=0.0) + metric_bytes(work, costs)
    if limited:
        training += _NODE_BYTES * work.graph.nodes
    if links is not None:
        training += link_loss_bytes(work, links)
        evaluation += ranking_bytes(work, costs)
    # The two phases alternate; the allocator keeps some of the memory of the one that is not running.
    held_always = process_bytes(costs) + model_bytes(work, costs)
    return held_always + round(max(training, evaluation) + _LEFT * min(training, evaluation))


def input_bytes(work: Workload, nodes: float, sources: float) -> float:
    """Return the bytes of the input: the whole graph on a single worker, else the features of a worker's sources."""
    alone = nodes >= work.graph.nodes
    return work.graph.resident_bytes if alone else sources * work.input_row_bytes


def _edge_numbers(layer: LayerSizes) -> float:
    """Return the numbers of each edge that are held until the backward pass."""
    return _PER_SCORE * layer.attention + _PER_HEAD * layer.heads + layer.edge_scores + layer.edge_numbers


def _edge_feature_copies(work: Workload, nodes: float, sources: float) -> int:
    """Return how often a worker holds the features of an edge when it computes whole layers."""
    if sources > nodes:
        # In each view, and once more as edges from own nodes are held apart from those of the halo.
        return 2 * len(set(work.model.views))
    # The graph's own are in a file, or counted with what is resident; a view with self-loops has a copy.
    return (work.graph.resident_bytes == 0) + any(work.model.views)


def _index_bytes(work: Workload) -> float:
    """Return the bytes by which all edges of the graph are grouped by relation, for layers that need that."""
    graph, layers = work.graph, work.model.layers
    of_pairs = _PAIR_EDGE_BYTES * graph.edges + _PAIR_BYTES * graph.pairs
    return max(
        of_pairs * any(layer.groups_by_pair for layer in layers),
        _RELATION_EDGE_BYTES * graph.edges * any(layer.groups_by_relation for layer in layers),
    )


def _encoded_numbers(work: Workload, rows: float) -> float:
    """Return the numbers that an encoder's output holds."""
    return 0.0 if work.model.reads_features else rows * work.model.layers[0].spec.in_features


def _edge_bytes(nodes: float, sources: float) -> int:
    return _EDGE_BYTES + _PART_BYTES * (sources > nodes)


def _row_numbers(work: Workload, index: int, nodes: float, sources: float, slices: int) -> float:
    layer = work.model.layers[index]
    # Sources that are the input itself need no rows of their own, unless they are cut into slices.
    at_source = 0 if layer.spec.source_is_input and slices == 1 else layer.source_width
    of_aggregate = _PER_SLICED if slices > 1 else _PER_AGGREGATE
    at_target = of_aggregate * layer.aggregate_width + _PER_OUT * layer.spec.out_features + layer.inner_numbers
    channels, columns = layer.spec.target
    at_target += channels * columns
    of_source = _PER_SPARSE_SOURCE if index == 0 and (work.graph.sparse or work.graph.in_blocks) else _PER_SOURCE
    return of_source * sources * at_source + nodes * at_target


def _widest_layer_numbers(work: Workload, nodes: float, sources: float) -> float:
    """Return the numbers of the widest layer, with its input; the first layer's input is counted as features."""
    return max(
        sources * layer.source_width * (not layer.spec.source_is_input)
        + nodes * (layer.aggregate_width + 2 * layer.spec.out_features)
        + nodes * layer.spec.in_features * (1 + layer.reads_target) * (index > 0)
        for index, layer in enumerate(work.model.layers)
    )
