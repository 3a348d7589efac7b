"""Which addresses a ``fetch`` may dial: those of the public internet, judged one by one (F4). Pure.

The table is ours and not ``ipaddress.is_global``, whose answers change between Python's patch releases. In doubt an address is not
public. Sources: IANA's special-purpose registries for IPv4 and IPv6, and the clouds' metadata services.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

_V4: Final = tuple(
    (IPv4Network(network), what)
    for network, what in (
        ("0.0.0.0/8", "this host"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a carrier's customers"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "a cloud's metadata service"),  # Azure's, at an address that looks public
        ("169.254.0.0/16", "link-local"),  # most clouds' metadata services are here
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "reserved for documentation"),
        ("192.88.99.0/24", "reserved"),  # once the way into 6to4
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "reserved for benchmarks"),
        ("198.51.100.0/24", "reserved for documentation"),
        ("203.0.113.0/24", "reserved for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)
_V6: Final = tuple(
    (IPv6Network(network), what)
    for network, what in (
        ("::/128", "this host"),
        ("::1/128", "loopback"),
        ("fc00::/7", "unique-local"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
        ("2001::/23", "reserved"),  # Teredo and other protocols' own
        ("2001:db8::/32", "reserved for documentation"),
        ("2002::/16", "reserved"),  # 6to4, whose relays are gone; Python calls it private since 2024
        ("3fff::/20", "reserved for documentation"),
    )
)
#: Nothing else is given out to the public (RFC 4291, 2.4, and IANA since).
_GLOBAL_V6: Final = IPv6Network("2000::/3")
#: Networks whose addresses hold an IPv4 address, and how far from the right: it is what is dialled in the end.
_CARRIERS: Final = (
    (IPv6Network("::ffff:0:0/96"), 0),  # IPv4-mapped
    (IPv6Network("64:ff9b::/96"), 0),  # NAT64
)
#: Marks of ISATAP in the lower half of an address, before an IPv4 address.
_ISATAP: Final = frozenset((0x0000_5EFE, 0x0200_5EFE))
_LOCAL_NAMES: Final = re.compile(r"(.*\.)?(localhost|local|internal|home\.arpa)")
#: What a URL's reader takes for a number and so for an address, however it is spelt (WHATWG URL, "ends in a number").
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")


def why_not_public(address: str) -> str | None:
    """What forbids to dial an address (``127.0.0.1``, ``fe80::1%eth0``), for people; ``None`` where it is public."""
    try:
        return _why_not_v4(IPv4Address(address))
    except AddressValueError:
        pass
    try:
        return _why_not_v6(IPv6Address(address.partition("%")[0]))
    except AddressValueError:
        return "no address"


def why_not_host(host: str) -> str | None:
    """What forbids a URL's host even before its name is resolved; ``None`` where nothing does."""
    name = host.strip("[]").rstrip(".").lower()
    if ":" in name:
        return why_not_public(name)
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        try:
            return _why_not_v4(IPv4Address(name))
        except AddressValueError:
            return "an address in an unusual spelling"
    if not name:
        return "empty"
    return "a name of this machine or its network" if _LOCAL_NAMES.fullmatch(name) else None


def _why_not_v4(address: IPv4Address) -> str | None:
    return _first((what for network, what in _V4 if address in network), None)


def _why_not_v6(address: IPv6Address) -> str | None:
    number = int(address)
    for network, shift in _CARRIERS:
        if address in network:
            return _why_not_v4(IPv4Address(number >> shift & 0xFFFF_FFFF))
    special = _first((what for network, what in _V6 if address in network), None)
    if special is not None:
        return special
    if address not in _GLOBAL_V6:
        return "reserved"
    if number >> 32 & 0xFFFF_FFFF in _ISATAP:
        return _why_not_v4(IPv4Address(number & 0xFFFF_FFFF))
    return None


def _first(found: Iterable[str], default: str | None) -> str | None:
    return next(iter(found), default)
