"""Batches of links: their ends and negatives are the seeds of mini-batches, and each seed is computed by its owner.

Every worker draws the whole batch, so that all know without a message who computes which seeds and which of the rows
others need. The links into a node are scored by its owner, as on the whole graph.

Letters: ``L`` links of a batch, of all workers; ``V`` nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.batches import BatchConfig, draw_order
from outgrow.engine.excluded_edges import ExcludedEdges
from outgrow.engine.link_candidates import CandidateQueries
from outgrow.engine.link_draws import DrawnLinks, LinkDraws
from outgrow.engine.link_options import LinkOptions
from outgrow.engine.link_step_loss import LinkStepLoss, Pairs
from outgrow.engine.row_exchange import RowFetchPlan
from outgrow.engine.shard import GraphShard, PartitionShard
from outgrow.graph.link_numbers import LinkNumbers
from outgrow.graph.link_triples import LinkTriples
from outgrow.nn.decoder import Decoder
from outgrow.nn.edge_decoder import EdgeDecoder
from outgrow.nn.model import Model
from outgrow.ops.pair_sets import PairSet
from outgrow.ops.rng import fold_in
from outgrow.ops.rows.positions import SortedRowNumbers
from outgrow.runtime.distributed.async_exchange import SplitSizes


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkBatch:
    """A worker's part of a batch of links; its length is the number of links over all workers.

    Attributes:
        seeds: ``[n]`` int64, ascending: the own nodes whose rows the batch needs, on any worker.
        excluded: The edges that layers do not see; None for none.
        num_links: Number of links over all workers.
        links: The links that the worker scores.
        edges: ``[L]`` int64, ids of these edges.
        pairs: Their pairs of nodes: see `LinkStepLoss.compute`.
        queries: Their queries; None for negatives of each link.
        fetch_plan: Fetches the rows of other workers' seeds.
    """

    seeds: Tensor
    excluded: ExcludedEdges | None
    num_links: int
    links: LinkTriples
    edges: Tensor
    pairs: Pairs
    queries: list[CandidateQueries] | None
    fetch_plan: RowFetchPlan

    def __len__(self) -> int:
        return self.num_links

    def loss(self, out: Tensor, decoder: Decoder | EdgeDecoder, options: LinkOptions) -> Tensor:
        """Return the worker's share of the loss, differentiable. All workers together, also without seeds.

        Args:
            out: ``[n, C]`` rows of the seeds.
            decoder: Scores links, or edges with targets.
            options: Options of training.
        """
        plan = self.fetch_plan
        nodes, rows = self.seeds, out
        if plan.comm.size > 1:
            nodes = torch.cat([nodes, plan.nodes])
            rows = torch.cat([out, plan.fetch_rows(out, Kind.ACTIVATIONS).wait()])
        loss = LinkStepLoss(decoder, options, self.links, self.num_links, plan.comm, self.edges)
        return loss.compute(rows, SortedRowNumbers(nodes), self.pairs, self.queries)


class LinkBatches:
    """Draws batches of the links of a graph. Final; may be called from several threads at once.

    Args:
        shard: The worker's shard of the graph, whose edges but loops are the links; of edges with targets, those to
            train on.
        options: Options of training.
        batches: Links of a batch.
        seed: Seed of every random draw.
    """

    def __init__(self, shard: GraphShard, options: LinkOptions, batches: BatchConfig, seed: int) -> None:
        self.shard = shard
        self.options = options
        self.batches = batches
        self.seed = seed
        edges = None if options.labels is None else options.labels.train
        self.numbers = LinkNumbers(shard.topology, options.relations, edges)
        self.draws = LinkDraws(shard.topology, options)

    @property
    def num_links(self) -> int:
        """Number of links to train on, over all workers."""
        return len(self.numbers)

    def of_epoch(self, epoch: int) -> EpochLinkBatches:
        """Return the batches of an epoch."""
        return EpochLinkBatches(self, epoch)

    def draw_batch(self, epoch: int, step: int) -> LinkBatch:
        """Return the worker's part of a batch; without communication.

        Args:
            epoch: Number of the epoch.
            step: Number of the batch.
        """
        drawn = self.draw_links(epoch, step)
        links, edges, pairs, candidates = drawn
        owner = self._owners(links.tail)
        seeds, plan = self._plan_fetch(self.draws.list_needed(drawn, owner, self.shard.comm.size))
        mine = (owner == self.shard.comm.rank).nonzero()[:, 0]
        own = links.select_links(mine)
        # The links come first, then each number of negatives.
        tails, heads, relations = (each.view(-1, len(links))[:, mine].reshape(-1) for each in pairs)
        planner = self.draws.planner
        return LinkBatch(
            seeds=seeds,
            excluded=self._exclude_targets(links),
            num_links=len(links),
            links=own,
            edges=edges[mine],
            pairs=(tails, heads, relations),
            queries=None if planner is None else planner.group_links(own, candidates, None),
            fetch_plan=plan,
        )

    def draw_links(self, epoch: int, step: int) -> DrawnLinks:
        """Return the links of a batch over all workers, with their negatives."""
        size = self.batches.size or self.num_links
        first, last = step * size, min((step + 1) * size, self.num_links)
        place = draw_order(first, last, self.num_links, self.seed, epoch)
        # Ascending, since neither draws nor the loss depend on the order, and edges are read in order.
        edges = self.numbers.find_edges(place).sort().values
        return self.draws.draw_negatives(self.numbers.find_links(edges), edges, fold_in(self.seed, epoch, step))

    def _exclude_targets(self, links: LinkTriples) -> ExcludedEdges | None:
        if not self.options.excludes_targets:
            return None
        return ExcludedEdges(PairSet.from_pairs(links.head, links.tail, self.shard.topology.num_nodes))

    def _owners(self, nodes: Tensor) -> Tensor:
        """Return ``[n]`` int64: the worker that owns each node."""
        shard = self.shard
        return shard.owner[nodes].long() if isinstance(shard, PartitionShard) else torch.zeros_like(nodes)

    def _plan_fetch(self, needed: list[Tensor]) -> tuple[Tensor, RowFetchPlan]:
        """Return the worker's seeds, and the plan that fetches the rows of others, which all workers know."""
        comm = self.shard.comm
        mine = comm.rank
        owners = [self._owners(each) for each in needed]
        asked = [
            nodes[owner == mine] if worker != mine else nodes[:0]
            for worker, (nodes, owner) in enumerate(zip(needed, owners, strict=True))
        ]
        own = needed[mine][owners[mine] == mine]
        seeds = torch.unique(torch.cat([own, *asked]))
        foreign = owners[mine] != mine
        nodes, of_owner = needed[mine][foreign], owners[mine][foreign]
        counts = tuple(torch.bincount(of_owner, minlength=comm.size).tolist())
        plan = RowFetchPlan(comm, seeds, nodes[of_owner.argsort(stable=True)], counts)
        # Known without a message.
        plan.split_sizes = SplitSizes(tuple(len(each) for each in asked), counts)
        plan.asked_nodes = torch.cat(asked)
        return seeds, plan


def empty_rows(model: Model, device: torch.device) -> Tensor:
    """Return ``[0, C]``, the output of a worker without seeds; with a gradient, so that it takes part in exchanges."""
    columns = model.layers_list()[-1].spec.out_features
    return torch.zeros(0, columns, dtype=model.dtype, device=device, requires_grad=True)


class EpochLinkBatches(Sequence[LinkBatch]):
    """The batches of an epoch, each drawn when it is asked for. Final.

    Args:
        batches: Draws them.
        epoch: Number of the epoch.
    """

    def __init__(self, batches: LinkBatches, epoch: int) -> None:
        self._batches = batches
        self._epoch = epoch

    def __len__(self) -> int:
        return self._batches.batches.num_steps(self._batches.num_links)

    def __getitem__(self, step: int) -> LinkBatch:  # type: ignore[override]
        if step >= len(self):
            raise IndexError(step)
        return self._batches.draw_batch(self._epoch, step)


Batch = Tensor | LinkBatch
"""The seeds of a batch over all workers, of nodes; or a worker's part of a batch of links."""
