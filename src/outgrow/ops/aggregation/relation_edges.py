"""Edges of several relations for aggregations: validation, node-relation pairs, a relation for self-loops.

Letters: ``E`` edges, ``R`` relations. Results are computed once per block and cached with its edges.
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
    """Return ``[E]``: the relation of each edge, after checking that all are in ``[0, num_relations)``.

    Raises:
        InputError: Edges have no relation, or one out of range.
    """
    if edges.relation is None:
        got = "edges without a relation"
    else:
        # The range is cached: every layer of every pass asks, and reading it from a GPU waits for the device.
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
    """Return the edges between node-relation pairs: relation ``r`` goes from ``u * R + r`` to ``v * R + r``.

    Computed once per block.

    Returns:
        The edges, without relation and weight, and the position ``[E]`` of each of them in the block.
    """
    relation = validate_relations(edges, num_relations)
    slot = f"pairs of {num_relations} relations"
    if slot not in edges.cache:
        narrow = torch.int32 if edges.num_src * num_relations < 2**31 else torch.int64
        # A stable sort keeps the edge order within a pair, and with it the order of every sum.
        pair, order = (destination(edges) * num_relations + relation).sort(stable=True)
        indptr = edges.indptr.new_zeros(edges.num_dst * num_relations + 1)
        torch.cumsum(pair.bincount(minlength=len(indptr) - 1), 0, out=indptr[1:])
        indices = (edges.indices.long() * num_relations + relation)[order].to(narrow)
        pairs = Edges(indptr=indptr, indices=indices, num_src=edges.num_src * num_relations)
        edges.cache[slot] = pairs, order
    return cast(tuple[Edges, Tensor], edges.cache[slot])


def self_loop_relation(edges: Edges, num_relations: int) -> Edges:
    """Return the edges with relation ``num_relations`` for added self-loops, whose relation is -1.

    Computed once per block.
    """
    slot = f"loops of relation {num_relations}"
    if slot not in edges.cache:
        # Validate with the loops as relation 0: -1 is allowed here only.
        known = None if edges.relation is None else edges.relation.clamp_min(0)
        relation = validate_relations(replace(edges, relation=known, cache={}), num_relations).to(torch.int32)
        related = torch.where(cast(Tensor, edges.relation) < 0, num_relations, relation)
        edges.cache[slot] = replace(edges, relation=related, cache={})
    return cast(Edges, edges.cache[slot])


def with_loop_relation(block: Block, num_relations: int) -> Block:
    """Return the block with the edges of `self_loop_relation`."""
    return replace(block, edges=self_loop_relation(block.edges, num_relations))
