"""Build the packaged WordNet graph from the WordNet 3.0 database files.

Nodes are synsets, edges are pointers between them with the pointer symbol as relation, the class of a node is its
lexicographer file, and its features are the TF-IDF of its gloss. On Debian the database comes with the package
``wordnet-base``::

    python scripts/build_wordnet.py /usr/share/wordnet wordnet.npz

The file format is described in wndb(5WN). The same input gives the same arrays. They are those of the packaged file,
bit by bit, but for the order of the feature columns of words that occur in equally many glosses.
"""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array

PARTS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
LEAST_GLOSSES, MOST_WORDS = 20, 8192
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Synset:
    """One line of a data file.

    Attributes:
        key: Part of speech and offset in its file, which name the synset.
        lexicographer: Number of the lexicographer file, 0 to 44.
        pointers: Symbol of each pointer and the key of the synset it points to.
        words: Words of the gloss.
    """

    key: tuple[str, str]
    lexicographer: int
    pointers: list[tuple[str, tuple[str, str]]]
    words: list[str]


def read_synsets(folder: Path) -> Iterator[Synset]:
    """Every synset of the four data files, in file order."""
    for part, letter in PARTS.items():
        with (folder / f"data.{part}").open(encoding="latin-1") as lines:
            for line in lines:
                if not line.startswith("  "):
                    yield parse(line, letter)


def parse(line: str, letter: str) -> Synset:
    """Read ``offset lex_filenum ss_type w_cnt (word lex_id)* p_cnt (symbol offset pos source/target)* | gloss``."""
    head, _, gloss = line.partition("|")
    fields = head.split()
    first = 4 + 2 * int(fields[3], 16)
    count = int(fields[first])
    pointers = []
    for i in range(first + 1, first + 1 + 4 * count, 4):
        symbol, offset, part = fields[i : i + 3]
        # A satellite adjective is stored in the file of adjectives.
        pointers.append((symbol, ("a" if part == "s" else part, offset)))
    words = re.findall(r"[a-z]{2,}", gloss.lower())
    return Synset(key=(letter, fields[0]), lexicographer=int(fields[1]), pointers=pointers, words=words)


def edges(synsets: list[Synset]) -> Arrays:
    """Unique typed edges, sorted by source, destination and relation."""
    number = {synset.key: i for i, synset in enumerate(synsets)}
    symbols = sorted({symbol for synset in synsets for symbol, _ in synset.pointers})
    relation = {symbol: i for i, symbol in enumerate(symbols)}
    rows = [(i, number[key], relation[symbol]) for i, synset in enumerate(synsets) for symbol, key in synset.pointers]
    unique = np.unique(np.array(rows, dtype=np.int64), axis=0)
    return {
        "edge_index": np.ascontiguousarray(unique[:, :2].T).astype(np.int32),
        "edge_type": unique[:, 2].astype(np.int8),
        "rel_names": np.array(symbols),
    }


def features(synsets: list[Synset]) -> Arrays:
    """TF-IDF of the glosses in rows of length 1; words of fewer than 20 glosses are left out."""
    glosses = Counter(word for synset in synsets for word in dict.fromkeys(synset.words))
    # The sort is stable: words of equal frequency stay in the order of their first use, from run to run.
    known = sorted((word for word, count in glosses.items() if count >= LEAST_GLOSSES), key=lambda word: -glosses[word])
    column = {word: i for i, word in enumerate(known[:MOST_WORDS])}
    cells = [(i, column[word]) for i, synset in enumerate(synsets) for word in synset.words if word in column]
    rows, columns = np.array(cells, dtype=np.int64).T
    counts = csr_array((np.ones(len(cells), np.float32), (rows, columns)), shape=(len(synsets), len(column)))
    frequency = np.array([glosses[word] for word in column])
    weighted = counts @ diags_array(np.log(len(synsets) / frequency).astype(np.float32))
    length = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
    unit = csr_array(diags_array((1 / np.maximum(length, 1e-6)).astype(np.float32)) @ weighted)
    unit.sort_indices()
    return {
        "feat_data": unit.data,
        "feat_indices": unit.indices.astype(np.int32),
        "feat_indptr": unit.indptr.astype(np.int64),
        "feat_shape": np.array(unit.shape),
    }


def split(nodes: int) -> Arrays:
    """Half of the nodes for training, a quarter each for validation and test."""
    order = np.random.default_rng(0).permutation(nodes).astype(np.int32)
    train, val, test = np.split(order, [nodes // 2, 3 * nodes // 4])
    return {"train_idx": train, "val_idx": val, "test_idx": test}


def build(folder: Path) -> Arrays:
    """All arrays of the graph, from the folder that holds ``data.noun`` and the other three."""
    synsets = list(read_synsets(folder))
    label = np.array([synset.lexicographer for synset in synsets], dtype=np.int16)
    return {**edges(synsets), "label": label, **features(synsets), **split(len(synsets))}


def main() -> None:
    """Build the graph and write it at once or not at all."""
    parser = argparse.ArgumentParser(description="Build the WordNet graph.")
    parser.add_argument("folder", type=Path, help="folder of the WordNet 3.0 database, with data.noun")
    parser.add_argument("out", type=Path, help="the .npz file to write")
    options = parser.parse_args()
    arrays = build(options.folder)
    unfinished = options.out.with_name(f".{options.out.name}.{os.getpid()}.npz")
    np.savez_compressed(unfinished, allow_pickle=False, **arrays)
    unfinished.replace(options.out)


if __name__ == "__main__":
    main()
