"""Ways to get a distributed gradient wrong without any error. The suite must find each of them.

A mutant is a context in which some of the code is broken. It is right on one worker, so only a comparison between
numbers of workers can find it. It counts how often what it does has made a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from suites import full_mutants, sampled_mutants
from suites.hits import Hits


class Mutant(NamedTuple):
    """Broken code, and the ways of training that it breaks."""

    broken: Callable[[], AbstractContextManager[Hits]]
    breaks: tuple[str, ...]


FULL = ("full", "full-without-overlap")
SAMPLED = ("sampled-everything", "sampled")

MUTANTS = {
    "stream_dropout": Mutant(full_mutants.stream_dropout, FULL + SAMPLED),
    "gradients_not_summed": Mutant(full_mutants.gradients_not_summed, FULL + SAMPLED),
    "block_degrees": Mutant(full_mutants.block_degrees, FULL),
    "edge_numbers_of_the_part": Mutant(full_mutants.edge_numbers_of_the_part, FULL),
    "halo_of_wrong_owner": Mutant(full_mutants.halo_of_wrong_owner, FULL),
    "forgotten_backward_exchange": Mutant(full_mutants.forgotten_backward_exchange, FULL),
    "mean_over_own_nodes": Mutant(full_mutants.mean_over_own_nodes, FULL),
    "degrees_of_the_sample": Mutant(sampled_mutants.degrees_of_the_sample, SAMPLED),
    "edge_numbers_of_the_sample": Mutant(sampled_mutants.edge_numbers_of_the_sample, SAMPLED),
    "workers_draw_by_seeds_of_their_own": Mutant(sampled_mutants.workers_draw_by_seeds_of_their_own, ("sampled",)),
    "mean_over_own_seeds": Mutant(sampled_mutants.mean_over_own_seeds, SAMPLED),
    "rows_of_others_misplaced": Mutant(sampled_mutants.rows_of_others_misplaced, SAMPLED),
}
