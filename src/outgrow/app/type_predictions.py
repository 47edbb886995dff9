"""Predictions of several node types, each with classes or numbers of its own, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.graph.graph import Graph
from outgrow.nn.tasks import MultiLabel, NodeRegression

TYPED_OUTPUTS = ("classes", "probabilities", "logits", "embeddings")
"""What can be written where types have outputs of their own; classes with the values of regressions."""


@dataclass(frozen=True, kw_only=True)
class TypeOutputs:
    """The outputs of the nodes of one type.

    Attributes:
        name: Name of the type.
        first: Its first node.
        last: The node after its last one.
        first_column: Its first output among those of all types.
        num_outputs: Number of its outputs.
        task: Name of its task.
        class_names: Name of each class, or empty.
    """

    name: str
    first: int
    last: int
    first_column: int
    num_outputs: int
    task: str
    class_names: tuple[str, ...] = ()

    @property
    def columns(self) -> slice:
        """Its outputs among those of all types."""
        return slice(self.first_column, self.first_column + self.num_outputs)

    def rows_of(self, nodes: Tensor) -> Tensor:
        """Return ``[k]`` bool: which nodes are of the type."""
        return (nodes >= self.first) & (nodes < self.last)


def list_type_outputs(graph: Graph, targets: Sequence[Mapping[str, Any]]) -> tuple[TypeOutputs, ...]:
    """Return the outputs of the types that a run has recorded, for the nodes of a graph."""
    kinds = {kind.name: kind for kind in graph.node_types}
    made, column = [], 0
    for each in targets:
        kind = kinds.get(each["type"])
        if kind is not None:
            made.append(
                TypeOutputs(
                    name=kind.name,
                    first=kind.first,
                    last=kind.last,
                    first_column=column,
                    num_outputs=each["outputs"],
                    task=each["task"],
                    class_names=tuple(each["class_names"]),
                )
            )
        column += each["outputs"]
    return tuple(made)


def choose_typed_output(what: str | None, out: Path) -> str:
    """Return what to write of several types: as asked for, or else classes.

    Raises:
        InputError: It cannot be written, or not as an array.
    """
    chosen = what or TYPED_OUTPUTS[0]
    if chosen not in TYPED_OUTPUTS or (out.suffix == ".npy" and chosen in TYPED_OUTPUTS[:2]):
        is_array = chosen in TYPED_OUTPUTS
        raise InputError(
            f"the run has no {chosen} that one {'array' if is_array else 'file'} could hold",
            needed="a table, since node types have outputs of their own; or logits, or embeddings"
            if is_array
            else f"one of {', '.join(TYPED_OUTPUTS)}",
            got=f"--what {chosen} in {out.name}",
            repair="give --out predictions.parquet" if is_array else "leave --what out: values are beside the classes",
        )
    return chosen


def join_type_columns(
    types: Sequence[TypeOutputs], nodes: Tensor, logits: Tensor, make_columns: Callable[[TypeOutputs, Tensor], Any]
) -> dict[str, Any]:
    """Return the columns of all types, null for nodes of other types.

    Columns of one name are one column; those of several labels a node have the name of the type before theirs.

    Args:
        types: Outputs of each type.
        nodes: ``[k]`` int64, the nodes of the rows.
        logits: ``[k, C]``.
        make_columns: Returns the columns by name of rows of one type.
    """
    import pyarrow as pa
    from pyarrow import compute

    joined: dict[str, Any] = {}
    for each in types:
        mine = each.rows_of(nodes)
        places = pa.array((mine.cumsum(0) - 1).numpy(), mask=~mine.numpy())
        for label, column in make_columns(each, logits[mine][:, each.columns]).items():
            name = f"{each.name}/{label}" if each.task == MultiLabel.kind else label
            spread = column.take(places)
            joined[name] = compute.coalesce(joined[name], spread) if name in joined else spread
    return joined


def compute_type_probabilities(types: Sequence[TypeOutputs], nodes: Tensor, logits: Tensor) -> Tensor:
    """Return ``[k, C]`` probabilities of the classes of the type of each node; NaN for outputs of other types.

    Numbers of a regression are as they are.
    """
    made = torch.full_like(logits, torch.nan)
    for each in types:
        mine = each.rows_of(nodes)
        own = logits[mine][:, each.columns]
        if each.task != NodeRegression.kind:
            own = own.sigmoid() if each.task == MultiLabel.kind else own.softmax(1)
        made[mine, each.columns] = own
    return made
