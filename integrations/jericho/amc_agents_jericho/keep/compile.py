"""Compile a generated game with Inform 6, as Debian packages it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from amc_agents.errors import ConfigurationError
from amc_agents_jericho.keep.layout import generate_layout, source

LIBRARY = Path("/usr/share/inform6/library")
"""The Inform library of Debian's package inform6-library."""
_LIMIT_S = 60


def compile_game(seed: int) -> Path:
    """Compile the game of a seed in a temporary folder of this process, once, and return its story file.

    Raises:
        ConfigurationError: the compiler or its library is not installed, or the compiler failed.
    """
    compiler = shutil.which("inform6")
    if compiler is None or not LIBRARY.is_dir():
        raise ConfigurationError(
            "generated games need Inform 6 and its library: install the Debian packages inform6-compiler and "
            "inform6-library"
        )
    story = Path(_folder().name) / f"keep-{seed}.z5"
    if not story.is_file():
        text = story.with_suffix(".inf")
        text.write_text(source(generate_layout(seed)), encoding="ascii")
        command = [compiler, "-v5", "-s", f"+include_path={LIBRARY}", str(text), str(story)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        if done.returncode != 0:
            raise ConfigurationError(f"inform6 could not compile {text}: {done.stdout[-250:].strip()}")
    return story


@lru_cache(maxsize=1)
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="amc-keep-")  # Removed when the process ends.
