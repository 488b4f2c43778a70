"""Which addresses a call may name: any but those of the link itself, where clouds keep their machines' credentials."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from amc_agents.errors import ConfigurationError, CriticServerError

Address = IPv4Address | IPv6Address

_METADATA = frozenset(
    map(ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
"""Addresses at which clouds tell a machine its credentials, and that are not link-local."""
_NAT64 = ip_network("64:ff9b::/96")


def is_loopback(host: str) -> bool:
    """Whether a host, as it is written in an address, is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def refuse_link_local(host: str, address: str) -> None:
    """Refuse an address that no call may name.

    Raises:
        ConfigurationError: it is link-local, or a cloud's metadata service.
    """
    found = ip_address(address.partition("%")[0])
    if any(one.is_link_local or one.is_unspecified or one in _METADATA for one in (found, *_within(found))):
        raise ConfigurationError(
            f"a call may not name {host}: link-local addresses and metadata services are not asked. Name such a server "
            "where the graph is built"
        )


async def checked_address(host: str, port: int) -> str:
    """The IP address of a host, of IPv4 where it has one, resolved once: what was checked is what is asked then.

    Raises:
        ConfigurationError: one of its addresses may not be named by a call.
        CriticServerError: it has none.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise CriticServerError(host, "no connection: the name has no address here") from error
    addresses = [str(socket_address[0]) for *_, socket_address in found]
    for address in addresses:
        refuse_link_local(host, address)
    return min(addresses, key=lambda address: ":" in address)


def _within(address: Address) -> list[Address]:
    """IPv4 addresses that an IPv6 address stands for."""
    if isinstance(address, IPv4Address):
        return []
    found: list[Address | None] = [address.ipv4_mapped, address.sixtofour]
    if address in _NAT64:
        found.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return [one for one in found if one is not None]
