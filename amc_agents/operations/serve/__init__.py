"""Start vLLM with the flags that a value model, a policy or an embedding model needs: `amc serve`.

vllm_command   find vLLM, read a model's settings, build the command line and the environment
vllm_server    start the server, wait for it, stop all its processes; why it died
"""

from __future__ import annotations

from amc_agents.operations.serve.vllm_command import (
    Role,
    ServedModel,
    Vllm,
    Where,
    cache_folder,
    command,
    embeddings_model,
    environment,
    find_vllm,
    policy_model,
    served_model,
    value_model,
)
from amc_agents.operations.serve.vllm_server import VllmServer, chosen_port, log_name

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
