"""Reader of the folders of GraphBolt's ``OnDiskDataset``: ``metadata.yaml`` beside arrays; DGL itself is not imported.

``metadata.yaml`` names the edges of each type (``csv`` without a header, or ``numpy`` of shape ``[2, E]``), features
of nodes and edges, and tasks with the nodes to train, validate and test on and their labels.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.files import os_errors_as_input_errors
from outgrow.core.validation import describe_value
from outgrow.graph.readers.dgl import NO_TYPE, DglEdges, DglNodes, DglSource
from outgrow.graph.readers.typed_parts import Relation

METADATA = "metadata.yaml"
_SETS = {"train_set": "train_mask", "validation_set": "val_mask", "test_set": "test_mask"}
_SEEDS = ("seeds", "seed_nodes")
_NO_RELATION = (NO_TYPE, "_E", NO_TYPE)


def read_on_disk_dataset(folder: Path) -> DglSource:
    """Return the source of a folder; arrays in NumPy's format are mapped.

    Of several features of a type those that `DglSource` reads by their names are read, or the only one; of edges also
    ``weight``; of several tasks the first.

    Args:
        folder: The folder with ``metadata.yaml``.

    Raises:
        InputError: A file that is missing, broken or of another form, or a task that is not about nodes.
    """
    return _Folder(folder).read()


@final
class _Folder:
    def __init__(self, folder: Path) -> None:
        import yaml

        self.folder = folder
        path = folder / METADATA
        with self._refuse_errors(path, "YAML", yaml.YAMLError):
            given = yaml.safe_load(path.read_bytes())
        self.metadata = self._mapping(given, "the file")
        self.unread: list[str] = []

    def read(self) -> DglSource:
        graph = self._mapping(self.metadata.get("graph"), "graph")
        counts: dict[str, int] = {}
        for at, each in enumerate(self._list(graph, "nodes")):
            number = each.get("num")
            if type(number) is not int or number < 0:
                raise self._error(f"graph.nodes[{at}].num", "the number of nodes", describe_value(number))
            counts[self._type(each)] = number
        data = self._read_features(counts)
        self._read_tasks(counts, data)
        edges = []
        for at, each in enumerate(self._list(graph, "edges")):
            relation = self._relation(each.get("type"), f"graph.edges[{at}].type")
            src, dst = self._read_ends(each, f"graph.edges[{at}]")
            edges.append(DglEdges(relation, src, dst, data.get(":".join(relation), {})))
        nodes = [DglNodes(kind, count, data.get(kind, {})) for kind, count in counts.items()]
        name = str(self.metadata.get("dataset_name") or self.folder.absolute().name)
        return DglSource(nodes, edges, name, unread=self.unread)

    def _read_features(self, counts: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        """Return the arrays of each node type and edge type by name."""
        made: dict[str, dict[str, Any]] = {}
        for at, each in enumerate(self._list(self.metadata, "feature_data", required=False)):
            where = f"feature_data[{at}]"
            of_nodes = each.get("domain") == "node"
            if not of_nodes and each.get("domain") != "edge":
                self.unread.append(f"{where} of {describe_value(each.get('domain'))}")
                continue
            kind = self._type(each) if of_nodes else ":".join(self._relation(each.get("type"), f"{where}.type"))
            if of_nodes and kind not in counts:
                raise self._error(f"{where}.type", f"a type of nodes: {', '.join(counts)}", kind)
            made.setdefault(kind, {})[str(each.get("name"))] = self._read_array(each, where)
        for kind, arrays in made.items():
            # The only array of rows of a type is its features, whatever its name.
            name, values = next(iter(arrays.items()))
            if len(arrays) == 1 and values.ndim == 2 and name != "weight":
                made[kind] = {"feat": values}
        return made

    def _read_tasks(self, counts: Mapping[str, int], data: dict[str, dict[str, Any]]) -> None:
        """Add masks and labels of the first task to the data of node types."""
        tasks = self._list(self.metadata, "tasks", required=False)
        self.unread += [f"tasks[{at}]" for at in range(1, len(tasks))]
        for name, mask in _SETS.items() if tasks else ():
            for at, each in enumerate(self._list(tasks[0], name, required=False)):
                where = f"tasks[0].{name}[{at}]"
                kind = self._type(each)
                arrays = {
                    str(array.get("name")): self._read_array(array, f"{where}.data")
                    for array in self._list(each, "data")
                }
                seeds = next((arrays[found] for found in _SEEDS if found in arrays), None)
                if seeds is None or seeds.ndim != 1 or seeds.dtype.kind not in "iu" or kind not in counts:
                    needed = "seeds of shape [n], nodes of a type: links are held out by og.train itself"
                    raise self._error(where, needed, f"{', '.join(arrays)} of {kind}")
                if len(seeds) and not 0 <= int(seeds.min()) <= int(seeds.max()) < counts[kind]:
                    raise self._error(where, f"nodes from 0 to {counts[kind] - 1}", f"up to {seeds.max()}")
                held = data.setdefault(kind, {})
                held[mask] = np.zeros(counts[kind], bool)
                held[mask][seeds] = True
                if "labels" in arrays:
                    self._add_labels(held, seeds, arrays["labels"], counts[kind], where)

    def _add_labels(
        self, held: dict[str, Any], seeds: NDArray[Any], labels: NDArray[Any], count: int, where: str
    ) -> None:
        given = labels.reshape(-1) if labels.ndim == 2 and labels.shape[1] == 1 else labels
        if len(given) != len(seeds) or given.ndim > 2 or given.dtype.kind not in "iufb":
            got = f"{given.dtype} of shape {list(given.shape)} for {len(seeds)} seeds"
            raise self._error(where, "a label for each of the seeds", got)
        if "label" not in held or held["label"].shape[1:] != given.shape[1:]:
            is_number = given.dtype.kind == "f"
            unknown: Any = np.nan if is_number else 0 if given.ndim == 2 else -1
            held["label"] = np.full((count, *given.shape[1:]), unknown, given.dtype if is_number else np.int64)
        held["label"][seeds] = given

    def _read_ends(self, each: Mapping[str, Any], where: str) -> tuple[NDArray[Any], NDArray[Any]]:
        if each.get("format") == "csv":
            import pyarrow as pa
            from pyarrow import csv

            path = self._path(each, where)
            with self._refuse_errors(path, "two columns of integers without names", pa.ArrowInvalid):
                columns = csv.read_csv(path, read_options=csv.ReadOptions(autogenerate_column_names=True))
            ends = [np.asarray(column.combine_chunks()) for column in columns.columns]
        else:
            pairs = self._read_array(each, where)
            ends = [*pairs] if pairs.ndim == 2 else []
        if len(ends) != 2 or any(end.dtype.kind not in "iu" for end in ends):
            got = f"{len(ends)} columns of {', '.join(str(end.dtype) for end in ends[:3])}"
            raise self._error(where, "sources and destinations: numpy of shape [2, E], or csv of two columns", got)
        return ends[0], ends[1]

    def _read_array(self, each: Mapping[str, Any], where: str) -> NDArray[Any]:
        import torch

        path, form = self._path(each, where), each.get("format")
        if form not in ("numpy", "torch"):
            raise self._error(f"{where}.format", "numpy or torch", describe_value(form))
        with self._refuse_errors(
            path, f"an array as {form} saves it", ValueError, RuntimeError, EOFError, pickle.PickleError
        ):
            if form == "numpy":
                return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
            made = torch.load(path, weights_only=True, map_location="cpu")
        if not isinstance(made, torch.Tensor):
            raise self._error(where, "a tensor", type(made).__name__)
        return made.numpy()

    def _path(self, each: Mapping[str, Any], where: str) -> Path:
        given = each.get("path")
        if not isinstance(given, str):
            raise self._error(f"{where}.path", "a path", describe_value(given))
        return self.folder / given

    def _type(self, each: Mapping[str, Any]) -> str:
        return str(each.get("type") or NO_TYPE)

    def _relation(self, given: Any, where: str) -> Relation:
        if given is None:
            return _NO_RELATION
        parts = str(given).split(":")
        if len(parts) != 3:
            raise self._error(where, "SOURCE:RELATION:DESTINATION", describe_value(given))
        return parts[0], parts[1], parts[2]

    def _mapping(self, given: Any, where: str) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise self._error(where, "keys with values", describe_value(given))
        return given

    def _list(self, given: Mapping[str, Any], key: str, *, required: bool = True) -> list[dict[str, Any]]:
        found = given.get(key)
        if found is None and not required:
            return []
        if not isinstance(found, list) or (required and not found):
            raise self._error(key, "a list", describe_value(found))
        return [self._mapping(each, f"{key}[{at}]") for at, each in enumerate(found)]

    def _refuse_errors(self, path: Path, needed: str, *errors: type[Exception]) -> Any:
        return os_errors_as_input_errors(
            f"{path} cannot be read", needed=needed, repair=f"correct the file or {METADATA}", also=errors
        )

    def _error(self, where: str, needed: str, got: str) -> InputError:
        return InputError(
            f"{where} of {self.folder / METADATA} cannot be used",
            needed=needed,
            got=got,
            repair="correct the file: see OnDiskDataset in the documentation of DGL",
        )
