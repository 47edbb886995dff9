"""The estimate of `full`."""

from __future__ import annotations

from dataclasses import replace

from outgrow.core.ledger import Kind
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import EpochPart, Estimate, full_graph_parts, transfer_parts
from outgrow.planning.peak_memory import full_graph_peak_bytes
from outgrow.planning.traffic import Traffic, WorkerLayout, add_halo_rows, shard_traffic
from outgrow.planning.workload import PartitionStats, Workload
from outgrow.strategies.full import AUTO, EACH_STEP, MEMORY_SHARE, Full


def choose_first_aggregate(strategy: Full, work: Workload, costs: CostModel) -> Workload:
    """Return the workload with the first layer in the form that the run will choose: see `Full.first_aggregate`."""
    if strategy.first_aggregate == EACH_STEP or work.model.summed_first_layer is None:
        return work
    cut = work.partitioning.partition_stats(strategy.partition, costs.layout.workers)
    sums = float((cut.nodes + cut.halo.sum(1)).max()) * work.model.row_bytes
    if strategy.first_aggregate == AUTO and sums > MEMORY_SHARE * costs.memory:
        return work
    return replace(work, model=work.model.sum_features_first())


def full_traffic(strategy: Full, work: Workload, layout: WorkerLayout) -> Traffic:
    """Return the traffic of halo exchanges: raw features once, where they are sources; computed rows both ways.

    That is ``sum_i |R_i|`` rows of ``C F + K`` numbers for each layer that sends computed rows.
    """
    cut = work.partitioning.partition_stats(strategy.partition, layout.workers)
    traffic = shard_traffic(work, cut, layout)
    # Each row of the halo is received in the forward pass, and its gradient returned in the backward pass.
    for kind in (Kind.ACTIVATIONS, Kind.GRADIENTS):
        add_halo_rows(traffic.epoch, kind, work, cut, layout, constant=(False,))
    add_halo_rows(traffic.once, Kind.ACTIVATIONS, work, cut, layout, constant=(True,))
    return traffic


def _full_parts(work: Workload, costs: CostModel, partition: PartitionStats, traffic: Traffic) -> list[EpochPart]:
    """Return the parts of an epoch: every worker computes its nodes, with a halo exchange per layer and direction."""
    # Halo exchanges synchronise the workers in each layer, so the one with the most edges sets the pace.
    slowest = int(partition.edges.argmax())
    nodes, edges = int(partition.nodes[slowest]), int(partition.edges[slowest])
    found = full_graph_parts(work, costs, nodes, edges, last_shares=work.last_shares)
    return found + transfer_parts(costs, traffic.epoch, 2 * (len(work.model.layers) - work.model.source_is_features))


def estimate_full(strategy: Full, work: Workload, costs: CostModel) -> Estimate:
    """Estimate `full` on the partition of its method."""
    work = choose_first_aggregate(strategy, work, costs)
    cut = work.partitioning.partition_stats(strategy.partition, costs.layout.workers)
    traffic = full_traffic(strategy, work, costs.layout)
    return Estimate(
        strategy=strategy,
        traffic=traffic,
        parts=tuple(_full_parts(work, costs, cut, traffic)),
        peak_bytes=full_graph_peak_bytes(
            work, costs, cut, work.link_step_stats(strategy.partition, costs.layout.workers)
        ),
    )
