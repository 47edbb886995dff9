"""The stores that `network.py` trains on: converted, with partitions, with wider features, apart for each host."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import outgrow as og
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.graph.partition.partition_cache import load_or_make_partition
from outgrow.graph.store.reader import array_path, write_store

_BLOCK = 1 << 14


def prepare(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Path], dict[str, str], list[dict[str, Any]]]:
    """Stores by graph, with all partitions in them; graphs that cannot be had, and why; what the partitions cut."""
    stores, missing, cuts = {}, {}, []
    for graph in options.graphs:
        store = folder / f"store-{graph}{f'-{options.width}-wide' if options.width else ''}"
        refused = None if store.exists() else _made(graph, store, options)
        if refused is not None:
            missing[graph] = refused
            print(f"{graph} is left out: {refused}", file=sys.stderr)
            continue
        stores[graph] = store
        for method in options.partitions:
            done = outgrow("partition", store, "--parts", options.hosts, "--method", method, "--json")
            if done.returncode:
                sys.exit(done.stderr)
            cuts.append({"graph": graph, "partition": method, **json.loads(done.stdout)})
        if options.apart:
            apart(store, options.apart, options.hosts)
    return stores, missing, cuts


def _made(graph: str, store: Path, options: argparse.Namespace) -> str | None:
    """Make a store; why that cannot be done, if it cannot."""
    given = ["--data-dir", options.data_dir] if options.data_dir else []
    made = store.with_name(f".{store.name}") if options.width else store
    shutil.rmtree(made, ignore_errors=True)
    done = outgrow("convert", graph, made, *given)
    if done.returncode:
        return " ".join(done.stderr.split())
    if options.width:
        _widen(made, store, options.width)
        shutil.rmtree(made)
    return None


def _widen(given: Path, store: Path, width: int) -> None:
    """Write a store with random features, as HopGNN gives them to graphs that have none."""
    graph = og.load(given)
    features = torch.randn(graph.num_nodes, width, generator=torch.Generator().manual_seed(0))
    write_store(replace(graph, features=features), store)


def own_store(store: Path, host: int | str = "{host}") -> Path:
    """The folder of a host."""
    return store.with_name(f"{store.name}-host-{host}")


def apart(store: Path, method: str, hosts: int) -> None:
    """Make a folder for each host, in which the features of all nodes but its own are no numbers, for mini-batches.

    All other files are those of the store. So a row that a host has read itself and should have been sent makes the
    loss no number, and ends the run.
    """
    graph = og.load(store)
    # The partition of mini-batches, which hosts apart are for.
    seeded = WITHOUT_CHUNKS[method].with_seeds(graph.split.train)
    parts = load_or_make_partition(graph.topology, seeded, hosts, store=store).part.numpy()
    given = np.load(array_path(store, "features"), mmap_mode="r")
    for host in range(hosts):
        mine = own_store(store, host)
        shutil.rmtree(mine, ignore_errors=True)
        shutil.copytree(store, mine, copy_function=os.link, ignore=shutil.ignore_patterns("features.npy"))
        own = np.lib.format.open_memmap(array_path(mine, "features"), "w+", given.dtype, given.shape)
        for first in range(0, len(given), _BLOCK):
            rows = slice(first, first + _BLOCK)
            own[rows] = np.where((parts[rows] == host)[:, None], given[rows], np.nan)
        own.flush()


def outgrow(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the command on this machine itself."""
    command = [sys.executable, "-m", "outgrow", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
