"""Ways to get a distributed gradient wrong without any error. The suite must find each of them.

A mutant is a context in which some of the code is broken. Those of `full` and `sampled` are right on one worker, so
only a comparison between numbers of workers can find them. It counts how often what it does has made a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from suites import (
    edge_feature_mutants,
    full_mutants,
    migrate_mutants,
    offload_mutants,
    orchestrate_mutants,
    sampled_mutants,
    split_mutants,
    tensor_mutants,
)
from suites.hits import Hits


class Mutant(NamedTuple):
    """Broken code, and what it breaks.

    Attributes:
        broken: The context.
        breaks: Ways of training, all of which it breaks.
        convs: Layers, one of which at least it breaks.
    """

    broken: Callable[[], AbstractContextManager[Hits]]
    breaks: tuple[str, ...]
    convs: tuple[str, ...] = ("gcn", "gat-concatenated")


FULL = ("full", "full-without-overlap")
SAMPLED = ("sampled-everything", "sampled")
TRAVEL, MERGED = ("migrate-travel",), ("migrate-merged",)
SPLIT, SPLIT_DRAWS = ("split", "split-everything"), ("split", "split-sources")
OFFLOAD, WITHOUT_SHARING = ("offload-3",), ("offload-7-without-techniques",)
TENSOR = ("tensor",)
REUSE, ORCHESTRA = ("orchestrate-aggregate",), ("orchestrate-cold", "orchestrate-aggregate")
GCN, GAT = ("gcn",), ("gat-concatenated",)
SUMS = ("gcn", "sage-aggregate-first")
EDGES, LOOPS = ("gine", "gat-with-features-and-loops"), ("gat-with-features-and-loops",)
ATTENTION, APART, SCALES = (*GAT, "decoupled-attention"), ("ggcn", "sage-max"), ("rgcn-diagonal", "decoupled-relations")

RESTARTS = "decoupled-restarts", "decoupled-attention-restarts"

MUTANTS = {
    "stream_dropout": Mutant(full_mutants.stream_dropout, FULL + SAMPLED + SPLIT + OFFLOAD),
    "gradients_not_summed": Mutant(full_mutants.gradients_not_summed, FULL + SAMPLED + SPLIT + OFFLOAD),
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
    "mean_over_seeds_of_the_time_step": Mutant(sampled_mutants.mean_over_own_seeds, (*TRAVEL, *MERGED)),
    "gradients_lost_on_the_way": Mutant(migrate_mutants.gradients_lost_on_the_way, (*TRAVEL, *MERGED)),
    "gradients_kept_when_models_leave": Mutant(migrate_mutants.gradients_kept, (*TRAVEL, *MERGED)),
    "last_time_step_forgotten": Mutant(migrate_mutants.last_time_step_forgotten, (*TRAVEL, *MERGED)),
    "rows_gathered_once_misplaced": Mutant(migrate_mutants.rows_gathered_once_misplaced, TRAVEL),
    "labels_of_others_misplaced": Mutant(migrate_mutants.labels_of_others_misplaced, ("migrate-one-step",)),
    "rows_of_others_misplaced_in_a_split": Mutant(split_mutants.rows_of_others_misplaced, (*SPLIT, "split-sources")),
    "gradients_of_sent_rows_lost": Mutant(split_mutants.gradients_of_sent_rows_lost, (*SPLIT, "split-sources")),
    "asked_rows_in_another_order": Mutant(split_mutants.asked_rows_in_another_order, (*SPLIT, "split-sources")),
    "degrees_of_the_sample_in_a_split": Mutant(split_mutants.degrees_of_the_sample, SPLIT, GCN),
    "edge_numbers_of_the_part_of_a_block": Mutant(split_mutants.edge_numbers_of_the_part, SPLIT, GAT),
    "nothing_is_drawn_for_others": Mutant(split_mutants.nothing_is_drawn_for_others, SPLIT),
    "workers_split_by_seeds_of_their_own": Mutant(split_mutants.workers_draw_by_seeds_of_their_own, SPLIT_DRAWS),
    "parts_counted_twice": Mutant(split_mutants.parts_counted_twice, SPLIT, GCN),
    "weights_of_other_edges": Mutant(split_mutants.weights_of_other_edges, SPLIT, GCN),
    "mean_over_own_seeds_in_a_split": Mutant(split_mutants.mean_over_own_seeds, SPLIT),
    "kept_rows_misplaced": Mutant(split_mutants.kept_rows_misplaced, ("split",)),
    "draws_by_place_in_a_split": Mutant(tensor_mutants.draws_by_place, SPLIT),
    "gradients_not_summed_in_an_orchestra": Mutant(full_mutants.gradients_not_summed, ORCHESTRA, SUMS),
    "degrees_of_the_sample_in_an_orchestra": Mutant(sampled_mutants.degrees_of_the_sample, ORCHESTRA, GCN),
    "rows_of_others_misplaced_in_an_orchestra": Mutant(sampled_mutants.rows_of_others_misplaced, ORCHESTRA, SUMS),
    "rows_for_the_cpu_misplaced": Mutant(orchestrate_mutants.rows_for_the_cpu_misplaced, REUSE, SUMS),
    "hot_rows_misplaced": Mutant(orchestrate_mutants.hot_rows_misplaced, REUSE, SUMS),
    "hot_rows_in_the_place_of_others": Mutant(orchestrate_mutants.hot_rows_in_the_place_of_others, REUSE, SUMS),
    "hot_rows_without_gradient": Mutant(orchestrate_mutants.hot_rows_without_gradient, REUSE, SUMS),
    "hot_rows_without_dropout": Mutant(orchestrate_mutants.hot_rows_without_dropout, REUSE, SUMS),
    "aggregates_of_other_nodes": Mutant(orchestrate_mutants.aggregates_of_other_nodes, REUSE, SUMS),
    "mean_over_own_seeds_in_an_orchestra": Mutant(orchestrate_mutants.mean_over_own_seeds, ORCHESTRA, SUMS),
    "gradients_overwritten": Mutant(offload_mutants.gradients_overwritten, OFFLOAD, GCN),
    "gradients_of_the_step_before": Mutant(offload_mutants.gradients_of_the_step_before, WITHOUT_SHARING, GCN),
    "rows_from_host_misplaced": Mutant(offload_mutants.rows_from_host_misplaced, OFFLOAD, GCN),
    "degrees_of_the_chunk": Mutant(offload_mutants.degrees_of_the_chunk, OFFLOAD, GCN),
    "draws_by_place": Mutant(offload_mutants.draws_by_place, OFFLOAD, GCN),
    "edge_numbers_of_the_chunk": Mutant(offload_mutants.edge_numbers_of_the_chunk, OFFLOAD, GAT),
    "what_stays_begins_anew": Mutant(offload_mutants.what_stays_begins_anew, OFFLOAD, GCN),
    "gradients_for_others_kept": Mutant(offload_mutants.gradients_for_others_kept, OFFLOAD, GCN),
    "rows_of_others_brought_misplaced": Mutant(offload_mutants.rows_of_others_misplaced, OFFLOAD, GAT),
    "mean_over_own_nodes_in_chunks": Mutant(offload_mutants.mean_over_own_nodes, OFFLOAD, GCN),
    "places_in_use_taken": Mutant(offload_mutants.places_in_use_taken, OFFLOAD, GAT),
    "attention_without_gradient": Mutant(tensor_mutants.attention_without_gradient, TENSOR, ATTENTION),
    "backward_along_the_edges": Mutant(tensor_mutants.backward_along_the_edges, TENSOR, (*GCN, "decoupled")),
    "mean_of_local_means": Mutant(tensor_mutants.mean_of_local_means, TENSOR),
    "partial_gradients_of_scores": Mutant(tensor_mutants.partial_gradients_of_scores, TENSOR, ATTENTION),
    "columns_misplaced": Mutant(tensor_mutants.columns_misplaced, TENSOR, (*GCN, "decoupled")),
    "gradient_of_a_sum_for_its_first_channel": Mutant(
        tensor_mutants.gradient_of_a_sum_for_its_first_channel, TENSOR, ("rgcn-project-first",)
    ),
    "restarts_without_gradient": Mutant(tensor_mutants.restarts_without_gradient, TENSOR, RESTARTS),
    "rows_taken_for_sorted": Mutant(tensor_mutants.rows_taken_for_sorted, TENSOR),
    "slices_in_another_order": Mutant(tensor_mutants.slices_in_another_order, TENSOR, (*GCN, "ggcn")),
    "gradients_before_their_last_reader": Mutant(tensor_mutants.gradients_before_their_last_reader, TENSOR, APART),
    "parameters_without_gradient": Mutant(tensor_mutants.parameters_without_gradient, TENSOR, SCALES),
    "nodes_taken_for_ranges": Mutant(tensor_mutants.nodes_taken_for_ranges, TENSOR, GAT),
    "scales_of_the_first_columns": Mutant(tensor_mutants.scales_of_the_first_columns, TENSOR, SCALES),
    "draws_by_own_place": Mutant(tensor_mutants.draws_by_place, TENSOR),
    "features_by_place_in_the_part": Mutant(
        edge_feature_mutants.features_by_place_in_the_part, ("full", *OFFLOAD), EDGES
    ),
    "features_by_place_in_the_sample": Mutant(
        edge_feature_mutants.features_by_place_in_the_sample, ("sampled", "split"), EDGES
    ),
    "loops_with_features_of_the_next_edge": Mutant(
        edge_feature_mutants.loops_with_features_of_the_next_edge, ("full", *OFFLOAD), LOOPS
    ),
    "scores_of_other_edges": Mutant(edge_feature_mutants.scores_of_other_edges, TENSOR, LOOPS),
}
