"""Feature rows of any nodes, for a worker that owns some of them: read, kept as copies, or asked for.

All workers of a host map the same store, but a worker reads only rows of nodes that it owns, as if those of the others
lay on disks that it cannot reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.features.assembly import Draft, FeaturesArrival, draft_of, send_features
from outgrow.engine.features.cache import Cache, Kept, keep
from outgrow.engine.features.inputs import stay_half
from outgrow.engine.shard import Part, Share
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.ops import memory_pool
from outgrow.ops.rows.gather import deal
from outgrow.runtime.distributed.async_exchange import Route
from outgrow.runtime.distributed.comm import Comm


class Remote(NamedTuple):
    """Rows that others have.

    Attributes:
        nodes: ``[r]`` int64, whose rows they are; those to ask worker 0 for first.
        places: ``[r]`` int64, where the rows belong.
        sizes: How many to ask each worker for.
    """

    nodes: Tensor
    places: Tensor
    sizes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Wanted:
    """Rows for a batch, of which those that are here are written.

    Attributes:
        draft: The rows.
        num_rows: How many.
        remote: Those that are elsewhere; None if there is no elsewhere.
        hits: Rows that are not the worker's own and are in a cache, its own or a peer's.
        misses: Rows that are not the worker's own and are in no cache.
    """

    draft: Draft
    num_rows: int
    remote: Remote | None = None
    hits: int = 0
    misses: int = 0


class Waiting(NamedTuple):
    """Rows for a batch, of which some are under way.

    Attributes:
        wanted: What was asked for.
        others: Rows of others; None if there are no others.
    """

    wanted: Wanted
    others: FeaturesArrival | None

    def wait(self) -> Features:
        """``[n, D]``: the rows in the order of the nodes. To be called once, by the thread that asked."""
        draft, remote = self.wanted.draft, self.wanted.remote
        if self.others is not None and remote is not None:
            draft.put(self.others.wait(), None, remote.places)
        return draft.done()


class RowStore:
    """The features of all nodes, in steps between which there is time to compute: ``ask(prepare(nodes)).wait()``.

    ``prepare`` may run in any thread. ``ask`` and ``wait`` talk to the other workers; all of them ask equally often,
    also for nothing. A remote row crosses a link once for each batch, in the features' type or in that of the result,
    whichever is smaller.

    Counted in the ledger when rows are asked for: ``rows_loaded``, ``remote_rows`` that come from other workers, and,
    with a cache, ``cache_hits`` and ``cache_misses`` among the rows that other workers own: those in a cache, of this
    worker or of one beside it, and those in none.

    Args:
        share: What the worker holds of the graph.
        features: ``[V, D]`` dense or sparse, as the graph has them; memory-mapped where they are many.
        dtype: Type of the rows that are given out.
        cache: Copies of hot rows, fetched now by all workers together; None for none. A single worker keeps none.
        comm: The line on which rows are asked for; None for that of the share.
    """

    def __init__(
        self,
        share: Share,
        features: Features,
        dtype: torch.dtype,
        cache: Cache | None = None,
        *,
        comm: Comm | None = None,
    ) -> None:
        self.comm, self.features, self.dtype = comm or share.comm, features, dtype
        self.dtype_sent = min(dtype, features.dtype, key=lambda each: each.itemsize)
        self.owner = self.holder = share.owner if isinstance(share, Part) else None
        self.copies: Features | None = None
        self.slot = torch.empty(0, dtype=torch.int32)
        if cache is not None and self.owner is not None:
            kept = keep(cache, features, self.owner, self.comm)
            self._add(kept, self._ask(self._prepare(kept.nodes, self.dtype_sent)).wait())

    def _add(self, kept: Kept, copies: Features) -> None:
        """From now on serve copies, and ask whoever has some."""
        self.holder = kept.holder
        self.copies = copies.clone() if isinstance(copies, Tensor) else copies  # a draft has more memory than it needs
        self.slot = torch.full((len(kept.holder),), -1, dtype=torch.int32)
        self.slot[kept.nodes] = torch.arange(len(kept.nodes), dtype=torch.int32)
        memory_pool.clear()

    def prepare(self, nodes: Tensor) -> Wanted:
        """Gather the rows that are here, and find out whom to ask for the others. Does not communicate.

        Args:
            nodes: ``[n]`` int64, distinct.
        """
        return self._prepare(nodes, self.dtype)

    def ask(self, wanted: Wanted) -> Waiting:
        """Ask for the other rows, which are under way when this returns. All workers together.

        Waits for what the others ask for: a count of 8 bytes (``metrics``), and 8 bytes for each row (``ids``).
        """
        count, remote = self.comm.ledger.count, wanted.remote
        count("rows_loaded", wanted.num_rows)
        count("remote_rows", len(remote.nodes) if remote is not None else 0)
        if self.copies is not None:
            count("cache_hits", wanted.hits)
            count("cache_misses", wanted.misses)
        return self._ask(wanted)

    def _prepare(self, nodes: Tensor, dtype: torch.dtype) -> Wanted:
        draft = draft_of(len(nodes), self.features, dtype)
        if self.owner is None or self.holder is None:
            draft.put(self.features, nodes, None)
            return Wanted(draft=draft, num_rows=len(nodes))
        rank = self.comm.rank
        places, sizes = deal(nodes, self.holder, self.comm.size + 1)  # the last group are copies that are kept here
        *by_worker, copied = torch.split(places, sizes)
        draft.put(self.features, nodes[by_worker[rank]], by_worker[rank])
        if self.copies is not None:
            draft.put(self.copies, self.slot[nodes[copied]].long(), copied)
        others = torch.cat([places[:0], *by_worker[:rank], *by_worker[rank + 1 :]])
        remote = Remote(nodes[others], others, (*sizes[:rank], 0, *sizes[rank + 1 : -1]))
        misses = int((self.owner[remote.nodes] == self.holder[remote.nodes]).sum())
        hits = len(copied) + len(others) - misses
        return Wanted(draft=draft, num_rows=len(nodes), remote=remote, hits=hits, misses=misses)

    def _ask(self, wanted: Wanted) -> Waiting:
        comm, remote = self.comm, wanted.remote
        if remote is None:
            return Waiting(wanted, None)
        asked_for = comm.swapped(torch.tensor(remote.sizes), Kind.METRICS)
        route = Route(remote.sizes, tuple(asked_for.tolist()))
        asked = comm.rows(remote.nodes, route, Kind.IDS).wait()
        with comm.timeline.span("gather"):
            answer = self._prepare(asked, self.dtype_sent)
        assert answer.remote is None or len(answer.remote.nodes) == 0
        return Waiting(wanted, send_features(comm, answer.draft.done(), route.back))


def row_type(model: Model, features: Features) -> torch.dtype:
    """The type in which a model takes features: that of its parameters, or half precision that stays so."""
    return features.dtype if stay_half(model, features) else next(model.parameters()).dtype
