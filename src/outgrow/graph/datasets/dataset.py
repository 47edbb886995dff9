"""Descriptions of data sets: files, sources and statistics, known before anything is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outgrow.graph.readers.source import GraphSource


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """File of a data set.

    Attributes:
        path: Path relative to a data folder.
        url: Public address; None if there is none.
        sha256: Expected checksum of the download, in hexadecimal; None if unknown.
    """

    path: str
    url: str | None = None
    sha256: str | None = None


class Downloader(ABC):
    """Way to download the files of a data set into a folder."""

    @abstractmethod
    def describe_address(self) -> str:
        """Return the origin of the files, as text for people."""

    @abstractmethod
    def download_into(self, folder: Path) -> None:
        """Download all files into ``folder``; each appears complete or not at all.

        Raises:
            InputError: The address cannot be reached, or the download is not what was expected.
        """


@dataclass(frozen=True, kw_only=True)
class FileSet:
    """Set of files that contains a data set.

    Attributes:
        paths: Paths that must exist, relative to a data folder.
        open_source: Returns the source, given the data folder.
        downloader: Downloads the files; None if they have no public address.
    """

    paths: tuple[str, ...]
    open_source: Callable[[Path], GraphSource]
    downloader: Downloader | None = None


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Data set that can be loaded by name.

    Attributes:
        name: Name of the data set.
        description: Meaning of nodes, edges and classes.
        nodes: ``V``.
        edges: Edges in its files, before reverse edges are added.
        features: ``D``.
        classes: ``C``.
        licence: Terms under which the data may be used.
        file_sets: Sets of files that contain it. The first one found is read; if there is none, the first one
            with an address is downloaded.
        undirected: Whether reverse edges are added by default.
        packaged: Whether its files come with the package.
        build: How to make the files if they have no address.
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
