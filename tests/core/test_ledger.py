"""The ledger adds up what crossed links."""

from outgrow.core.ledger import Kind, Ledger, Link


def test_bytes_add_up_by_link_and_kind() -> None:
    ledger = Ledger()
    ledger.add_bytes(Link.PEER, Kind.FEATURES, 10)
    ledger.add_bytes(Link.PEER, Kind.FEATURES, 5)
    ledger.add_bytes(Link.PEER, Kind.IDS, 1)
    ledger.add_bytes(Link.DISK_TO_HOST, Kind.FEATURES, 2)
    assert ledger.as_dict() == {
        "disk_to_host": {"features": 2},
        "host_to_device": {},
        "device_to_host": {},
        "peer": {"features": 15, "ids": 1},
        "network": {},
    }


def test_counters_add_up() -> None:
    ledger = Ledger()
    ledger.add_count("rows_computed", 3)
    ledger.add_count("rows_computed", 4)
    assert ledger.counters == {"rows_computed": 7}


def test_two_ledgers_share_nothing() -> None:
    first, second = Ledger(), Ledger()
    first.add_count("rows_computed", 1)
    first.add_bytes(Link.NETWORK, Kind.GRADIENTS, 1)
    assert not second.counters
    assert not second.bytes_by_link
