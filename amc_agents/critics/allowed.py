"""Critics that a request may name: a default allow-list, for served graphs and gateways.

| a request names | by default |
|---|---|
| a name that the operator offers | allowed |
| `uniform`, `embedded:NAME`, `verdict:embedded:NAME` of a shipped model | allowed |
| `vllm:`, `verdict:` or `classify:` with a URL | only if the operator lists the host |
| a chat model (`judge:`, `foa:`, `verdict:provider:`), which uses a key of this process | refused |
| files, code, keys, and options that occupy this process | refused |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from types import MappingProxyType
from urllib.parse import urlsplit

from amc_agents.critics.adapting import CriticLike
from amc_agents.critics.server.addresses import Address, addresses_checked_by, embedded_addresses
from amc_agents.critics.spec import MOST_CHARACTERS, parse_critic, split
from amc_agents.errors import ConfigurationError, CriticSpecError
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
