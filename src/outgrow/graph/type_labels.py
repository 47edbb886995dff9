"""Labels of node types that have labels of their own: other classes, or another kind of labels, for each type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError

NO_TARGET = -1
"""What stands for the target of a node that has none, in the first column of joined labels."""


@check_arguments()
@dataclass(frozen=True, kw_only=True, eq=False)
class TypeLabels:
    """Labels of the nodes of one type.

    Attributes:
        name: Name of the node type.
        labels: ``[n]`` or ``[n, C]`` of its ``n`` nodes in order, in one of the forms of ``Graph.labels``.
        num_classes: ``C``, classes or targets of a regression.
        class_names: Name of each class, or empty.
    """

    name: str
    labels: Tensor
    num_classes: int
    class_names: tuple[str, ...] = ()

    @property
    def are_numbers(self) -> bool:
        """Whether labels are numbers to predict, and no classes."""
        return self.labels.is_floating_point()

    @property
    def num_columns(self) -> int:
        """Columns of the labels of a node."""
        return 1 if self.labels.dim() == 1 else self.labels.shape[1]


def unknown_label(labels: Tensor) -> float:
    """Return what stands for an unknown label: NaN, -1, or, of several labels a node, 0."""
    return float("nan") if labels.is_floating_point() else -1 if labels.dim() == 1 else 0


def spread_labels(given: TypeLabels, first: int, num_nodes: int) -> Tensor:
    """Return ``[V]`` or ``[V, C]`` labels of all nodes, unknown for those of other types.

    Args:
        given: Labels of one type.
        first: Its first node.
        num_nodes: ``V``.
    """
    labels = given.labels
    spread = torch.full((num_nodes, *labels.shape[1:]), unknown_label(labels), dtype=labels.dtype)
    spread[first : first + len(labels)] = labels
    return spread


def label_fields(given: Sequence[TypeLabels], first: int, num_nodes: int) -> dict[str, Any]:
    """Return the fields of a graph with the labels of these types alone, by name.

    Args:
        given: Labels of one type, which become those of the graph, or of several.
        first: First node of the first one.
        num_nodes: ``V``.
    """
    single = len(given) == 1
    return {
        "labels": spread_labels(given[0], first, num_nodes) if single else None,
        "type_labels": () if single else tuple(given),
        "num_classes": sum(each.num_classes for each in given),
        "class_names": given[0].class_names if single else (),
    }


def join_type_labels(given: Sequence[TypeLabels], first_nodes: Mapping[str, int], num_nodes: int) -> Tensor:
    """Return ``[V, 1 + L]``: the number of the target of each node, -1 for none, and its labels, padded with zeros.

    ``L`` is the largest number of columns of the labels of a type. The type is one that holds the labels of all types.

    Args:
        given: Labels of each target, in the order of their numbers.
        first_nodes: First node of each type, by its name.
        num_nodes: ``V``.
    """
    # Signed, for nodes without a target; float32 does not hold every class of int32.
    dtype = reduce(torch.promote_types, (each.labels.dtype for each in given), torch.int16)
    is_wide = any(each.labels.dtype in (torch.int32, torch.int64) for each in given)
    dtype = torch.float64 if dtype.is_floating_point and (is_wide or dtype.itemsize < 4) else dtype
    joined = torch.zeros(num_nodes, 1 + max(each.num_columns for each in given), dtype=dtype)
    joined[:, 0] = NO_TARGET
    for number, each in enumerate(given):
        rows = joined[first_nodes[each.name] : first_nodes[each.name] + len(each.labels)]
        rows[:, 0] = number
        rows[:, 1 : 1 + each.num_columns] = each.labels.view(len(each.labels), -1)
    return joined


def has_labels(labels: Tensor) -> bool:
    """Whether any label is known; of several labels a node, whether any is set."""
    return bool((~labels.isnan() if labels.is_floating_point() else labels != unknown_label(labels)).any())


def mark_ranges(nodes: Tensor, ranges: Sequence[tuple[int, int]]) -> Tensor:
    """Return ``[n]`` bool: which nodes ``[n]`` are in some ranges, each from its first node to before its last."""
    marked = torch.zeros(len(nodes), dtype=torch.bool)
    for first, last in ranges:
        marked |= (nodes >= first) & (nodes < last)
    return marked


def check_target_names(
    names: Sequence[str], with_labels: Sequence[str], node_types: Sequence[str], graph_name: str
) -> None:
    """Check that node types can be predicted.

    Args:
        names: The types to predict.
        with_labels: The types that have labels.
        node_types: All types of the graph.
        graph_name: Name of the graph, for errors.

    Raises:
        InputError: There is no such type, it has no labels, a name is given twice, or there is none.
    """
    refused = [name for at, name in enumerate(names) if name not in with_labels or name in names[:at]]
    if names and not refused:
        return
    if not names:
        got = "none"
    elif not node_types:
        got = f"{refused[0]}, of a graph whose nodes have no types"
    elif refused[0] in with_labels:
        got = f"{refused[0]} twice"
    else:
        got = f"{refused[0]}, {'which has no labels' if refused[0] in node_types else 'which is no type of its nodes'}"
    raise InputError(
        f"the targets cannot be predicted of {graph_name!r}",
        needed=f"node types with labels, each once: {', '.join(with_labels) or 'there are none'}",
        got=got,
        repair="correct --target (targets)" if with_labels else "leave --target (targets) out",
    )
