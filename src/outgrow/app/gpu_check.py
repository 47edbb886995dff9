"""The check of a GPU before it is used: its kernels against those of the CPU, on small random graphs.

A GPU that has passed is not checked again with the same driver, versions and sources of kernels.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch

from outgrow.app.graph_sources import from_arrays
from outgrow.app.messages import log_message
from outgrow.app.model_registry import MODELS, build_model
from outgrow.core.errors import TrainingError
from outgrow.core.files import atomic_write
from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.engine.link_options import LinkOptions, LinkSteps
from outgrow.engine.objective import LinkTargets
from outgrow.engine.shard import FullGraphShard
from outgrow.graph.graph import Graph
from outgrow.nn.decoder import DistMult
from outgrow.nn.tasks import NodeClassification
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.gpu_comparison import GpuComparison
from outgrow.ops.kernel_cache import state_folder
from outgrow.ops.link_scores import rank_counts
from outgrow.runtime.system.device import describe_gpu
from outgrow.strategies.base import Problem, Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.sampled import Sampled

_NODES, _EDGES, _COLUMNS, _CLASSES, _RELATIONS, _EDGE_COLUMNS, _HIDDEN = 300, 6000, 24, 5, 4, 3, 16
_HUB = 4
"""Power of a uniform number by which ends of edges are drawn: the first node has a quarter of them, many have none."""
_EVERY_STEP: dict[str, object] = {"norm": True, "dropout": 0.3, "input_dropout": 0.2}
_BATCHES = BatchConfig(size=64, fanout=(5, 5))


class GpuVerdict(NamedTuple):
    """What a check of a GPU has found.

    Attributes:
        device: Name of the GPU.
        num_kernels: Kernels that were compared.
        differences: How kernels that are wrong differ from those of the CPU, by name.
        seed: Seed of the random inputs.
        seconds: What the check took.
    """

    device: str
    num_kernels: int
    differences: dict[str, str]
    seed: int
    seconds: float


def require_checked_gpu(device: torch.device) -> None:
    """Check a GPU, unless it has passed before.

    Raises:
        TrainingError: A kernel gives other numbers than on the CPU.
    """
    if device.type != "cuda" or _has_passed(device):
        return
    log_message(f"checking the kernels of {describe_gpu(device)[0]}, once")
    verdict = check_gpu(device, secrets.randbits(32))
    if verdict.differences:
        name, difference = next(iter(verdict.differences.items()))
        how_many = f"{len(verdict.differences)} of {verdict.num_kernels} kernels are wrong"
        raise TrainingError(
            f"a kernel of {verdict.device} gives wrong numbers: {name}",
            needed="what the same kernel gives on the CPU, but for rounding",
            got=f"{difference} (seed {verdict.seed}); {how_many}",
            repair="choose --device cpu; report it with the output of `outgrow doctor --device cuda`",
        )
    _note_passed(device, verdict)


def check_gpu(device: torch.device, seed: int) -> GpuVerdict:
    """Train a step of each model on a random graph on a GPU, and compare all kernels with those of the CPU.

    Args:
        device: The GPU.
        seed: Seed of the graph and of the parameters.
    """
    began = time.perf_counter()
    comparison = GpuComparison()
    with comparison.compare_all():
        for strategy, problem in list_problems(device, seed):
            execution = strategy.prepare(problem)
            for _ in execution.steps(1):
                break
            execution.close()
        _run_rare_kernels(device, seed)
    name = describe_gpu(device)[0] if device.type == "cuda" else str(device)
    return GpuVerdict(name, len(comparison.num_calls), comparison.differences, seed, time.perf_counter() - began)


def list_problems(device: torch.device, seed: int) -> Iterator[tuple[Strategy, Problem]]:
    """Yield what is trained for a check: each model by name on the whole graph, some in batches, one on links."""
    torch_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        graphs = {is_sparse: make_random_graph(seed, is_sparse=is_sparse) for is_sparse in (False, True)}
        for name, entry in MODELS.items():
            # Models of several node types have the kernels of the others.
            if entry.encodes_types or name == "embedding":
                continue
            for is_sparse in (False, True)[: 1 + ("sparse_input" in entry.graph_options)]:
                yield Full(), _make_problem(name, graphs[is_sparse], device, seed, FULL_GRAPH)
        for graph in graphs.values():
            yield Sampled(prefetch=0), _make_problem("sage", graph, device, seed, _BATCHES)
        yield Full(), _make_link_problem(graphs[False], device, seed)
    finally:
        torch.random.set_rng_state(torch_state)


def make_random_graph(seed: int, *, is_sparse: bool) -> Graph:
    """Return a graph with a hub, nodes without edges, relations, weights and features of edges."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, _NODES, _EDGES), (_NODES * rng.random(_EDGES) ** _HUB).astype(np.int64)
    features: Any = rng.standard_normal((_NODES, _COLUMNS), dtype=np.float32)
    if is_sparse:
        features = scipy.sparse.csr_matrix(features * (rng.random(features.shape) < 0.1))
    return from_arrays(
        np.stack(ends),
        features=features,
        labels=rng.integers(0, _CLASSES, _NODES),
        split={"train": np.arange(0, _NODES, 2), "val": np.arange(1, _NODES, 4), "test": np.arange(3, _NODES, 4)},
        relation=rng.integers(0, _RELATIONS, _EDGES),
        weight=rng.random(_EDGES, dtype=np.float32) + 0.1,
        edge_features=rng.standard_normal((_EDGES, _EDGE_COLUMNS), dtype=np.float32),
    )


def _make_problem(name: str, graph: Graph, device: torch.device, seed: int, batches: BatchConfig) -> Problem:
    assert graph.features is not None
    assert graph.labels is not None
    return Problem.from_node_labels(
        _share_on(graph, device),
        features=graph.features,
        labels=graph.labels,
        train=graph.split.train,
        task=NodeClassification(),
        model=build_model(name, graph, {"hidden": _HIDDEN} | (_EVERY_STEP if MODELS[name].is_stack else {})).to(device),
        seed=seed,
        batches=batches,
    )


def _make_link_problem(graph: Graph, device: torch.device, seed: int) -> Problem:
    assert graph.features is not None
    model = build_model("rgcn", graph, {"hidden": _HIDDEN, "decoder": "distmult"})
    assert isinstance(model.decoder, DistMult)
    hidden = LinkSteps(num_steps=2, hide=0.5)
    options = LinkOptions(ends=torch.tensor([0, graph.num_nodes]), negatives=2, steps=hidden)
    targets = LinkTargets(options=options, num_targets=graph.num_edges)
    return Problem(
        shard=_share_on(graph, device), features=graph.features, targets=targets, model=model.to(device), seed=seed
    )


def _run_rare_kernels(device: torch.device, seed: int) -> None:
    """Run the kernels that no model above needs: of weights that share a source row, and of the ranking of links."""
    generator = torch.Generator().manual_seed(seed)
    edges = make_random_graph(seed, is_sparse=False).topology.block.to(device).edges
    weight = torch.rand(edges.num_edges, 3, generator=generator).to(device)
    gradient = torch.randn(edges.num_dst, 3, _HIDDEN, generator=generator).to(device)
    WeightedSum.source_gradient(edges, weight, gradient, channels=1)
    scores = torch.randn(50, _NODES, generator=generator).to(device)
    rank_counts(scores, scores[:, 0].contiguous())


def _share_on(graph: Graph, device: torch.device) -> FullGraphShard:
    share = FullGraphShard(graph.topology)
    share.comm.device = device
    return share


def _has_passed(device: torch.device) -> bool:
    with suppress(OSError, ValueError, RuntimeError):
        return _stamp(device) in json.loads(_verdict_file().read_text())
    return False


def _note_passed(device: torch.device, verdict: GpuVerdict) -> None:
    # Where it cannot be noted, the GPU is checked again.
    with suppress(OSError, ValueError, RuntimeError):
        path = _verdict_file()
        known = json.loads(path.read_text()) if path.exists() else {}
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(known | {_stamp(device): verdict._asdict()}, indent=1))


def _verdict_file() -> Path:
    return state_folder() / "gpus.json"


def _stamp(device: torch.device) -> str:
    """Return a hash of a GPU, its driver, torch and Triton; the folder stands for the sources of the kernels."""
    made_of = (*describe_gpu(device), torch.__version__, metadata.version("triton"))
    return hashlib.sha256(repr(made_of).encode()).hexdigest()[:32]
