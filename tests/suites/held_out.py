"""Links that a graph comes with: how runs split, train and rank them, against loops; and mutants. In workers too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from outgrow.app import link_task
from outgrow.app.graph_sources import from_arrays
from outgrow.graph.graph import Graph, NodeType
from outgrow.graph.link_split import HeldOutLinks, LinkCandidates, LinkSplit, take_held_out_links
from outgrow.graph.link_triples import LinkTriples, collect_links
from outgrow.graph.store.reader import write_store
from outgrow.graph.topology import Topology
from outgrow.nn import RGCN, DistMult, Dot, Model
from outgrow.nn.zoo import GCN
from outgrow.ops.csc import destination
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.tensor.strategy import TensorParallel
from outgrow.training.config import TrainConfig
from suites.hits import Hits
from suites.sessions import Plan
from support import disk_folder, normal

NODES, RELATIONS, IN, HIDDEN, OUT = 40, 3, 6, 8, 5
Fact = tuple[int, int, int]
"""Head, relation and tail."""
Mutant = Callable[[], AbstractContextManager[Hits]]
WAYS: dict[str, Callable[[], Strategy]] = {
    "full": Full,
    "offload": lambda: Offload(chunks=3, scratch_dir=str(disk_folder())),
    "tensor": TensorParallel,
}
GRAPHS = ("typed", "without relations")
CONFIG = TrainConfig(epochs=3, lr=0.02, negatives=2, eval_every=1)


def graph_of(name: str) -> Graph:
    """A graph with links to hold out: some twice, some loops, some that are edges or their inverses."""
    typed = name == "typed"
    generator = torch.Generator().manual_seed(5)
    edge_index = torch.randint(NODES, (2, 250), generator=generator)
    kinds = torch.randint(RELATIONS, (250,), generator=generator) if typed else None
    topology = from_arrays(edge_index, num_nodes=NODES, relation=kinds).topology
    ends = torch.randint(NODES, (2, 60), generator=generator)
    relation = torch.randint(RELATIONS if typed else 1, (60,), generator=generator)
    drawn, edges = LinkTriples(ends[0], ends[1], relation), collect_links(topology)
    val = _concat(drawn.select_links(slice(0, 25)), edges.select_links(slice(0, 3)))
    test = _concat(
        drawn.select_links(slice(20, 60)), edges.select_links(slice(9, 12)), drawn.select_links(slice(55, 60))
    )
    test.head[-1] = test.tail[-1]
    types = (NodeType(name="a", first=0, last=11), NodeType(name="b", first=11, last=NODES)) if typed else ()
    return Graph(
        name=name,
        topology=topology,
        features=normal(NODES, IN, seed=3),
        relation_names=tuple("rst") if typed else (),
        node_types=types,
        held_out_links=HeldOutLinks(val, test),
    )


def model_of(name: str) -> Model:
    torch.manual_seed(1)
    if name == "typed":
        return (
            RGCN(IN, HIDDEN, OUT, num_relations=RELATIONS, bases=2, dropout=0.3)
            .with_decoder(DistMult(OUT, RELATIONS))
            .double()
        )
    return GCN(IN, HIDDEN, OUT, dropout=0.3).with_decoder(Dot()).double()


def plans_of(ways: Sequence[str], folder: Path, *, given: bool = True) -> dict[tuple[str, str], Plan]:
    """Runs of every graph, by way and graph; without ``given`` of the same edges, and nothing to hold out."""
    plans = {}
    for name in GRAPHS:
        graph, store = graph_of(name), folder / f"{name}-{given}"
        if not store.exists():
            write_store(graph if given else replace(graph, held_out_links=None), store)
        config = CONFIG if given else replace(CONFIG, val_links=0.0, test_links=0.0)
        for way in ways:
            plans[way, name] = Plan(store, model_of(name), config, WAYS[way]())
    return plans


def scores_by_loops(
    graph: Graph,
    out: Tensor,
    links: LinkTriples,
    model: Model,
    *,
    rank_self: bool = True,
    candidates: LinkCandidates | None = None,
) -> dict[str, float]:
    """The scores of some links: among nodes of the answer's type, without other answers, or among given nodes."""
    assert graph.held_out_links is not None
    assert model.decoder is not None
    directed = graph.topology.relation is not None
    facts = {fact for part in (collect_links(graph.topology), *graph.held_out_links) for fact in facts_of(part)}
    facts |= set() if directed else {(t, r, h) for h, r, t in facts}
    ends = [kind.first for kind in graph.node_types] or [0]
    scale = model.decoder.column_scale(out).detach()
    score = torch.einsum("uf,rf,vf->ruv", out, scale, out)
    ranks = []
    for side in (0, 1):
        given = None if candidates is None else candidates.of_end(("tail", "head")[side])
        for number, (head, relation, tail) in enumerate(facts_of(links)):
            node, answer = (head, tail) if side == 0 else (tail, head)
            first = max(each for each in ends if each <= answer)
            last = next(each for each in [*ends, graph.num_nodes] if each > answer)
            better = same = 0
            for other in range(first, last) if given is None else given[number].tolist():
                claim = (node, relation, other) if side == 0 else (other, relation, node)
                if other == answer or (given is None and (claim in facts or (other == node and not rank_self))):
                    continue
                mine, its = score[relation, node, answer].item(), score[relation, node, other].item()
                better, same = better + (its > mine), same + (its == mine)
            ranks.append(1 + better + same / 2)
    return {"mrr": sum(1 / rank for rank in ranks) / len(ranks)} | {
        f"hits@{k}": sum(rank <= k for rank in ranks) / len(ranks) for k in (1, 3, 10)
    }


def facts_of(links: LinkTriples) -> list[Fact]:
    return [(h, r, t) for h, t, r in torch.stack(list(links), 1).tolist()]


def _concat(*parts: LinkTriples) -> LinkTriples:
    return LinkTriples(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _mutant(change: Callable[[Topology, HeldOutLinks, LinkSplit], LinkSplit]) -> Mutant:
    @contextmanager
    def broken() -> Iterator[Hits]:
        hits = Hits()

        def split(topology: Topology, links: HeldOutLinks, relations: Tensor | None) -> LinkSplit:
            right = take_held_out_links(topology, links, relations)
            made = change(topology, links, right)
            hits.note(made is not right)
            return made

        with patch.object(link_task, "take_held_out_links", split):
            yield hits

    broken.__doc__ = change.__doc__
    broken.__name__ = change.__name__
    return broken


def known_links_of_training_alone(topology: Topology, links: HeldOutLinks, right: LinkSplit) -> LinkSplit:
    """Other held-out links count as wrong answers."""
    return right._replace(others=())


def held_out_links_trained_on(topology: Topology, links: HeldOutLinks, right: LinkSplit) -> LinkSplit:
    """Links to test on are edges of the graph."""
    tail, head = destination(topology.block.edges), topology.indices.long()
    own = torch.zeros_like(head) if topology.relation is None else topology.relation.long()
    every = _concat(LinkTriples(head, tail, own), links.test)
    order = torch.argsort(every.tail, stable=True)
    counts = torch.bincount(every.tail, minlength=topology.num_nodes)
    made = Topology(
        indptr=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
        indices=every.head[order].to(topology.indices.dtype),
        relation=None if topology.relation is None else every.relation[order].to(topology.relation.dtype),
    )
    return right._replace(topology=made)


def edges_of_held_out_pairs_removed(topology: Topology, links: HeldOutLinks, right: LinkSplit) -> LinkSplit:
    """Edges between the ends of a held-out link are removed, as those of a split that is drawn."""
    tail, head = destination(topology.block.edges), topology.indices.long()
    pairs = torch.cat([h * NODES + t for part in links for h, t in ((part.head, part.tail), (part.tail, part.head))])
    kept = ~torch.isin(head * NODES + tail, pairs)
    before = torch.cat([torch.zeros(1, dtype=torch.int64), kept.cumsum(0)])
    made = Topology(
        indptr=before[topology.indptr],
        indices=topology.indices[kept],
        relation=None if topology.relation is None else topology.relation[kept],
    )
    return right._replace(topology=made)


def validation_links_tested_on(topology: Topology, links: HeldOutLinks, right: LinkSplit) -> LinkSplit:
    """Validation and test links have changed places."""
    return right._replace(val=right.test, test=right.val)


def each_held_out_link_once(topology: Topology, links: HeldOutLinks, right: LinkSplit) -> LinkSplit:
    """A link that is given twice is ranked once."""
    rows = torch.unique(torch.stack(list(right.test), 1), dim=0)
    return right._replace(test=LinkTriples(*rows.unbind(1)))


MUTANTS: Mapping[str, Mutant] = {
    change.__name__: _mutant(change)
    for change in (
        known_links_of_training_alone,
        held_out_links_trained_on,
        edges_of_held_out_pairs_removed,
        validation_links_tested_on,
        each_held_out_link_once,
    )
}
