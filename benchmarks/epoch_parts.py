"""What an epoch of GCN or GAT must compute and move at least: two layers, whole graph, dense constant features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rivals.common import HEADS

FLOAT = 4
AGGREGATION = "aggregation"
AGGREGATION_BACKWARD = "transposed aggregation"
SOFTMAX = "edge softmax"
SOFTMAX_BACKWARD = "gradient of the edge softmax"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the epoch.

    Attributes:
        name: What it does.
        group: Row of the profile that it is a part of.
        product: Shape ``(m, k, n)`` of a matrix product; None if it is none.
        streamed: Bytes read and written in order.
        gathered: Bytes of rows read by the graph's indices.
        width: Columns of those rows; 0 if there are none.
    """

    name: str
    group: str
    product: tuple[int, int, int] | None = None
    streamed: int = 0
    gathered: int = 0
    width: int = 0

    @property
    def flops(self) -> int:
        """Multiplications and additions of the product; others are too few to count."""
        return 2 * self.product[0] * self.product[1] * self.product[2] if self.product else 0


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of the graph and of the model: ``edges`` with one self-loop per node, ``trained`` nodes in the loss."""

    nodes: int
    edges: int
    wide: int
    hidden: int
    classes: int
    trained: int


def count_gcn_parts(sizes: Sizes) -> list[Part]:
    """Project before summing where that is narrower, sum constant features once, before the first epoch."""
    nodes, wide, hidden, classes = sizes.nodes, sizes.wide, sizes.hidden, sizes.classes
    return [
        *_product("layer 1 projection", nodes, wide, hidden),
        *_product("layer 2 projection", nodes, hidden, classes),
        *_product("layer 2 gradient of weight", hidden, nodes, classes),
        *_product("layer 2 gradient of input", nodes, classes, hidden),
        *_product("layer 1 gradient of weight", wide, nodes, hidden),
        Part(name="layer 1 aggregation (constant: once, before the first epoch)", group=AGGREGATION),
        _gathered_sum("layer 2 aggregation", AGGREGATION, sizes, classes),
        _gathered_sum("layer 2 transposed aggregation", AGGREGATION_BACKWARD, sizes, classes),
        *_element_wise_parts(sizes, wide * hidden + hidden + hidden * classes + classes),
    ]


def count_gat_parts(sizes: Sizes) -> list[Part]:
    """Attention: scores of nodes, a softmax over in-edges, a weighted sum; one gather for both gradients of the sum.

    Exponentials are not counted, and values of edges in the order of out-edges only once each, as if they lay in order:
    the bound is lower than what can be reached.
    """
    nodes, wide, hidden, classes = sizes.nodes, sizes.wide, sizes.hidden, sizes.classes
    parameters = wide * hidden + 3 * hidden + hidden * classes + 3 * classes
    return [
        *_product("layer 1 projection", nodes, wide, hidden),
        *_product("layer 1 scores", nodes, wide, 2 * HEADS),
        *_product("layer 2 projection", nodes, hidden, classes),
        *_product("layer 2 scores", nodes, classes, 2),
        *_product("layer 2 gradient of input of scores", nodes, 2, classes),
        *_product("layer 2 gradient of weight", hidden, nodes, classes),
        *_product("layer 2 gradient of input", nodes, classes, hidden),
        *_product("layer 1 gradient of weight", wide, nodes, hidden),
        *_product("layer 1 gradient of weight of scores", wide, nodes, 2 * HEADS),
        *_attention_parts("layer 1", sizes, HEADS, hidden),
        *_attention_parts("layer 2", sizes, 1, classes),
        *_element_wise_parts(sizes, parameters),
    ]


PARTS: Mapping[str, Callable[[Sizes], list[Part]]] = {"gcn": count_gcn_parts, "gat": count_gat_parts}


def _attention_parts(layer: str, sizes: Sizes, heads: int, columns: int) -> list[Part]:
    # Weights of edges, or their gradients, once; ids of edges and starts of rows.
    values, ids = FLOAT * sizes.edges * heads, FLOAT * sizes.edges + 8 * sizes.nodes
    scores = {"gathered": values, "width": heads}
    of_nodes = FLOAT * sizes.nodes * heads
    return [
        Part(name=f"{layer} edge softmax", group=SOFTMAX, streamed=ids + of_nodes + values, **scores),
        _gathered_sum(f"{layer} weighted sum", AGGREGATION, sizes, columns, more=values),
        # The rows of sources in order, and the weights and their gradients with the places where they lie.
        _gathered_sum(
            f"{layer} gradients of the weighted sum",
            AGGREGATION_BACKWARD,
            sizes,
            columns,
            more=2 * values + FLOAT * sizes.edges + FLOAT * sizes.nodes * columns,
        ),
        Part(
            name=f"{layer} gradient of the edge softmax",
            group=SOFTMAX_BACKWARD,
            # In-edges: weights, gradients, result. Out-edges: the result again, with the places where it lies.
            streamed=2 * ids + 4 * values + 3 * of_nodes,
            **scores,
        ),
    ]


def _element_wise_parts(sizes: Sizes, parameters: int) -> list[Part]:
    nodes, hidden, classes, trained = sizes.nodes, sizes.hidden, sizes.classes, sizes.trained
    return [
        Part(name="bias and activation, in place", group="element-wise", streamed=2 * FLOAT * nodes * hidden),
        Part(
            name="gradient of activation and bias 1, in place",
            group="element-wise",
            streamed=3 * FLOAT * nodes * hidden,
        ),
        Part(name="gradient of bias 2", group="element-wise", streamed=FLOAT * nodes * classes),
        Part(name="cross-entropy and its gradient", group="loss", streamed=FLOAT * classes * (trained + nodes)),
        Part(name="Adam", group="optimizer", streamed=7 * FLOAT * parameters),
    ]


def _gathered_sum(name: str, group: str, sizes: Sizes, columns: int, more: int = 0) -> Part:
    # Ids, row starts, scales and sums, in order.
    in_order = FLOAT * sizes.edges + 8 * sizes.nodes + FLOAT * sizes.nodes * (1 + columns) + more
    return Part(name=name, group=group, streamed=in_order, gathered=FLOAT * sizes.edges * columns, width=columns)


def _product(name: str, m: int, k: int, n: int) -> list[Part]:
    return [Part(name=name, group=name, product=(m, k, n), streamed=FLOAT * (m * k + k * n + m * n))]
