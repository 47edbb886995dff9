"""The graph of all files of Debian's packages: files and directories, and the packages that ship them.

Read from the Contents indices that ``apt-file update`` fetches. Nodes are directories, then packages, then files; edges
go from a directory to the one above it, from a file to its directory, and from a package to a file that it ships.
"""

from __future__ import annotations

import subprocess
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource

LISTS = Path("/var/lib/apt/lists")
WIDTH, _KINDS, _DEPTHS = 64, 3, 13
_CHUNK = 1 << 20


class DebianFiles(GraphSource):
    """The graph. Final.

    A node's features say its kind, its depth and, hashed, the ending of its name. The label of a package, and of a file
    that it ships, is its section of the archive; that of a directory is unknown.

    Args:
        lists: Folder of the indices.
    """

    name = "debian-files"

    def __init__(self, lists: Path = LISTS) -> None:
        self._above, self._depth = array("i"), array("b")
        self._section, self._home, self._ending, self._file_depth = array("h"), array("i"), array("b"), array("b")
        self._owner, self._owned = array("i"), array("i")
        self._directories: dict[str, int] = {}
        self._packages: dict[str, int] = {}
        self._sections: dict[str, int] = {}
        for index in sorted(lists.glob("*_Contents-*.lz4")):
            self._read(index)
        self._directories.clear()

    def _read(self, index: Path) -> None:
        with subprocess.Popen(["lz4", "-dc", str(index)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for line in process.stdout:
                path, _, owners = line.decode("utf-8", "replace").rstrip().rpartition(" ")
                if path := path.rstrip():
                    self._add(path, owners)

    def _add(self, path: str, owners: str) -> None:
        folder, _, name = path.rpartition("/")
        file = len(self._home)
        self._home.append(self._directory(folder))
        self._file_depth.append(min(path.count("/"), _DEPTHS - 1))
        self._ending.append(zlib.crc32(name.rpartition(".")[2].encode()) % (WIDTH - _KINDS - _DEPTHS))
        for owner in owners.split(","):
            section, _, package = owner.rpartition("/")
            self._owner.append(self._package(package, section.rpartition("/")[2]))
            self._owned.append(file)

    def _directory(self, path: str) -> int:
        if path not in self._directories:
            above = self._directory(path.rpartition("/")[0]) if path else -1
            self._directories[path] = len(self._above)
            self._above.append(above)
            self._depth.append(min(path.count("/"), _DEPTHS - 1))
        return self._directories[path]

    def _package(self, name: str, section: str) -> int:
        if name not in self._packages:
            self._packages[name] = len(self._packages)
            self._section.append(self._sections.setdefault(section, len(self._sections)))
        return self._packages[name]

    @property
    def _starts(self) -> tuple[int, int, int]:
        """First package, first file, and how many nodes there are."""
        packages = len(self._above)
        files = packages + len(self._section)
        return packages, files, files + len(self._home)

    def read_tables(self) -> NodeTableSource:
        """Features, labels and a split of 50, 25 and 25 percent of the labelled nodes."""
        packages, files, nodes = self._starts
        labels = np.full(nodes, -1, dtype=np.int64)
        section, owner, owned = (np.asarray(each) for each in (self._section, self._owner, self._owned))
        labels[packages:files] = section
        labels[files + owned[::-1]] = section[owner[::-1]]  # of several, the first package counts
        order = np.random.default_rng(0).permutation(np.flatnonzero(labels >= 0))
        half, rest = len(order) // 2, len(order) * 3 // 4
        return NodeTableSource(
            num_nodes=nodes,
            features=self._features(packages, files, nodes),
            labels=labels,
            train=np.sort(order[:half]),
            val=np.sort(order[half:rest]),
            test=np.sort(order[rest:]),
            class_names=tuple(self._sections),
        )

    def _features(self, packages: int, files: int, nodes: int) -> NDArray[np.float16]:
        rows = np.zeros((nodes, WIDTH), dtype=np.float16)
        rows[:packages, 0] = rows[packages:files, 1] = rows[files:, 2] = 1
        rows[np.arange(packages), _KINDS + np.asarray(self._depth)] = 1
        at = np.arange(files, nodes)
        rows[at, _KINDS + np.asarray(self._file_depth)] = 1
        rows[at, _KINDS + _DEPTHS + np.asarray(self._ending)] = 1
        return rows

    def read_edges(self) -> Iterator[EdgeChunk]:
        """All edges."""
        packages, files, _ = self._starts
        above = np.asarray(self._above, dtype=np.int64)
        below = np.flatnonzero(above >= 0)
        home = np.asarray(self._home, dtype=np.int64)
        owner, owned = (np.asarray(each, dtype=np.int64) for each in (self._owner, self._owned))
        for src, dst in (
            (below, above[below]),
            (files + np.arange(len(home)), home),
            (packages + owner, files + owned),
        ):
            for first in range(0, len(src), _CHUNK):
                yield EdgeChunk(src=src[first : first + _CHUNK], dst=dst[first : first + _CHUNK])
