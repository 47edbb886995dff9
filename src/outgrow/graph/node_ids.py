"""Ids that nodes have in the tables of a user: integers or texts, kept with the graph, and found by their value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.graph.id_order import Repetitions, Space, iterate_runs, sort_nodes
from outgrow.graph.likely_ids import find_likely_ids
from outgrow.ops.text_hash import find_integers, find_texts, hash_texts

ArrowArray = Any
"""An array of pyarrow."""
_SHOWN = 3


class TextArrays(NamedTuple):
    """Texts one after the other, as in Apache Arrow's large strings.

    Attributes:
        offsets: ``[n + 1]`` int64.
        data: ``[N]`` uint8, UTF-8; text ``i`` is ``data[offsets[i]:offsets[i + 1]]``.
    """

    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]

    @staticmethod
    def from_arrow(texts: ArrowArray) -> TextArrays:
        """Return the texts of an Arrow array of any text type without nulls; a view where its type permits."""
        import pyarrow as pa

        large = texts if pa.types.is_large_string(texts.type) else texts.cast(pa.large_string())
        buffers: Any = large.buffers()
        _, offsets, data = buffers
        ends = np.frombuffer(offsets, dtype=np.int64)[large.offset : large.offset + len(large) + 1]
        held = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, np.uint8)
        return TextArrays(ends if len(ends) else np.zeros(1, np.int64), held)

    def to_arrow(self) -> ArrowArray:
        """Return the texts as an Arrow array of large strings, without a copy."""
        import pyarrow as pa

        buffers = [None, pa.py_buffer(self.offsets.data), pa.py_buffer(self.data.data)]
        return pa.Array.from_buffers(pa.large_string(), len(self.offsets) - 1, buffers)

    def hash_range(self, first: int, last: int) -> NDArray[np.uint64]:
        """Return the hashes of the texts ``first`` to ``last - 1``."""
        hashes = np.empty(last - first, np.uint64)
        hash_texts(self.offsets[first : last + 1], self.data, hashes)
        return hashes

    def list_repeated(self, rows: NDArray[Any]) -> list[int]:
        """Return those of some texts that equal another one before them."""
        seen: set[bytes] = set()
        repeated = []
        for row in rows.tolist():
            text = self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()
            if text in seen:
                repeated.append(row)
            seen.add(text)
        return repeated

    def __len__(self) -> int:
        return len(self.offsets) - 1


@final
class NodeIds:
    """The id of each node. Arrays may be memory-mapped.

    Ids are all integers or all texts. They are unique among the nodes of one type.

    Attributes:
        values: ``[V]`` int64; None if ids are texts.
        offsets: ``[V + 1]`` int64, ends of texts in ``data``; None if ids are integers.
        data: ``[N]`` uint8, the texts in UTF-8; None if ids are integers.
        order: ``[V]`` integer: within the range of each node type, the nodes ascending by id or, of texts, by hash.
        hashes: ``[V]`` uint64 stored as int64 bits, the hash of text ``order[i]``; None if ids are integers.
    """

    def __init__(
        self,
        order: Tensor,
        *,
        values: Tensor | None = None,
        offsets: Tensor | None = None,
        data: Tensor | None = None,
        hashes: Tensor | None = None,
    ) -> None:
        self.order = order
        self.values = values
        self.offsets = offsets
        self.data = data
        self.hashes = hashes

    @staticmethod
    def from_integers(
        values: NDArray[np.int64],
        borders: Sequence[int] = (),
        *,
        scratch: Path | None = None,
        memory_bytes: int | None = None,
    ) -> NodeIds:
        """Return integer ids.

        Args:
            values: ``[V]``, the id of each node; kept without a copy if they can be written to.
            borders: ``[T + 1]``, first node of each type and ``V``; empty for one type.
            scratch: Folder for arrays that exceed the memory; None to make them in memory.
            memory_bytes: Bytes of memory that temporary arrays may take; None for any number.

        Raises:
            InputError: Two nodes of a type have the same id.
        """
        repeated = Repetitions()
        held = _keep_array(values, np.int64)

        def find_repeated(nodes: NDArray[Any], keys: NDArray[np.int64]) -> None:
            repeated.add_nodes(nodes[1:][keys[1:] == keys[:-1]])

        order, _ = sort_nodes(
            lambda first, last: held[first:last], len(held), borders, Space(scratch, memory_bytes), find_repeated
        )
        ids = NodeIds(torch.from_numpy(order), values=torch.from_numpy(held))
        ids._require_unique(repeated)
        return ids

    @staticmethod
    def from_texts(
        texts: TextArrays,
        borders: Sequence[int] = (),
        *,
        scratch: Path | None = None,
        memory_bytes: int | None = None,
    ) -> NodeIds:
        """Return ids that are texts.

        Args:
            texts: The id of each of ``V`` nodes, kept without a copy if they can be written to; the first offset must
                be 0.
            borders: ``[T + 1]``, first node of each type and ``V``; empty for one type.
            scratch: Folder for arrays that exceed the memory; None to make them in memory.
            memory_bytes: Bytes of memory that temporary arrays may take; None for any number.

        Raises:
            InputError: Two nodes of a type have the same id.
        """
        repeated = Repetitions()
        held = TextArrays(_keep_array(texts.offsets, np.int64), _keep_array(texts.data, np.uint8))

        def find_repeated(nodes: NDArray[Any], keys: NDArray[np.uint64]) -> None:
            for start, end in iterate_runs(keys):
                repeated.add_nodes(held.list_repeated(nodes[start:end]))

        order, hashes = sort_nodes(held.hash_range, len(held), borders, Space(scratch, memory_bytes), find_repeated)
        ids = NodeIds(
            torch.from_numpy(order),
            offsets=torch.from_numpy(held.offsets),
            data=torch.from_numpy(held.data),
            hashes=torch.from_numpy(hashes.view(np.int64)),
        )
        ids._require_unique(repeated)
        return ids

    def _require_unique(self, repeated: Repetitions) -> None:
        if repeated.count:
            raise duplicate_ids_error(repeated.count, [str(self[node]) for node in repeated.nodes])

    @property
    def are_text(self) -> bool:
        """Whether ids are texts, not integers."""
        return self.values is None

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, node: int) -> int | str:
        if self.values is not None:
            return int(self.values[node])
        node = node if node >= 0 else len(self) + node
        texts = self.texts
        first, last = texts.offsets[node : node + 2].tolist()
        return texts.data[first:last].tobytes().decode()

    def __iter__(self) -> Iterator[int | str]:
        return (self[node] for node in range(len(self)))

    def __repr__(self) -> str:
        return f"NodeIds({self.describe()})"

    def describe(self) -> str:
        """Return what ids are like, with the first three: ``3,000 texts: 'tx_1', 'tx_2', 'tx_3', ...``."""
        kind = "texts" if self.are_text else "integers"
        shown = ", ".join(repr(self[node]) for node in range(min(_SHOWN, len(self))))
        return f"{len(self):,} {kind}: {shown}{', ...' if len(self) > _SHOWN else ''}"

    def take_arrow(self, nodes: NDArray[np.int64]) -> ArrowArray:
        """Return the ids of some nodes, ``[n]``, as an Arrow array of int64 or large strings."""
        import pyarrow as pa

        if self.values is not None:
            return pa.array(self.values.numpy()[nodes], pa.int64())
        return self.texts.to_arrow().take(pa.array(nodes, pa.int64()))

    @property
    def texts(self) -> TextArrays:
        """The ids as texts; only if `are_text`."""
        assert self.offsets is not None
        assert self.data is not None
        return TextArrays(self.offsets.numpy(), self.data.numpy())

    def index_of(
        self,
        names: Sequence[str] | Sequence[int],
        ranges: Mapping[str, tuple[int, int]] | None = None,
        node_type: str | None = None,
    ) -> Tensor:
        """Return ``[n]`` int64, the nodes of some ids; see `outgrow.graph.graph.Graph.index_of`.

        Args:
            names: The ids.
            ranges: First node of each type, and the node after its last one; None for one type.
            node_type: Type of these nodes; None for any.

        Raises:
            InputError: No node or several nodes have an id, or there is no such type.
        """
        import pyarrow as pa

        wanted = pa.array([str(name) for name in names], pa.large_string())
        kinds = ranges or {}
        if node_type is not None:
            validate_choice("type of nodes", node_type, kinds)
        found = np.full(len(wanted), -1, np.int64)
        for first, last in [kinds[node_type]] if node_type else kinds.values() or [(0, len(self))]:
            here = self.find(wanted, first, last)
            if ((found >= 0) & (here >= 0)).any():
                raise _ambiguous_id_error(str(wanted[int(((found >= 0) & (here >= 0)).argmax())]), list(kinds))
            found = np.where(here >= 0, here, found)
        if (found < 0).any():
            missing = [str(wanted[int(at)]) for at in np.flatnonzero(found < 0)[:_SHOWN]]
            likely = find_likely_ids(self.texts.to_arrow(), missing[0]) if self.are_text else []
            raise unknown_ids_error(int((found < 0).sum()), missing, likely)
        return torch.from_numpy(found)

    def find(self, ids: ArrowArray, first: int = 0, last: int | None = None) -> NDArray[np.int64]:
        """Return the node of each id, -1 where no node has it.

        Args:
            ids: ``[n]`` Arrow array of integers or texts, without nulls. Integers are found among texts too, in
                decimal form; texts in decimal form among integers.
            first: First node of the type to search.
            last: The node after its last one; None for the last of all nodes.
        """
        import pyarrow as pa

        order = self.order.numpy()[first:last]
        out = np.empty(len(ids), np.int64)
        if self.values is not None:
            wanted, known = to_integers(ids)
            find_integers(wanted, self.values.numpy(), order, out)
            return np.where(known, out, -1)
        assert self.hashes is not None
        texts = TextArrays.from_arrow(ids.cast(pa.large_string()))
        hashes = texts.hash_range(0, len(texts))
        known_texts = self.texts
        find_texts(*texts, hashes, *known_texts, order, self.hashes.numpy().view(np.uint64)[first:last], out)
        return out


def _keep_array(values: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    held = np.ascontiguousarray(values, dtype)
    # Tensors can be written to: of what cannot, such as arrays of Arrow, they need a copy.
    return held if held.flags.writeable else held.copy()


def to_integers(ids: ArrowArray) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return ids as integers, where they are integers that fit 64 bits or texts in the form that these are written in.

    So ``"7"`` is 7, but ``"007"``, ``"+7"`` and ``"7.0"`` are not.

    Args:
        ids: ``[n]`` Arrow array of integers or texts, without nulls.

    Returns:
        ``[n]`` int64, 0 for others, and ``[n]`` bool: which of them are such integers.
    """
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_integer(ids.type) and ids.type != pa.uint64():
        return ids.cast(pa.int64()).to_numpy(zero_copy_only=False), np.ones(len(ids), bool)
    texts: ArrowArray = ids.cast(pa.large_string())
    known = np.array(compute.match_substring_regex(texts, r"^(0|-?[1-9][0-9]{0,17})$"), bool)
    # Those of 19 digits fit or not: they are few, and looked at one by one.
    for at in np.flatnonzero(np.asarray(compute.match_substring_regex(texts, r"^-?[1-9][0-9]{18}$"), bool)):
        known[at] = -(2**63) <= int(texts[int(at)].as_py()) < 2**63
    made = np.zeros(len(ids), np.int64)
    made[known] = texts.filter(pa.array(known)).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return made, known


def duplicate_ids_error(count: int, first: Sequence[str]) -> InputError:
    """Return the error of ids that several nodes have."""
    return InputError(
        "an id occurs twice among the nodes",
        needed="one row for each node",
        got=f"{count:,} repetitions, such as {', '.join(repr(name) for name in first)}",
        repair="drop the repeated rows of the node table",
    )


def unknown_ids_error(count: int, first: Sequence[str], likely: Sequence[str] = ()) -> InputError:
    """Return the error of ids that no node has; ``likely`` are those that may have been meant by the first."""
    return InputError(
        "no node has such an id",
        needed="ids of nodes of the graph",
        got=f"{count:,} others, such as {', '.join(repr(name) for name in first)}",
        repair=f"did you mean {' or '.join(repr(name) for name in likely)}?"
        if likely
        else "correct the ids; outgrow info shows what ids are like",
    )


def _ambiguous_id_error(name: str, kinds: Sequence[str]) -> InputError:
    return InputError(
        f"nodes of several types have the id {name!r}",
        needed=f"the type of the nodes: {', '.join(kinds)}",
        got="none",
        repair="give node_type",
    )
