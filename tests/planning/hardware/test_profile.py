"""Machine profiles as files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outgrow.core.errors import InputError
from outgrow.core.ledger import Link
from outgrow.planning.hardware.profile import find_profile, list_machines, read_profile, write_profile


@pytest.mark.parametrize("name", list_machines())
def test_those_that_come_with_outgrow_can_be_read_and_written(name: str, tmp_path: Path) -> None:
    profile = find_profile(name)
    assert profile.name == name
    write_profile(profile, tmp_path / "x.json")
    assert read_profile(tmp_path / "x.json") == profile
    assert {Link.DISK_TO_HOST, Link.HOST_TO_DEVICE, Link.DEVICE_TO_HOST} <= profile.links.keys()
    assert (Link.NETWORK in profile.links) == (profile.hosts > 1)
    assert (Link.PEER in profile.links) == (profile.workers > 1)
    assert len(profile.source) > 50


def test_numbers_that_papers_and_data_sheets_have() -> None:
    t4 = find_profile("16xT4")
    assert (t4.hosts, t4.workers, t4.device.is_shared) == (16, 1, False)
    assert t4.links[Link.NETWORK].bytes_per_second == 15e9 / 8
    assert t4.device.product.rate_at(1024) == 8.1e12
    assert find_profile("4xA100").links[Link.PEER].bytes_per_second == 200e9


def test_products_of_narrow_rows_wait_for_memory() -> None:
    """Of each row ``[w]`` 8 w bytes are read and written, and 2 w^2 operations done."""
    v100 = find_profile("V100").device
    for width in (2, 8, 32):
        assert v100.product.rate_at(width) == pytest.approx(2 * width**2 * 900e9 / (8 * width), rel=0.01)


def _broken(tmp_path: Path, change: Any) -> Path:
    entries = find_profile("V100").as_dict()
    change(entries)
    (tmp_path / "broken.json").write_text(json.dumps(entries))
    return tmp_path / "broken.json"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda p: p.pop("device"), "device"),
        (lambda p: p["device"].pop("copy"), "copy"),
        (lambda p: p["device"].update(copied=1), "copied"),
        (lambda p: p["device"].update(copy=0), "copy is 0"),
        (lambda p: p["device"].update(copy="fast"), "fast"),
        (lambda p: p["device"].update(copy=True), "True"),
        (lambda p: p["device"].update(kind="tpu"), "tpu"),
        (lambda p: p["device"].update(memory_bytes=1.5), "memory_bytes"),
        (lambda p: p["device"].update(product={"wide": 1}), "wide"),
        (lambda p: p["device"].update(product={}), "product"),
        (lambda p: p["device"].update(product=[1]), "items"),
        (lambda p: p["links"].update(air={"bytes_per_second": 1}), "air"),
        (lambda p: p["links"].update(peer={"bytes_per_second": -1}), "-1"),
        (lambda p: p.update(hosts=0), "hosts"),
        (lambda p: p.update(date="today"), "today"),
        (lambda p: p.update(name=3), "name"),
        (lambda p: p.update(format=1), "format"),
    ],
)
def test_what_is_broken_is_refused(tmp_path: Path, change: Any, word: str) -> None:
    with pytest.raises(InputError) as refused:
        read_profile(_broken(tmp_path, change))
    assert word in str(refused.value)


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"format": 1}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(InputError, match="x cannot be used"):
        find_profile(str(tmp_path / "x"))


def test_unknown_machines_and_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 16xT4"):
        find_profile("16xT5")
    with pytest.raises(InputError, match="outgrow calibrate --out"):
        find_profile(str(tmp_path / "nowhere.json"))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        write_profile(find_profile("V100"), tmp_path / "file" / "x.json")


def test_no_time_for_a_message_is_allowed(tmp_path: Path) -> None:
    profile = find_profile("V100")
    links = {link: replace(rate, message_seconds=0.0) for link, rate in profile.links.items()}
    write_profile(replace(profile, links=links), tmp_path / "x.json")
    assert read_profile(tmp_path / "x.json").links == links
