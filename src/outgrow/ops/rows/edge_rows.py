"""Features of edges, taken from those of a graph by the positions of edges there."""

from __future__ import annotations

from torch import Tensor

from outgrow.ops.rows.gather import gather_rows


def gather_edge_features(features_ED: Tensor, edges_N: Tensor) -> Tensor:
    """Return ``[N, De]``: the features of some edges; zeros, or codes of -1, where there is no edge.

    Args:
        features_ED: ``[E, De]`` numbers, or integer codes of categories; may be mapped from a file.
        edges_N: ``[N]`` int64, positions of edges; negative for self-loops that were added.
    """
    if not len(features_ED):
        return features_ED.new_full((len(edges_N), features_ED.shape[1]), _absent_value(features_ED))
    return _mark_absent(features_ED.index_select(0, edges_N.clamp_min(0)), edges_N)


def gather_sampled_features(features_ED: Tensor, edges_N: Tensor, out_ND: Tensor) -> Tensor:
    """Write the result of `gather_edge_features` to ``out``, on the calling thread alone, and return it."""
    if len(features_ED):
        gather_rows(features_ED, edges_N.clamp_min(0), out_ND, None)
    return _mark_absent(out_ND, edges_N)


def edge_row_bytes(features_ED: Tensor | None) -> int:
    """Return the bytes of the features of an edge; 0 if there are none."""
    return 0 if features_ED is None else features_ED.shape[1] * features_ED.itemsize


def _mark_absent(rows_ND: Tensor, edges_N: Tensor) -> Tensor:
    absent = edges_N < 0
    if absent.any():
        rows_ND[absent] = _absent_value(rows_ND)
    return rows_ND


def _absent_value(features: Tensor) -> int:
    return 0 if features.is_floating_point() else -1
