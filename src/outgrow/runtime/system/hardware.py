"""`describe_machine`: hardware and versions that results depend on."""

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
    """Properties of a machine that results depend on.

    Attributes:
        system: Operating system and its release.
        processor: Name of the CPU.
        cores: Number of cores that this process may use.
        memory_bytes: Size of main memory.
        gpus: Name of each CUDA device.
        versions: Version of Python and of each package that affects results, by name.
    """

    system: str
    processor: str
    cores: int
    memory_bytes: int
    gpus: tuple[str, ...]
    versions: dict[str, str]


def describe_machine() -> MachineInfo:
    """Describe this machine."""
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
    # On Linux `platform.processor` is often empty.
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
