"""Run all checks of a configuration: the installation, its critic and its model servers."""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl

from amc_agents.config import FILE_VARIABLE, Config, Endpoint
from amc_agents.critics.adapting import checked_values, name_of
from amc_agents.critics.server.client import KEY_VARIABLE, ModelServer
from amc_agents.critics.spec import parse_critic
from amc_agents.envs.real.workspace import snapshots_in
from amc_agents.errors import ConfigurationError, CriticError
from amc_agents.operations.doctor.server_checks import Check, embeddings_checks, guarded, policy_checks, served
from amc_agents.quoting import quoted
from amc_agents.types import Step, Task, Trajectory

if TYPE_CHECKING:
    from packaging.requirements import Requirement


EXTRAS = {
    "cli": "for the `amc` command",
    "bench": "to draw the pictures of `amc demo` and `amc bench`",
    "openai": "for models of OpenAI, and of servers with its API",
    "train": "to train critics, and for critics hf:",
    "qlora": "to train on a base model in 4 bits",
    "serve": "to start vLLM servers from here",
    "prices": "to compute the cost of providers' models",
    "advise": "for amc advise and amc train quick",
    "report": "for the charts of amc report",
    "sqlite": "for checkpoints and posteriors in SQLite",
    "postgres": "for checkpoints and posteriors in PostgreSQL",
}
"""Purpose of each extra."""


class _Packages(NamedTuple):
    installed: list[str]
    """Name and version of packages that meet their requirement."""
    absent: list[str]
    """Names of missing packages."""
    wrong: list[str]
    """Name, version and required version of packages that do not meet their requirement."""


def installation(package: str = "amc-agents") -> list[Check]:
    """Check Python, the required packages and each extra."""
    python = f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()}"
    try:
        distribution = metadata(package)
    except PackageNotFoundError:
        return [
            Check("python", "ok", python),
            Check("packages", "skipped", f"{package} runs from its source code and is not installed, so its "
                  "requirements are not known", f"pip install {package}"),
        ]  # fmt: skip
    checks = [Check("python", "ok", f"{python}; {package} {distribution['Version']}")]
    requirements = distribution.get_all("Requires-Dist") or []
    checks.append(_required(package, _installed(requirements, "")))
    for extra, purpose in EXTRAS.items():
        checks.append(_extra(package, extra, purpose, _installed(requirements, extra)))
    return checks


def saved_worlds() -> Check:
    """List the snapshots of worlds in the temporary folder, which nobody removes if their threads never go on."""
    found = snapshots_in()
    if not found:
        return Check("saved worlds", "ok", f"no snapshots in {tempfile.gettempdir()}")
    path, age = found[0]
    return Check(
        "saved worlds",
        "ok",
        f"{len(found)} snapshots in {path.parent}, the oldest {age.days} days old",
        "Unfinished runs and conversations need theirs. If there are none that old: "
        "amc_agents.envs.remove_snapshots(older_than=timedelta(days=30))",
    )


def _required(package: str, packages: _Packages) -> Check:
    if packages.absent or packages.wrong:
        problems = [*(f"{name} is not installed" for name in packages.absent), *packages.wrong]
        return Check("packages", "failed", "; ".join(problems), f"pip install --upgrade {package}")
    return Check("packages", "ok", ", ".join(packages.installed))


def _extra(package: str, extra: str, purpose: str, packages: _Packages) -> Check:
    name, install = f"extra {extra}", f"pip install '{package}[{extra}]'"
    if packages.wrong:
        return Check(name, "failed", "; ".join(packages.wrong), install)
    if packages.absent:
        return Check(name, "skipped", f"not installed: {', '.join(packages.absent)}", f"{install} ({purpose})")
    return Check(name, "ok", ", ".join(packages.installed) or "not needed on this system")


def _installed(requirements: Iterable[str], extra: str) -> _Packages:
    """Compare the requirements of an extra ("": those of no extra) with the installed packages."""
    from packaging.requirements import Requirement

    packages = _Packages([], [], [])
    for requirement in map(Requirement, requirements):
        if not _belongs(requirement, extra):
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            packages.absent.append(requirement.name)
            continue
        if requirement.specifier.contains(installed, prereleases=True):
            packages.installed.append(f"{requirement.name} {installed}")
        else:
            packages.wrong.append(f"{requirement.name} is {installed}, expected {requirement.specifier}")
    return packages


def _belongs(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    always = marker is None or marker.evaluate({"extra": ""})
    return always if not extra else not always and marker is not None and marker.evaluate({"extra": extra})


TIMEOUT = 30.0
"""Time limit of a server's answer in seconds."""
STATE = Trajectory(
    Task("doctor", "Crafting commands:\ncraft 1 oak gate using 2 clay, 1 silk\n\nGoal: craft oak gate."),
    (Step(action="get 2 clay", observation="Got 2 clay"),),
)
"""The state that critics score."""


@dataclass(frozen=True, slots=True)
class Patient:
    """The parts of a configuration to check."""

    critic: str = "uniform"
    """Critic string."""
    policy: Endpoint | None = None
    """The policy model."""
    embeddings: Endpoint | None = None
    """The embedding model."""

    @classmethod
    def read(cls, config: Path | None, critic: str | None, policy: Mapping[str, str | None]) -> tuple[Patient, Check]:
        """Read a configuration file and return its parts with a check of the file; arguments override the file.

        Args:
            config: the file; None: the file in the environment variable AMC_CONFIG, if set.
            critic: critic string.
            policy: base_url, model and key_env of the policy's server; None if not given.

        Raises:
            ConfigurationError: the policy has no model name, or its URL is invalid.
        """
        path = config or os.environ.get(FILE_VARIABLE)
        file, check = Config(), Check("config file", "skipped", "not configured", "amc doctor --config FILE")
        if path:
            try:
                file, check = Config.load(path), Check("config file", "ok", str(path))
            except ConfigurationError as error:
                check = Check("config file", "failed", str(error), "The other checks ignore the file.")
        return cls(critic or file.critic or "uniform", _endpoint(file.policy, policy), file.embeddings), check


async def examine(patient: Patient) -> list[Check]:
    """Run all checks; a failed check does not stop the others. Model servers are checked concurrently."""
    parts = await asyncio.gather(
        _critic(patient.critic),
        _endpoint_checks("policy", patient.policy),
        _endpoint_checks("embeddings", patient.embeddings),
    )
    return [*installation(), saved_worlds(), *(check for part in parts for check in part)]


async def critic_scores(critic: Any) -> Check:
    """Check that the critic scores a small state; its first answer includes its handshake."""
    begun = time.perf_counter()
    if hasattr(critic, "values"):
        answer, quantity = await critic.values([STATE]), "value"
    elif hasattr(critic, "q_values"):
        answer, quantity = await critic.q_values(STATE, ["get 1 silk"]), "Q"
    else:
        answer, quantity = await critic.reach(STATE, "Silk is missing.", ["craft oak gate"]), "reach"
    seconds = time.perf_counter() - begun
    try:
        scores = checked_values(answer, 1, name_of(critic))
    except CriticError as error:
        return Check("critic answers", "failed", f"{error}: {quoted(answer, 200)}", "Correct the critic.")
    handshake = ", handshake passed" if hasattr(critic, "checkpoint") else ""
    beta = getattr(critic, "beta", None)
    only = "" if beta is None else f"; trained by eq. 5, only for runs with beta={beta:g}"
    score = f"{quantity} {scores[0]:.4f} of a small state in {seconds:.2f} s"
    return Check("critic answers", "ok", f"{score}{handshake}{only}")


async def _critic(spec: str) -> list[Check]:
    address, _, query = spec.partition(":")[2].partition("?")
    options = dict(parse_qsl(query))
    key_variable = options.get("key_env", KEY_VARIABLE)
    critics: list[Any] = []
    servers: list[ModelServer] = []

    async def understood() -> Check:
        critics.append(parse_critic(spec))
        if address.startswith(("http://", "https://")):
            servers.extend(_server(url.strip(), key_variable) for url in address.split(","))
        return Check("critic", "ok", f"{spec}: {type(critics[0]).__name__}")

    checks = [await guarded("critic", understood)]
    for server in servers:
        checks += await served("critic", server, options.get("model"), key_variable)
    if any(check.state == "failed" for check in checks):
        return [*checks, Check("critic answers", "skipped", "the critic is not available")]
    return [*checks, await guarded("critic answers", lambda: critic_scores(critics[0]), key_variable)]


async def _endpoint_checks(name: str, endpoint: Endpoint | None) -> list[Check]:
    if endpoint is None:
        return [Check(name, "skipped", "not configured")]
    if endpoint.base_url is None:
        return [Check(name, "skipped", f"{endpoint.model} runs at its provider, which is not called")]
    key_variable = endpoint.key_env or KEY_VARIABLE
    try:
        server = _server(endpoint.base_url, key_variable)
    except ConfigurationError as error:
        return [Check(name, "failed", str(error))]
    ask = policy_checks if name == "policy" else embeddings_checks
    return await ask(server, endpoint.model, key_variable)


def _server(url: str, key_variable: str) -> ModelServer:
    # Without retries, so that the check reports the current state.
    return ModelServer(url, key_variable=key_variable, timeout=TIMEOUT, retry_for=0)


def _endpoint(configured: Endpoint | None, given: Mapping[str, str | None]) -> Endpoint | None:
    from_file = {} if configured is None else configured.model_dump(include={"base_url", "model", "key_env"})
    fields = from_file | {key: value for key, value in given.items() if value is not None}
    if not fields:
        return None
    if not fields.get("model"):
        raise ConfigurationError("the policy's server requires the name of its model: --policy-model NAME")
    try:
        return Endpoint(**fields)
    except ValueError as error:
        raise ConfigurationError(
            f"--policy-url must look like http://host:8000, without user name, password or ?query, got "
            f"{quoted(fields['base_url'], 200)}"
        ) from error
