"""P3 as a strategy that trains: columns of all features stay where they are, activations of the first layer move.

Gandhi, Iyer: P3: distributed deep graph learning at scale, OSDI 2021. Every worker has a slice of the columns of the
features of all nodes. Of each batch it takes an equal share of the seeds at random, and draws their neighbourhood. The
edges of the first layer go to all workers; each computes what its columns add to that layer's output, and sends this
back to the worker whose seeds they are, which sums it and does the rest by itself. Gradients go the same way back.

    og.train(graph, model, strategy=P3(), workers=4, batch_size=4096, fanout=(10, 10, 10))

Each worker is left with the gradients of its own rows of the first weights. P3 keeps them there; here they are summed
over all workers, with zeros for the rows of others, since whoever trains wants all gradients on all workers. That adds
to what P3 would send at most the sum of a model's first layer.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import NamedTuple

import cloudpickle
import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.core.errors import InputError
from outgrow.core.ledger import Kind
from outgrow.engine.batches import BatchConfig, count_sampled_layer
from outgrow.engine.features.inputs import move_features_to_device
from outgrow.engine.minibatch_loop import PrefetchConfig, make_sampler
from outgrow.engine.prefetch import prefetch_results
from outgrow.graph.graph import Graph
from outgrow.nn.convolution import GCNConv, SAGEConv
from outgrow.nn.epilogue import apply_epilogue
from outgrow.nn.layer import Conv, NodeMessages
from outgrow.nn.model import Model, layer_key, src_and_dst_rows
from outgrow.ops import memory_pool
from outgrow.ops.linear import affine
from outgrow.ops.rng import dropout_sparse, fold_in
from outgrow.ops.sparse import SparseRows
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm, ExchangeHandle
from outgrow.strategies.base import Execution, Problem, Step, Strategy, full_inference
from outgrow.strategies.migrate.schedule import assign_models
from outgrow.strategies.tensor.all_to_all import ColumnExchange

_AHEAD = 4
_REPAIR = "choose strategy sampled"


@dataclass(frozen=True, kw_only=True)
class P3(Strategy):
    """Each worker computes what some columns of the features add to the first layer, for all micro-batches.

    Attributes:
        partition: How nodes and their labels are dealt out to workers. Features are dealt out once, from there.
    """

    name = "p3"
    exact = True
    uses_minibatches = True

    partition: str = "hash"

    def options(self) -> dict[str, object]:
        """See `Strategy.options`."""
        return asdict(self)

    def validate_graph(self, graph: Graph, batches: BatchConfig) -> None:
        """See `Strategy.validate_graph`: what crosses says of edges nothing but their ends."""
        super().validate_graph(graph, batches)
        weighted, numbers = graph.topology.weight is not None, [*map(type, batches.fanout or ())]
        if not isinstance(graph.features, Tensor) or weighted or not {*numbers} <= {int}:
            needed = "dense features, edges without weights, and one number for each hop"
            got = f"features of {type(graph.features).__name__}, weights {weighted}, fan-outs {batches.describe()}"
            raise InputError("strategy p3 cannot train on this graph", needed=needed, got=got, repair=_REPAIR)

    def validate_model(self, model: Model) -> None:
        """See `Strategy.validate_model`: the first layer must be a sum over the columns of the features as they are."""
        super().validate_model(model)
        first, residual = model.layers_list()[0], model.layers_list()[0].epilogue.residual
        if type(first.conv) not in (SAGEConv, GCNConv) or residual or model.encoder is not None:
            needed = "a first layer of SAGE or GCN without a residual, and no encoder"
            got = f"{type(first.conv).__name__}, residual {residual}, encoder {type(model.encoder).__name__}"
            raise InputError("strategy p3 cannot train this model", needed=needed, got=got, repair=_REPAIR)

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`."""
        return _Execution(problem)


class _Drawn(NamedTuple):
    """A worker's micro-batch: the number of its step, its seeds ``[n]``, those of all workers, and its blocks."""

    step: int
    seeds: Tensor
    num_seeds: int
    blocks: list[Block]


class _Told(NamedTuple):
    """First blocks under way: how many sources, destinations and edges each has ``[P, 3]``, source ids, and places."""

    sizes: Tensor
    nodes: ExchangeHandle
    places: ExchangeHandle

    def wait(self, degree: Tensor) -> list[Block]:
        """The blocks, by worker, where the first layer sees nodes of degrees ``[V]``."""
        nodes = torch.split(self.nodes.wait(), self.sizes[:, 0].tolist())
        places = torch.split(self.places.wait(), self.sizes[:, 1:].sum(1).tolist())
        counts = self.sizes[:, 1].tolist()
        return [_block(*each, degree) for each in zip(nodes, places, counts, strict=True)]


def _block(nodes: Tensor, places: Tensor, num_dst: int, degree: Tensor) -> Block:
    """A first block from its sources, and its in-edges' numbers and places; the rest is known of a uniform draw."""
    drawn, src_degree = places[:num_dst].long(), degree[nodes]
    ends = torch.cat([drawn.new_zeros(1), drawn.cumsum(0)])
    return Block(
        edges=Edges(indptr=ends, indices=places[num_dst:], num_src=len(nodes)),
        src_nodes=nodes,
        dst_nodes=nodes[:num_dst],
        src_degree=src_degree,
        dst_degree=src_degree[:num_dst],
        sample_weight=(src_degree[:num_dst] / drawn).float().repeat_interleave(drawn),
    )


class _Execution:
    in_memory = True

    def __init__(self, problem: Problem) -> None:
        self.problem, self.comm = problem, problem.shard.comm
        self.sampler = make_sampler(problem.shard.topology, problem.model, problem.batches, problem.seed)
        own = problem.shard.select_owned(problem.features)
        assert isinstance(own, Tensor)
        deal = ColumnExchange(self.comm, problem.shard.owned_nodes, torch.device("cpu"))
        self.columns = slice(*deal.local_columns(own.shape[1]))
        dtype = next(problem.model.parameters()).dtype
        self.features = deal.to_slices(own[:, None], Kind.FEATURES).wait()[:, 0].cpu().to(dtype)
        self.labels = problem.seed_labels  # fetched now, by all workers together

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        batches, comm = self.problem.batches_of_epoch(epoch), self.comm
        ahead = PrefetchConfig.from_options(None, _AHEAD)

        def draw(step: int) -> _Drawn:
            seeds = batches[step]
            mine = seeds[assign_models(len(seeds), comm.size) == comm.rank]
            return _Drawn(step, mine, len(seeds), self.sampler.sample_blocks(mine, epoch, step))

        numbers = range(first, len(batches))
        with closing(prefetch_results(draw, numbers, threads=ahead.threads, max_ahead=ahead.batches - 1)) as all_drawn:
            for drawn, told in self._told(all_drawn):
                bottoms = told.wait(self.sampler.sampling.views[0].degree)
                loss = self._computed(drawn, bottoms, fold_in(self.sampler.sampling.seed, epoch, drawn.step))
                comm.all_reduce_gradients(self.problem.model)
                yield Step(loss=comm.all_reduce(loss).item(), num_seeds=drawn.num_seeds)

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        return full_inference(self.problem)

    def close(self) -> None:
        memory_pool.release_idle_memory()

    def _told(self, all_drawn: Iterable[_Drawn]) -> Iterator[tuple[_Drawn, _Told]]:
        """Micro-batches; the next one's first block is under way before one is given."""
        before = None
        for drawn in all_drawn:
            following = drawn, _tell(self.comm, drawn.blocks[0].edges, drawn.blocks[0].src_nodes)
            if before is not None:
                yield before
            before = following
        if before is not None:
            yield before

    def _computed(self, drawn: _Drawn, bottoms: list[Block], key: int) -> Tensor:
        """The worker's share of the loss; adds to the gradients."""
        comm, model, (lowest, *upper) = self.comm, self.problem.model, drawn.blocks
        for block in drawn.blocks:
            count_sampled_layer(comm.ledger, block.edges)
        comm.ledger.add_count("rows_loaded", lowest.edges.num_src)
        comm.ledger.add_count("remote_rows", 0)
        first, *others = model.layers_list()
        theirs = [self._partial(block.to(comm.device), fold_in(key, 0)) for block in bottoms]
        own, route = len(lowest.dst_nodes), [len(each) for each in theirs]
        parts = comm.all_to_all(torch.cat(theirs), SplitSizes((*route,), (own,) * comm.size), Kind.ACTIVATIONS).wait()
        total = parts.unflatten(0, (comm.size, own)).sum(0)
        if not len(drawn.seeds):
            torch.autograd.backward(total.sum())  # others wait for it
            return torch.zeros((), dtype=torch.float64)
        nodes, bias = lowest.dst_nodes.to(comm.device), terms_of(first.conv)[2]
        x = apply_epilogue(first.epilogue, first.norm, total, total, bias, nodes, layer_key(key, 0))
        for index, (layer, block) in enumerate(zip(others, upper, strict=True), 1):
            x = layer(
                block.to(comm.device).with_rng_key(layer_key(key, index)), *src_and_dst_rows(x, block.edges.num_dst)
            )
        found = self.problem.batch_loss(x, self.labels.lookup(drawn.seeds), drawn.num_seeds)
        torch.autograd.backward(found)
        return found.detach().double().cpu()

    def _partial(self, block: Block, key: int) -> Tensor:
        """``[Vd, O]``: what this worker's columns add to the first layer's output, projected first where it does so."""
        conv, x_Vf = self.problem.model.layers_list()[0].conv, self._rows(block.src_nodes, key)
        of_source, of_target, _ = terms_of(conv)
        before, weight_fO = conv.accepts_sparse, of_source[self.columns]
        source = NodeMessages((affine((x_Vf, weight_fO)) if before else x_Vf)[:, None], None)
        total = conv.aggregation(block, source.values, None, conv.edge_weight(block, source, source))[:, 0]
        total = total if before else affine((total, weight_fO))
        if of_target is None:
            return total
        return total + affine((x_Vf[: block.edges.num_dst], of_target[self.columns]))

    def _rows(self, nodes: Tensor, key: int) -> Tensor:
        """``[n, f]``: this worker's columns of nodes; dropout draws by columns of all features, as sparse rows do."""
        x, model, columns = (
            move_features_to_device(self.features[nodes.cpu()], self.comm),
            self.problem.model,
            self.columns,
        )
        if model.input_dropout == 0:
            return x
        ends = torch.arange(len(x) + 1, device=x.device) * x.shape[1]
        names = torch.arange(columns.start, columns.stop, dtype=torch.int32, device=x.device).repeat(len(x))
        rows = SparseRows(indptr=ends, indices=names, values=x.flatten(), num_columns=model.in_features)
        return dropout_sparse(rows, nodes, key, model.input_dropout).values.view_as(x)


def terms_of(conv: Conv) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The parameters of GCN or SAGE: of sources ``[D, O]``, of destinations (None for none), and ``[O]`` added."""
    if isinstance(conv, GCNConv):
        return conv.project.weight, None, conv.bias
    assert isinstance(conv, SAGEConv)
    return conv.neighbour.weight, conv.itself.weight, conv.itself.bias


def _tell(comm: Comm, edges: Edges, nodes: Tensor) -> _Told:
    """Send a first block to all workers: source ids of 8 bytes; of destinations and edges 4 bytes each."""
    sizes = torch.tensor([edges.num_src, edges.num_dst, edges.num_edges])
    theirs = comm.all_to_all_counts(sizes.expand(comm.size, 3), Kind.METRICS)
    places = torch.cat([edges.indptr.diff().int(), edges.indices])

    def to_all(rows: Tensor, lengths: Tensor, kind: Kind) -> ExchangeHandle:
        route = SplitSizes((len(rows),) * comm.size, tuple(lengths.tolist()))
        return comm.all_to_all(rows.expand(comm.size, len(rows)).flatten(), route, kind)

    return _Told(theirs, to_all(nodes, theirs[:, 0], Kind.IDS), to_all(places, theirs[:, 1:].sum(1), Kind.TOPOLOGY))


cloudpickle.register_pickle_by_value(sys.modules[__name__])
