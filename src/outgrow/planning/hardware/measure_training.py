"""Measurement of whole training steps: the share of the rates of single operations that they reach."""

from __future__ import annotations

from itertools import count

import torch

from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.engine.shard import FullGraphShard
from outgrow.graph.graph import Graph, Split
from outgrow.graph.topology import Topology
from outgrow.nn.model import Model
from outgrow.nn.tasks import NodeClassification
from outgrow.nn.zoo import GCN
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import full_graph_parts
from outgrow.planning.graph_stats.counted import make_workload
from outgrow.planning.hardware.measure_layers import typical_seconds
from outgrow.planning.hardware.profile import MachineProfile
from outgrow.planning.traffic import WorkerLayout
from outgrow.runtime.system.device import DeviceStreams
from outgrow.strategies.base import Problem, Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.sampled import Sampled

_NODES, _DEGREE, _WIDTH, _CLASSES, _LAYERS = 1 << 17, 16, 64, 16, 3
_TINY, _STEPS = 8, 16


def measure_epoch_seconds(device: torch.device) -> float:
    """Return the seconds that an epoch of `make_reference` takes on one worker."""
    return _time_epochs(Full(), device)


def measure_step_overhead(device: torch.device, layer_seconds: float) -> float:
    """Return the fixed seconds of a step of mini-batches that compute next to nothing, without those of their layers.

    Args:
        device: The device.
        layer_seconds: The fixed seconds of a layer.
    """
    batches = BatchConfig(size=_TINY, fanout=(1,) * _LAYERS)
    epoch = _time_epochs(Sampled(), device, batches, num_train=_TINY * _STEPS)
    return max(0.0, epoch / _STEPS - _LAYERS * layer_seconds)


def _time_epochs(
    strategy: Strategy, device: torch.device, batches: BatchConfig = FULL_GRAPH, num_train: int | None = None
) -> float:
    """Return the typical seconds of an epoch of the reference."""
    graph, model = make_reference()
    assert graph.features is not None
    assert graph.labels is not None
    share = FullGraphShard(graph.topology)
    share.comm.device = device
    problem = Problem.from_node_labels(
        share,
        features=graph.features,
        labels=graph.labels,
        train=graph.split.train[:num_train],
        task=NodeClassification(),
        model=model.to(device),
        seed=0,
        batches=batches,
    )
    execution, epochs = strategy.prepare(problem), count(1)
    optimizer = torch.optim.Adam(model.parameters())

    def run_epoch() -> None:
        for _ in execution.steps(next(epochs)):
            optimizer.step()
            optimizer.zero_grad()

    seconds = typical_seconds(run_epoch, DeviceStreams(device).synchronize)
    execution.close()
    return seconds


def compute_efficiency(profile: MachineProfile, per_host: int, seconds: float) -> float:
    """Return the share of a machine's rates that explains the measured seconds of an epoch.

    Args:
        profile: Profile of the machine, with an efficiency of 1.
        per_host: Workers that were measured at the same time.
        seconds: Result of `measure_epoch_seconds`.
    """
    costs = CostModel.from_profile(profile, WorkerLayout(workers=per_host), 4)
    graph, model = make_reference()
    # Each worker computed the whole reference by itself, so the parts of one worker are compared.
    parts = full_graph_parts(make_workload(graph, model), costs, graph.num_nodes, graph.num_edges)
    overhead = costs.step_overhead_seconds(1) + costs.layer_overhead_seconds(_LAYERS)
    return (sum(part.seconds for part in parts) - overhead) / max(seconds - overhead, 1e-9)


def make_reference() -> tuple[Graph, Model]:
    """Return the reference: a random graph and a GCN of three layers."""
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(_NODES, (_NODES * _DEGREE,), generator=generator, dtype=torch.int32)
    nodes = torch.arange(_NODES)
    graph = Graph(
        name="reference",
        topology=Topology(indptr=torch.arange(_NODES + 1) * _DEGREE, indices=indices),
        features=torch.rand(_NODES, _WIDTH, generator=generator),
        labels=torch.randint(_CLASSES, (_NODES,), generator=generator),
        split=Split(train=nodes, val=nodes[:0], test=nodes[:0]),
        num_classes=_CLASSES,
    )
    return graph, GCN(_WIDTH, _WIDTH, _CLASSES, layers=_LAYERS, dropout=0.5)
