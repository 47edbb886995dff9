"""Checks of links that a graph comes with: whether parts overlap, and whether every relation is trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.user_warnings import warn_about_data
from outgrow.graph.edge_types import count_relation_edges
from outgrow.graph.graph import Graph
from outgrow.graph.link_leakage import LinkLeakage, find_leakage, warn_of_leakage
from outgrow.graph.link_split import HeldOutLinks
from outgrow.ops.backend import as_numpy

_SHOWN = 3
_PARTS = ("validation", "test")


def check_given_split(graph: Graph, *, allow_overlap: bool, allow_unseen_relations: bool) -> None:
    """Check held-out links, and warn of what leaks; a graph without such links passes.

    Args:
        graph: The graph, with edges sorted by source within each row, as readers sort them.
        allow_overlap: Whether links may be in several parts; it is a warning then.
        allow_unseen_relations: Whether held-out links may have relations without training links; likewise.

    Raises:
        InputError: A link is in several parts, or a relation in no training link, and that is not allowed.
    """
    found = find_leakage(graph)
    if found is None:
        return
    assert graph.held_out_links is not None
    if unseen := _find_unseen_relations(graph, graph.held_out_links):
        _require_seen_relations(graph, graph.held_out_links, unseen, allowed=allow_unseen_relations)
    if not allow_overlap:
        _require_disjoint_parts(graph, found)
    warn_of_leakage(graph, found)


def _require_disjoint_parts(graph: Graph, found: LinkLeakage) -> None:
    val, test = found.val, found.test
    counts = (
        (val.duplicates, f"of {val.total:,} validation links {val.duplicates:,} are training links too"),
        (test.duplicates, f"of {test.total:,} test links {test.duplicates:,} are training links too"),
        (test.validated, f"of {test.total:,} test links {test.validated:,} are validation links too"),
    )
    if overlaps := [text for count, text in counts if count]:
        raise InputError(
            f"the parts of the links of {graph.name} overlap",
            needed="links to validate and to test on that are in no other part",
            got="; ".join(overlaps),
            repair="drop them from one of the parts; or allow it by --allow-overlap (allow_overlap=True), to compare "
            "with figures that were published of this split",
        )


def _find_unseen_relations(graph: Graph, links: HeldOutLinks) -> list[int]:
    """Return the relations of held-out links of which there are no edges, ascending."""
    if graph.topology.relation is None:
        return []
    counts = count_relation_edges(graph.topology, graph.num_relations)
    held: NDArray[np.int64] = np.unique(np.concatenate([as_numpy(part.relation) for part in links]))
    return [number for number in held.tolist() if not counts[number]]


def _require_seen_relations(graph: Graph, links: HeldOutLinks, unseen: Sequence[int], *, allowed: bool) -> None:
    shown = ", ".join(_describe_relation(graph, links, number) for number in unseen[:_SHOWN])
    shown += f" and {len(unseen) - _SHOWN:,} more" if len(unseen) > _SHOWN else ""
    if allowed:
        warn_about_data(f"{graph.name} has no training links of relations that are ranked: {shown}")
        return
    raise InputError(
        f"{graph.name} has no training links of {len(unseen):,} of the relations to be ranked",
        needed="training links of every relation, without which its scores cannot be learned",
        got=shown,
        repair="leave these links out, or move some to the training part; or allow it by --allow-unseen-relations "
        "(allow_unseen_relations=True)",
    )


def _describe_relation(graph: Graph, links: HeldOutLinks, number: int) -> str:
    counts = [int((part.relation == number).sum()) for part in links]
    found = " and ".join(f"{count:,} {part}" for count, part in zip(counts, _PARTS, strict=True) if count)
    return f"{graph.relation_names[number]!r} ({found} links)"
