"""Old names of what users' subclasses define or use, where there are many; each for `outgrow.core.deprecation`."""

from __future__ import annotations

CONV_SPEC = {
    "fixed_weight": "static_edge_weight",
    "raw_source": "source_is_input",
    "whole_rows": "needs_full_neighborhood",
}
CONV = {
    "widths": "spec",
    "takes_sparse": "accepts_sparse",
    "takes_half": "accepts_half",
    "both": "source_and_target",
    "weigh": "edge_weight",
    "summing_first": "aggregate_first",
    "late_bias": "epilogue_bias",
}
LAYER = {
    "watch": "output_hook",
    "widths": "spec",
    "takes_sparse": "accepts_sparse",
    "takes_half": "accepts_half",
    "ends": "source_and_target",
    "summing_first": "aggregate_first",
    "constant_aggregate": "has_static_aggregate",
}
COMM = {
    "rows": "all_to_all",
    "sum_": "all_reduce",
    "gather": "all_gather_object",
    "aside": "background_comm",
    "leads": "is_rank_zero",
    "swapped": "all_to_all_counts",
    "sum_gradients": "all_reduce_gradients",
}
