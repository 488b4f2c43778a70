"""The configuration and the client of docs/gateway.md."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).resolve().parents[3] / "docs/gateway.md").read_text()


def block(language: str) -> str:
    (code,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return str(code)


def config(policy_url: str, value: str) -> dict[str, Any]:
    """The configuration, with other servers."""
    plain = tomllib.loads(block("toml"))
    plain["upstreams"]["policy"]["base_url"] = f"{policy_url}/v1"
    plain["critics"]["value"] = value
    return plain


def run_client(url: str) -> None:
    assert "http://127.0.0.1:8080" in block("py")
    exec(block("py").replace("http://127.0.0.1:8080", url), {"os": os})
