"""Planetoid's eight files, valid and not."""

from __future__ import annotations

import pickle
from collections import defaultdict
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from cases import ACCEPTED, FOLDER, REFUSED, Case, Kind
from mutations import changed, other_number
from pickles import changed_pickle
from pickles import hostile as hostile_pickles
from python2 import pickled
from scipy.sparse import csr_matrix

PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph")
_READ = PARTS[1:]
_TRAIN, _KNOWN, _TEST = 3, 8, 4


def _values(graph: Any = dict, index: str = "<i4") -> dict[str, Any]:
    """Eight known nodes, three to train on; four to test on, and one without a row."""
    nodes = _KNOWN + _TEST + 1
    rows = csr_matrix(np.eye(_KNOWN, 5, dtype=np.float32) + np.eye(_KNOWN, 5, -5, dtype=np.float32))
    test = csr_matrix(np.eye(_TEST, 5, 1, dtype=np.float32))
    for matrix in (rows, test):
        matrix.indices, matrix.indptr = matrix.indices.astype(index), matrix.indptr.astype(index)
    hot = np.eye(3, dtype="<i4")[np.arange(_KNOWN) % 3]
    neighbours = graph()
    neighbours.update({v: [(v + 1) % nodes, (v * 5) % nodes, v] for v in range(nodes)})
    return {
        "x": rows[:_TRAIN],
        "y": hot[:_TRAIN],
        "tx": test,
        "ty": hot[:_TEST],
        "allx": rows,
        "ally": hot,
        "graph": neighbours,
    }


def _case(files: dict[str, bytes], note: str) -> Case:
    test = "".join(f"{v}\n" for v in (12, 9, 8, 11)).encode()
    named = {f"ind.tiny.{part}": content for part, content in files.items()}
    return Case(main=FOLDER, files={**named, "ind.tiny.test.index": test}, expected=ACCEPTED, note=note)


def seeds() -> list[Case]:
    """Pickles of Python 2 in each protocol, and of Python 3."""
    made = []
    for protocol in (0, 1, 2):
        files = {part: pickled(value, protocol) for part, value in _values(defaultdict_of_lists).items()}
        made.append(_case(files, f"Python 2, protocol {protocol}"))
    for protocol in (0, 2, 3, 4):
        files = {part: pickle.dumps(value, protocol) for part, value in _values(index="<i8").items()}
        made.append(_case(files, f"Python 3, protocol {protocol}"))
    return made


def defaultdict_of_lists() -> defaultdict[int, list[int]]:
    return defaultdict(list)


def hostile() -> list[Case]:
    """Pickles that somebody has thought of as one part or another, and values that fit nowhere."""
    valid = seeds()[2]
    made = [
        replace(valid.with_file(f"ind.tiny.{part}", data, f"{part}: {note}"), expected=REFUSED)
        for at, (note, data) in enumerate(hostile_pickles().items())
        for part in ("graph", _READ[at % len(_READ)])
    ]
    made += [valid.with_file(f"ind.tiny.{part}", odd, f"odd {part}") for part, odd in _odd_values()]
    shared = (
        b"\x80\x02}(K\x00]q\x00("
        + b"K\x01" * 40_000
        + b"e"
        + b"".join(b"J" + v.to_bytes(4, "little") + b"h\x00" for v in range(1, 40_000))
    )
    made.append(valid.with_file("ind.tiny.graph", shared + b"u.", "one list of all nodes"))
    tests = (b"", b"\xff\xfe", b"10 " * 5, b"-1 0 1 2", b"4294967294 9 8 11", b"9" * 5000, b"1e9 2 3 4", b"10\0 9 8 11")
    made += [valid.with_file("ind.tiny.test.index", text, f"test {at}") for at, text in enumerate(tests)]
    for name in ("ind.tiny.allx", "ind.tiny.test.index"):
        files = {other: content for other, content in valid.files.items() if other != name}
        made.append(replace(valid, files=files, pipes=(name,), expected=REFUSED, note=f"a named pipe, {name}"))
        made.append(replace(valid, files=files, links={name: "/dev/zero"}, expected=REFUSED, note=f"a device, {name}"))
    return made


def _odd_values() -> list[tuple[str, bytes]]:
    eye = np.eye(_KNOWN, 5, dtype=np.float32)
    good = csr_matrix(eye)
    wrong = []
    for key, value in (
        ("indices", np.full(good.nnz, 10**6)),
        ("indices", np.full(good.nnz, -1)),
        ("indices", good.indices.astype("<f8")),
        ("indptr", np.array([0, 3, 1, 2, 10**9, 0, 0, 0, good.nnz])),
        ("indptr", good.indptr[:-1]),
        ("indptr", np.array([-7] * 8 + [good.nnz])),
        ("data", good.data[:-2]),
        ("data", good.data * np.nan),
        ("data", good.data.astype("<c8")),
        ("data", np.array(list("abcde"))),
        ("data", good.data.reshape(1, -1)),
    ):
        matrix = csr_matrix(eye)
        object.__setattr__(matrix, key, value)
        wrong.append(("allx", pickled(matrix, 2)))
        wrong.append(("tx", pickled(matrix, 2)))
    for part, value in (
        ("ally", np.empty((_KNOWN, 0), "<i4")),
        ("ally", np.zeros((_KNOWN, 3), "<f8")),
        ("ally", np.zeros((_KNOWN + 1, 3), "<i4")),
        ("ty", np.zeros((_TEST, 3), "|S5")),
        ("y", np.zeros((10**4, 1), "|b1")),
        ("graph", {0: [2**31]}),
        ("graph", {2**62: [1]}),
        ("graph", {-1: [-1]}),
        ("graph", {b"a": [b"b"]}),
        ("graph", {0: 5}),
        ("graph", {0: b"\x01\x02"}),
        ("graph", {0: [[1]]}),
        ("graph", {0: [None]}),
        ("graph", {}),
        ("graph", [1]),
    ):
        wrong.append((part, pickled(value, 2)))
    return wrong


def mutated(draw: Random, case: Case, others: list[Case]) -> Case:
    """Opcodes of a pickle, or the list of nodes to test on."""
    case = case if len(case.files) == len(PARTS) + 1 and case.size < 1 << 16 else draw.choice(others)
    for _ in range(draw.choice((1, 1, 1, 2))):
        name = draw.choice(list(case.files))
        data = case.files[name]
        if name.endswith("index"):
            case = case.with_file(name, draw.choice((other_number, changed))(draw, data), "test")
        else:
            parts = [*case.files.values(), *draw.choice(others).files.values()]
            case = case.with_file(name, changed_pickle(draw, data, parts), name)
    return case


KIND = Kind(seeds, hostile, mutated)
