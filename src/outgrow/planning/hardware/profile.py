"""Machine profiles: rates of devices, hosts and links, and their files."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_type_hints

from outgrow.core.errors import InputError
from outgrow.core.files import atomic_write, os_errors_as_input_errors
from outgrow.core.ledger import Link
from outgrow.core.validation import validate_choice


@dataclass(frozen=True, kw_only=True)
class LinkRate:
    """Bandwidth and latency of a link, for one worker at a time unless stated otherwise.

    Attributes:
        bytes_per_second: Bandwidth of a long message.
        message_seconds: Latency: seconds of an empty message.
    """

    bytes_per_second: float
    message_seconds: float = 0.0

    def transfer_seconds(self, num_bytes: float, messages: float = 1) -> float:
        """Return the seconds that ``num_bytes`` take in ``messages`` messages."""
        return num_bytes / self.bytes_per_second + messages * self.message_seconds


class RateByWidth:
    """Rate that depends on the width of rows. Final.

    Args:
        per_second: The rate at some positive widths.
    """

    def __init__(self, per_second: Mapping[int, float]) -> None:
        self.per_second = dict(sorted(per_second.items()))

    def rate_at(self, width: float) -> float:
        """Interpolate the rate at a width, on logarithmic axes; beyond known widths, the nearest rate holds."""
        widths = list(self.per_second)
        rates = list(self.per_second.values())
        # Outside the measured range a line would soon leave what the hardware can do.
        right = bisect_left(widths, width)
        if right == 0 or right == len(widths):
            return rates[min(right, len(widths) - 1)]
        low, high = widths[right - 1], widths[right]
        share = math.log(width / low) / math.log(high / low)
        return math.exp((1 - share) * math.log(rates[right - 1]) + share * math.log(rates[right]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RateByWidth) and self.per_second == other.per_second

    def __hash__(self) -> int:
        return hash(tuple(self.per_second.items()))

    def __repr__(self) -> str:
        return f"RateByWidth({self.per_second})"


T = TypeVar("T")
FORMAT = 3
NEAR_BYTES, FAR_BYTES = 1 << 22, 1 << 28
"""Sizes of a table of rows that fits into caches, and of one that does not."""
DEGREE = 16
"""Mean in-degree of the graphs that sums are measured on."""
_MACHINES = resources.files("outgrow.planning") / "machines"


@dataclass(frozen=True, kw_only=True)
class DeviceProfile:
    """Device of a worker: its own GPU, or the CPU that it shares with the other workers of its host.

    Attributes:
        kind: ``"cuda"`` or ``"cpu"``.
        name: Name given by the maker.
        memory_bytes: Memory of the GPU, or of the host.
        product: Floating-point operations per second of ``[n, w] @ [w, w]`` in float32, by ``w``.
        near: Bytes of float32 rows read per second by sums over in-neighbours, forward and backward, by
            columns, from a table of `NEAR_BYTES`, at a mean in-degree of `DEGREE`.
        far: The same, from a table of `FAR_BYTES`.
        finish: Numbers per second that get a bias, an activation, dropout and their gradients.
        score: Edge scores per second that attention processes in addition to sums, forward and backward, by the mean
            in-degree.
        fresh: Edges per second that are prepared for sums in both directions when first seen.
        copy: Bytes read and written per second by a copy in device memory.
        layer_seconds: Fixed seconds of a layer in a training step, regardless of its size.
        step_overhead_seconds: Fixed seconds of a step of training beside those of its layers, regardless of its size.
        efficiency: Share of these rates that whole training steps reach.
    """

    kind: str
    name: str
    memory_bytes: int
    product: RateByWidth
    near: RateByWidth
    far: RateByWidth
    finish: float
    score: RateByWidth
    fresh: float
    copy: float
    layer_seconds: float
    step_overhead_seconds: float
    efficiency: float

    @property
    def is_shared(self) -> bool:
        """Whether all workers of a host share the device, its rates and its memory."""
        return self.kind == "cpu"


@dataclass(frozen=True, kw_only=True)
class HostProfile:
    """Resources of a host that its workers share.

    Attributes:
        cores: Cores of its CPU.
        memory_bytes: Bytes of its memory.
        gather: Bytes of float32 rows that a thread gathers from random places per second, by columns.
        sampled_edges: Edges of sampled blocks that a thread samples per second.
    """

    cores: int
    memory_bytes: int
    gather: RateByWidth
    sampled_edges: float


@dataclass(frozen=True, kw_only=True)
class MachineProfile:
    """Profile of a machine, or of several equal ones.

    Attributes:
        name: Name of the profile.
        date: When it was measured or written, ``YYYY-MM-DD``.
        source: Where the numbers are from.
        hosts: Number of hosts.
        workers: Largest number of workers on a host: its GPUs, or its cores.
        device: Device of a worker.
        host: Each of the hosts.
        links: Known rates. ``peer`` and ``network`` are those of a worker that sends to all others while
            these do the same. If the device is a CPU, the links between host and device are scratch files.
    """

    name: str
    date: str
    source: str
    hosts: int
    workers: int
    device: DeviceProfile
    host: HostProfile
    links: Mapping[Link, LinkRate]

    def as_dict(self) -> dict[str, Any]:
        """Return the profile as it is written to a file."""
        return {
            "format": FORMAT,
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "device": _rates_to_json(self.device),
            "host": _rates_to_json(self.host),
            "links": {link.value: asdict(rate) for link, rate in self.links.items()},
        }


def list_machines() -> list[str]:
    """Return the names of the profiles that come with Outgrow."""
    return sorted(Path(each.name).stem for each in _MACHINES.iterdir() if each.name.endswith(".json"))


def find_profile(hardware: str) -> MachineProfile:
    """Return a profile by its name (see `list_machines`), or from a file.

    Raises:
        InputError: There is none, or it is broken.
    """
    path = Path(hardware).expanduser()
    if path.suffix == ".json" or path.is_file():
        return read_profile(path)
    known = dict.fromkeys(list_machines())
    validate_choice("hardware", hardware, known)
    return _parse_profile(hardware, (_MACHINES / f"{hardware}.json").read_text("utf-8"))


def read_profile(path: Path) -> MachineProfile:
    """Read the profile in a file.

    Raises:
        InputError: It cannot be read, or is broken.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        _raise_unusable(str(path), f"{type(error).__name__}: {error}")
    return _parse_profile(str(path), text)


def write_profile(profile: MachineProfile, path: Path) -> None:
    """Write a profile to a file, whole or not at all.

    Raises:
        InputError: The file cannot be written.
    """
    with os_errors_as_input_errors(
        f"the profile cannot be written to {path}", needed="a file that can be written", repair="give another --out"
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(profile.as_dict(), indent=2) + "\n", "utf-8")


def _rates_to_json(part: DeviceProfile | HostProfile) -> dict[str, Any]:
    return {
        field.name: {str(width): rate for width, rate in value.per_second.items()}
        if isinstance(value := getattr(part, field.name), RateByWidth)
        else value
        for field in fields(part)
    }


def _parse_profile(where: str, text: str) -> MachineProfile:
    try:
        found = json.loads(text)
    except ValueError as error:
        _raise_unusable(where, f"no JSON: {error}")
    if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
        _raise_unusable(where, f"no profile of format {FORMAT}")
    # Entries of another shape can raise any of these errors: all are reported in one way.
    try:
        links = {Link(name): _read_fields(LinkRate, rate) for name, rate in found.pop("links").items()}
        device = _read_fields(DeviceProfile, found.pop("device"))
        host = _read_fields(HostProfile, found.pop("host"))
        profile = _read_fields(MachineProfile, {**found, "device": device, "host": host, "links": links})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        _raise_unusable(where, str(error))
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", profile.date) or device.kind not in ("cpu", "cuda"):
        _raise_unusable(where, f"date {profile.date}, device of kind {device.kind}")
    return profile


def _read_fields(kind: type[T], values: Mapping[str, Any]) -> T:
    types = get_type_hints(kind)
    # A link without latency may leave it out; all other fields are needed.
    if missing := types.keys() - values.keys() - {"message_seconds"}:
        raise KeyError(f"no {', '.join(sorted(missing))}")
    return kind(
        **{name: _read_value(name, value, validate_choice("entry", name, types)) for name, value in values.items()}
    )


def _read_value(name: str, value: Any, kind: Any) -> Any:
    if kind is RateByWidth:
        if not value:
            raise ValueError(f"{name} has no rates")
        return RateByWidth({int(width): _check_positive(name, rate) for width, rate in value.items()})
    if kind is int:
        if _check_positive(name, value) != int(value):
            raise ValueError(f"{name} is {value}, no whole number")
        return int(value)
    # Rates are divided by, so only seconds may be 0.
    if kind is float:
        return _check_positive(name, value, zero=name.endswith("_seconds"))
    if kind is str and not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, no text")
    return value


def _check_positive(name: str, value: Any, *, zero: bool = False) -> float:
    # A bool is an int in Python; NaN fails the comparison.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r}, no positive number")
    if value == 0 and not zero:
        raise ValueError(f"{name} is 0")
    return float(value)


def _raise_unusable(where: str, why: str) -> NoReturn:
    raise InputError(
        f"the machine profile {where} cannot be used",
        needed="a file that outgrow calibrate has written",
        got=why,
        repair="run outgrow calibrate --out FILE, or name a machine that comes with Outgrow: "
        + ", ".join(list_machines()),
    )
