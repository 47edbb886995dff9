"""What strategies compute stays on the worker's device: see `ops.gpu.no_device`. Sums and counts are in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from layer_table import one_of_each
from torch import Tensor

from ops.gpu.no_device import twins_that_check
from outgrow.core.block import Block
from outgrow.core.ledger import Kind, Link
from outgrow.engine import layer_rows
from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.engine.features import inputs
from outgrow.engine.features.inputs import copy_to_device
from outgrow.engine.shard import FullGraphShard
from outgrow.nn.layer import Features
from outgrow.nn.pyg import PyGAggregation
from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from outgrow.strategies import full
from outgrow.strategies.base import Execution, Problem, Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.offload import storage
from outgrow.strategies.offload import strategy as offload
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.orchestrate import device_side
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.strategies.tensor import layout, row_files
from outgrow.strategies.tensor.memory import DISK_LEVELS
from outgrow.strategies.tensor.strategy import TensorParallel
from strategies.offload.cut_graphs import together
from suites.exactness import GRAPHS, OPAQUE, ROUNDS, SPARSE, Case, model_of, part_of, problem_of
from support import disk_folder

META = torch.device("meta")
FEW = BatchConfig(size=7, fanout=(3, 2, 4))
WHOLE_BOTTOM = BatchConfig(size=7, fanout=(3, 2, -1))
HOT = Orchestrate(hot_ratio=0.5, super_batch=2)
CHUNKS = Offload(chunks=3, memory="1GiB", scratch_dir=str(disk_folder()))
FILES = TensorParallel(chunks=3, scratch_dir=str(disk_folder()))
WAYS: dict[str, tuple[Strategy, BatchConfig, bool]] = {
    "full": (Full(), FULL_GRAPH, False),
    "sampled": (Sampled(), FEW, False),
    "split": (SplitParallel(), FEW, False),
    "split-cached": (SplitParallel(cache=0.4), FEW, False),
    "migrate": (Migrate(), FEW, False),
    "orchestrate": (HOT, FEW, False),
    "orchestrate-aggregate": (replace(HOT, reuse="aggregate"), WHOLE_BOTTOM, False),
    "tensor": (TensorParallel(), FULL_GRAPH, False),
    "tensor-textbook": (TensorParallel(cache_first_aggregate=False, chunks=1), FULL_GRAPH, False),
    "tensor-coefficients": (TensorParallel(attention="coefficients"), FULL_GRAPH, False),
    "tensor-nn-on-the-cpu": (TensorParallel(nn_device="cpu"), FULL_GRAPH, False),
    **{f"tensor-{level}": (replace(FILES, on_disk=level), FULL_GRAPH, False) for level in DISK_LEVELS[1:]},
    "offload": (CHUNKS, FULL_GRAPH, False),
    "offload-pinned": (CHUNKS, FULL_GRAPH, True),
    "crowded": (replace(CHUNKS, sharing=False), FULL_GRAPH, True),
    "offload-pinned-computed-again": (replace(CHUNKS, cache=False, overlap=False), FULL_GRAPH, True),
}
COUNTS = {"film-with-relations"}
"""It counts edges by relation, which torch cannot do without memory."""
KNOWN = [
    name
    for name, conv in one_of_each().items()
    if name not in COUNTS and not isinstance(conv.aggregation, PyGAggregation)
]
FEW_CASES = [
    Case("gcn", "weighted"),
    Case(SPARSE[0], "weighted", features="sparse", input_dropout=0.2),
    Case("gat-averaged", "weighted", task="multi"),
]
CASES = [*FEW_CASES, *(Case(conv, "weighted", input_dropout=0.2) for conv in KNOWN)]
SLICED = [*FEW_CASES, *(Case(conv, "weighted", input_dropout=0.2) for conv in KNOWN if conv not in OPAQUE)]
SLICED += [Case(conv, "weighted") for conv in ROUNDS]
RUNS = [
    (way, case)
    for way in WAYS
    for case in (
        CASES if way.startswith("offload") else SLICED if way in ("tensor-edges", "tensor-rows") else FEW_CASES
    )
    # Sizes of sparse rows are numbers of the device.
    if way not in ("split-cached", "orchestrate-aggregate") or case.features != "sparse"
]
SCORES_OF_EDGES = {"gat-with-features-of-edges", "gat-with-features-and-loops"}
"""`tensor` counts their edges by owner on the device."""
ALL_LAYERS = [
    (way, case)
    for way in ("full", "sampled", "split", "migrate", "orchestrate", "tensor")
    for case in (SLICED if way == "tensor" else CASES)
    if (way, case) not in RUNS and not (way == "tensor" and case.conv in SCORES_OF_EDGES)
]
"""All layers under the strategies that have few cases above."""


@pytest.fixture(autouse=True)
def no_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """What has no memory comes back to memory as zeros; and a way says whether pinned memory can be read."""
    way = request.node.callspec.params.get("way", "full")
    to, copy, number, numbers = Tensor.to, Tensor.copy_, Tensor.__int__, Tensor.tolist

    def moved(self: Tensor, *where: object, **how: object) -> Tensor:
        leaves = self.is_meta and any(str(place) == "cpu" for place in where)
        return torch.zeros(self.shape, dtype=self.dtype) if leaves else to(self, *where, **how)  # type: ignore[call-overload,no-any-return]

    def copied(self: Tensor, other: Tensor, **how: bool) -> Tensor:
        return self if other.is_meta and not self.is_meta else copy(self, other, **how)

    with (
        patch.object(Tensor, "to", moved),
        patch.object(Tensor, "cpu", lambda self: moved(self, "cpu")),
        patch.object(Tensor, "copy_", copied),
        patch.object(Tensor, "tolist", lambda self: [1] * len(self) if self.is_meta else numbers(self)),
        patch.object(Tensor, "__int__", lambda self: 0 if self.is_meta else number(self)),
        patch.object(offload, "used_device_bytes", lambda device: 0),
        patch.object(layout, "used_device_bytes", lambda device: 0),
        patch.object(layout, "free_device_bytes", lambda device: 1 << 40),
        patch.object(full, "free_device_bytes", lambda device: 1 << 40),
        # How many in-edges some rows have, nobody can read there.
        patch.object(layer_rows, "concat_ranges", lambda first, counts: first[:0]),
        patch.object(row_files, "_LEAST_BYTES", 0),
        patch.object(storage, "_reads_pinned_memory", lambda device: WAYS[way][2]),
        twins_that_check(),
    ):
        yield


@pytest.mark.parametrize(("way", "case"), RUNS, ids=str)
def test_epochs_and_inference(way: str, case: Case) -> None:
    train(way, case, SingleProcessComm())


@pytest.mark.slow
@pytest.mark.parametrize(("way", "case"), ALL_LAYERS, ids=str)
def test_epochs_and_inference_of_all_layers(way: str, case: Case) -> None:
    train(way, case, SingleProcessComm())


@pytest.mark.parametrize("way", [*(way for way in WAYS if way.startswith("offload")), "crowded"])
def test_two_workers(way: str) -> None:
    """Also beside the rows of others."""
    together(2, lambda comm: train(way, Case("gat-averaged", "weighted", input_dropout=0.2), comm))


@pytest.mark.parametrize("conv", ["gcn", "gat-averaged"])
def test_the_edges_of_a_share(conv: str) -> None:
    comm, case = SingleProcessComm(), Case(conv, "weighted")
    comm.device, comm.size = META, 2
    view = part_of(case, comm).layer_view(model_of(case).layers_list()[0])
    assert view.local_graph is not None
    blocks = view.block, view.local_graph.local_edges, view.local_graph.halo_edges
    assert all(block.edges.indices.is_meta and block.src_degree.is_meta for block in blocks)
    assert view.local_graph.edge_order.is_meta
    assert not view.local_graph.halo.is_meta


def prepare(way: str, case: Case, comm: Comm) -> tuple[Problem, Execution]:
    strategy, batches, _ = WAYS[way]
    comm.device = META
    share = FullGraphShard(GRAPHS[case.graph], comm) if comm.size == 1 else part_of(case, comm)
    problem = problem_of(case, share, batches)
    problem.model.to(strategy.parameter_device(META))
    return problem, strategy.prepare(problem)


def train(way: str, case: Case, comm: Comm) -> None:
    strategy, _, pinned = WAYS[way]
    problem, execution = prepare(way, case, comm)
    home = strategy.parameter_device(META)
    for _ in execution.steps(1):
        assert all(each.grad is None or each.grad.device == home for each in problem.model.parameters())
    logits = [piece for _, piece in execution.inference()]
    assert sum(map(len, logits)) == len(problem.shard.owned_nodes)
    assert not any(piece.is_meta for piece in logits)
    execution.close()
    # Batches need the memory of the device until the next evaluation.
    assert problem.batches.is_full_graph or "input" not in vars(problem)
    assert bool(problem.run_facts.get("pinned")) is pinned
    if way.startswith(("offload", "sampled", "split")):
        assert comm.ledger.bytes_by_link[Link.HOST_TO_DEVICE, Kind.FEATURES] > 0


@pytest.mark.parametrize("way", ["sampled", "migrate", "split", "orchestrate"])
def test_batches_are_copied_by_a_thread_of_its_own(way: str) -> None:
    """What the training thread moves afterwards is small: labels, positions, keys."""
    threads, to = dict[str, set[str]](), Block.to

    def noted(block: Block, device: torch.device) -> Block:
        if block.dst_nodes.device != device:
            threads.setdefault("blocks", set()).add(threading.current_thread().name)
        return to(block, device)

    def copied(rows: Features, device: torch.device) -> Features:
        if rows.device != device:
            threads.setdefault("features", set()).add(threading.current_thread().name)
        return copy_to_device(rows, device)

    with (
        patch.object(Block, "to", noted),
        patch.object(inputs, "copy_to_device", copied),
        patch.object(device_side, "copy_to_device", copied),
    ):
        _, execution = prepare(way, Case("gcn", "weighted"), SingleProcessComm())
        for _ in execution.steps(1):
            pass
        execution.close()
    assert threads == {"blocks": {"outgrow-copy"}, "features": {"outgrow-copy"}}
