"""Addresses that a call may not name: link-local addresses and metadata services, which hand out credentials."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from amc_agents.errors import ConfigurationError, CriticServerError

Address = IPv4Address | IPv6Address

_METADATA = frozenset(
    map(ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
"""Addresses of clouds' metadata services that are not link-local."""
_NAT64 = ip_network("64:ff9b::/96")


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
    if any(ip.is_link_local or ip.is_unspecified or ip in _METADATA for ip in (checked, *_embedded(checked))):
        raise ConfigurationError(
            f"a call may not name {host}: link-local addresses and metadata services are refused. Name such a server "
            "where the graph is built"
        )


async def checked_address(host: str, port: int) -> str:
    """Resolve a host once and check all its addresses, so that no unchecked address is used.

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
        refuse_link_local(host, address)
    return min(addresses, key=lambda address: ":" in address)


def _embedded(address: Address) -> list[Address]:
    """IPv4 addresses embedded in an IPv6 address."""
    if isinstance(address, IPv4Address):
        return []
    embedded: list[Address | None] = [address.ipv4_mapped, address.sixtofour]
    if address in _NAT64:
        embedded.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return [ip for ip in embedded if ip is not None]
