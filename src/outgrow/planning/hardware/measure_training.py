"""Measurement of whole training steps: the share of the rates of single operations that they reach."""

from __future__ import annotations

from itertools import count

import torch

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
from outgrow.strategies.base import Problem
from outgrow.strategies.full import Full

_NODES, _DEGREE, _WIDTH, _CLASSES, _LAYERS = 1 << 15, 16, 64, 16, 3


def measure_epoch_seconds(device: torch.device) -> float:
    """Return the seconds that an epoch of `make_reference` takes on one worker."""
    graph, model = make_reference()
    assert graph.features is not None
    assert graph.labels is not None
    share = FullGraphShard(graph.topology)
    share.comm.device = device
    problem = Problem.from_node_labels(
        share,
        features=graph.features,
        labels=graph.labels,
        train=graph.split.train,
        task=NodeClassification(),
        model=model.to(device),
        seed=0,
    )
    execution, epochs = Full().prepare(problem), count(1)

    def run_epoch() -> None:
        for _ in execution.steps(next(epochs)):
            model.zero_grad()

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
    return sum(part.seconds for part in parts) / seconds


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
