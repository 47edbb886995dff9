"""The exactness suite on workers that are threads of the test process, as it should be and under each mutant."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from outgrow.engine.shard import PartitionShard
from suites.cases import Case
from suites.exactness import CASES, QUICK, Found, Key, broken_keys, part_of, split_by_memory, steps, storage_reads
from suites.mutants import MUTANTS
from thread_group import run_in_threads


class Held(NamedTuple):
    """Own nodes, nodes of the halo and edges of a worker."""

    nodes: int
    halo: int
    edges: int


class Seen(NamedTuple):
    """What one worker has.

    Attributes:
        right: What it should have, by way and case.
        mutated: By mutant, what it gives instead.
        hits: By mutant, how often it changed something on all workers.
        held: By case, how much the worker holds.
    """

    right: Found
    mutated: dict[str, Found]
    hits: dict[str, int]
    held: dict[Case, Held]


def see(workers: int) -> list[Seen]:
    """What each of some workers has, which are threads: first as it should be, and then under each mutant."""
    right, mutated, hits = in_threads(QUICK, workers), {}, {}
    for name, mutant in MUTANTS.items():
        with mutant.broken() as counted:
            mutated[name] = in_threads(broken_keys(mutant), workers)
        hits[name] = counted.count
    held = run_in_threads(lambda place: {case: held_by(part_of(case, place.comm)) for case in CASES}, workers)
    return [
        Seen(right[rank], {name: found[rank] for name, found in mutated.items()}, hits, held[rank])
        for rank in range(workers)
    ]


def in_threads(keys: Sequence[Key], workers: int) -> list[Found]:
    """What ways give in some cases on workers that are threads, by rank."""
    found: list[Found] = [{} for _ in range(workers)]
    for pinned, mine in split_by_memory(keys):
        with storage_reads(pinned):
            # Rows of others are read here, from the same host, and asked for, from another.
            for rank, part in enumerate(run_in_threads(partial(steps, keys=mine), workers, hosts=2)):
                found[rank].update(part)
    return found


def held_by(part: PartitionShard) -> Held:
    """How much of a graph a worker holds."""
    edges = part.topology.indptr.diff()[part.owned_nodes].sum()
    return Held(len(part.owned_nodes), len(part.halo_nodes), int(edges))
