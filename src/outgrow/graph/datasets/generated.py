"""Generated graphs by name: ``rmat-SCALE`` and ``PRESET@SCALE``."""

from __future__ import annotations

import re
from typing import NamedTuple

from outgrow.core.errors import InputError
from outgrow.core.validation import pick
from outgrow.graph.ingest.source import Source
from outgrow.graph.synthetic.presets import presets
from outgrow.graph.synthetic.rmat import RMat


class Generated(NamedTuple):
    """A generator, and whether its graph is to be read as undirected."""

    source: Source
    undirected: bool


def generated(name: str) -> Generated | None:
    """The generator that a name stands for, with seed 0; None if the name is not of such a form.

    Raises:
        InputError: No such preset, or a scale that is no number or out of range.
    """
    rmat = re.fullmatch(r"rmat-(\d+)", name)
    if rmat:
        return Generated(RMat(scale=int(rmat[1])), undirected=True)
    preset, at, scale = name.partition("@")
    if not at:
        return None
    found = pick("preset", preset, presets())
    try:
        factor = float(scale)
    except ValueError as error:
        raise InputError(
            f"{scale!r} is no scale",
            needed=f"{preset}@NUMBER, such as {preset}@{found.smallest_scale:.2g}",
            got=name,
            repair="write a number after the @",
        ) from error
    return Generated(found.at(factor), undirected=found.undirected)
