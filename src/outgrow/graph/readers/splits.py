"""Splits of nodes: as drawn by shares, by time, or as words, masks and tables of masks say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.readers.conversions import to_labels
from outgrow.graph.readers.source import Ids
from outgrow.ops.rng import fold_in, keyed_permutation

Parts = tuple[NDArray[Any] | None, NDArray[Any] | None, NDArray[Any] | None]
"""Nodes to train, validate and test on: ids, masks, or None."""
PARTS = ("train", "val", "test")
PART_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""The part of a split that a word names, in a column or as the name of a file."""
_WORDS = {**{word: PARTS.index(part) for word, part in PART_WORDS.items()}, "none": -1, "": -1}
_DRAW = 0x5F117
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class SplitRequest:
    """What ``--split`` asks for.

    Attributes:
        kind: ``"given"`` (what the source says), ``"shares"`` (drawn), ``"time"`` (the earliest train), ``"files"``
            or ``"column"`` (the words of a column).
        shares: Shares of training, validation and test; they add up to 1 at most.
        column: Column of times or words.
        seed: Seed of the draw.
    """

    kind: str = "given"
    shares: tuple[Fraction, Fraction, Fraction] = (Fraction(0), Fraction(0), Fraction(0))
    column: str = ""
    seed: int = 0


def parse_split(text: str, seed: int = 0) -> SplitRequest:
    """Parse a split: shares ``0.6,0.2,0.2``, ``time:COLUMN:0.6,0.2,0.2``, ``files``, or a column.

    Raises:
        InputError: Shares that are no numbers, negative, or more than 1 together.
    """
    given = text.strip()
    if not given:
        return SplitRequest(seed=seed)
    if given == "files":
        return SplitRequest(kind="files")
    if given.startswith("time:"):
        column, colon, shares = given.removeprefix("time:").rpartition(":")
        if not (column and colon):
            raise _split_error("time:COLUMN:0.6,0.2,0.2", given)
        return SplitRequest(kind="time", column=column, shares=_parse_shares(shares, given), seed=seed)
    if "," in given or given[0].isdigit() or given[0] in ".-+":
        return SplitRequest(kind="shares", shares=_parse_shares(given, given), seed=seed)
    return SplitRequest(kind="column", column=given)


def draw_split(labels: NDArray[Any] | None, keys: Ids, request: SplitRequest) -> Parts:
    """Draw a split of the nodes that have a label, stratified by it.

    The nodes of each part are exactly its share of all that have a label, rounded; those of one class are that share
    of the class to less than 2 nodes. Which node is drawn depends on the seed and the keys, not on the order of nodes.

    Args:
        labels: ``[V]`` integer with -1 for unknown, or ``[V, C]``, or numbers with NaN for unknown; None for none:
            all nodes are then drawn.
        keys: ``[V]`` int64, distinct: what tells the nodes apart.
        request: Shares and seed.

    Returns:
        ``[n]`` int64 each, ascending.
    """
    order = keyed_permutation(torch.from_numpy(keys), fold_in(request.seed, _DRAW)).numpy()
    known, classes = _known_classes(labels, len(keys))
    drawn = order[known[order]]
    _, codes = np.unique(classes[drawn], return_inverse=True)
    counts = np.bincount(codes)
    taken = _apportion(counts, request.shares)
    # Within each class, in the order of the draw: rank of each drawn node among those of its class.
    by_class = np.argsort(codes, kind="stable")
    first = np.cumsum(counts) - counts
    rank = np.empty(len(drawn), np.int64)
    rank[by_class] = np.arange(len(drawn)) - first[codes[by_class]]
    ends = np.cumsum(taken, axis=0)
    part = (rank[None, :] >= ends[:, codes]).sum(0)
    return _collect_parts(drawn, part)


def split_by_time(times: NDArray[Any], keys: Ids, known: NDArray[np.bool_], request: SplitRequest) -> Parts:
    """Split nodes by time: the earliest train, the latest test. Of equal times the order is that of a keyed draw.

    Args:
        times: ``[V]`` numbers.
        keys: ``[V]`` int64, distinct.
        known: ``[V]`` whether a node has a label and a time; others are in no part.
        request: Shares and seed.

    Returns:
        ``[n]`` int64 each, ascending.
    """
    order = keyed_permutation(torch.from_numpy(keys), fold_in(request.seed, _DRAW)).numpy()
    order = order[np.argsort(times[order], kind="stable")]
    nodes = order[known[order]]
    ends = _share_ends(len(nodes), request.shares)
    return _collect_parts(nodes, np.searchsorted(ends, np.arange(len(nodes)), side="right"))


def split_by_words(codes: NDArray[np.integer[Any]], words: Sequence[str], where: str) -> Parts:
    """Return the parts that words name: train, val (valid, validation), test, none; in any case.

    Args:
        codes: ``[V]``, the word of each node; negative for none.
        words: The distinct words.
        where: Name of the words in errors.

    Raises:
        InputError: Another word, or nobody has one of a part.
    """
    unknown = [word for word in words if word.strip().lower() not in _WORDS]
    if unknown:
        raise InputError(
            f"{where} does not say who trains",
            needed="train, val (valid, validation), test or none in every row",
            got=f"{len(unknown)} other words, such as {', '.join(repr(word[:40]) for word in unknown[:_SHOWN])}",
            repair="correct the column, or draw a split: --split 0.6,0.2,0.2",
        )
    parts = np.array([*(_WORDS[word.strip().lower()] for word in words), -1])[codes]
    if not len(parts) or parts.max() < 0:
        raise empty_split_error(where)
    return _collect_parts(np.arange(len(parts)), parts)


def splits_of_masks(masks: Mapping[str, NDArray[Any] | None], num_nodes: int, where: str) -> tuple[Parts, ...]:
    """Return all splits of masks: one, or several of tables ``[V, K]`` or ``[K, V]``; one mask beside them is in all.

    Args:
        masks: Mask or ids of each of `PARTS`.
        num_nodes: ``V``.
        where: Name of the masks in errors.

    Raises:
        InputError: Tables of another shape or type, or of different numbers of splits.
    """
    columns = {name: _mask_columns(mask, num_nodes, f"{name} of {where}") for name, mask in masks.items()}
    counts = {name: len(found) for name, found in columns.items() if found is not None}
    most = max(counts.values(), default=0)
    if set(counts.values()) - {1, most}:
        raise InputError(
            f"the splits of {where} do not fit each other",
            needed="as many splits of each part",
            got=", ".join(f"{count} of {name}" for name, count in counts.items()),
            repair="write the masks again",
        )
    made = []
    for at in range(most):
        train, val, test = (None if (found := columns.get(name)) is None else found[at % len(found)] for name in PARTS)
        made.append((train, val, test))
    return tuple(made)


def select_parts(splits: Sequence[Parts], index: int, where: str) -> Parts:
    """Return one of several splits.

    Raises:
        InputError: There is none of this number.
    """
    if not 0 <= index < max(1, len(splits)):
        raise InputError(
            f"{where} has no split {index}",
            needed=f"0 to {len(splits) - 1}" if len(splits) > 1 else "0: there is one split" if splits else "no split",
            got=str(index),
            repair="choose another --split-index",
        )
    return splits[index] if splits else (None, None, None)


def find_labelled(labels: NDArray[Any] | None, num_nodes: int) -> NDArray[np.bool_]:
    """Return ``[V]``: which nodes have a label; all if there are no labels."""
    return _known_classes(labels, num_nodes)[0]


def empty_split_error(where: str) -> InputError:
    """Return the error of a split that names no node."""
    return InputError(
        f"{where} names nobody",
        needed="nodes to train on, and to validate and test on if there are any",
        got="no node in any part",
        repair="correct the split, or draw one: --split 0.6,0.2,0.2",
    )


def _parse_shares(text: str, given: str) -> tuple[Fraction, Fraction, Fraction]:
    try:
        # Exact: 0.6 of 10 nodes must be 6, which floats do not promise.
        shares = [Fraction(part.strip()) for part in text.split(",")]
    except (ValueError, ZeroDivisionError) as error:
        raise _split_error("three shares, such as 0.6,0.2,0.2", given) from error
    if len(shares) != 3 or min(shares) < 0 or not 0 < sum(shares) <= 1 or not shares[0]:
        raise _split_error("three shares from 0 to 1 that add up to 1 at most, the first above 0", given)
    return shares[0], shares[1], shares[2]


def _split_error(needed: str, got: str) -> InputError:
    return InputError(
        "the split cannot be read",
        needed=f"{needed}; or a column, or files",
        got=repr(got),
        repair="for example --split 0.6,0.2,0.2",
    )


def _share_ends(count: int, shares: Sequence[Fraction]) -> NDArray[np.int64]:
    """Return how many of ``count`` nodes are in the first part, in the first two, and in all."""
    totals = [sum(shares[: at + 1], Fraction(0)) * count for at in range(len(shares))]
    return np.array([int(total + Fraction(1, 2)) for total in totals], np.int64)


def _apportion(counts: NDArray[np.int64], shares: Sequence[Fraction]) -> NDArray[np.int64]:
    """Return ``[3, C]``: how many nodes of each class each part has, by largest remainders."""
    totals = np.diff(_share_ends(int(counts.sum()), shares), prepend=0)
    taken = np.zeros((len(shares), len(counts)), np.int64)
    for at, share in enumerate(shares):
        room = counts - taken.sum(0)
        quota = [share * int(count) for count in counts]
        floors = np.minimum(np.array([int(each) for each in quota], np.int64), room)
        missing = int(totals[at] - floors.sum())
        rest = np.array([float(each - int(each)) for each in quota])
        # Several rounds only where a class has no more nodes to give.
        while missing > 0:
            open_classes = np.flatnonzero(room > floors)
            most = open_classes[np.argsort(-rest[open_classes], kind="stable")][:missing]
            floors[most] += 1
            rest[most] -= 1
            missing -= len(most)
        taken[at] = floors
    return taken


def _known_classes(labels: NDArray[Any] | None, num_nodes: int) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """Return which nodes have a label, and the class of each; one class where nodes are not stratified."""
    one = np.zeros(num_nodes, np.int64)
    if labels is None:
        return np.ones(num_nodes, bool), one
    flat = np.asarray(labels)
    flat = flat[:, 0] if flat.ndim == 2 and flat.shape[1] == 1 else flat
    made = to_labels(flat, named=False)
    if made.dtype.kind == "f":
        known = ~np.isnan(made)
        return known if known.ndim == 1 else known.any(1), one
    if made.ndim == 2:
        return np.ones(num_nodes, bool), one
    return made >= 0, made


def _collect_parts(nodes: Ids, part: NDArray[Any]) -> Parts:
    train, val, test = (np.sort(nodes[part == at]).astype(np.int64) for at in range(3))
    return train, val, test


def _mask_columns(mask: NDArray[Any] | None, num_nodes: int, where: str) -> list[NDArray[Any]] | None:
    if mask is None:
        return None
    if mask.ndim < 2:
        return [mask]
    if mask.ndim == 2 and num_nodes in mask.shape and (mask.dtype == bool or set(np.unique(mask)) <= {0, 1}):
        # A square table has its splits in columns, as PyG has them.
        rows = mask.T if mask.shape[0] == num_nodes else mask
        return [np.ascontiguousarray(row.astype(bool)) for row in rows]
    raise InputError(
        f"{where} has the wrong form",
        needed=f"a mask of {num_nodes} booleans for each split, [{num_nodes}, splits] or [splits, {num_nodes}]",
        got=f"{mask.dtype} of shape {list(mask.shape)}",
        repair="give masks of booleans",
    )
