"""Which addresses and hosts a fetch may ask: `streams.tools.addresses`."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.tools.addresses import why_not_host, why_not_public
from streams.tools.dialing import Dialing, UnsafeAddress
from tests.support.resolving import Scripted

FORBIDDEN_V4 = [
    ("0.0.0.0", "this host"),
    ("0.1.2.3", "this host"),
    ("10.0.0.1", "private"),
    ("10.255.255.255", "private"),
    ("100.64.0.1", "shared by a carrier's customers"),
    ("100.127.255.255", "shared by a carrier's customers"),
    ("127.0.0.1", "loopback"),
    ("127.255.255.254", "loopback"),
    ("169.254.169.254", "link-local"),
    ("168.63.129.16", "a cloud's metadata service"),
    ("172.16.0.1", "private"),
    ("172.31.255.255", "private"),
    ("192.0.0.192", "reserved"),
    ("192.0.2.1", "reserved for documentation"),
    ("192.88.99.1", "reserved"),
    ("192.168.1.1", "private"),
    ("198.18.0.1", "reserved for benchmarks"),
    ("198.19.255.255", "reserved for benchmarks"),
    ("198.51.100.7", "reserved for documentation"),
    ("203.0.113.7", "reserved for documentation"),
    ("224.0.0.1", "multicast"),
    ("239.255.255.255", "multicast"),
    ("240.0.0.1", "reserved"),
    ("255.255.255.255", "reserved"),
]
#: The addresses right beside those blocks.
PUBLIC_V4 = [
    *("1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0"),
    *("169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.0", "192.0.3.0", "192.167.255.255"),
    *("192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "168.63.129.15", "168.63.129.17"),
]


@pytest.mark.parametrize(("address", "what"), FORBIDDEN_V4)
def test_F4_what_is_not_public_is_named(address: str, what: str) -> None:
    assert why_not_public(address) == what


@pytest.mark.parametrize("address", PUBLIC_V4)
def test_F4_what_lies_beside_a_forbidden_block_is_public(address: str) -> None:
    assert why_not_public(address) is None


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("::", "this host"),
        ("::1", "loopback"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fec0::1", "site-local"),
        ("fc00::1", "unique-local"),
        ("fd00:ec2::254", "unique-local"),
        ("ff02::1", "multicast"),
        ("2001:0:4136:e378::1", "reserved"),
        ("2001:db8::1", "reserved for documentation"),
        ("2002:808:808::1", "reserved"),
        ("2002:7f00:1::1", "reserved"),
        ("3fff::1", "reserved for documentation"),
        ("100::1", "reserved"),
        ("5f00::1", "reserved"),
        ("64:ff9b:1::a00:1", "reserved"),
        ("::127.0.0.1", "reserved"),
        ("::ffff:0:127.0.0.1", "reserved"),
        ("4000::1", "reserved"),
    ],
)
def test_F4_an_ipv6_address_that_is_not_public_is_named(address: str, what: str) -> None:
    assert why_not_public(address) == what


@pytest.mark.parametrize("address", ["2606:4700:4700::1111", "2001:4860:4860::8888", "2a00:1450::1", "2620:fe::fe"])
def test_F4_global_unicast_is_public(address: str) -> None:
    assert why_not_public(address) is None


def carriers(address: IPv4Address) -> dict[str, IPv6Address]:
    number = int(address)
    return {
        "mapped": IPv6Address(0xFFFF << 32 | number),
        "NAT64": IPv6Address(0x64FF9B << 96 | number),
        "ISATAP": IPv6Address(0x2A00_1450 << 96 | 0x5EFE << 32 | number),
        "ISATAP of a public host": IPv6Address(0x2A00_1450 << 96 | 0x0200_5EFE << 32 | number),
    }


@given(st.ip_addresses(v=4))
def test_F4_an_ipv6_address_that_carries_an_ipv4_address_is_judged_by_it(address: IPv4Address) -> None:
    expected = why_not_public(str(address))
    assert {name: why_not_public(str(carrier)) for name, carrier in carriers(address).items()} == dict.fromkeys(
        carriers(address), expected
    )


@pytest.mark.parametrize(("address", "what"), FORBIDDEN_V4)
def test_F4_no_ipv6_form_opens_a_forbidden_address(address: str, what: str) -> None:
    assert {why_not_public(str(carrier)) for carrier in carriers(IPv4Address(address)).values()} == {what}


@given(st.ip_addresses())
def test_F4_what_python_calls_private_is_never_public(address: IPv4Address | IPv6Address) -> None:
    """A second opinion: Python's own table may forbid less than ours, never more."""
    if address.is_private or address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified:
        assert why_not_public(str(address)) is not None


@pytest.mark.parametrize("text", ["", "localhost", "1.2.3", "1.2.3.4.5", "01.2.3.4", "::g", "1.2.3.4/8", "\u0661.1.1.1"])
def test_F4_what_is_no_address_is_not_dialled(text: str) -> None:
    assert why_not_public(text) == "no address"


@pytest.mark.parametrize(
    "host",
    [
        *("127.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "017700000001", "0177.0.0.1", "1.2.3", "a.b.0x", "a.1", "127.0.0.1."),
        *("localhost", "LocalHost.", "a.localhost", "db.local", "metadata.google.internal", "router.home.arpa", "", "."),
        *("[::1]", "::ffff:127.0.0.1", "[fe80::1%25eth0]", "10.0.0.1"),
    ],
)
def test_F4_a_host_that_can_be_told_without_resolving_is_refused(host: str) -> None:
    assert why_not_host(host)


@pytest.mark.parametrize("host", ["example.com", "1.1.1.1", "1e100.net", "[2606:4700::1]", "locals.com", "0x.example", "7.com"])
def test_F4_an_ordinary_host_is_not(host: str) -> None:
    assert why_not_host(host) is None


async def test_F4_one_bad_address_of_a_name_is_enough() -> None:
    mixed = Dialing(resolver=lambda: Scripted({"mixed.test": ["93.184.215.14", "10.0.0.1"], "fine.test": ["93.184.215.14"]}))
    resolver = mixed.resolving()
    assert [found["host"] for found in await resolver.resolve("fine.test", 443)] == ["93.184.215.14"]
    with pytest.raises(UnsafeAddress, match="leads to an address that is private"):
        await resolver.resolve("mixed.test", 443)


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254"])
def test_F4_the_last_gate_gives_no_socket_for_an_address_that_is_not_public(address: str) -> None:
    with pytest.raises(PermissionError, match="the address is"):
        Dialing().socket_of((socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 80)))
    Dialing().socket_of((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("1.1.1.1", 80))).close()
