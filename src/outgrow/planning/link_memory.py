"""Bytes that links hold beside the layers: rows, pairs and scores of a step, and the ranking of links.

The factors below were fitted to measured runs; see `outgrow.planning.peak_memory`.
"""

from __future__ import annotations

from outgrow.engine.candidate_loss import BLOCK_BYTES
from outgrow.inference.chunked import MEMORY_SHARE
from outgrow.inference.query_scores import CHUNK_BYTES
from outgrow.planning.batch_stats import LinkStepStats
from outgrow.planning.cost_model import CostModel
from outgrow.planning.workload import Workload

_FETCHED = 3
"""Copies of rows that a step fetches: own ones are the output of the last layer."""
_PER_PAIR, _PER_LINK = 64, 160
"""Bytes of a pair of nodes, and of a link whose ends are queries: see `outgrow.engine.link_objective`."""
_PER_RELATION_PAIR = 128
"""Further bytes of a pair whose score depends on its relation: pairs are ordered by relations for their gradients."""
_PER_OWN_LINK = 48
"""Bytes of a link of the graph that a worker lists to select those of a step over the whole graph."""
_SCORE_COPIES = 4
"""Copies of the scores of a block of queries with their candidates."""
_PER_KNOWN = 12
"""Bytes of a known answer, as it is listed and sorted."""
_BEFORE_RANKING = 384 << 20
"""Bytes that a worker holds when rankings begin: of what is left of its memory, rows take a part."""
_RANKED_BESIDE = 0.5
"""Share of a ranking that is held beside what training leaves allocated."""
_RANKING_BLOCKS, _PRODUCT_BLOCKS = 2, 0.5
"""Blocks of scores that a ranking holds; of decoders that are products, which count as they go."""


def link_loss_bytes(work: Workload, stats: LinkStepStats) -> float:
    """Return the bytes of the rows, the pairs and the scores of a step, of the worker that has most of each."""
    links = work.links
    assert links is not None
    number = work.model.number_bytes
    rows = _FETCHED * float(stats.fetched_rows.sum(1).max())
    mine = float(stats.links.max())
    scores = min(float(BLOCK_BYTES), float(stats.queries.max()) * stats.candidates * number)
    held = rows * links.columns * number + _SCORE_COPIES * scores
    if work.batches.is_full_graph:
        held += _PER_OWN_LINK * links.num_links / len(stats.links)
    of_pair = _PER_PAIR + _PER_RELATION_PAIR * links.scores_relations
    if work.batches.is_full_graph and stats.steps > 1:
        # Steps differ in size: what one has freed is of no use to the next.
        of_pair *= 2
    of_link = of_pair * links.num_pairs + _PER_LINK * links.options.ranks_candidates
    return links.copied_bytes + held + of_link * mine


def ranking_bytes(work: Workload, costs: CostModel) -> float:
    """Return the bytes that rankings hold beside the rows of nodes: known answers, and blocks of scores."""
    links = work.links
    assert links is not None
    queries = max((count for count, _ in (*links.val_queries, *links.test_queries)), default=0)
    if not queries:
        return 0.0
    own = links.columns * work.model.number_bytes * max(links.ranked_rows) / costs.layout.workers
    # In a file where they are more, as `InferenceMemory.of_worker` decides.
    own = min(own, MEMORY_SHARE / 2 * max(0, costs.memory - _BEFORE_RANKING - links.copied_bytes))
    # Each worker scores the nodes that it owns.
    width = (links.num_candidates or max(links.ranked_rows)) / costs.layout.workers
    block = min(float(CHUNK_BYTES), 8.0 * queries * width)
    blocks = _PRODUCT_BLOCKS if links.ranks_by_products and links.num_candidates is None else _RANKING_BLOCKS
    # Known answers are looked up on the CPU.
    return _PER_KNOWN * links.num_known * costs.shares_device + own + blocks * block


def whole_graph_link_bytes(
    work: Workload, costs: CostModel, stats: LinkStepStats | None, *, in_slices: bool = False
) -> float:
    """Return the bytes of links beside those of training and evaluating whole layers; 0 for nodes.

    Args:
        work: The graph, the model and the links.
        costs: The cost model.
        stats: Statistics of the steps; None for nodes.
        in_slices: Whether columns are sliced: slices of training are dropped before links are ranked.
    """
    if stats is None:
        return 0.0
    loss, ranking = link_loss_bytes(work, stats), ranking_bytes(work, costs)
    # Some of what training has used stays allocated while links are ranked.
    return max(loss, ranking) if in_slices else loss + _RANKED_BESIDE * ranking
