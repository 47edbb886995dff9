"""Likely mistakes in a graph: what looks wrong in the facts that `outgrow info` tells, and what repairs it.

A check takes the facts and returns a mistake, or None. Each asks for signs that a graph hardly has by chance: what is
merely unusual is not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Facts = Mapping[str, Any]
_SHOWN = 5


class LikelyMistake(NamedTuple):
    """What is likely wrong.

    Attributes:
        name: Name of the check.
        what: What was found, in a sentence.
        repair: What to do, if it is a mistake.
    """

    name: str
    what: str
    repair: str


def find_likely_mistakes(facts: Facts) -> list[LikelyMistake]:
    """Return what looks wrong in the facts of `outgrow.app.graph_facts.describe_graph`."""
    return [found for check in CHECKS if (found := check(facts)) is not None]


def _check_isolated(facts: Facts) -> LikelyMistake | None:
    nodes, isolated = facts["nodes"], facts["isolated_nodes"]
    if isolated is None or isolated < 0.5 * nodes or nodes < 2:
        return None
    return LikelyMistake(
        "isolated_nodes",
        f"{isolated:,} of {nodes:,} nodes have no edge",
        "check that the ids in the edges are those of the nodes, and that the edges were read",
    )


def _check_off_by_one(facts: Facts) -> LikelyMistake | None:
    homophily = facts["homophily"]
    if homophily is not None and homophily["if_moved_by_one"] > homophily["edge"] + 0.2:
        return LikelyMistake(
            "ids_off_by_one",
            f"ends of edges have the same label in {homophily['edge']:.0%}, but in {homophily['if_moved_by_one']:.0%} "
            "if every label is moved by one node",
            "subtract 1 from the ids in the edges if they begin with 1, or give the labels in the order of nodes",
        )
    # Ids that are kept are matched by value, so that they may begin anywhere.
    alone = facts["first_node_is_isolated"] and facts["isolated_nodes"] <= max(1, 0.001 * facts["nodes"])
    if facts["ids_are"] != "numbers" or facts["nodes"] < 10 or not alone:
        return None
    return LikelyMistake(
        "ids_off_by_one",
        "node 0 has no edge, and nearly all others have one: ids look numbered from 1",
        "subtract 1 from the ids in the edges, or convert with --relabel, which keeps them",
    )


def _check_one_direction(facts: Facts) -> LikelyMistake | None:
    homophily = facts["homophily"]
    # Relations run one way by their meaning. Some edges go both ways by chance.
    if facts["relations"] or facts["edges"] < 20 or facts["reciprocal_edges"] > 0.05:
        return None
    if homophily is None or (homophily["adjusted"] or 0) <= 0.2:
        return None
    # That says the same, and more.
    if _check_no_in_edges(facts) is not None:
        return None
    return LikelyMistake(
        "one_direction",
        f"few edges go both ways ({facts['reciprocal_edges']:.1%}), and edges join equal labels "
        f"({homophily['edge']:.0%}): nodes do not see what follows them",
        "convert with --undirected (undirected=True), unless the direction matters",
    )


def _check_no_in_edges(facts: Facts) -> LikelyMistake | None:
    without, train = facts["train_nodes_without_in_edges"], facts["train_nodes"]
    if not facts["edges"] or train < 2 or without < 0.9 * train or facts["nodes_without_in_edges"] == facts["nodes"]:
        return None
    # Where whole nodes are isolated, another check says so.
    if facts["isolated_nodes"] is not None and facts["isolated_nodes"] >= 0.5 * facts["nodes"]:
        return None
    return LikelyMistake(
        "training_nodes_without_in_edges",
        f"{without:,} of {train:,} nodes to train on have no in-edge: edges go from them only, and along an edge the "
        "destination sees the source",
        "convert with --undirected, or give the edges the other way round",
    )


def _check_constant_features(facts: Facts) -> LikelyMistake | None:
    constant = facts.get("constant_feature_columns", [])
    if not constant or len(constant) < facts["features"]:
        return None
    return LikelyMistake(
        "constant_features",
        f"all {facts['features']:,} feature columns have one value each, the same for every node",
        "check which columns were read as features",
    )


def _check_label_columns(facts: Facts) -> LikelyMistake | None:
    columns = facts.get("columns_that_tell_label", [])
    if not columns:
        return None
    return LikelyMistake(
        "label_among_features",
        f"{_list_columns(columns)} of the features {'tells' if len(columns) == 1 else 'tell'} the label of every node: "
        "it is among the features",
        "leave it out (--features COLUMN,...)",
    )


def _check_numbering_columns(facts: Facts) -> LikelyMistake | None:
    columns = facts.get("columns_that_number_nodes", [])
    if not columns:
        return None
    return LikelyMistake(
        "id_among_features",
        f"{_list_columns(columns)} of the features {'grows' if len(columns) == 1 else 'grow'} from each node to the "
        "next in whole numbers, as an id does",
        "leave it out (--features COLUMN,...)",
    )


def _check_split_leak(facts: Facts) -> LikelyMistake | None:
    share = facts.get("test_rows_in_train", 0.0)
    # Features of few values repeat anyway: then they do so within the training nodes as well.
    if share < 0.05 or share < 3 * facts["train_rows_repeated"]:
        return None
    return LikelyMistake(
        "split_leak",
        f"{share:.0%} of the nodes to test on have the features and the label of a node to train on, while of these "
        f"{facts['train_rows_repeated']:.0%} repeat another",
        "merge nodes that are the same, or put both into one part of the split",
    )


def _check_unlabelled_training(facts: Facts) -> LikelyMistake | None:
    without = facts["train_nodes_without_label"]
    if not without:
        return None
    return LikelyMistake(
        "training_nodes_without_label",
        f"{without:,} of {facts['train_nodes']:,} nodes to train on have no label, and are passed over",
        "label them, or take them out of the split",
    )


def _check_classes_in_training(facts: Facts) -> LikelyMistake | None:
    if not facts["train_nodes"]:
        return None
    # Only classes that are asked for: a name without any node is harmless.
    missing = [row["class"] for row in facts["class_counts"] if not row["train"] and (row["val"] or row["test"])]
    if not missing:
        return None
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return LikelyMistake(
        "classes_without_training_nodes",
        f"no node to train on is of {'class' if len(missing) == 1 else 'the classes'} "
        f"{', '.join(missing[:_SHOWN])}{more}, but nodes to validate or test on are",
        "draw the split again, stratified, or merge rare classes",
    )


def _check_imbalance(facts: Facts) -> LikelyMistake | None:
    rows = [row for row in facts["class_counts"] if row["train"]]
    total = sum(row["train"] for row in rows)
    # Labels of several classes at a node are mostly zeros, which says nothing.
    if facts["labels_per_node"] == "several" or len(rows) < 2 or total < 20:
        return None
    largest = max(rows, key=lambda row: int(row["train"]))
    if largest["train"] < 0.95 * total:
        return None
    return LikelyMistake(
        "imbalanced_classes",
        f"{largest['train'] / total:.1%} of the nodes to train on are of class {largest['class']}: always answering it "
        "looks accurate",
        'give class_weight="balanced", and --metric f1-macro --set monitor=f1-macro to choose the epoch',
    )


def _check_weights(facts: Facts) -> LikelyMistake | None:
    if facts["weight_range"] is None:
        return None
    low, high = facts["weight_range"]
    if low < 0:
        return LikelyMistake(
            "negative_weights",
            f"weights of edges go down to {low:.6g}: layers that divide by their sum refuse them",
            "choose a layer that sums, such as gin, or make two relations of them, one for either sign",
        )
    if low == high and facts["edges"] > 1:
        return LikelyMistake(
            "equal_weights",
            f"all weights of edges are {low:.6g}",
            "check which column was read as the weight (--columns weight=COLUMN), or leave it out",
        )
    return None


CHECKS: tuple[Callable[[Facts], LikelyMistake | None], ...] = (
    _check_isolated,
    _check_off_by_one,
    _check_one_direction,
    _check_no_in_edges,
    _check_constant_features,
    _check_label_columns,
    _check_numbering_columns,
    _check_split_leak,
    _check_unlabelled_training,
    _check_classes_in_training,
    _check_imbalance,
    _check_weights,
)
"""All checks, in the order in which what they find is shown."""


def _list_columns(columns: list[int]) -> str:
    more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    shown = ", ".join(str(column) for column in columns[:_SHOWN])
    return f"{'column' if len(columns) == 1 else 'columns'} {shown}{more}"
