"""Critics that a request may name: an allow-list, the addresses that are refused, and what their errors may reveal.

| a request names | by default |
|---|---|
| a name that the operator offers | allowed |
| `uniform`, `embedded:NAME`, `verdict:embedded:NAME` of a shipped model | allowed |
| `vllm:`, `verdict:` or `classify:` with a URL | only if the operator lists the host |
| a chat model (`judge:`, `foa:`, `verdict:provider:`), which uses a key of this process | refused |
| files, code, keys, and options that occupy this process | refused |

Link-local addresses and metadata services, which hand out credentials, are always refused. What a server answers goes
to the log; the caller sees a fixed text.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from types import MappingProxyType
from urllib.parse import urlsplit

from amc_agents.critics.adapting import CriticLike
from amc_agents.critics.spec import MOST_CHARACTERS, parse_critic, split
from amc_agents.errors import (
    AmcError,
    BudgetExhausted,
    CheckpointError,
    ConfigurationError,
    CriticServerError,
    CriticSpecError,
    PromptTooLong,
    UnreadableAnswer,
)
from amc_agents.logs import log, room_logger
from amc_agents.quoting import excerpt, listed, quoted
from amc_agents.types import Critic

PUBLIC = "*"
"""Entry of `hosts` that stands for every public address."""


class AllowedHosts:
    """Hosts of the servers that a request may name.

    Args:
        entries: host names and IP addresses, with or without a port ("gpu7:8000", "10.0.0.7", "[::1]:8000"), networks
            ("10.1.0.0/16"), and "*" for every public address. A listed name may have a private address. Link-local
            addresses and clouds' metadata services are refused even if they are listed.

    Raises:
        ConfigurationError: an entry has another form.
    """

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self.entries = tuple(entries)
        self._any_public = PUBLIC in self.entries
        self._networks = [_network(entry) for entry in self.entries if "/" in entry]
        self._names = {_name_and_port(entry) for entry in self.entries if entry != PUBLIC and "/" not in entry}

    def check(self, host: str, port: int, address: str | None = None) -> None:
        """Check a server's host, and then each of its IP addresses.

        Args:
            host: the host as the request wrote it.
            port: the server's port.
            address: an IP address to which the host was resolved; None: the host is not resolved yet.

        Raises:
            CriticSpecError: the host, or the address, is not listed.
        """
        if {(_plain(host), None), (_plain(host), port)} & self._names:
            return
        known = _as_address(address or host)
        if known is None:
            # Whether the name is public, or in a listed network, is decided when it has been resolved.
            allowed = address is None and (self._any_public or bool(self._networks))
        else:
            candidates = [known, *embedded_addresses(known)]
            allowed = any(known in network for network in self._networks) or (
                self._any_public and all(map(_is_public, candidates))
            )
        if not allowed:
            raise CriticSpecError(
                f"a request may not name the host {excerpt(host, 80)}: the operator allows "
                f"{listed(self.entries, 4) or 'no server'}. Name an allowed host, or ask the operator to add this host"
            )


class AllowedCritics:
    """Critics that a request may name.

    Pass an object to `critics=` of `amc` and of the middlewares, chat models and nodes of LAC and PNLC, or call `parse`
    with the string of a request.

    Args:
        offered: name -> critic. The operator chooses these critics, so they may also be objects, folders and models
            with keys.
        hosts: hosts of the servers that a string may name, see `AllowedHosts`; empty: a string names no server.

    Raises:
        ConfigurationError: an entry of `hosts` is invalid.
    """

    def __init__(self, offered: Mapping[str, str | CriticLike] | None = None, *, hosts: Iterable[str] = ()) -> None:
        self.offered = MappingProxyType(dict(offered or {}))
        """name -> critic."""
        self.hosts = AllowedHosts(hosts)
        """Hosts that a string may name."""

    def parse(self, critic: str) -> Critic:
        """Make the critic that a request names. A server is not contacted yet; its addresses are checked then.

        Raises:
            CriticSpecError: the request may not name this critic, or the string cannot be parsed.
            ConfigurationError: the URL of a server is invalid, or refused.
        """
        if critic in self.offered:
            return parse_critic(self.offered[critic])
        self._check(critic)
        with addresses_checked_by(self.hosts.check):
            return parse_critic(critic, trusted=False)

    def described(self) -> str:
        """Describe the allowed critics in a phrase, for messages."""
        named = [*self.offered, *(name for name in _BUILT_IN if name not in self.offered)]
        servers = [f"{kind}:URL" for kind in _SERVERS] if self.hosts.entries else []
        return listed([*named, *servers], 8)

    def _check(self, critic: str) -> None:
        """Refuse what the allow-list lacks. Raises `CriticSpecError`."""
        if len(critic) <= MOST_CHARACTERS:  # `parse_critic` refuses longer strings.
            kind, target, options = split(critic)
            is_local = kind in ("uniform", "embedded") or (kind == "verdict" and target.startswith("embedded:"))
            is_server = kind in _SERVERS and target.startswith(("http://", "https://")) and self.hosts.entries
            if not (is_local or is_server):
                raise CriticSpecError(f"a request may not name the critic {quoted(critic)}: {self._instead()}")
            if refused := [option for option in _OCCUPYING if option in options]:
                raise CriticSpecError(
                    f"a request may not set {', '.join(refused)} of a critic, which would occupy this process: leave "
                    "these options out"
                )

    def _instead(self) -> str:
        return f"the operator allows {self.described()}. Name one of these, or ask the operator to offer yours by name"


def _is_public(address: Address) -> bool:
    # Python counts fec0::/10, the private network of early IPv6, as global.
    site_local = isinstance(address, IPv6Address) and address.is_site_local
    return address.is_global and not address.is_multicast and not site_local


def _network(entry: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(entry)
    except ValueError as error:
        raise ConfigurationError(
            f"an allowed network looks like 10.1.0.0/16, got {quoted(entry)}: {excerpt(str(error), 80)}"
        ) from error


def _name_and_port(entry: str) -> tuple[str, int | None]:
    try:
        parts = urlsplit(f"//[{entry}]" if ":" in entry and _as_address(entry) else f"//{entry}")
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if not host or "@" in parts.netloc or parts.path or parts.query or parts.fragment or not _HOST.fullmatch(host):
        raise ConfigurationError(
            f'an allowed host looks like "gpu7", "gpu7:8000", "10.1.0.0/16" or "*", got {quoted(entry)}'
        )
    return _plain(host), port


def _plain(host: str) -> str:
    """One spelling of a host, without a trailing dot."""
    address = _as_address(host)
    return str(address) if address is not None else host.lower().rstrip(".")


def _as_address(host: str) -> Address | None:
    """The IP address of a host, or None for a name."""
    text = host.strip("[]").partition("%")[0]
    if text.lower().rstrip(".") == "localhost":
        # `ModelServer` does not resolve it.
        text = "127.0.0.1"
    try:
        return ip_address(text)
    except ValueError:
        return None


_HOST = re.compile(r"[^\s*%]+")
_BUILT_IN = ("uniform", "embedded:crafting")
_SERVERS = ("vllm", "verdict", "classify")
_OCCUPYING = ("timeout", "retry_for", "max_concurrent", "max_batch")


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


_log = room_logger(__name__)


@contextmanager
def redacted(name: str) -> Iterator[None]:
    """Replace the errors of an untrusted critic by errors without its server's answer; log the original.

    A call has named the critic, so its errors may reach a caller who is not entitled to read what the server answers.

    Args:
        name: the server's URL, or the critic's name.
    """
    try:
        yield
    except AmcError as error:
        log(_log, logging.WARNING, "critic.failed", "error of a critic that a call has named: %(text)s", text=error)
        raise _without_answer(name, error) from None


def _without_answer(name: str, error: AmcError) -> AmcError:
    if isinstance(error, ConfigurationError | BudgetExhausted):
        return error
    if isinstance(error, PromptTooLong):
        return PromptTooLong(f"the task and one round alone exceed the context of {name}")
    if isinstance(error, UnreadableAnswer):
        return UnreadableAnswer(error.values, f"{name}: some answers could not be read. {_DETAILS}")
    if isinstance(error, CheckpointError):
        return CheckpointError(
            f"{name}: its model has no checkpoint here, or the scores differ from the checkpoint. {_DETAILS}"
        )
    if isinstance(error, CriticServerError) and error.status == 401:
        return CriticServerError(name, f"it requires a key, or a different one. {_DETAILS}", error.status)
    return CriticServerError(name, f"the request failed, or the answer is not a critic's. {_DETAILS}")


_DETAILS = (
    "Details are in the log only, because a call has named this critic (no VLLM_API_KEY is sent in that case): name it "
    "where the graph is built"
)
