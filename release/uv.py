"""Run uv with this project's settings: pip's folder of wheels is its own, and it downloads no interpreter."""

from __future__ import annotations

import os
import subprocess
import sys


def uv(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a uv command and return its exit status and output."""
    # A CPU build of torch, for example, lies in the folder that pip's settings name.
    folders = {"UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
    environment = {**folders, **os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    return subprocess.run([sys.executable, "-m", "uv", *command], env=environment, capture_output=True, text=True)
