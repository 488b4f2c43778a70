"""A connection to a Ray cluster, which calls functions there."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from amc_agents.errors import AmcError, ConfigurationError
from amc_agents.quoting import quoted

LOCAL = "local"
"""The address of a cluster that is started on this machine for one command."""
RETRIES = 20
"""Number of times that Ray repeats a call whose process or machine died."""
_PATIENCE_S = 10.0
_SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set by `ray job submit`, whose runtime environment precedes ours."""
_LEFT_OUT = (".git", ".venv", "venv", "node_modules", "__pycache__", "*.sqlite")


@dataclass(frozen=True)
class RaySettings:
    """How to use a cluster."""

    address: str = "auto"
    """"auto" (the cluster that this machine belongs to), "host:port", "ray://host:port", or "local"."""
    num_cpus: float = 1.0
    """CPUs that each call reserves."""
    num_gpus: float = 0.0
    """GPUs that each call reserves; a fraction shares a GPU."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Custom resources that each call reserves."""
    working_dir: str | None = "."
    """Folder or URI that Ray ships to every machine, models below it included; None: every machine has the files."""


def ray_settings(executor: str) -> RaySettings:
    """Read the settings of an executor `ray[:ADDRESS][?OPTION=VALUE&...]`.

    Options: `num_cpus`, `num_gpus`, `working_dir` (a folder, a URI, or "none"); any other name is a custom resource.

    Raises:
        ConfigurationError: an amount is not a number.
    """
    name, _, options = executor.partition("?")
    _, _, address = name.partition(":")
    given = dict(parse_qsl(options, keep_blank_values=True))
    folder = given.pop("working_dir", ".")
    amounts = {option: _amount(option, text) for option, text in given.items()}
    return RaySettings(
        address=address or "auto",
        num_cpus=amounts.pop("num_cpus", 1.0),
        num_gpus=amounts.pop("num_gpus", 0.0),
        resources=amounts,
        working_dir=None if folder == "none" else folder,
    )


def _amount(option: str, text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount < float("inf"):
        raise ConfigurationError(
            f"--executor ray: {option}={quoted(text, 40)} is not an amount: expected a number, as 0.5"
        )
    return amount


class LostCall(AmcError):
    """The process or the machine of a call died more often than Ray repeats a call.

    Remedy: Look for a machine without memory in `ray status`, and reserve more for a call (`num_cpus`).
    """


class RayCluster:
    """A connection to a cluster. A context manager.

    Args:
        settings: which cluster, what a call reserves, and what is shipped.
        leave_out: files and folders below the working directory that are not shipped, in gitignore's syntax.

    Raises:
        ConfigurationError: no cluster has the address, or the working directory cannot be shipped.
    """

    def __init__(self, settings: RaySettings, leave_out: Sequence[str] = ()) -> None:
        import ray
        import ray.exceptions

        self._ray: Any = ray
        self._settings = settings
        self._leave_out = [*_LEFT_OUT, *leave_out]
        self._connected = False

    def __enter__(self) -> RayCluster:
        if not self._ray.is_initialized():
            self._connect()
            self._connected = True
        self._remote = self._ray.remote(_outcome).options(
            num_cpus=self._settings.num_cpus,
            num_gpus=self._settings.num_gpus,
            resources=dict(self._settings.resources) or None,
            max_retries=RETRIES,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._connected:
            self._ray.shutdown()

    @property
    def n_cpus(self) -> int:
        """Number of the cluster's CPUs now; an autoscaler may add more."""
        return int(self._ray.cluster_resources().get("CPU", 1))

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of a module on the cluster and return its result. Cancelling the call ends it there.

        Raises:
            LostCall: the process or the machine of the call died too often.
            Exception: whatever the function raised.
        """
        reference = self._remote.remote(function, *arguments)
        try:
            outcome: _Outcome = await reference
        except asyncio.CancelledError:
            with suppress(Exception):
                self._ray.cancel(reference, force=True)
            raise
        except self._ray.exceptions.RayError as error:
            raise LostCall(f"Ray lost a call {RETRIES} times: {str(error).splitlines()[0]}") from error
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def _connect(self) -> None:
        address = self._settings.address
        where = {} if address == LOCAL else {"address": address}
        try:
            _check_reachable(address)
            with _shipping_ignored_files():
                self._ray.init(**where, runtime_env=self._environment(), log_to_driver=False, logging_level="ERROR")
        except OSError as error:
            raise ConfigurationError(
                f"no Ray cluster at {address}: start a cluster (ray start --head), name its address "
                "(--executor ray:HOST:PORT), or try on this machine (--executor ray:local)"
            ) from error
        except (ValueError, RuntimeError, self._ray.exceptions.RuntimeEnvSetupError) as error:
            raise ConfigurationError(f"Ray refuses the cluster's settings: {str(error)[:300]}") from error

    def _environment(self) -> dict[str, Any]:
        folder = self._settings.working_dir
        if folder is None or _SUBMITTED in os.environ:
            return {}
        if "://" not in folder and not Path(folder).is_dir():
            raise ConfigurationError(f"working_dir={folder} is not a folder: expected a folder or a URI")
        return {"working_dir": folder, "excludes": self._leave_out}


def _check_reachable(address: str) -> None:
    """Raise an `OSError` if nothing listens at `host:port`: Ray itself would wait for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_PATIENCE_S).close()


class _Outcome(NamedTuple):
    value: Any
    error: Exception | None


def _outcome(function: Callable[..., Any], *arguments: Any) -> _Outcome:
    """Call a function on the cluster. Its error is returned, because Ray would wrap it."""
    try:
        return _Outcome(function(*arguments), None)
    except Exception as error:
        return _Outcome(None, _picklable(error))


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return AmcError(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def _shipping_ignored_files() -> Any:
    """Make Ray ship what git ignores: models and data usually are."""
    name = "RAY_RUNTIME_ENV_IGNORE_GITIGNORE"
    before = os.environ.get(name)
    os.environ[name] = before or "1"
    try:
        yield
    finally:
        os.environ.pop(name) if before is None else None


def below_working_directory(path: str | Path) -> str:
    """Return a path as a pattern of files that are not shipped, relative to the working directory if it is below."""
    resolved = Path(path).resolve()
    return f"/{resolved.relative_to(Path.cwd())}" if resolved.is_relative_to(Path.cwd()) else str(resolved)
