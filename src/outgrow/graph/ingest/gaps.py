"""Numbers of nodes that only a file's word stands for."""

from __future__ import annotations

from outgrow.core.errors import InputError

_FEW_NODES, _NODES_EACH = 1 << 23, 64


def check_gaps(num_nodes: int, num_known: int, where: str) -> None:
    """Refuse far more nodes than anything is known of: a few bytes would claim all memory.

    Args:
        num_nodes: ``V``, as ids or a number in a file tell it.
        num_known: How many edges or rows the file has.
        where: What to call the file in the error.

    Raises:
        InputError: Over 8 million nodes, and over 64 for each edge or row.
    """
    most = _FEW_NODES + _NODES_EACH * num_known
    if num_nodes > most:
        raise InputError(
            f"{where}: node ids leave out nearly all numbers",
            needed=f"at most {most:,} nodes where {num_known:,} edges or rows are known",
            got=f"{num_nodes:,} nodes",
            repair="relabel the ids of an edge table, or give num_nodes if there are so many nodes without edges",
        )
