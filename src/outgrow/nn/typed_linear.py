"""`TypedLinear`: a projection of its own for each node type. Letters as in `outgrow.nn.layer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.core.graph_types import GraphTypes
from outgrow.nn.hetero_checks import require_bound_types, require_widths, type_module_name
from outgrow.nn.layer import Features
from outgrow.nn.projection import Projection
from outgrow.nn.slot_layout import TypedRows, project_slots
from outgrow.ops.row_slots import Slot


@check_arguments()
class TypedLinear(nn.Module):
    """``y_v = x_v W_t (+ b_t)``, where ``t`` is the type of node ``v``; Glorot-uniform weights, zero biases.

    Args:
        in_features: Width ``D`` of all types; or of each type, if each has columns of its own, as in the features of a
            graph whose types have different ones: a node then reads the columns of its type only.
        out_features: ``O``.
        types: Names of the node types, in any order: `bind_types` matches them with those of a graph.
        bias: Whether to add a bias.

    Raises:
        InputError: There is no type, one is named twice, or ``in_features`` does not name the same types.
    """

    def __init__(
        self, in_features: int | Mapping[str, int], out_features: int, types: Sequence[str], *, bias: bool = False
    ) -> None:
        super().__init__()
        widths = dict(in_features) if isinstance(in_features, Mapping) else dict.fromkeys(types, in_features)
        _require_names(types, widths)
        self.types = tuple(types)
        self.in_features = in_features
        self.out_features = out_features
        self.projections = nn.ModuleDict(
            {type_module_name(name): Projection(widths[name], out_features, bias=bias) for name in types}
        )
        self._bound: GraphTypes | None = None

    def projection_of(self, type_name: str) -> Projection:
        """Return the projection of a type."""
        found = self.projections[type_module_name(type_name)]
        assert isinstance(found, Projection)
        return found

    def bind_types(self, types: GraphTypes) -> None:
        """Match the types with those of a graph, by name.

        Raises:
            InputError: The graph has other types, or types with columns of other widths.
        """
        require_same_types("a TypedLinear", self.types, types)
        if isinstance(self.in_features, Mapping):
            require_widths("a TypedLinear", self.in_features, types, shared=types.shares_columns)
        self._bound = types

    def forward(self, x_VD: Features, nodes_V: Tensor) -> Tensor:
        """Return ``[V, O]``.

        Args:
            x_VD: Rows of nodes.
            nodes_V: ``[V]`` int64, their global ids, by which types are known.
        """
        types = self.bound_types
        rows = TypedRows(types, nodes_V)
        columns = _columns(types) if isinstance(self.in_features, Mapping) else {}
        parts = [
            Slot(rows.rows.get(number, slice(0, 0)), *columns.get(name, (0, x_VD.shape[1])))
            for number, name in enumerate(types.names)
        ]
        projections = [self.projection_of(name) for name in types.names]
        biases = [each.bias for each in projections if each.bias is not None]
        return project_slots(x_VD, parts, [each.weight for each in projections], biases)

    @property
    def bound_types(self) -> GraphTypes:
        """The types of the graph.

        Raises:
            InputError: `bind_types` has not been called.
        """
        return require_bound_types("a TypedLinear", self._bound)


def require_same_types(what: str, known: Sequence[str], types: GraphTypes) -> None:
    """Check that some node types are those of a graph, in any order.

    Args:
        what: What has the types, for the error.
        known: Its types.
        types: Those of the graph.

    Raises:
        InputError: One is missing or unknown.
    """
    if sorted(known) != sorted(types.names):
        raise InputError(
            f"{what} was made for other node types",
            needed=", ".join(types.names),
            got=", ".join(known),
            repair="make the model with the names of graph.types",
        )


def _require_names(types: Sequence[str], widths: Mapping[str, int]) -> None:
    problem = "there is none" if not types else "one is named twice" if len(set(types)) < len(types) else ""
    if not {*map(type, types), *map(type, widths)} <= {str}:
        problem = "names that are no texts"
    if problem or set(widths) != set(types):
        raise InputError(
            "the node types of a TypedLinear are not well named",
            needed="the name of each type once, and a width for each",
            got=problem or f"types {', '.join(types)}, widths of {', '.join(widths)}",
            repair="give graph.types.names",
        )


def _columns(types: GraphTypes) -> dict[str, tuple[int, int]]:
    return {name: types.type_columns(name) for name in types.names}
