"""Graphs in one ``.npz`` file, and the nodes of a folder, valid and not."""

from __future__ import annotations

import io
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from archives import PACKING, changed_npy, changed_zip, members, npy, npy_that_says, odd_arrays, zipped
from cases import ACCEPTED, FOLDER, REFUSED, Case, Kind

_NODES = 12
_EMPTY = np.empty(0, np.int64)


def _arrays(**changes: Any) -> dict[str, Any]:
    index = np.array([[0, 1, 2, 2, 5, 11, 3], [1, 2, 0, 1, 5, 4, 3]])
    known = {"edge_index": index, "label": np.arange(_NODES) % 3, "features": np.eye(_NODES, 4, dtype=np.float32)}
    known |= {"train_idx": np.arange(4), "val_idx": np.array([5]), "test_idx": np.array([11, 7])}
    return {key: value for key, value in {**known, **changes}.items() if value is not None}


def _sparse(index: type[np.integer[Any]] = np.int32) -> dict[str, Any]:
    ends = np.minimum(np.arange(_NODES + 1) * 2, 20)
    return {
        "features": None,
        "feat_data": np.ones(1, np.float32),
        "feat_indices": (np.arange(20) % 2 + np.arange(20) // 8).astype(index),
        "feat_indptr": ends.astype(np.int64),
        "feat_shape": np.array([_NODES, 6]),
    }


def _saved(arrays: dict[str, Any], save: Any = np.savez) -> bytes:
    whole = io.BytesIO()
    save(whole, **arrays)
    return whole.getvalue()


def seeds() -> list[Case]:
    """With and without each optional array, in several types, packed and not."""
    full = np.linspace(0.5, 2, 40).astype(np.float64)[:20]
    forms = {
        "dense": _arrays(),
        "sparse": _arrays(**_sparse()),
        "sparse with values": _arrays(**{**_sparse(np.int16), "feat_data": full}),
        "types": _arrays(edge_type=np.arange(7) % 3, edge_weight=np.ones(7), rel_names=np.array(["a", "b", "c"])),
        "features of edges": _arrays(edge_attr=np.ones((7, 3), np.float16)),
        "codes of edges": _arrays(edge_features=np.arange(7) % 3, edge_feature_sizes=np.array([4])),
        "names": _arrays(class_names=np.array(["x", "y", "z"]), features=np.ones((_NODES, 2), np.float16)),
        "sets of labels": _arrays(label=np.eye(_NODES, 4, dtype=np.uint8)),
        "edges alone": _arrays(label=None, features=None, train_idx=None, val_idx=None, test_idx=None),
        "a number of nodes": _arrays(label=None, features=None, num_nodes=np.array(_NODES), val_idx=_EMPTY),
        "small types": _arrays(edge_index=_arrays()["edge_index"].astype(np.uint8), label=np.zeros((_NODES, 1), "i2")),
        "big-endian": _arrays(edge_index=_arrays()["edge_index"].astype(">i4"), features=np.ones((_NODES, 2), ">f8")),
    }
    made = []
    for at, (note, arrays) in enumerate(forms.items()):
        save = np.savez_compressed if at % 2 else np.savez
        made.append(Case(main="g.npz", files={"g.npz": _saved(arrays, save)}, expected=ACCEPTED, note=note))
    nodes = _saved(_arrays(edge_index=None))
    files = {"edges.csv": b"src,dst\n0,1\n1,2\n11,0\n", "nodes.npz": nodes}
    return [*made, Case(main=FOLDER, files=files, expected=ACCEPTED, note="a folder")]


def hostile() -> list[Case]:
    """Archives that somebody has thought of."""
    plain = members(_saved(_arrays()))
    alone = {"edge_index.npy": plain["edge_index.npy"]}
    zeros = npy(np.zeros((2, 5_000_000), np.int64))
    files = {
        "pickled objects": _with(plain, "label", npy(np.array([None] * _NODES, object))),
        "2^62 nodes": _with(alone, "num_nodes", npy(np.array(2**62))),
        "10^9 nodes": _with(alone, "num_nodes", npy(np.array(10**9))),
        "an edge to node 4294967294": zipped({"edge_index.npy": npy(np.array([[0], [2**32 - 2]]))}),
        "10^12 names of no letters": _with(plain, "class_names", npy_that_says((10**12,), "<U0")),
        "10^12 rows of no columns": _with(alone, "features", npy_that_says((10**12, 0), "<f4")),
        "10^11 edges": zipped({"edge_index.npy": npy_that_says((2, 10**11))}),
        "a relation of 2^30 - 1": _with(alone, "edge_type", npy(np.full(7, 2**30 - 1))),
        "10^17 columns": zipped(
            {**members(_saved(_arrays(**_sparse()))), "feat_shape.npy": npy(np.array([12, 10**17]))}
        ),
    }
    made = [Case(main="g.npz", files={"g.npz": data}, expected=REFUSED, note=note) for note, data in files.items()]
    bomb = zipped({"edge_index.npy": zeros}, PACKING[1])
    made.append(Case(main="g.npz", files={"g.npz": bomb}, unpacked=3 * len(zeros), note="80 MB of zeros"))
    made += [Case(main="g.npz", files={"g.npz": zipped(plain, p)}, note="packed otherwise") for p in PACKING[2:]]
    for key in ("num_nodes", "label", "features", "class_names", "edge_type", "train_idx", "feat_indptr"):
        made += [
            Case(main="g.npz", files={"g.npz": _with(plain, key, odd)}, note=f"odd {key} {at}")
            for at, odd in enumerate(odd_arrays())
        ]
    return [*made, replace(made[0], files={"g.npz": b""}, note="nothing")]


def _with(parts: dict[str, bytes], key: str, content: bytes) -> bytes:
    return zipped({**parts, f"{key}.npy": content})


def mutated(draw: Random, case: Case, others: list[Case]) -> Case:
    """Arrays, their headers, members and their packing, and bytes of the whole."""
    name = "nodes.npz" if case.main == FOLDER else case.main
    data = case.files[name]
    if case.size > 1 << 20 or not data:
        case = draw.choice(others[:10])
        name, data = case.main, case.files[case.main]
    if draw.random() < 0.25:
        return case.with_file(name, changed_zip(draw, data, [data]), "bytes")
    parts = members(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        _change(draw, parts, members(draw.choice(others[:10]).files["g.npz"]))
    new = zipped(parts, draw.choice((*PACKING, *PACKING[:1] * 6, *PACKING[1:2] * 3)))
    unpacked = 3 * sum(map(len, parts.values()))
    if draw.random() < 0.1:
        new = changed_zip(draw, new, [data])
    return replace(case.with_file(name, new, "members"), unpacked=unpacked)


def _change(draw: Random, parts: dict[str, bytes], other: dict[str, bytes]) -> None:
    name = draw.choice([*parts, "num_nodes.npy", "edge_type.npy"])
    way = draw.random()
    if way < 0.6:
        parts[name] = changed_npy(draw, parts.get(name, npy(np.arange(7))), [*other.values()])
    elif way < 0.7 and name in parts and len(parts) > 1:
        del parts[name]
    elif way < 0.85:
        parts[draw.choice([*other])] = draw.choice([*other.values()])
    else:
        parts[name], parts[draw.choice([*parts])] = draw.choice([*parts.values()]), draw.choice([*parts.values()])


KIND = Kind(seeds, hostile, mutated)
