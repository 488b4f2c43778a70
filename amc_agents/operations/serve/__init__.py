"""Start vLLM with the flags that a value model, a policy or an embedding model needs: `amc serve`.

installed   find the Python interpreter with vLLM, and its device
models      read a checkpoint's settings
command     build the command line and the environment
server      start the server, wait for it, stop all its processes
"""

from __future__ import annotations

from amc_agents.operations.serve.command import Where, command, environment
from amc_agents.operations.serve.installed import Vllm, find_vllm
from amc_agents.operations.serve.models import (
    Role,
    ServedModel,
    cache_folder,
    embeddings_model,
    policy_model,
    served_model,
    value_model,
)
from amc_agents.operations.serve.server import VllmServer, chosen_port, log_name

__all__ = [
    "Role",
    "ServedModel",
    "Vllm",
    "VllmServer",
    "Where",
    "cache_folder",
    "chosen_port",
    "command",
    "embeddings_model",
    "environment",
    "find_vllm",
    "log_name",
    "policy_model",
    "served_model",
    "value_model",
]
