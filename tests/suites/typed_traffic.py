"""The bytes that typed models must send: of each node type, its rows times the numbers that its out-relations need.

Functions here run in worker processes too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.ledger import Kind
from outgrow.engine.shard import PartitionShard
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.nn.hetero import HeteroConv
from outgrow.nn.layer import Conv, Layer
from outgrow.nn.pyg import PyGConv
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.offload.execution import ChunkedExecution
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.split.strategy import SplitParallel
from suites.cases import DEALS
from suites.exactness import WAYS
from suites.offload_traffic import Bytes, LayerRows, Traffic, nodes_read, volumes_of
from suites.traffic import LONG, ring
from suites.typed import EDGE_TYPES, GRAPHS, IN, NAMES, TYPES, TypedCase, model_of, problem_of
from support import destinations_of, disk_folder

NUMBER, EPOCH, SEED = 8, 2, 11
"""Bytes of a float64; an epoch; the seed of the problem."""
CONVS = ("sage", "sage-project-first", "mixed", "gat", "gat-and-sage", "many-read-edges")
BATCHES = WAYS["split"].batches
ROWS = {Kind.FEATURES, Kind.ACTIVATIONS, Kind.GRADIENTS}
TRAIN = torch.arange(0, TYPES.num_nodes, 2)


class Numbers(NamedTuple):
    """Numbers in the source row of each node type: all that it uses; and whether rows are the input as it is."""

    used: tuple[int, ...]
    raw: bool


def sends_input(conv: Conv) -> bool:
    return conv.spec.source_is_input or isinstance(conv, PyGConv)


def numbers_of(layer: Layer) -> tuple[Numbers, int]:
    """What each type uses of a source row, and how wide a row is that has room for every type."""
    conv = layer.conv
    assert isinstance(conv, HeteroConv)
    values, scores = list[int](), list[int]()
    for name in NAMES:
        mine = [conv.conv_of(each) for each in EDGE_TYPES if each[0] == name]
        shared = IN if any(sends_input(each) for each in mine) else 0
        values.append(shared + sum(each.spec.source[0] * each.spec.source[1] for each in mine if not sends_input(each)))
        scores.append(sum(each.spec.score for each in mine))
    raw = all(sends_input(conv.conv_of(each)) for each in EDGE_TYPES)
    used = tuple(IN if raw else value + score for value, score in zip(values, scores, strict=True))
    return Numbers(used, raw), IN if raw else max(values) + max(scores)


def rows_by_type(block: Block, owner: Tensor) -> list[int]:
    """Rows of each type that cross in a block of all workers: once for each worker that has such an in-edge."""
    source, target = block.src_nodes[block.edges.indices.long()], block.dst_nodes[destinations_of(block.edges)]
    crosses = owner[source] != owner[target]
    pairs = torch.stack([source[crosses], owner[target[crosses]].long()]).unique(dim=1)
    return torch.bincount(TYPES.types_of(pairs[0]), minlength=len(NAMES)).tolist()


def split_bytes(case: TypedCase, workers: int) -> Counter[Kind]:
    """What an epoch of `split` sends, all workers together."""
    model, topology, found = model_of(case), GRAPHS[case.graph], Counter[Kind]()
    layers, owner = model.layers_list(), DEALS[case.deal](topology.num_nodes, workers)
    sampler = NeighborSampler([topology] * len(layers), BATCHES.fanout_per_hop(len(layers)), SEED)
    parameters = sum(1 + parameter.numel() for parameter in model.parameters())
    for step, seeds in enumerate(BATCHES.seeds_of_epoch(TRAIN, SEED, EPOCH)):
        for index, block in enumerate(sampler.sample_blocks(seeds, EPOCH, step)):
            numbers, _ = numbers_of(layers[index])
            rows = rows_by_type(block, owner)
            sent = NUMBER * sum(count * used for count, used in zip(rows, numbers.used, strict=True))
            features = index == 0 and numbers.raw
            # Who wants how many rows, and which.
            found[Kind.IDS] += LONG * (workers * (workers - 1) + sum(rows))
            found[Kind.FEATURES if features else Kind.ACTIVATIONS] += sent
            found[Kind.GRADIENTS] += 0 if features else sent
        found += Counter({Kind.PARAMETERS: ring(parameters * NUMBER, workers), Kind.METRICS: ring(LONG, workers)})
    return +found


def part_of(case: TypedCase, comm: Comm) -> PartitionShard:
    topology = GRAPHS[case.graph]
    return PartitionShard(topology, DEALS[case.deal](topology.num_nodes, comm.size), comm)


def sent_in_batches(place: WorkerContext, cases: Sequence[TypedCase]) -> dict[TypedCase, Counter[Kind]]:
    """What a worker sends in an epoch of `split`."""
    found, ledger = {}, place.comm.ledger
    for case in cases:
        problem = problem_of(case, part_of(case, place.comm), "split")
        execution = SplitParallel().prepare(problem)
        before = ledger.bytes_by_link.copy()
        for _ in execution.steps(EPOCH):
            problem.model.zero_grad()
        execution.close()
        found[case] = Counter({kind: count for (_, kind), count in (ledger.bytes_by_link - before).items()})
    return found


class Moved(NamedTuple):
    """What a worker has moved in an epoch of `offload`, and which own rows its chunks had in each wave."""

    chunks: list[tuple[int, int]]
    epoch: Bytes


def moved_in_chunks(place: WorkerContext, cases: Sequence[TypedCase], chunks: int) -> dict[TypedCase, Moved]:
    """What a worker moves in an epoch of `offload`."""
    found, ledger = {}, place.comm.ledger
    for case in cases:
        problem = problem_of(case, part_of(case, place.comm), "offload-3")
        execution = Offload(chunks=chunks, scratch_dir=str(disk_folder())).prepare(problem)
        assert isinstance(execution, ChunkedExecution)
        before = ledger.bytes_by_link.copy()
        for _ in execution.steps(EPOCH):
            problem.model.zero_grad()
        ranges = list(execution.state.chunk_ranges)
        execution.close()
        moved = {key: count for key, count in (ledger.bytes_by_link - before).items() if key[1] in ROWS}
        found[case] = Moved(ranges, Counter(moved))
    return found


def offload_bytes(case: TypedCase, chunks: Sequence[Sequence[tuple[int, int]]]) -> Bytes:
    """What an epoch of `offload` moves, all workers together, from the chunks of each worker."""
    topology, layers = GRAPHS[case.graph], model_of(case).layers_list()
    owner = DEALS[case.deal](topology.num_nodes, len(chunks))
    own = [(owner == worker).nonzero()[:, 0].tolist() for worker in range(len(chunks))]
    reads = nodes_read(topology, own, chunks, loops=False)
    kinds = TYPES.types_of(topology.nodes).tolist()
    of_type = [
        [[{node for node in nodes if kinds[node] == kind} for nodes in waves] for waves in reads]
        for kind in range(len(NAMES))
    ]
    volumes, *by_type = (volumes_of(sets, own, sharing=True, reuse=True) for sets in (reads, *of_type))
    rows = []
    for layer in layers:
        numbers, width = numbers_of(layer)
        # Rows in files have room for every type. An aggregate is neither constant nor kept: it has parameters.
        rows.append(LayerRows(width, 0, IN if layer.reads_target else 0, numbers.raw, fixed=False, used=numbers.used))
    traffic = Traffic(
        layers=tuple(rows),
        volumes=volumes,
        by_type=tuple(by_type),
        nodes=topology.num_nodes,
        features=IN,
        number=NUMBER,
        feature=NUMBER,
        constant=False,
        cache=True,
    )
    return +traffic.epoch()
