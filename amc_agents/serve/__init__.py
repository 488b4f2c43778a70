"""Starts vLLM with the flags that a value model, a policy or an embedding model needs: `amc serve`.

installed   the python that has vLLM, and its device
models      what a checkpoint's own files ask for
command     both -> a command line and its environment
server      started, waited for, stopped with all its processes
"""

from __future__ import annotations

from amc_agents.serve.command import Where, command, environment
from amc_agents.serve.installed import Vllm, find_vllm
from amc_agents.serve.models import (
    Role,
    ServedModel,
    cache_folder,
    embeddings_model,
    policy_model,
    served_model,
    value_model,
)
from amc_agents.serve.server import VllmServer, chosen_port, log_name

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
