"""Files of node embeddings beside checkpoints: vectors and moments of all nodes, by node, whoever owned them.

They are written and read in blocks, so that vectors larger than memory are saved. A file is an ``.npy`` array
``[m, W]``: for each node with a vector, in the order of nodes, the columns of each section. The checkpoint has the
names of the sections and the SHA-256 of the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.files import atomic_write, os_errors_as_input_errors
from outgrow.core.ledger import Kind
from outgrow.engine.embeddings.table import BEST, VALUES, EmbeddingTable
from outgrow.engine.shard import gather_node_rows
from outgrow.nn.node_embedding import find_embeddings
from outgrow.ops.backend import as_numpy
from outgrow.training.node_embeddings import NodeEmbeddings

SUFFIX = ".rows.npy"
_BLOCK_NODES = 1 << 17
_IN_MEMORY_BYTES = 1 << 28
"""Vectors up to this size are read into memory; larger ones stay in their file."""


def write_vectors(folder: Path | None, stem: str, embeddings: NodeEmbeddings) -> dict[str, Any]:
    """Write the vectors and moments of all nodes; return what the checkpoint records. All workers together.

    Args:
        folder: Folder of the checkpoints, on rank 0.
        stem: Name of the checkpoint without its suffix.
        embeddings: The tables.

    Raises:
        InputError: A file cannot be written.
    """
    return {table.name: _save_table(folder, f"{stem}.{table.name}{SUFFIX}", table) for table in embeddings.tables}


def _save_table(folder: Path | None, name: str, table: EmbeddingTable) -> dict[str, Any]:
    sections = table.sections
    width = len(sections) * table.embedding.dim
    num_rows = sum(last - first for first, last in table.ranges)
    record = {"file": name, "sections": [*sections], "rows": num_rows, "steps": table.num_steps}
    blocks = _gather_blocks(table, table.read_sections)
    if not table.comm.is_rank_zero:
        for _ in blocks:
            pass
        return record
    assert folder is not None
    digest = hashlib.sha256()
    with os_errors_as_input_errors(
        f"cannot write the vectors {folder / name}",
        needed=f"a folder with {num_rows * width * table.embedding.dtype.itemsize:,} bytes of free space",
        repair="free some space, and go on with --resume",
    ):
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / name, temporary=f"{name}.partial") as temporary, temporary.open("wb") as file:
            dtype = np.dtype(np.float64 if table.embedding.dtype == torch.float64 else np.float32)
            header = {"descr": dtype.str, "fortran_order": False, "shape": (num_rows, width)}
            np.lib.format.write_array_header_1_0(file, header)
            for block in blocks:
                rows = np.ascontiguousarray(as_numpy(block.cpu())).data
                digest.update(rows)
                file.write(rows)
    return {**record, "sha256": digest.hexdigest()}


def _gather_blocks(table: EmbeddingTable, read: Callable[[int, int], Tensor]) -> Iterator[Tensor]:
    """Yield rows of consecutive nodes, ``[n, W]``, of a range of own rows by ``read``; none on ranks other than 0."""
    comm = table.comm
    for first, last in table.ranges:
        for start in range(first, last, _BLOCK_NODES):
            end = min(start + _BLOCK_NODES, last)
            low, high = torch.searchsorted(table.nodes, torch.tensor([start, end])).tolist()
            rows = read(low, high)
            if comm.size == 1:
                yield rows
                continue
            nodes, found = gather_node_rows(comm, table.nodes[low:high], rows, Kind.PARAMETERS)
            out = torch.empty_like(found)
            out[(nodes - start).to(out.device)] = found
            yield out


def restore_vectors(folder: Path | None, saved: Mapping[str, Any], embeddings: NodeEmbeddings) -> None:
    """Set all tables to what a checkpoint has. All workers together.

    Args:
        folder: Folder of the checkpoint, on rank 0.
        saved: What `write_vectors` returned.
        embeddings: The tables.

    Raises:
        InputError: A file is missing, changed, or of other vectors.
    """
    for table in embeddings.tables:
        record = saved.get(table.name)
        _validate_record(record, table)
        assert record is not None
        array = None
        if table.comm.is_rank_zero:
            assert folder is not None
            array = _open_rows(folder / record["file"], record)
        if BEST in record["sections"] and table.best is None:
            table.best = table.add_section(BEST)
        # In one pass: vectors may be larger than memory.
        digest = _scatter_blocks(table, array, record["sections"])
        if array is not None and digest != record.get("sha256"):
            assert folder is not None
            raise _changed_error(folder / record["file"], record, len(array))
        table.num_steps = record["steps"]


def _scatter_blocks(table: EmbeddingTable, array: np.ndarray[Any, Any] | None, names: Sequence[str]) -> str:
    """Write what a file has into a table; return the checksum, on rank 0."""
    comm, row = table.comm, 0
    digest = hashlib.sha256()
    for first, last in table.ranges:
        for start in range(first, last, _BLOCK_NODES):
            end = min(start + _BLOCK_NODES, last)
            given = None
            if array is not None:
                read = np.array(array[row : row + end - start])
                digest.update(read.data)
                given = torch.from_numpy(read)
            row += end - start
            # Other hosts may not see the file.
            block = comm.broadcast(given, Kind.PARAMETERS)
            low, high = torch.searchsorted(table.nodes, torch.tensor([start, end])).tolist()
            here = table.nodes[low:high]
            mine = block if len(here) == len(block) else block[here - start]
            table.write_sections(low, names, mine.to(comm.device))
    return digest.hexdigest()


def read_vectors(folder: Path, saved: Mapping[str, Any], model: torch.nn.Module, *, best: bool) -> None:
    """Give the embeddings of a model the vectors of a checkpoint; large ones stay in their file, which is mapped.

    Args:
        folder: Folder of the checkpoint.
        saved: What `write_vectors` returned.
        model: The model.
        best: Whether those of the best epoch are wanted, if there was one.

    Raises:
        InputError: A file is missing, or of other vectors.
    """
    for name, embedding in find_embeddings(model).items():
        record = saved.get(name)
        if record is None:
            raise _other_error(name, f"vectors named {', '.join(saved) or 'none'}")
        array = _open_rows(folder / record["file"], record)
        section = BEST if best and BEST in record["sections"] else VALUES
        at = record["sections"].index(section) * embedding.dim
        if array.shape[1] != len(record["sections"]) * embedding.dim:
            raise _other_error(name, f"vectors of {array.shape[1] // len(record['sections'])} numbers")
        rows = array[:, at : at + embedding.dim]
        embedding.weight = torch.from_numpy(np.array(rows) if rows.nbytes <= _IN_MEMORY_BYTES else rows)


def gather_vectors(embeddings: NodeEmbeddings) -> None:
    """Give the modules on rank 0 the vectors of all nodes, where they are in memory. All workers together."""
    for table in embeddings.tables:
        blocks = _gather_blocks(table, table.values.read_range)
        rows = [block.to("cpu", copy=True) for block in blocks]
        if table.comm.is_rank_zero:
            table.embedding.weight = torch.cat(rows) if rows else None


def remove_embeddings(checkpoint: Path) -> None:
    """Remove the vectors of a checkpoint that was removed."""
    for path in checkpoint.parent.glob(f"{checkpoint.stem}.*{SUFFIX}*"):
        path.unlink(missing_ok=True)


def _open_rows(path: Path, record: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    try:
        # Copied on a write: torch warns of arrays that cannot be written.
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read the vectors of a checkpoint, {path}",
            needed="the file that was written beside the checkpoint",
            got=str(error)[:200],
            repair="put it back, or go on from another checkpoint",
        ) from error
    if len(array) != record["rows"]:
        raise _changed_error(path, record, len(array))
    return array  # type: ignore[no-any-return]


def _changed_error(path: Path, record: Mapping[str, Any], num_rows: int) -> InputError:
    return InputError(
        f"the vectors in {path} are not those of the checkpoint",
        needed=f"{record['rows']:,} rows with the checksum that was recorded",
        got=f"{num_rows:,} rows, changed since",
        repair="put the file back, or go on from another checkpoint",
    )


def _validate_record(record: Mapping[str, Any] | None, table: EmbeddingTable) -> None:
    needed = {VALUES, *table.optimizer.state_names}
    num_rows = sum(last - first for first, last in table.ranges)
    if record is None:
        raise _other_error(table.name, "no vectors")
    if record["rows"] != num_rows or not needed <= {*record["sections"]}:
        raise _other_error(
            table.name,
            f"{record['rows']:,} rows with {', '.join(record['sections'])}",
            f"{num_rows:,} rows with " + ", ".join(sorted(needed)),
        )


def _other_error(name: str, got: str, needed: str = "those that this model and graph have") -> InputError:
    return InputError(
        f"the checkpoint has other vectors than {name}",
        needed=needed,
        got=got,
        repair="use the model, the graph and the embedding_optimizer that the run was started with",
    )
