"""Links to train on and to rank, as far as costs depend on them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from outgrow.engine.link_options import LinkOptions
from outgrow.planning.dataset_sizes import DatasetSizes


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkWork:
    """Links to train on and to rank.

    Attributes:
        options: How links are trained on.
        num_links: Number of links to train on.
        num_known: Number of known answers that a ranking lists, to queries for tails and for heads.
        columns: Numbers of a row of a node that links are scored by.
        val_queries: Numbers of queries of validation links that are ranked together, and how often so many are.
        test_queries: Likewise of test links.
        ranked_rows: Numbers of nodes whose rows are read to rank validation links, and test links.
        num_candidates: Number of candidates of a query; None for all nodes of a type.
        scores_relations: Whether scores depend on relations.
        ranks_by_products: Whether scores of all nodes are products of rows, of which a ranking keeps counts alone.
        copied_bytes: Bytes of the edges that each worker holds once more, without the links that are held out.
    """

    options: LinkOptions
    num_links: int
    num_known: int
    columns: int
    val_queries: tuple[tuple[int, int], ...]
    test_queries: tuple[tuple[int, int], ...]
    ranked_rows: tuple[int, int]
    num_candidates: int | None
    scores_relations: bool
    ranks_by_products: bool
    copied_bytes: int

    @property
    def num_pairs(self) -> int:
        """Number of pairs of nodes that are scored for a link, with negatives of its own."""
        return 1 if self.options.ranks_candidates else 1 + self.options.negatives

    def adapt_sizes(self, sizes: DatasetSizes) -> DatasetSizes:
        """Return the sizes of a graph whose links are trained on: rows take the place of logits."""
        val, test = self.ranked_rows
        return replace(sizes, train=self.num_links, classes=self.columns, label_bytes=0, val=val, test=test)
