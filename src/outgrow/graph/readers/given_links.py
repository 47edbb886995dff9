"""Links to validate and to test on, as OGB's folders and PyG's objects have them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.files import os_errors_as_input_errors
from outgrow.graph.link_split import HeldOutLinks, LinkCandidates
from outgrow.graph.link_triples import LinkTriples

_FILES = ("valid.pt", "test.pt")
_CANDIDATES = {"head_neg": "head", "tail_neg": "tail", "target_node_neg": "tail"}
_OF_TYPES = ("head_type", "tail_type")


class LinkFiles(NamedTuple):
    """Held-out links of an OGB folder, and what its files have besides.

    Attributes:
        links: The links.
        unread: Names of the keys that are not read, with their files.
    """

    links: HeldOutLinks
    unread: tuple[str, ...]


def is_link_split(folder: Path) -> bool:
    """Return whether a folder of OGB's ``split/`` has links, not nodes."""
    return all((folder / name).is_file() for name in _FILES)


def read_link_files(folder: Path) -> LinkFiles:
    """Read the links to validate and to test on of an OGB folder (Hu et al., NeurIPS 2020).

    Files hold ``edge`` ``[n, 2]``, or ``source_node`` and ``target_node``, or ``head``, ``relation`` and ``tail``.
    ``head_neg``, ``tail_neg`` and ``target_node_neg``, ``[n, K]``, are what links are ranked among. Negative links
    that belong to no link (``edge_neg``) are not read.

    Args:
        folder: The folder of the split, such as ``split/time``.

    Raises:
        InputError: A file is broken, or holds other things.
    """
    parts, unread, candidates = list[LinkTriples](), list[str](), list[LinkCandidates | None]()
    for name in _FILES:
        given = _load_arrays(folder / name)
        if given.keys() & {*_OF_TYPES}:
            raise InputError(
                f"{folder / name} has links between several types of nodes",
                needed="links between nodes of one type",
                got=", ".join(_OF_TYPES),
                repair="give each type of nodes and of edges as a table",
            )
        links, read = _to_links(given, str(folder / name))
        parts.append(links)
        among = _to_candidates(given)
        candidates.append(among)
        read |= set() if among is None else {*_CANDIDATES} & given.keys()
        unread += [f"{name}: {key}" for key in sorted(given.keys() - read)]
    return LinkFiles(HeldOutLinks(parts[0], parts[1], *candidates), tuple(unread))


class ObjectLinks(NamedTuple):
    """Links of a PyG object that has all parts of a split.

    Attributes:
        held_out: Links to validate and to test on.
        train: Prefix of the attributes of the training links.
        names: Names of the attributes that are read for held-out links.
    """

    held_out: HeldOutLinks
    train: tuple[str, str]
    names: tuple[str, ...]


def find_object_links(given: Mapping[str, Any]) -> ObjectLinks | None:
    """Return the split of links that attributes of a PyG object describe; None without all three parts.

    The forms are ``train_pos_edge_index``, ``val_pos_edge_index``, ``test_pos_edge_index``, of
    `torch_geometric.utils.train_test_split_edges`, and ``train_edge_index``, ``valid_edge_index``,
    ``test_edge_index``, with ``_edge_type`` of each, of ``RelLinkPredDataset``.

    Args:
        given: Attributes by name; arrays.

    Raises:
        InputError: An attribute has another form.
    """
    for middle in ("_pos_edge", "_edge"):
        val = next((part for part in ("val", "valid") if f"{part}{middle}_index" in given), None)
        if val is None or not {f"train{middle}_index", f"test{middle}_index"} <= given.keys():
            continue
        parts, names = [], []
        for part in (val, "test"):
            index, kind = f"{part}{middle}_index", f"{part}{middle}_type"
            ends = np.asarray(given[index])
            if ends.ndim != 2 or len(ends) != 2:
                raise _form_error(index, "ends of shape [2, n]", ends)
            parts.append(_make_links(ends[0], given.get(kind), ends[1], index))
            names += [name for name in (index, kind) if name in given]
        return ObjectLinks(
            HeldOutLinks(parts[0], parts[1]), (f"train{middle}_index", f"train{middle}_type"), tuple(names)
        )
    return None


def _load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file of torch that holds a dictionary of them; nothing in it is run."""
    import pickle

    import torch

    refused = os_errors_as_input_errors(
        f"{path} cannot be read",
        needed="a dictionary of arrays, as torch.save writes it",
        repair="take the file from its publisher again",
        also=(RuntimeError, EOFError, ValueError, KeyError, TypeError, AttributeError),
    )
    with refused, warnings.catch_warnings(), torch.serialization.safe_globals(_array_globals()):
        # Of files whose pickles are of another version than those of torch.save: they are read or refused.
        warnings.simplefilter("ignore")
        try:
            given: Any = torch.load(path, weights_only=True, map_location="cpu")
        except pickle.UnpicklingError as error:
            # The message of torch advises to run what is in the file.
            raise InputError(
                f"{path} cannot be read",
                needed="arrays and tensors, as torch.save writes them",
                got="another pickle",
                repair="take the file from its publisher again, or write it again by torch.save, of arrays alone",
            ) from error
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise _form_error(str(path), "a dictionary of arrays", np.empty(0))
    return {name: np.asarray(values) for name, values in given.items()}


def _array_globals() -> list[Any]:
    """Return what a pickle of NumPy arrays names, in files of NumPy 1 and 2."""
    # Taken from a pickle of an array: the module of the function has another name in each version.
    make = np.empty(0).__reduce__()[0]
    kinds = [type(np.dtype(code)) for code in ("?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8")]
    names = [f"numpy.{package}.multiarray._reconstruct" for package in ("core", "_core")]
    return [*((make, name) for name in names), np.ndarray, np.dtype, *kinds]


def _to_links(given: Mapping[str, NDArray[Any]], where: str) -> tuple[LinkTriples, set[str]]:
    for head, tail in (("head", "tail"), ("source_node", "target_node")):
        if head in given and tail in given:
            read = {head, tail} | ({"relation"} & given.keys())
            return _make_links(given[head], given.get("relation"), given[tail], where), read
    if "edge" not in given:
        raise InputError(
            f"{where} has no links",
            needed="edge, or source_node and target_node, or head, relation and tail",
            got=", ".join(sorted(given)) or "nothing",
            repair="take the file from its publisher again",
        )
    edge = given["edge"]
    if edge.ndim != 2 or edge.shape[1] != 2:
        raise _form_error(f"edge of {where}", "ends of shape [n, 2]", edge)
    return _make_links(edge[:, 0], None, edge[:, 1], where), {"edge"}


def _to_candidates(given: Mapping[str, NDArray[Any]]) -> LinkCandidates | None:
    import torch

    found = {end: given[name] for name, end in _CANDIDATES.items() if name in given}
    if not found:
        return None
    return LinkCandidates(**{end: torch.from_numpy(np.array(nodes, dtype=np.int64)) for end, nodes in found.items()})


def _make_links(head: Any, relation: Any, tail: Any, where: str) -> LinkTriples:
    import torch

    ends = np.asarray(head), np.asarray(tail)
    kinds = np.zeros(len(ends[0]), np.int64) if relation is None else np.asarray(relation).reshape(-1)
    for values in (*ends, kinds):
        if values.ndim != 1 or values.dtype.kind not in "iu" or len(values) != len(ends[0]):
            raise _form_error(f"a part of {where}", f"integers, one for each of {len(ends[0])} links", values)
    columns = (ends[0], ends[1], kinds)
    return LinkTriples(*(torch.from_numpy(np.array(values, dtype=np.int64)) for values in columns))


def _form_error(what: str, needed: str, values: NDArray[Any]) -> InputError:
    return InputError(
        f"{what} cannot be used",
        needed=needed,
        got=f"{values.dtype} of shape {list(values.shape)}",
        repair="correct it",
    )
