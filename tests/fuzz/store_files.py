"""Stores, valid and not; their checksums are made right again after a change, so that what lies behind is reached."""

from __future__ import annotations

import hashlib
import json
import tempfile
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from archives import changed_npy, npy_that_says
from cases import ACCEPTED, FOLDER, REFUSED, Case, Kind
from mutations import NUMBERS, changed, other_number
from scipy.sparse import csr_array

import outgrow as og
from outgrow.graph.store.manifest import HEADER_BYTES
from outgrow.graph.store.reader import write_store

_FILE = "manifest.json"
_NODES = 8
_INDEX = np.array([[0, 1, 2, 2, 5, 7, 3], [1, 2, 0, 1, 5, 4, 3]])
_ODD = (None, True, "", "5", "../x", "/etc/passwd", 1.5, float("nan"), [], {}, [1], {"a": 1}, "\ud800", -1, 10**40)


def seeds() -> list[Case]:
    """Stores of dense and sparse features, of types, weights, names and sets of labels, and of edges alone."""
    return list(_seeds())


@cache
def _seeds() -> tuple[Case, ...]:
    split = {"train": [0, 1], "val": [2], "test": [5, 4]}
    known: dict[str, Any] = {"labels": np.arange(_NODES) % 3, "split": split}
    weight, kinds = np.ones(7, np.float32), np.arange(7) % 2
    forms: dict[str, dict[str, Any]] = {
        "dense": {"features": np.eye(_NODES, 4, dtype=np.float32), **known},
        "sparse": {"features": csr_array(np.eye(_NODES, 8, dtype=np.float32)), **known},
        "types and weights": {"relation": kinds, "weight": weight, **known},
        "halves and sets": {"features": np.ones((_NODES, 2), np.float16), "labels": np.eye(_NODES, 3, dtype=int)},
        "bfloat16": {"features": torch.ones(_NODES, 2, dtype=torch.bfloat16), **known},
        "features of edges": {"edge_features": np.ones((7, 2), np.float16), **known},
        "codes of edges": {"edge_features": np.arange(14).reshape(7, 2) % 3, "edge_feature_sizes": (3, 4), **known},
        "edges alone": {"num_nodes": _NODES},
    }
    return tuple(_case(note, og.from_arrays(_INDEX, **options)) for note, options in forms.items())


def _case(note: str, graph: og.Graph) -> Case:
    with tempfile.TemporaryDirectory() as folder:
        write_store(graph, Path(folder) / "s")
        files = {path.name: path.read_bytes() for path in sorted((Path(folder) / "s").iterdir())}
    return Case(main=FOLDER, files=files, expected=ACCEPTED, note=note)


def sealed(record: Any) -> bytes:
    """A manifest whose checksum is right."""
    if isinstance(record, dict):
        content = {key: value for key, value in record.items() if key not in ("format", "checksum")}
        total = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        record = {**record, "checksum": total}
    return json.dumps(record).encode()


def _with(case: Case, note: str, **changes: Any) -> Case:
    record = json.loads(case.files[_FILE])
    return replace(case.with_file(_FILE, sealed({**record, **changes}), note), expected=REFUSED)


def _with_array(case: Case, name: str, note: str, content: bytes | None = None, **changes: Any) -> Case:
    """Another entry in the list of arrays, and perhaps another file."""
    arrays = dict(json.loads(case.files[_FILE])["arrays"])
    arrays[name] = {**arrays.get(name, {"shape": [1], "dtype": "<i8", "size": 136, "sha256": ""}), **changes}
    case = _with(case, note, arrays=arrays)
    return case if content is None else replace(case, files={**case.files, f"{name}.npy": content})


def hostile() -> list[Case]:
    """Stores that somebody has thought of."""
    dense, sparse, typed = _seeds()[:3]
    made = [
        _with(dense, f"{key} is {odd!r}", **{key: odd}) for key in _COUNTS for odd in _ODD[:-2] if not _fits(key, odd)
    ]
    names = ("../outside", "/etc/passwd", "manifest", "labels/../labels", "", "\0", "x" * 5000)
    made += [_with_array(dense, name, f"an array {name[:20]!r}") for name in names]
    for key in ("shape", "dtype", "size", "sha256"):
        made += [_with_array(dense, "labels", f"{key} of labels is {odd!r}", **{key: odd}) for odd in _ODD]
    for shape in ([10**12, 4], [_NODES, 10**12], [0, 10**18], [-1, 4], [2**62, 4], [8.0, 4], [True, 4], [10**100, 4]):
        wide = {"num_nodes": shape[0], "num_features": shape[1]}
        said = npy_that_says(tuple(shape), "<f4").ljust(HEADER_BYTES)[:HEADER_BYTES]
        case = _with_array(dense, "features", f"features of {shape}", said, shape=shape, size=HEADER_BYTES)
        made.append(_with(case, f"and {wide}", **wide))
    made += [_with(dense, f"{n} nodes", num_nodes=n) for n in (0, -1, 2**31, 2**62, 8.0)]
    made += [
        _with(typed, f"relations {names!r}"[:60], relation_names=names) for names in ([], ["a"], ["a", 5], "ab", 7)
    ]
    types = (
        [{"name": "a", "first": 0, "last": 10**9}],
        [{"first": 0, "last": 8}],
        [[]],
        [{"name": 1, "first": 0, "last": 8}],
    )
    made += [_with(dense, f"types {kinds!r}", node_types=kinds) for kinds in types]
    made.append(_with_array(sparse, "features", "dense and sparse"))
    texts = (
        b"",
        b"[" * 200_000,
        b"{" + b'"a":{' * 100_000,
        b"null",
        b"[]",
        b'"a"',
        b"1e999",
        b"\xff",
        b"9" * 5000,
        b'{"format": 2}',
    )
    texts += (b'{"format": "' + b"x" * 100_000 + b'"}', b'{"format": 1, "checksum": []}')
    made += [dense.with_file(_FILE, text, f"manifest {text[:10]!r}") for text in texts]
    return [*made, *_placed(dense)]


def _placed(case: Case) -> list[Case]:
    """Files that are no files, or lie elsewhere."""
    made = []
    for name in ("indptr.npy", _FILE):
        files = {other: content for other, content in case.files.items() if other != name}
        refused = replace(case, files=files, expected=REFUSED)
        made.append(replace(refused, pipes=(name,), note=f"a named pipe, {name}"))
        targets = ("/etc/passwd", "/dev/zero", name, "nothing", ".")
        made += [replace(refused, links={name: target}, note=f"a link, {name} to {target}") for target in targets]
    return made


_COUNTS = ("name", "num_nodes", "num_edges", "num_features", "num_classes", "class_names", "node_types", "arrays")


def _fits(key: str, value: Any) -> bool:
    return isinstance(value, str) if key == "name" else value == [] and key in ("class_names", "node_types")


def mutated(draw: Random, case: Case, others: list[Case]) -> Case:
    """Values of the manifest, arrays with and without their checksums, and bytes."""
    case = case if case.files.keys() >= {_FILE, "indptr.npy"} and case.size < 1 << 16 else draw.choice(others)
    way = draw.random()
    if way < 0.15:
        name = draw.choice(list(case.files))
        return case.with_file(name, changed(draw, case.files[name], [*case.files.values()]), f"bytes of {name}")
    try:
        record = json.loads(case.files[_FILE])
    except (ValueError, RecursionError):
        return replace(draw.choice(others), expected=None)
    if way < 0.6 and isinstance(record, dict) and isinstance(record.get("arrays"), dict):
        return _other_array(draw, case, record)
    for _ in range(draw.choice((1, 1, 2))):
        _change(draw, record)
    text = sealed(record) if draw.random() < 0.9 else other_number(draw, case.files[_FILE])
    return case.with_file(_FILE, text, "manifest")


def _other_array(draw: Random, case: Case, record: dict[str, Any]) -> Case:
    name = draw.choice([path.removesuffix(".npy") for path in case.files if path != _FILE])
    old = case.files[f"{name}.npy"]
    data = (
        old[:HEADER_BYTES] + changed(draw, old[HEADER_BYTES:]) if draw.random() < 0.6 else changed_npy(draw, old, [old])
    )
    entry = record["arrays"].get(name)
    if isinstance(entry, dict):
        entry["size"], entry["sha256"] = len(data), hashlib.sha256(data[HEADER_BYTES:]).hexdigest()
        if draw.random() < 0.3:
            _change(draw, entry)
    files = {**case.files, f"{name}.npy": data, _FILE: sealed(record)}
    return replace(case, files=files, expected=None, note=f"{case.note}, array {name}")


def _change(draw: Random, value: Any) -> None:
    """Another value somewhere within lists and dictionaries."""
    while isinstance(value, (dict, list)) and value:
        key = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
        if isinstance(value[key], (dict, list)) and value[key] and draw.random() < 0.8:
            value = value[key]
            continue
        if draw.random() < 0.1:
            del value[key]
        else:
            value[key] = deepcopy(draw.choice((*_ODD, *NUMBERS, *_SHAPES)))  # a later change may change it
        return


_SHAPES = ([0], [8], [9], [7], [8, 4], [8, 3], [0, 4], [8, 0], "<f4", "<i4", "<i8", "|i1", "|u1", "<f2", "|O")
KIND = Kind(seeds, hostile, mutated)
