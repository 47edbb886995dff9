"""The places data can be, the links it crosses, and what it is."""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    """A place that holds data."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


class Link(StrEnum):
    """A pair of tiers or workers that bytes cross."""

    DISK_TO_HOST = "disk_to_host"
    HOST_TO_DEVICE = "host_to_device"
    DEVICE_TO_HOST = "device_to_host"
    PEER = "peer"
    NETWORK = "network"


class Kind(StrEnum):
    """What the bytes on a link are."""

    FEATURES = "features"
    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"
    PARAMETERS = "parameters"
    TOPOLOGY = "topology"
    IDS = "ids"
    METRICS = "metrics"
