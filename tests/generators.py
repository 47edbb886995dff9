"""The global generators of random numbers: what they would draw next, where they begin, and how to leave them alone."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def states() -> dict[str, Any]:
    """What the generators would draw next."""
    name, words, *rest = np.random.get_state()
    return {
        "random": random.getstate(),
        "numpy.random": (name, np.asarray(words).tobytes(), *rest),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


def seed_all(key: str) -> None:
    """Let them begin where the key says."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def apart(key: str = "") -> Iterator[None]:
    """Inside they begin where the key says; afterwards they draw what they would have drawn without this."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed_all(key)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
