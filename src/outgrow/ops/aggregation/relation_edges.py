"""Edges of several relations as aggregations read them: checked, as edges of pairs, with a relation for self-loops.

Letters: ``E`` edges, ``R`` relations. What is made of the edges of a block is made once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.core.errors import InputError
from outgrow.ops.csc import destination


def validate_relations(edges: Edges, num_relations: int) -> Tensor:
    """``[E]``: the relation of each edge, once it is sure that all are in ``[0, num_relations)``.

    Raises:
        InputError: Edges have no relation, or one out of range.
    """
    if edges.relation is None:
        got = "edges without a relation"
    else:
        if "relations" not in edges.cache:
            ends = edges.relation.aminmax() if edges.num_edges else (torch.tensor(0), torch.tensor(-1))
            edges.cache["relations"] = [int(end) for end in ends]
        low, high = cast(list[int], edges.cache["relations"])
        if low >= 0 and high < num_relations:
            return edges.relation
        got = f"relations {low} to {high}"
    raise InputError(
        "a relational layer does not fit the graph",
        needed=f"edges of {num_relations} relations, numbered from 0",
        got=got,
        repair="build the layer with graph.num_relations, on a graph whose edges have relations",
    )


def relation_pairs(edges: Edges, num_relations: int) -> tuple[Edges, Tensor]:
    """In-edges of pairs: an edge of relation ``r`` from ``u`` to ``v`` is one from ``u * R + r`` to ``v * R + r``.

    Computed once per block.

    Returns:
        The edges, without relation and weight, and the position ``[E]`` that each of them has in the block.
    """
    relation, slot = validate_relations(edges, num_relations), f"pairs of {num_relations} relations"
    if slot not in edges.cache:
        narrow = torch.int32 if edges.num_src * num_relations < 2**31 else torch.int64
        pair, order = (destination(edges) * num_relations + relation).sort(stable=True)
        indptr = edges.indptr.new_zeros(edges.num_dst * num_relations + 1)
        torch.cumsum(pair.bincount(minlength=len(indptr) - 1), 0, out=indptr[1:])
        indices = (edges.indices.long() * num_relations + relation)[order].to(narrow)
        pairs = Edges(indptr=indptr, indices=indices, num_src=edges.num_src * num_relations)
        edges.cache[slot] = pairs, order
    return cast(tuple[Edges, Tensor], edges.cache[slot])


def self_loop_relation(edges: Edges, num_relations: int) -> Edges:
    """The edges, of which those that have relation -1, loops that were added, have relation ``num_relations``.

    Computed once per block.
    """
    slot = f"loops of relation {num_relations}"
    if slot not in edges.cache:
        known = None if edges.relation is None else edges.relation.clamp_min(0)
        relation = validate_relations(replace(edges, relation=known, cache={}), num_relations).to(torch.int32)
        related = torch.where(cast(Tensor, edges.relation) < 0, num_relations, relation)
        edges.cache[slot] = replace(edges, relation=related, cache={})
    return cast(Edges, edges.cache[slot])


def with_loop_relation(block: Block, num_relations: int) -> Block:
    """The block, with `self_loop_relation` edges."""
    return replace(block, edges=self_loop_relation(block.edges, num_relations))
