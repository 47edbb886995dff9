"""The cases that the planner is judged by: what is trained, where, and the ways to train it.

Some are held out from all tuning, by a number that follows from their names alone, so that nobody chooses which.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

_HELD_OUT_OF = 5


class Case(NamedTuple):
    """What is trained, by how many workers, and what joins them.

    Attributes:
        graph: Its name.
        model: Its name.
        options: Further words of the command line.
        workers: All of them.
        rate: Speed of the links between hosts of one worker each, as tc writes it; empty for one host.
        memory: The most memory of one worker; empty for no limit.
    """

    graph: str
    model: str
    options: str
    workers: int
    rate: str = ""
    memory: str = ""

    @property
    def name(self) -> str:
        """All of it in one line."""
        where = f"{self.workers}x{self.rate}" if self.rate else f"{self.workers}"
        return " ".join(filter(None, (self.graph, self.model, self.options, where, self.memory)))

    @property
    def in_batches(self) -> bool:
        """Whether it is trained in mini-batches."""
        return "--batch-size" in self.options

    def list_ways(self) -> list[str]:
        """Return the strategies that are measured, with settings joined by colons."""
        several = self.workers > 1
        if self.memory:
            return ["offload", "tensor"]
        if self.in_batches:
            caches = ["sampled:cache=0.05", "sampled:cache=0.2"] if self.rate else []
            others = ["split", "migrate:move_model=true"] if several else ["orchestrate:hot_ratio=0.2"]
            return ["sampled", *others, *caches]
        return ["full", *(["tensor"] if several else []), "offload:chunks=4"]


def list_cases() -> list[Case]:
    """Return all cases."""
    return [*_on_one_host(), *_between_hosts()]


def list_sizes() -> list[Case]:
    """Return cases of growing graphs, of 0.1, 0.5 and 5 million nodes, whose memory is measured."""
    return [
        Case(graph, "sage", options, workers)
        for graph in ("papers100M@0.001", "papers100M@0.005", "papers100M@0.045")
        for options in ("--layers 2 --hidden 32", "--layers 3 --hidden 128 --batch-size 256 --fanout 15,10,5")
        for workers in (1, 2)
    ]


def list_held_out() -> set[Case]:
    """Return the cases that nothing may be tuned on: a fifth, those whose names have the smallest checksums."""
    cases = sorted(list_cases(), key=lambda case: zlib.crc32(case.name.encode()))
    return set(cases[: -(-len(cases) // _HELD_OUT_OF)])


_WHOLE = (
    ("cora", "gcn", "--layers 2 --hidden 64"),
    ("amazon-photo", "gat", "--layers 2 --hidden 32"),
    ("coauthor-cs", "gcn", "--layers 3 --hidden 64"),
    ("wordnet", "sage", "--layers 2 --hidden 64"),
    ("wordnet", "rgcn", "--layers 2 --hidden 32"),
    ("debian", "gcn", "--layers 4 --hidden 128"),
    ("products@0.02", "sage", "--layers 3 --hidden 128"),
    ("products@0.02", "gin", "--layers 5 --hidden 64"),
    ("reddit@0.03", "gcn", "--layers 2 --hidden 256"),
    ("reddit@0.03", "gat", "--layers 2 --hidden 64"),
    ("arxiv@0.3", "gcn", "--layers 3 --hidden 128"),
    ("papers100M@0.001", "sage", "--layers 3 --hidden 64"),
)
_BATCHES = (
    ("amazon-photo", "gcn", "--layers 2 --hidden 64 --batch-size 256 --fanout 10,10"),
    ("wordnet", "sage", "--layers 2 --hidden 64 --batch-size 4096 --fanout 10,10"),
    ("wordnet", "gat", "--layers 3 --hidden 32 --batch-size 16384 --fanout 5,5,5"),
    ("debian", "gin", "--layers 3 --hidden 64 --batch-size 1024 --fanout 10,10,5"),
    ("products@0.02", "sage", "--layers 3 --hidden 128 --batch-size 1024 --fanout 10,10,10"),
    ("products@0.02", "gat", "--layers 2 --hidden 64 --batch-size 256 --fanout 10,10"),
    ("reddit@0.03", "sage", "--layers 2 --hidden 256 --batch-size 1024 --fanout 25,10"),
    ("arxiv@0.3", "gcn", "--layers 4 --hidden 64 --batch-size 4096 --fanout 5,5,5,5"),
    ("papers100M@0.005", "sage", "--layers 3 --hidden 128 --batch-size 1024 --fanout 15,10,5"),
    ("papers100M@0.001", "sage", "--layers 2 --hidden 64 --batch-size 256 --fanout 10,10"),
)
_NETWORKS = ((2, "1gbit"), (2, "10gbit"), (4, "200mbit"))
_SMALL_MEMORY = (
    ("products@0.1", "gcn", "--layers 3 --hidden 64", "700MiB"),
    ("products@0.05", "sage", "--layers 2 --hidden 64", "600MiB"),
    ("papers100M@0.005", "gcn", "--layers 2 --hidden 64", "900MiB"),
)


def _on_one_host() -> Iterator[Case]:
    for number, each in enumerate((*_WHOLE, *_BATCHES)):
        yield Case(*each, workers=2)
        # One worker, and more workers than cores, on every second case each.
        yield Case(*each, workers=4 if number % 2 else 1)
    for graph, model, options, memory in _SMALL_MEMORY:
        yield Case(graph, model, options, 2, memory=memory)


def _between_hosts() -> Iterator[Case]:
    chosen = [*_WHOLE[3::2], *_BATCHES[1::2], _BATCHES[4]]
    for number, (workers, rate) in enumerate(_NETWORKS):
        for each in chosen[number % 2 :: 2] if rate == "10gbit" else chosen:
            yield Case(*each, workers=workers, rate=rate)
