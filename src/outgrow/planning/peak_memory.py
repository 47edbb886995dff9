"""Peak bytes in the DEVICE tier of a worker.

On a CPU that is the resident memory of its process, the interpreter included; on a GPU the bytes of its tensors. The
factors below, copies of a number that exist at the same time, were counted in the layers of `outgrow.nn` and checked
against measured runs.
"""

from __future__ import annotations

from outgrow.engine.embeddings.row_sections import MEMORY_SHARE as EMBEDDING_SHARE
from outgrow.engine.minibatch_loop import EXCHANGED_AHEAD
from outgrow.inference.chunked import MEMORY_SHARE
from outgrow.planning.batch_stats import BatchStats, LinkStepStats, NeighborhoodStats, OrchestrateStats, SplitBatchStats
from outgrow.planning.cost_model import CostModel
from outgrow.planning.evaluation_memory import (
    WHOLE_LAYERS,
    chunked_inference_bytes,
    evaluated_neighborhoods,
    evaluates_before_times,
    inference_before_times_bytes,
    time_order_bytes,
)
from outgrow.planning.layer_memory import (
    BATCH,
    SLICED,
    WHOLE,
    count_edge_feature_copies,
    count_edge_numbers,
    count_encoded_numbers,
    count_evaluated_numbers,
    count_row_numbers,
    grouping_bytes,
    view_edge_bytes,
)
from outgrow.planning.link_memory import link_loss_bytes, ranking_bytes, whole_graph_link_bytes
from outgrow.planning.needed_rows import evaluated_edge_bytes
from outgrow.planning.workload import WHOLE_LAYER, PartitionStats, Workload

_PROCESS_BYTES = 235 << 20
"""Bytes of a process that has loaded its modules and compiled its kernels."""
_PER_VECTOR = 3
"""Copies of vectors of nodes of which batches read some: with both moments."""
_ENTRY_BYTES = 8
"""Bytes of an entry of sparse features in their order by columns, which gradients are computed by."""
_LEFT, _LEFT_AT_END = 0.15, 0.1
"""Share of the memory of batches that is still allocated when the model is evaluated, and of all when outputs are
gathered."""
_PER_GATHERED = 2
"""Copies of the outputs that worker 0 gathers at the end of a run: as they come, and in the order of nodes."""
_READY = 0.85
"""Share of the batches ahead that are complete: others are being drawn."""
_PER_SPARSE_ROW = 3.9
"""Bytes of a batch's sparse rows for each of their own: they are gathered, ordered by columns, and freed in parts."""
_PER_SCORE_EVALUATED = 0.7
"""Numbers that attention holds for each score and weight of an edge in an evaluation."""
_ENCODED_BATCHES, _ENCODED_SPARSE_BATCHES = 2.0, 2.5
"""Bytes of batches for each of their own where an encoder has inputs per type, of dense or of sparse rows: their parts
come and go in every batch, and the allocator keeps some."""
_PER_PARAMETER = 5
"""Copies of a parameter: itself, its gradient, two moments of Adam, and the best one so far."""
_TYPED_BYTES = 16 << 20
"""Bytes of further kernels of models whose edges are grouped by relation."""
_PREFETCH, _IN_USE, _AHEAD_OF_GPU = 4, 3, 2
"""Batches sampled ahead unless a strategy says otherwise, batches besides, the current one twice, and all together on a
GPU."""
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


def training_bytes(
    work: Workload,
    nodes: float,
    sources: float,
    edges: float,
    slices: int = 1,
    last_shares: tuple[float, float] = WHOLE_LAYER,
) -> float:
    """Return the bytes of full-graph training and of an evaluation, input included.

    The buffers of training stay allocated for the next epoch while the model is evaluated.

    Args:
        work: The graph and the model.
        nodes: Nodes of a worker.
        sources: Its nodes and their in-neighbours.
        edges: Edges that it aggregates over.
        slices: Number of column slices that aggregation is divided into.
        last_shares: Shares of the nodes and of the edges that the last layer computes.
    """
    model = work.model
    copies = SLICED if slices > 1 else WHOLE
    last_nodes, last_edges = last_shares
    shares = [(1.0, 1.0)] * (len(model.layers) - 1) + [(last_nodes, last_edges)]
    numbers = sum(
        count_row_numbers(work, index, each * nodes, sources, copies, slices) for index, (each, _) in enumerate(shares)
    )
    numbers += count_encoded_numbers(work, nodes) + count_evaluated_numbers(work, nodes, sources, copies)
    # Layers that aggregate their input hold the halo rows of the layer below.
    received = sum(layer.spec.in_features for layer in model.layers[1:] if layer.spec.source_is_input)
    numbers += copies.sources * (sources - nodes) * received
    of_edges = sum(share * count_edge_numbers(layer) for layer, (_, share) in zip(model.layers, shares, strict=True))
    held = (numbers + edges * of_edges) * model.number_bytes + view_edge_bytes(nodes, sources, copies) * edges
    held += edges / max(1, work.graph.edges) * (1 + last_edges * (last_edges < 1)) * grouping_bytes(work)
    held += edges * count_edge_feature_copies(work, nodes, sources) * work.graph.edge_row_bytes
    if work.graph.sparse and slices == 1 and not model.has_input_dropout:
        held += _ENTRY_BYTES * nodes * work.graph.row_entries
    return held + input_bytes(work, nodes, sources)


def inference_bytes(work: Workload, nodes: float, sources: float, edges: float) -> float:
    """Return the bytes of evaluating whole layers, without gradients."""
    model = work.model
    of_edge = max(_PER_SCORE_EVALUATED * (layer.attention + layer.heads) + layer.edge_numbers for layer in model.layers)
    held = (count_evaluated_numbers(work, nodes, sources, BATCH) + edges * of_edge) * model.number_bytes
    held += view_edge_bytes(nodes, sources, BATCH) * edges + edges / max(1, work.graph.edges) * grouping_bytes(work)
    held += edges * count_edge_feature_copies(work, nodes, sources) * work.graph.edge_row_bytes
    return held + input_bytes(work, nodes, sources)


def full_graph_peak_bytes(
    work: Workload, costs: CostModel, partition: PartitionStats, links: LinkStepStats | None = None
) -> int:
    """Return the peak bytes of the largest worker that trains and evaluates whole layers; of links with their steps."""
    part = int(partition.edges.argmax())
    nodes = float(partition.nodes[part])
    # One self-loop for each node.
    edges = float(partition.edges[part] + partition.nodes[part])
    sources = nodes + float(partition.halo[part].sum())
    held = whole_layers_peak_bytes(work, costs, nodes, sources, edges, last_shares=work.last_shares)
    held += whole_graph_link_bytes(work, costs, links) + evaluated_edge_bytes(work, costs.layout.workers, edges)
    return max(round(held), partition_peak_bytes(costs, partition))


def whole_layers_peak_bytes(
    work: Workload,
    costs: CostModel,
    nodes: float,
    sources: float,
    edges: float,
    slices: int = 1,
    last_shares: tuple[float, float] = WHOLE_LAYER,
) -> float:
    """Return the peak bytes of training and evaluating whole layers, and of worker 0 when it gathers the outputs.

    Arguments as those of `training_bytes`.
    """
    training = training_bytes(work, nodes, sources, edges, slices, last_shares)
    held = view_edge_bytes(nodes, sources, SLICED if slices > 1 else WHOLE) * edges
    held += edges / max(1, work.graph.edges) * grouping_bytes(work) + input_bytes(work, nodes, sources)
    gathering = held + _LEFT_AT_END * (training - held) + _gathered_bytes(work, costs, nodes)
    return process_bytes(costs) + model_bytes(work, costs) + metric_bytes(work, costs) + max(training, gathering)


def partition_peak_bytes(costs: CostModel, partition: PartitionStats) -> int:
    """Return the bytes of worker 0 while it makes a partition that no earlier run has kept."""
    return process_bytes(costs) + partition.making_bytes * costs.shares_device


def _gathered_bytes(work: Workload, costs: CostModel, nodes: float) -> float:
    """Return the bytes of the outputs of all nodes on worker 0 of several, as they come and in the order of nodes."""
    if costs.layout.workers == 1:
        return 0.0
    rows = nodes + _PER_GATHERED * work.graph.nodes
    return rows * work.model.layers[-1].spec.out_features * work.model.number_bytes


def minibatch_bytes(work: Workload, neighborhood: NeighborhoodStats, *, num_prefetched: float) -> float:
    """Return the bytes of the largest worker's batch, forward and backward, and of prefetched batches."""
    # The maximum of each layer by itself: the worker with most memory need not have most of every layer.
    rows = neighborhood.rows.max(0)
    edges = neighborhood.edges.max(0)
    model = work.model
    numbers = sum(
        count_row_numbers(work, index, rows[index + 1], rows[index], BATCH) for index in range(len(model.layers))
    )
    numbers += count_encoded_numbers(work, rows[0])
    of_edges = sum(count_edge_numbers(layer) * edges[index] for index, layer in enumerate(model.layers))
    # Features of edges are gathered for the layers that read them.
    read = sum(float(edges[index]) for index, layer in enumerate(model.layers) if layer.edge_dim)
    of_batch = BATCH.edge_bytes * edges.sum() + work.graph.edge_row_bytes * read
    held = (numbers + of_edges) * model.number_bytes + of_batch
    held += edges.sum() / max(1, work.graph.edges) * grouping_bytes(work)
    of_rows = rows[0] * work.input_row_bytes * (_PER_SPARSE_ROW if work.graph.sparse or work.graph.in_blocks else 1)
    held += _READY * num_prefetched * (of_rows + of_batch)
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
    return min(prefetch + _IN_USE, steps)


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
    held_most = max(training, evaluation) + _LEFT * min(training, evaluation)
    if WHOLE_LAYERS in chosen:
        gathering = input_bytes(work, nodes, nodes) + _gathered_bytes(work, costs, nodes)
        held_most = max(held_most, gathering + _LEFT_AT_END * (training + evaluation))
    held_always = process_bytes(costs) + model_bytes(work, costs)
    return max(held_always + round(held_most), partition_peak_bytes(costs, partition))


def input_bytes(work: Workload, nodes: float, sources: float) -> float:
    """Return the bytes of the input: the whole graph on a single worker, else the features of a worker's sources."""
    alone = nodes >= work.graph.nodes
    return work.graph.resident_bytes if alone else sources * work.input_row_bytes
