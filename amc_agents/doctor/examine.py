"""All checks of one configuration."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from amc_agents.config import FILE_VARIABLE, Config, Endpoint
from amc_agents.critics.adapting import name_of
from amc_agents.critics.server.http import KEY_VARIABLE, ModelServer
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.validation import checked_values
from amc_agents.doctor.check import Check, guarded
from amc_agents.doctor.installation import installation
from amc_agents.doctor.servers import embeddings_checks, policy_checks, served
from amc_agents.errors import ConfigurationError, CriticError
from amc_agents.quoting import quoted
from amc_agents.types import Step, Task, Trajectory

TIMEOUT = 30.0
"""Seconds that a server may take for an answer to the doctor."""
STATE = Trajectory(
    Task("doctor", "Crafting commands:\ncraft 1 oak gate using 2 clay, 1 silk\n\nGoal: craft oak gate."),
    (Step(action="get 2 clay", observation="Got 2 clay"),),
)
"""What a critic is asked about."""


@dataclass(frozen=True, slots=True)
class Patient:
    """What is to be looked at."""

    critic: str = "uniform"
    """A critic's string."""
    policy: Endpoint | None = None
    """The model that acts."""
    embeddings: Endpoint | None = None
    """The model that turns text into vectors."""

    @classmethod
    def read(cls, config: Path | None, critic: str | None, policy: Mapping[str, str | None]) -> tuple[Patient, Check]:
        """What a configuration file says, and how it was to read; what is given beside it goes first.

        Args:
            config: the file; None: that of the environment variable AMC_CONFIG, if any.
            critic: a critic's string.
            policy: base_url, model and key_env of the policy's server, None where not given.
        """
        path = config or os.environ.get(FILE_VARIABLE)
        file, check = Config(), Check("config file", "skipped", "none is named", "amc doctor --config FILE")
        if path:
            try:
                file, check = Config.load(path), Check("config file", "ok", str(path))
            except ConfigurationError as error:
                check = Check("config file", "failed", str(error), "The rest is looked at without it.")
        return cls(critic or file.critic or "uniform", _endpoint(file.policy, policy), file.embeddings), check


async def examine(patient: Patient) -> list[Check]:
    """Look at everything; no failure stops another check. Model servers are asked side by side."""
    parts = await asyncio.gather(
        _critic(patient.critic),
        _endpoint_checks("policy", patient.policy),
        _endpoint_checks("embeddings", patient.embeddings),
    )
    return [*installation(), *(check for part in parts for check in part)]


async def critic_scores(critic: Any) -> Check:
    """Whether the critic scores a state of two lines; a handshake is part of its first answer."""
    begun = time.perf_counter()
    if hasattr(critic, "values"):
        answer, what = await critic.values([STATE]), "value"
    elif hasattr(critic, "q_values"):
        answer, what = await critic.q_values(STATE, ["get 1 silk"]), "Q"
    else:
        answer, what = await critic.reach(STATE, "Silk is missing.", ["craft oak gate"]), "reach"
    seconds = time.perf_counter() - begun
    try:
        scores = checked_values(answer, 1, name_of(critic))
    except CriticError as error:
        return Check("critic answers", "failed", f"{error}: {quoted(answer)}", "Correct the critic.")
    handshake = ", handshake passed" if hasattr(critic, "checkpoint") else ""
    beta = getattr(critic, "beta", None)
    only = "" if beta is None else f"; trained by eq. 5, for runs with beta={beta:g} alone"
    return Check("critic answers", "ok", f"{what} {scores[0]:.4f} of a small state in {seconds:.2f} s{handshake}{only}")


async def _critic(spec: str) -> list[Check]:
    address, _, query = spec.partition(":")[2].partition("?")
    options = dict(parse_qsl(query))
    key_variable = options.get("key_env", KEY_VARIABLE)
    critics: list[Any] = []
    servers: list[ModelServer] = []

    async def understood() -> Check:
        critics.append(parse_critic(spec))
        if address.startswith(("http://", "https://")):
            servers.append(_server(address, key_variable))
        return Check("critic", "ok", f"{spec}: {type(critics[0]).__name__}")

    checks = [await guarded("critic", understood)]
    for server in servers:
        checks += await served("critic", server, options.get("model"), key_variable)
    if any(check.state == "failed" for check in checks):
        return [*checks, Check("critic answers", "skipped", "it cannot be asked")]
    return [*checks, await guarded("critic answers", lambda: critic_scores(critics[0]), key_variable)]


async def _endpoint_checks(name: str, endpoint: Endpoint | None) -> list[Check]:
    if endpoint is None:
        return [Check(name, "skipped", "none is named")]
    if endpoint.base_url is None:
        return [Check(name, "skipped", f"{endpoint.model} at its provider's own address: nothing is asked there")]
    key_variable = endpoint.key_env or KEY_VARIABLE
    try:
        server = _server(endpoint.base_url, key_variable)
    except ConfigurationError as error:
        return [Check(name, "failed", str(error))]
    ask = policy_checks if name == "policy" else embeddings_checks
    return await ask(server, endpoint.model, key_variable)


def _server(url: str, key_variable: str) -> ModelServer:
    # Nothing is repeated: a doctor says what is the case now.
    return ModelServer(url, key_variable=key_variable, timeout=TIMEOUT, retry_for=0)


def _endpoint(found: Endpoint | None, given: Mapping[str, str | None]) -> Endpoint | None:
    said = {key: value for key, value in given.items() if value is not None}
    fields = {**({} if found is None else found.model_dump(include={"base_url", "model", "key_env"})), **said}
    if not fields:
        return None
    if not fields.get("model"):
        raise ConfigurationError("a policy's server needs the name of its model: --policy-model NAME")
    try:
        return Endpoint(**fields)
    except ValueError as error:
        raise ConfigurationError(
            f"--policy-url looks like http://host:8000, without a name, a password or ?query, got "
            f"{quoted(fields['base_url'])}"
        ) from error
