"""The arrays that a store has of a graph, by name, and how they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from outgrow.graph.store.manifest import BFLOAT16, TYPE_FEATURES, TYPE_LABELS
from outgrow.graph.store.writer import StoreWriter

if TYPE_CHECKING:
    from torch import Tensor

    from outgrow.graph.graph import Graph
    from outgrow.graph.link_split import HeldOutLinks
    from outgrow.graph.node_ids import NodeIds
    from outgrow.graph.topology import Topology
    from outgrow.ops.owned_rows import NodeFeatures

PARTS = ("train", "val", "test")
LINK_PARTS = ("val", "test")
_BLOCK_BYTES = 1 << 24
_Nodes = TypeVar("_Nodes")


def graph_arrays(graph: Graph) -> dict[str, Tensor]:
    """Return the arrays that a store of a graph has, by name."""
    topology = graph.topology
    given: dict[str, Tensor | None] = {
        "indptr": topology.indptr,
        "indices": topology.indices,
        "relation": topology.relation,
        "weight": topology.weight,
        "edge_features": topology.edge_features,
        "edge_time": topology.edge_time,
        "node_time": topology.node_time,
        **time_order_arrays(topology),
        "labels": graph.labels,
    }
    parts = [(split.train, split.val, split.test) for split in (graph.split, *graph.splits)]
    given |= split_arrays(parts[0], parts[1:])
    given |= feature_arrays(graph.features)
    given |= {f"{TYPE_LABELS}{number}": each.labels for number, each in enumerate(graph.type_labels)}
    given |= id_arrays(graph.ids) | held_out_link_arrays(graph.held_out_links)
    # Tensors that require gradients cannot become NumPy arrays.
    return {name: values.detach() for name, values in given.items() if values is not None}


def feature_arrays(features: NodeFeatures | None) -> dict[str, Tensor]:
    """Return the arrays of features, by name; of the rows that are here, if these are those of a part."""
    from outgrow.ops.block_rows import BlockRows
    from outgrow.ops.owned_rows import held_rows
    from outgrow.ops.sparse import SparseRows

    if features is None:
        return {}
    rows = held_rows(features)
    if isinstance(rows, BlockRows):
        return {f"{TYPE_FEATURES}{number}": block for number, block in enumerate(rows.blocks)}
    if isinstance(rows, SparseRows):
        return {"feature_indptr": rows.indptr, "feature_indices": rows.indices, "feature_values": rows.values}
    return {"features": rows}


def split_arrays(
    split: tuple[_Nodes, _Nodes, _Nodes], splits: Sequence[tuple[_Nodes, _Nodes, _Nodes]]
) -> dict[str, _Nodes]:
    """Return the parts of the chosen split, ``train``, ``val`` and ``test``, and ``train_0``, ... of all splits."""
    arrays = dict(zip(PARTS, split, strict=True))
    for at, parts in enumerate(splits):
        arrays |= {f"{name}_{at}": part for name, part in zip(PARTS, parts, strict=True)}
    return arrays


def time_order_arrays(topology: Topology) -> dict[str, Tensor]:
    """Return ``time_order`` and ``ordered_time``, the in-edges of every node by time; empty if there are no times."""
    if topology.edge_time is None and topology.node_time is None:
        return {}
    import torch

    edges, times = topology.time_order
    return {"time_order": torch.from_numpy(edges), "ordered_time": torch.from_numpy(times)}


def id_arrays(ids: NodeIds | None) -> dict[str, Tensor]:
    """Return the arrays of ids, ``ids`` of integers or ``id_offsets`` and ``id_data`` of texts, and their order."""
    if ids is None:
        return {}
    given = {
        "ids": ids.values,
        "id_offsets": ids.offsets,
        "id_data": ids.data,
        "id_order": ids.order,
        "id_hashes": ids.hashes,
    }
    return {name: values for name, values in given.items() if values is not None}


def held_out_link_arrays(links: HeldOutLinks | None) -> dict[str, Tensor]:
    """Return ``val_links`` and ``test_links``, ``[n, 3]`` each: head, tail, relation; and what they are ranked among.

    That is ``val_heads``, ``val_tails``, ``test_heads`` and ``test_tails``, ``[n, K]`` each, if they come with it.
    """
    import torch

    if links is None:
        return {}
    arrays = {f"{name}_links": torch.stack(list(part), 1) for name, part in zip(LINK_PARTS, links, strict=True)}
    for name, candidates in zip(LINK_PARTS, links.candidates, strict=True):
        given = {} if candidates is None else candidates._asdict()
        arrays |= {f"{name}_{end}s": nodes.long() for end, nodes in given.items() if nodes is not None}
    return arrays


def write_array(writer: StoreWriter, name: str, tensor: Tensor) -> None:
    """Write a tensor as an array of a store, in blocks."""
    import torch

    # NumPy has no bfloat16: the file holds the bits, and the manifest names the type.
    values = stored_values(tensor)
    array = writer.create_array(
        name, values.dtype, values.shape[1:], BFLOAT16 if tensor.dtype == torch.bfloat16 else None
    )
    for block in iterate_row_blocks(values):
        array.append_rows(block)


def stored_values(tensor: Tensor) -> NDArray[Any]:
    """Return the values of a tensor as the file of a store has them."""
    import torch

    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def iterate_row_blocks(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield rows in blocks: a mapped tensor larger than memory must not be copied as a whole."""
    rows = max(1, _BLOCK_BYTES // max(1, values[:1].nbytes))
    for first in range(0, len(values), rows):
        yield values[first : first + rows]


def ids_of_arrays(arrays: Mapping[str, Tensor]) -> NodeIds | None:
    """Return the ids whose arrays are among those of a store; None if there are none."""
    from outgrow.graph.node_ids import NodeIds

    if "id_order" not in arrays:
        return None
    return NodeIds(
        arrays["id_order"],
        values=arrays.get("ids"),
        offsets=arrays.get("id_offsets"),
        data=arrays.get("id_data"),
        hashes=arrays.get("id_hashes"),
    )


def held_out_links_of_arrays(arrays: Mapping[str, Tensor]) -> HeldOutLinks | None:
    """Return the links to validate and test on that are among the arrays of a store; None if there are none."""
    from outgrow.graph.link_split import HeldOutLinks, LinkCandidates
    from outgrow.graph.link_triples import LinkTriples

    if "val_links" not in arrays:
        return None
    val, test = (LinkTriples(*arrays[f"{name}_links"].unbind(1)) for name in LINK_PARTS)
    ends = [[arrays.get(f"{name}_{end}s") for end in LinkCandidates._fields] for name in LINK_PARTS]
    candidates = (None if both == [None, None] else LinkCandidates(*both) for both in ends)
    return HeldOutLinks(val, test, *candidates)
