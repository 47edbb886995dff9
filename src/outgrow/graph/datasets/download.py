"""Download of data sets from their public addresses: files are complete and checked, or do not appear."""

from __future__ import annotations

import hashlib
import http.client
import importlib.util
import tempfile
import urllib.request
import zipfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from outgrow.core.errors import InputError
from outgrow.core.files import atomic_write, os_errors_as_input_errors
from outgrow.graph.datasets.dataset import Downloader, RemoteFile

_BLOCK = 1 << 20
_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class FileDownloader(Downloader):
    """Downloader of files that each have an address.

    Attributes:
        files: The files.
    """

    files: tuple[RemoteFile, ...]

    def describe_address(self) -> str:
        """Return the folder of the first address."""
        return str(self.files[0].url).rpartition("/")[0]

    def download_into(self, folder: Path) -> None:
        """Download the files that do not exist yet."""
        # Each file is complete once it is there, so an interrupted download resumes with the next file.
        for file in self.files:
            if file.url is not None and not (folder / file.path).exists():
                _download_file(file.url, folder / file.path, file.sha256)


@dataclass(frozen=True, kw_only=True)
class OgbDownloader(Downloader):
    """Downloader of a zip archive whose address the package ``ogb`` lists.

    Attributes:
        name: Name of the data set in OGB, such as ``ogbn-arxiv``.
        folder: Name of the resulting folder.
    """

    name: str
    folder: str

    def describe_address(self) -> str:
        """Return the name of the benchmark and of the data set."""
        return f"the Open Graph Benchmark, {self.name}"

    def download_into(self, folder: Path) -> None:
        """Download and unpack the archive."""
        folder.mkdir(parents=True, exist_ok=True)
        # Inside the target folder: renaming works only within one file system.
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{self.folder}-") as name:
            archive = Path(name) / "archive.zip"
            url = _find_ogb_url(self.name)
            _download_file(url, archive, None)
            with _download_errors(url), zipfile.ZipFile(archive) as packed:
                packed.extractall(Path(name) / "unpacked")
            archive.unlink()
            found = next((Path(name) / "unpacked").glob("*/raw"), None)
            if found is None:
                raise InputError(
                    f"{url} is not the archive it should be",
                    needed="a folder with raw/ in it",
                    got="no such folder",
                    repair="put the unpacked OGB folder into a data folder by hand",
                )
            # A folder, so no atomic_write. Its files are not flushed: after a crash they can be downloaded again.
            found.parent.rename(folder / self.folder)


def _find_ogb_url(name: str) -> str:
    found = importlib.util.find_spec("ogb")
    if found is None or not found.submodule_search_locations:
        raise InputError(
            f"{name} comes through the package ogb, which is not installed",
            needed="the extra 'ogb'",
            got="no package ogb",
            repair="pip install 'outgrow[ogb]', or put the unpacked OGB folder into the data folder",
        )
    # The table is read as a file: importing ogb would look for updates and load all its readers.
    table = Path(found.submodule_search_locations[0]) / "nodeproppred" / "master.csv"
    rows = [line.split(",") for line in table.read_text().splitlines()]
    return next(row for row in rows if row[0] == "url")[rows[0].index(name)]


def _download_file(url: str, dest: Path, sha256: str | None) -> None:
    digest = hashlib.sha256()
    dest.parent.mkdir(parents=True, exist_ok=True)
    with _download_errors(url), atomic_write(dest) as unfinished:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer, unfinished.open("wb") as out:
            # The checksum is computed on the way: large files need not be read a second time.
            while block := answer.read(_BLOCK):
                digest.update(block)
                out.write(block)
            expected = answer.headers.get("Content-Length")
        # A connection that breaks off looks like the end of the file; only the announced size tells.
        _check_size(url, unfinished.stat().st_size, expected)
        if sha256 is not None and digest.hexdigest() != sha256:
            raise InputError(
                f"{url} is not the file it should be",
                needed=f"SHA-256 {sha256}",
                got=f"SHA-256 {digest.hexdigest()}, {unfinished.stat().st_size:,} bytes",
                repair="try again; if it stays so, the file was changed at its source: report it",
            )


def _download_errors(url: str) -> AbstractContextManager[None]:
    return os_errors_as_input_errors(
        f"cannot download {url}",
        needed="a network connection to it, and room in the cache folder",
        repair="try again online, or copy the file into a data folder by hand",
        also=(http.client.HTTPException, zipfile.BadZipFile),
    )


def _check_size(url: str, size: int, expected: str | None) -> None:
    if expected is not None and size != int(expected):
        raise InputError(
            f"the download of {url} broke off", needed=f"{int(expected):,} bytes", got=f"{size:,}", repair="try again"
        )
