"""Where the files of a data set are looked for: a folder given, $OUTGROW_DATA, the cache, then their address."""

from __future__ import annotations

import importlib.resources
import os
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from outgrow.core.errors import InputError
from outgrow.graph.datasets.dataset import Dataset, Form


class Origin(StrEnum):
    """Where the files of a data set would come from."""

    PACKAGED = "packaged"
    LOCAL = "local"
    CACHED = "cached"
    DOWNLOAD = "download"
    MISSING = "missing"


class Found(NamedTuple):
    """Files that are there: their form, the data folder they lie in, and what kind of folder that is."""

    form: Form
    folder: Path
    origin: Origin


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/outgrow``, or ``~/.cache/outgrow``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "outgrow"


def origin(dataset: Dataset, data_dir: Path | None = None) -> Origin:
    """Where `locate` would find the data set; nothing is downloaded."""
    found = _find(dataset, data_dir)
    if found is not None:
        return found.origin
    return Origin.DOWNLOAD if any(form.fetch for form in dataset.forms) else Origin.MISSING


def locate(dataset: Dataset, data_dir: Path | None = None) -> Found:
    """Find the files of a data set, downloading them into the cache where they are nowhere else.

    Args:
        dataset: What to look for.
        data_dir: Folder to look in first.

    Raises:
        InputError: The files are nowhere, and have no address or it cannot be reached; says where they were looked for.
    """
    if data_dir is not None and not data_dir.is_dir():
        raise InputError(
            f"the data folder {data_dir} does not exist",
            needed="a folder",
            got="no folder of that name",
            repair="correct --data-dir, or leave it out",
        )
    found = _find(dataset, data_dir)
    if found is not None:
        return found
    form = next((form for form in dataset.forms if form.fetch is not None), None)
    if form is None or form.fetch is None:
        raise _nowhere(dataset, data_dir, dataset.build or "ask whoever has its files")
    try:
        form.fetch.into(cache_folder())
    except InputError as error:
        raise _nowhere(dataset, data_dir, error.repair, f"; {error.what} ({error.got})") from error
    return Found(form=form, folder=cache_folder(), origin=Origin.CACHED)


def _folders(dataset: Dataset, data_dir: Path | None) -> list[tuple[Path, Origin]]:
    folders = [] if data_dir is None else [(data_dir, Origin.LOCAL)]
    if os.environ.get("OUTGROW_DATA"):
        folders.append((Path(os.environ["OUTGROW_DATA"]), Origin.LOCAL))
    folders.append((cache_folder(), Origin.CACHED))
    if dataset.packaged:
        folders.append((Path(str(importlib.resources.files("outgrow.data"))), Origin.PACKAGED))
    return folders


def _find(dataset: Dataset, data_dir: Path | None) -> Found | None:
    for folder, kind in _folders(dataset, data_dir):
        for form in dataset.forms:
            if all((folder / path).exists() for path in form.paths):
                return Found(form=form, folder=folder, origin=kind)
    return None


def _nowhere(dataset: Dataset, data_dir: Path | None, repair: str, why: str = "") -> InputError:
    paths = " or ".join(", ".join(form.paths) for form in dataset.forms)
    looked = ", ".join(str(folder) for folder, _ in _folders(dataset, data_dir))
    hint = "" if os.environ.get("OUTGROW_DATA") else "; $OUTGROW_DATA is not set"
    return InputError(
        f"the files of {dataset.name} were not found",
        needed=f"in a data folder: {paths}",
        got=f"none of that in {looked}{hint}{why}",
        repair=f"{repair}; name the data folder with --data-dir or $OUTGROW_DATA",
    )
