"""Addresses that a call may not name: link-local addresses and metadata services, which hand out credentials."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from amc_agents.errors import ConfigurationError, CriticServerError

Address = IPv4Address | IPv6Address
AddressRule = Callable[[str, int, str | None], None]
"""`rule(host, port, address)` raises `ConfigurationError` where a call may not name a server.

`address` is None before the host's name is resolved, and then each of its IP addresses.
"""

_METADATA = frozenset(
    map(ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
"""Addresses of clouds' metadata services that are not link-local."""
_WITH_IPV4 = tuple(map(ip_network, ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")))
"""Networks whose addresses end with an IPv4 address: IPv4-compatible, translated (SIIT), and NAT64."""
_rule: ContextVar[AddressRule | None] = ContextVar("amc_address_rule", default=None)


def is_loopback(host: str) -> bool:
    """True if the host of a URL is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def refuse_link_local(host: str, address: str | None = None) -> None:
    """Refuse a forbidden address.

    Args:
        host: the host as the call wrote it, for the message.
        address: the IP address to check; None: `host`, where that is an IP address. A name is not resolved here.

    Raises:
        ConfigurationError: the address is link-local, unspecified, or a cloud's metadata service.
    """
    try:
        checked = ip_address((address or host).partition("%")[0])
    except ValueError:  # a name: `checked_address` resolves and checks it
        return
    if any(ip.is_link_local or ip.is_unspecified or ip in _METADATA for ip in (checked, *embedded_addresses(checked))):
        raise ConfigurationError(
            f"a call may not name {host}: link-local addresses and metadata services are refused. Name such a server "
            "where the graph is built"
        )


@contextmanager
def addresses_checked_by(rule: AddressRule) -> Iterator[None]:
    """Apply a rule to the untrusted servers that the `with` block constructs, besides `refuse_link_local`."""
    token = _rule.set(rule)
    try:
        yield
    finally:
        _rule.reset(token)


def current_rule() -> AddressRule:
    """Return the rule for an untrusted server that is being constructed."""
    further = _rule.get()

    def rule(host: str, port: int, address: str | None) -> None:
        refuse_link_local(host, address)
        if further is not None:
            further(host, port, address)

    return rule


async def checked_address(host: str, port: int, rule: AddressRule) -> str:
    """Resolve a host once and check all its addresses, so that no unchecked address is used.

    Args:
        host: the host's name, or an IP address.
        port: the server's port.
        rule: refuses addresses.

    Returns:
        An IPv4 address of the host, or an IPv6 address if it has no other.

    Raises:
        ConfigurationError: a call may not name a host with such an address.
        CriticServerError: the host cannot be resolved.
    """
    try:
        resolved = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise CriticServerError(host, "no connection: the host name cannot be resolved") from error
    addresses = [str(socket_address[0]) for *_, socket_address in resolved]
    for address in addresses:
        rule(host, port, address)
    return min(addresses, key=lambda address: ":" in address)


def embedded_addresses(address: Address) -> list[Address]:
    """Return the IPv4 addresses embedded in an IPv6 address."""
    if isinstance(address, IPv4Address):
        return []
    embedded: list[Address | None] = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in _WITH_IPV4):
        embedded.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return [ip for ip in embedded if ip is not None]
