"""What this machine is."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil
import torch

from outgrow.runtime.system.environment import available_cores


@dataclass(frozen=True, kw_only=True)
class MachineInfo:
    """A machine, as far as results depend on it.

    Attributes:
        system: Operating system and its release.
        processor: Name of the CPU.
        cores: Cores that this process may use.
        memory_bytes: Main memory.
        gpus: Name of each CUDA device.
        versions: Version of Python and of each package that numbers depend on.
    """

    system: str
    processor: str
    cores: int
    memory_bytes: int
    gpus: tuple[str, ...]
    versions: dict[str, str]


def describe_machine() -> MachineInfo:
    """Look at this machine."""
    gpus = tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    packages = ("outgrow", "torch", "numba", "numpy", "scipy", "pyarrow")
    return MachineInfo(
        system=f"{platform.system()} {platform.release()}",
        processor=_processor_name(),
        cores=available_cores(),
        memory_bytes=int(psutil.virtual_memory().total),
        gpus=gpus,
        versions={"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
    )


def _processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
