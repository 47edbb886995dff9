"""Bytes that links hold beside the layers: rows, pairs and scores of a step, and the ranking of links.

The factors below were fitted to measured runs; see `outgrow.planning.peak_memory`.
"""

from __future__ import annotations

from outgrow.engine.candidate_loss import BLOCK_BYTES
from outgrow.inference.query_scores import CHUNK_BYTES
from outgrow.planning.cost_model import CostModel
from outgrow.planning.workload import LinkStepStats, Workload

_ROWS = 4
"""Copies of the rows of a step: own and received ones, their gradient and its parts."""
_PER_PAIR, _PER_LINK = 96, 160
"""Bytes of a pair of nodes, and of a link whose ends are queries: see `outgrow.engine.link_objective`."""
_SCORE_COPIES = 4
"""Copies of the scores of a block of queries with their candidates."""
_PER_KNOWN = 24
"""Bytes of a known link: its name for either end, sorted."""
_RANKING_BLOCKS = 3
"""Blocks of scores that a ranking holds."""


def link_loss_bytes(work: Workload, stats: LinkStepStats) -> float:
    """Return the bytes of the rows, the pairs and the scores of a step, of the worker that has most of each."""
    links = work.links
    assert links is not None
    number = work.model.number_bytes
    rows = float((stats.read_rows + stats.fetched_rows.sum(1)).max())
    mine = float(stats.links.max())
    scores = min(float(BLOCK_BYTES), float(stats.queries.max()) * stats.candidates * number)
    held = _ROWS * rows * links.columns * number + _SCORE_COPIES * scores
    return held + _PER_PAIR * mine * links.num_pairs + _PER_LINK * mine * links.options.ranks_candidates


def ranking_bytes(work: Workload, costs: CostModel) -> float:
    """Return the bytes that rankings hold beside the rows of nodes: known answers, and blocks of scores."""
    links = work.links
    assert links is not None
    queries = max((count for count, _ in (*links.val_queries, *links.test_queries)), default=0)
    if not queries:
        return 0.0
    own = links.columns * work.model.number_bytes * max(links.ranked_rows) / costs.layout.workers
    width = max(links.ranked_rows) if links.num_candidates is None else links.num_candidates
    block = min(float(CHUNK_BYTES), 8.0 * queries * width)
    # Known answers are looked up on the CPU.
    return _PER_KNOWN * links.num_known * costs.shares_device + own + _RANKING_BLOCKS * block


def whole_graph_link_bytes(work: Workload, costs: CostModel, stats: LinkStepStats | None) -> float:
    """Return the bytes of links beside those of training and evaluating whole layers; 0 for nodes."""
    if stats is None:
        return 0.0
    # What training has used last stays allocated while links are ranked.
    return max(link_loss_bytes(work, stats), ranking_bytes(work, costs))
