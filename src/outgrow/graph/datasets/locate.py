"""Search for files of data sets: in a given folder, $OUTGROW_DATA, the cache, the package, at their address."""

from __future__ import annotations

import importlib.resources
import os
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from outgrow.core.errors import InputError
from outgrow.graph.datasets.dataset import Dataset, FileSet


class FileOrigin(StrEnum):
    """Origin of the files of a data set."""

    PACKAGED = "packaged"
    LOCAL = "local"
    CACHED = "cached"
    DOWNLOAD = "download"
    MISSING = "missing"


class LocatedFiles(NamedTuple):
    """Files that were found: the file set, its data folder, and the kind of that folder."""

    file_set: FileSet
    folder: Path
    origin: FileOrigin


def cache_dir() -> Path:
    """Return ``$XDG_CACHE_HOME/outgrow``, or ``~/.cache/outgrow``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "outgrow"


def find_origin(dataset: Dataset, data_dir: Path | None = None) -> FileOrigin:
    """Return where `locate_files` would find the data set; nothing is downloaded."""
    found = _find_files(dataset, data_dir)
    if found is not None:
        return found.origin
    return FileOrigin.DOWNLOAD if any(form.downloader for form in dataset.file_sets) else FileOrigin.MISSING


def locate_files(dataset: Dataset, data_dir: Path | None = None) -> LocatedFiles:
    """Find the files of a data set, and download them into the cache if they are nowhere else.

    Args:
        dataset: The data set.
        data_dir: First folder to search.

    Raises:
        InputError: The files are nowhere, and have no address or it cannot be reached; the message lists the
            folders that were searched.
    """
    if data_dir is not None and not data_dir.is_dir():
        raise InputError(
            f"the data folder {data_dir} does not exist",
            needed="a folder",
            got="no folder of that name",
            repair="correct --data-dir, or leave it out",
        )
    found = _find_files(dataset, data_dir)
    if found is not None:
        return found
    form = next((form for form in dataset.file_sets if form.downloader is not None), None)
    if form is None or form.downloader is None:
        raise _missing_files_error(dataset, data_dir, dataset.build or "ask whoever has its files")
    try:
        form.downloader.download_into(cache_dir())
    # Whatever failed, the user can also provide the files: the message names the folders for them.
    except InputError as error:
        raise _missing_files_error(dataset, data_dir, error.repair, f"; {error.what} ({error.got})") from error
    return LocatedFiles(file_set=form, folder=cache_dir(), origin=FileOrigin.CACHED)


def _search_folders(dataset: Dataset, data_dir: Path | None) -> list[tuple[Path, FileOrigin]]:
    folders = [] if data_dir is None else [(data_dir, FileOrigin.LOCAL)]
    if os.environ.get("OUTGROW_DATA"):
        folders.append((Path(os.environ["OUTGROW_DATA"]), FileOrigin.LOCAL))
    # After the user's folders: files placed there on purpose replace downloaded ones.
    folders.append((cache_dir(), FileOrigin.CACHED))
    if dataset.packaged:
        folders.append((Path(str(importlib.resources.files("outgrow.data"))), FileOrigin.PACKAGED))
    return folders


def _find_files(dataset: Dataset, data_dir: Path | None) -> LocatedFiles | None:
    for folder, kind in _search_folders(dataset, data_dir):
        # A set counts only if complete: half of one and half of another would not fit together.
        for form in dataset.file_sets:
            if all(os.path.exists(folder / path) for path in form.paths):
                return LocatedFiles(file_set=form, folder=folder, origin=kind)
    return None


def _missing_files_error(dataset: Dataset, data_dir: Path | None, repair: str, why: str = "") -> InputError:
    paths = " or ".join(", ".join(form.paths) for form in dataset.file_sets)
    looked = ", ".join(str(folder) for folder, _ in _search_folders(dataset, data_dir))
    hint = "" if os.environ.get("OUTGROW_DATA") else "; $OUTGROW_DATA is not set"
    return InputError(
        f"the files of {dataset.name} were not found",
        needed=f"in a data folder: {paths}",
        got=f"none of that in {looked}{hint}{why}",
        repair=f"{repair}; name the data folder with --data-dir or $OUTGROW_DATA",
    )
