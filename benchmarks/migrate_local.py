"""What `migrate.py locality` and `spread` count: who lives with whom, and how many seeds each worker computes when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.strategies.migrate.schedule import assign_models, migration_schedule

Draw = Callable[[Tensor, int, int], list[Block]]
"""Blocks of some seeds in a step of an epoch."""
_EPOCH = 1


class Deal(NamedTuple):
    """How nodes are dealt out to how many workers."""

    partition: str
    parts: int


@dataclass
class Shares:
    """Shares of the nodes of micrographs and subgraphs that live with the root, one for each root.

    Attributes:
        micro: Of micrographs; those of a root alone are left out.
        sub: Of the subgraphs of whole micro-batches.
    """

    micro: list[float] = field(default_factory=list)
    sub: list[float] = field(default_factory=list)


class Local(NamedTuple):
    """What was found.

    Attributes:
        shares: For each deal.
        micrograph: Nodes of each micrograph.
        subgraph: Nodes of each subgraph.
    """

    shares: dict[Deal, Shares]
    micrograph: list[int]
    subgraph: list[int]


def beside(nodes: Tensor, root: int, owner: Tensor) -> float | None:
    """The share of some nodes, which the root is one of, that live with it, the root left out; None if it is alone."""
    if len(nodes) < 2:
        return None
    return (int((owner[nodes] == owner[root]).sum()) - 1) / (len(nodes) - 1)


def reaching(blocks: Sequence[Block], seed: int | None = None) -> Tensor:
    """``[n]``: one seed of blocks, by its row, or all of them, and the nodes from which edges lead there.

    Draws do not depend on the seeds, so for one it is what would be drawn for it alone.
    """
    needed = torch.full((blocks[-1].edges.num_dst,), seed is None)
    if seed is not None:
        needed[seed] = True
    for block in reversed(blocks):
        edges = block.edges
        used = needed.repeat_interleave(edges.indptr.diff())
        needed = torch.cat([needed, needed.new_zeros(edges.num_src - edges.num_dst)])
        needed[edges.indices[used].long()] = True
    return blocks[0].src_nodes[needed]


def locality(draw: Draw, micro_batches: Iterable[Tensor], owners: Mapping[Deal, Tensor], roots: int) -> Local:
    """Locality of micrographs and of the subgraphs that they are part of (HopGNN, table 1).

    Args:
        draw: Draws blocks.
        micro_batches: Seeds of each.
        owners: ``[V]`` each, the worker of each node.
        roots: How many seeds of each micro-batch are looked at.
    """
    found = Local({deal: Shares() for deal in owners}, [], [])
    for step, seeds in enumerate(micro_batches):
        blocks = draw(seeds, _EPOCH, step)
        whole = reaching(blocks)
        found.subgraph.append(len(whole))
        for place, root in enumerate(seeds[:roots].tolist()):
            own = reaching(blocks, place)
            found.micrograph.append(len(own))
            for deal, owner in owners.items():
                shares = found.shares[deal]
                for into, share in ((shares.micro, beside(own, root, owner)), (shares.sub, beside(whole, root, owner))):
                    into.extend([] if share is None else [share])
    return found


def difference(counts: Tensor) -> float:
    """The most less the fewest, over the most."""
    most = int(counts.max())
    return (most - int(counts.min())) / most if most else 0.0


def longest(seeds: Tensor, homes: Tensor, size: int, dropped: int) -> int:
    """Seeds of the worker with the most, summed over the time steps that are left as `migrate` merges them."""
    groups = [migration_schedule(seeds, homes, rank, size, dropped).groups for rank in range(size)]
    return sum(max(map(len, each)) for each in zip(*groups, strict=True))


def longest_at_random(num_seeds: int, homes: Tensor, size: int, dropped: int, key: int) -> int:
    """The same where each model drops time steps of its own at random (HopGNN §7.4).

    Models then go through those that each has left, and several may be with one worker at once.
    """
    counts, generator = seeds_met(num_seeds, homes, size), torch.Generator().manual_seed(key)
    loads = torch.zeros(size - dropped, size, dtype=torch.int64)
    for model, met in enumerate(counts):
        order = torch.randperm(size, generator=generator)
        left = [step for step in range(size) if step not in order[:dropped]]
        for place, (step, load) in enumerate(zip(left, merged_into(met, left, model), strict=True)):
            loads[place, (model + step) % size] += load
    return int(loads.amax(1).sum())


def seeds_met(num_seeds: int, homes: Tensor, size: int) -> Tensor:
    """``[P, P]`` int64: seeds of each model in each time step."""
    model = assign_models(num_seeds, size)
    time_step = (homes.long() - model) % size
    return (model * size + time_step).bincount(minlength=size * size).view(size, size)


def merged_into(met: Tensor, left: list[int], model: int) -> list[int]:
    """Seeds of a model in the time steps that are left, those of the others spread over them evenly."""
    moved = int(met.sum() - met[left].sum())
    each, rest = divmod(moved, len(left))
    return [int(met[step]) + each + ((place - model) % len(left) < rest) for place, step in enumerate(left)]
