"""What is known of a data set before it is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outgrow.graph.readers.source import GraphSource


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file of a data set.

    Attributes:
        path: Where it lies, relative to a data folder.
        url: Public address; None if it has none.
        sha256: Checksum of what the address gives, in hexadecimal; None if unknown.
    """

    path: str
    url: str | None = None
    sha256: str | None = None


class Downloader(ABC):
    """How the files of a data set come into a folder."""

    @abstractmethod
    def describe_address(self) -> str:
        """Where they come from, for people."""

    @abstractmethod
    def download_into(self, folder: Path) -> None:
        """Put all files under ``folder``, each at once or not at all.

        Raises:
            InputError: The address cannot be reached, or what came is not what was expected.
        """


@dataclass(frozen=True, kw_only=True)
class FileSet:
    """One set of files that holds a data set.

    Attributes:
        paths: What must be there, relative to a data folder.
        open_source: Gives the source, from the data folder.
        downloader: How to get the files; None if they have no public address.
    """

    paths: tuple[str, ...]
    open_source: Callable[[Path], GraphSource]
    downloader: Downloader | None = None


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set that can be asked for by name.

    Attributes:
        name: What to ask for.
        description: What nodes, edges and classes are.
        nodes: ``V``.
        edges: Edges in its files, before reverse edges are added.
        features: ``D``.
        classes: ``C``.
        licence: Under which terms its data may be used.
        file_sets: Sets of files that hold it; the first one found is read, the first one with an address is
            fetched.
        undirected: Whether to add reverse edges unless told otherwise.
        packaged: Whether its files come with the package.
        build: How to make the files where they have no address.
    """

    name: str
    description: str
    nodes: int
    edges: int
    features: int
    classes: int
    licence: str
    file_sets: tuple[FileSet, ...]
    undirected: bool = True
    packaged: bool = False
    build: str | None = None
