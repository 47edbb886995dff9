"""Old names of members and modules that work for one more version, with a warning: see `outgrow.core.deprecation`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from outgrow.core.deprecation import renamed_names

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


MOVED: dict[str, tuple[str, dict[str, str]]] = {
    "outgrow.engine.full_pass": ("outgrow.engine.full_graph", {"full_pass": "full_forward"}),
    "outgrow.engine.journey": ("outgrow.engine.model_migration", {"Tour": "MicroBatchPlan"}),
    "outgrow.engine.micro_batches": (
        "outgrow.engine.minibatch_loop",
        {"Ahead": "PrefetchConfig", "sampler_of": "make_sampler"},
    ),
    "outgrow.engine.rows": (
        "outgrow.engine.features.remote",
        {"RowStore": "RemoteFeatureStore", "row_type": "input_dtype"},
    ),
    "outgrow.nn.opaque": ("outgrow.nn.pyg", {"PyGConv": "PyGConv", "edge_index": "edge_index"}),
    "outgrow.ops.keyed": ("outgrow.ops.rng", {"derive": "fold_in"}),
    "outgrow.ops.weighted_sum": ("outgrow.ops.aggregation.weighted_sum", {"WeightedSum": "WeightedSum"}),
}
"""The new path of each old one, and the new names of what it held."""


class MovedModuleFinder(MetaPathFinder, Loader):
    """Finds modules by their old paths, as modules that give their old names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        new_module, names = MOVED[module.__name__]
        setattr(module, "__getattr__", renamed_names(module.__name__, names, new_module))  # noqa: B010 - mypy refuses it


def install_moved_modules() -> None:
    """Let imports find the old paths, after all that exists."""
    if not any(isinstance(finder, MovedModuleFinder) for finder in sys.meta_path):
        sys.meta_path.append(MovedModuleFinder())
