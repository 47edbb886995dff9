"""`sampled`: mini-batches of seeds and their sampled neighbourhoods, with the features moved to them.

The data-parallel training of DGL and DistDGL (Zheng et al., IA3 2020): every worker owns the features of one part of
the graph, takes the seeds of each batch that it owns, samples their neighbourhood, fetches the features of its nodes
from their owners, and computes. Sampling and fetching of later batches go on while one is computed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import NamedTuple, get_type_hints

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.nearest import pick
from outgrow.core.option_types import require_positive, require_types
from outgrow.engine.batches import count_drawn
from outgrow.engine.hot import Cache, hotness_by, require_cache
from outgrow.engine.inputs import to_device
from outgrow.engine.pipeline import prefetched
from outgrow.engine.rows import RowStore, Waiting, Wanted, row_type
from outgrow.engine.share import view_of
from outgrow.graph.partition.method import WITHOUT_CHUNKS
from outgrow.graph.sampler import Sampler
from outgrow.nn.layer import Features
from outgrow.ops import buffers
from outgrow.ops.backend import num_threads
from outgrow.ops.keyed import derive
from outgrow.strategies.base import Execution, Problem, Step, Strategy, whole_inference

_BEFORE = 0  # epochs are numbered from 1
_SPARE = 0.5  # no two batches are of one size


@dataclass(frozen=True, kw_only=True)
class Sampled(Strategy):
    """Training on sampled mini-batches. Features move to the batch. The reference of all mini-batch strategies.

    Attributes:
        partition: How nodes, their features and their seeds are dealt out to workers: see ``outgrow partition``.
        threads: Threads of a worker that draw batches; None for half as many as compute.
        ahead: Batches that are drawn, or being drawn, besides the one that is computed.
        cache: Size of a cache of rows that other workers own, as bytes (``"64MiB"``) or as a share of all rows (0.1).
        cache_by: Which rows are cached: those of nodes with most out-edges (``"degree"``), or those that a worker asks
            for most in an epoch that is sampled first and not trained (``"presampling"``).
        cache_over: Whether each worker has a cache (``"worker"``), or those of a host share one, without duplicates
            (``"host"``), of rows that live on other hosts.
    """

    name = "sampled"
    exact = True
    takes_batches = True

    partition: str = "metis"
    threads: int | None = None
    ahead: int = 4
    cache: str | float = 0.0
    cache_by: str = "degree"
    cache_over: str = "worker"

    def __post_init__(self) -> None:
        require_types(asdict(self), get_type_hints(Sampled))
        pick("partition", self.partition, WITHOUT_CHUNKS)
        require_cache(self.cache, self.cache_over, self.cache_by)
        require_positive(self.name, threads=self.threads, ahead=self.ahead)

    def options(self) -> dict[str, object]:
        """See `Strategy.options`."""
        return asdict(self)

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`."""
        return _SampledExecution(problem, self)


class _Batch(NamedTuple):
    """What a worker computes in one step.

    Attributes:
        step: Number of the step in the epoch.
        seeds: ``[n]`` int64, those that the worker owns.
        num_seeds: Number of seeds over all workers.
        blocks: Their sampled neighbourhood, a block for each layer.
        wanted: The features of its nodes, of which those of other workers are not here yet.
    """

    step: int
    seeds: Tensor
    num_seeds: int
    blocks: list[Block]
    wanted: Wanted


class _SampledExecution:
    in_memory = True

    def __init__(self, problem: Problem, options: Sampled) -> None:
        self.problem, self.share, self.ledger = problem, problem.share, problem.share.comm.ledger
        self.threads, self.ahead = options.threads or max(1, num_threads() // 2), options.ahead
        layers = problem.model.stages()
        views = [view_of(self.share.topology, layer) for layer in layers]
        batches = problem.batches
        self.sampler = Sampler(views, batches.hops(len(layers)), problem.seed, weighted=batches.weighted)
        cache = self._cache(options) if options.cache and self.share.comm.size > 1 else None
        self.rows = RowStore(self.share, problem.features, row_type(problem.model, problem.features), cache)

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        seeds = self.problem.seeds(epoch)
        buffers.keep_spare(_SPARE)

        def draw(step: int) -> _Batch:
            mine = self.share.mine(seeds[step])
            blocks = self.sampler.blocks(mine, epoch, step)
            return _Batch(step, mine, len(seeds[step]), blocks, self.rows.prepare(blocks[0].src_nodes))

        steps = range(first, len(seeds))
        with closing(prefetched(draw, steps, threads=self.threads, ahead=self.ahead - 1)) as drawn:
            for batch, waiting in self._asked(drawn):
                yield self._step(epoch, batch, waiting.wait())

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        return whole_inference(self.problem)

    def close(self) -> None:
        buffers.clear()

    def _asked(self, batches: Iterator[_Batch]) -> Iterator[tuple[_Batch, Waiting]]:
        """Batches with their rows under way; those of the next one are asked for before a batch is given."""
        asked = None
        for batch in batches:
            following = batch, self.rows.ask(batch.wanted)
            if asked is not None:
                yield asked
            asked = following
        if asked is not None:
            yield asked

    def _step(self, epoch: int, batch: _Batch, x: Features) -> Step:
        problem, comm = self.problem, self.share.comm
        loss = torch.zeros((), dtype=torch.float64)
        if len(batch.seeds):
            blocks = [block.to(comm.device) for block in batch.blocks]
            logits = problem.model(blocks, to_device(x, comm), derive(problem.seed, epoch, batch.step))
            found = problem.batch_loss(logits, batch.seeds, batch.num_seeds)
            torch.autograd.backward(found)
            loss += found.detach().cpu()
        comm.sum_gradients(problem.model)
        for block in batch.blocks:
            count_drawn(self.ledger, block.edges)
        return Step(loss=comm.sum_(loss).item(), num_seeds=batch.num_seeds)

    def _cache(self, options: Sampled) -> Cache:
        """The cache that is asked for, not filled yet."""
        hotness = hotness_by(options.cache_by, self.share.topology, self._asked_before)
        return Cache(hotness=hotness, size=options.cache, place=options.cache_over)

    def _asked_before(self) -> Iterator[Tensor]:
        """The nodes whose rows each batch of an epoch asks for that is not trained."""
        for step, seeds in enumerate(self.problem.seeds(_BEFORE)):
            yield self.sampler.blocks(self.share.mine(seeds), _BEFORE, step)[0].src_nodes
