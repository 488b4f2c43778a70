"""The gateway's configuration file, in TOML. `docs/gateway.md` has an example."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from amc_agents.config import Endpoint, PriceTable
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import listed, masked, quoted
from amc_agents.settings import OnCriticError

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]
"""Name of an upstream, a critic or a key."""
METHODS = ("lac", "pnlc", "best-of-n")
"""First parts of the names of models that decide: `lac/<upstream>`."""


_SHOWN = 3
"""Most faults that an error lists."""


class Table(BaseModel):
    """A table of the file. Types are not converted, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ServerTable(Table):
    """`[server]`."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port; 0: a free port."""
    anonymous: bool = False
    """Serve requests without a key, without limits. Only a configuration without keys may set it."""
    max_body_bytes: Annotated[int, Field(gt=0)] = 8_000_000
    """Longest request, in bytes."""
    max_messages: Annotated[int, Field(gt=0)] = 2_000
    """Most messages of a request, and most parts, tool calls and tools."""
    header_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Time for a client to send the headers of a request, in seconds."""
    stall_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Time for which a client may stop to read its answer, in seconds; then its connection is closed."""
    body_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Time for a client to send its request, in seconds."""
    request_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Time for a whole request, in seconds."""
    drain_delay_s: Annotated[float, Field(ge=0)] = 0.0
    """Time between a signal to stop and the end of listening, in seconds; `/ready` fails meanwhile."""
    drain_timeout_s: Annotated[int, Field(gt=0)] = 30
    """Time for requests in progress when the gateway stops, in seconds."""
    keep_alive_s: Annotated[float, Field(gt=0)] = 15.0
    """Seconds after which a stream that waits for a decision sends a comment, so that no proxy gives it up."""
    max_n: Annotated[int, Field(gt=0)] = 16
    """Largest `n` of a request."""
    ledger: str | None = None
    """File with what each key has spent, relative to the configuration file; None: budgets start anew."""
    metrics_key_env: str | None = None
    """Environment variable with the key that `/metrics` requires; None: no key is required."""


class UpstreamTable(Endpoint):
    """`[upstreams.NAME]`: a server with an OpenAI-compatible API."""

    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Longest silence of the server, in seconds: before its answer, or between two pieces of it."""
    connect_timeout_s: Annotated[float, Field(gt=0)] = 10.0
    """Time to connect, in seconds."""
    max_connections: Annotated[int, Field(gt=0)] = 1000
    """Most connections to the server. Further requests wait, at most `timeout_s`."""
    max_answer_bytes: Annotated[int, Field(gt=0)] = 32_000_000
    """Longest answer, or event of a stream, in bytes after decompression."""
    default_max_tokens: Annotated[int, Field(gt=0)] | None = None
    """Limit of an answer for requests that give none. Budgets of tokens or dollars need it."""
    provider: str | None = None
    """LangChain's name of the provider, such as "openai", by which the price list knows the model."""


class BudgetTable(Table):
    """`[keys.NAME.budget]`: hard limits of what a key may spend."""

    tokens: Annotated[int, Field(gt=0)] | None = None
    dollars: Annotated[float, Field(gt=0)] | None = None
    calls: Annotated[int, Field(gt=0)] | None = None
    """Requests to models and critics."""
    period: Literal["total", "day", "month"] = "total"
    """The limits are for each such period, in UTC."""


class KeyTable(Table):
    """`[keys.NAME]`: a client's key, by its hash or by an environment variable that holds it."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the key, in hexadecimal. `amc-gateway new-key` makes both."""
    env: str | None = None
    """Environment variable that holds the key."""
    models: list[str] = Field(default=["*"], min_length=1)
    """Patterns of the models that the key may use, such as "lac/*"."""
    requests_per_minute: Annotated[int, Field(gt=0)] | None = None
    """Most requests in any 60 seconds."""
    max_concurrent: Annotated[int, Field(gt=0)] | None = None
    """Most requests at the same time."""
    budget: BudgetTable | None = None


class MethodTable(Table):
    """What the tables of the methods share."""

    critics: list[str] = []
    """Names of critics that a request may choose. The first is the default."""
    upstreams: list[str] | None = None
    """Names of the upstreams to offer the method for; None: all."""
    temperature: Annotated[float, Field(gt=0)] | None = None
    """Sampling temperature of all answers, instead of the requests'; None: the requests'."""
    system_is_task: bool = False
    """Show the critic a leading system message, as part of the task."""
    returns: list[float] | None = Field(default=None, min_length=2, max_length=2)
    """Returns of failure and success, for critics in reward units."""
    on_critic_error: OnCriticError | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The settings of the method itself."""
        given = self.model_dump(exclude_none=True, exclude={"critics", "upstreams", "temperature", "system_is_task"})
        return {**given, "returns": tuple(given["returns"])} if "returns" in given else given


class BestOfNTable(MethodTable):
    """`[best-of-n]`."""

    k: Annotated[int, Field(gt=0)] = 5
    """Number of answers, of which the critic chooses the best."""


class LacTable(MethodTable):
    """`[lac]`: settings of `amc_agents.lac.types.LacSettings`, which has their defaults."""

    k: Annotated[int, Field(gt=0)] | None = None
    alpha: Annotated[float, Field(ge=0)] | None = None
    prior: Literal["frequency", "likelihood"] | None = None
    greedy: bool | None = None
    sample: bool | None = None
    depth: int | None = None
    reflect: bool | None = None
    world_model: str | None = None
    """Name of the upstream that imagines and reflects; None: the policy."""


class PnlcTable(MethodTable):
    """`[pnlc]`: settings of `amc_agents.pnlc.types.PnlcSettings`, which has their defaults."""

    n_positive: int | None = None
    n_negative: int | None = None
    m: int | None = None
    refine: bool | None = None
    k: Annotated[int, Field(gt=0)] | None = None
    critique: Literal["goals", "value", "self"] | None = None
    proposer: str | None = None
    """Name of the upstream that proposes goals; None: the policy."""


def _without_key(spec: str) -> str:
    if masked(spec) != spec:
        raise ValueError("a critic's string without a key or a password: name the key's variable in key_env")
    return spec


def _without_method(name: str) -> str:
    if name.split("/")[0] in METHODS:
        raise ValueError(f"a name that does not begin with {', '.join(f'{method}/' for method in METHODS)}")
    return name


class GatewayConfig(Table):
    """A configuration file."""

    server: ServerTable = ServerTable()
    upstreams: dict[Annotated[Name, AfterValidator(_without_method)], UpstreamTable] = Field(min_length=1)
    critics: dict[Name, Annotated[str, AfterValidator(_without_key)]] = {}
    """Strings of critics by name. Requests can name no others."""
    keys: dict[Name, KeyTable] = {}
    lac: LacTable | None = None
    pnlc: PnlcTable | None = None
    best_of_n: BestOfNTable | None = Field(default=None, alias="best-of-n")
    prices: dict[str, PriceTable] = {}
    """Dollars per million tokens by the models' names, for budgets of dollars."""

    @model_validator(mode="after")
    def _check_tables(self) -> Self:
        problems = [*self._of_keys(), *self._of_methods()]
        if problems:
            raise ValueError("; ".join(problems[:_SHOWN]))
        return self

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file; the ledger's path becomes relative to the file's folder.

        Raises:
            ConfigurationError: the file cannot be read, is not TOML, or has an unknown key or a wrong value.
        """
        try:
            plain = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(f"config file {path}: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"config file {path} is not valid TOML: {error}") from error
        return cls.read(plain, f"config file {path}", Path(path).parent)

    @classmethod
    def read(cls, plain: dict[str, Any], name: str = "the configuration", folder: Path = Path()) -> Self:
        """Check plain values.

        Args:
            plain: the tables.
            name: their source, for errors.
            folder: the folder that the ledger's path is relative to.

        Raises:
            ConfigurationError: a key is unknown, or a value is wrong.
        """
        try:
            config = cls.model_validate(plain)
        except ValidationError as error:
            faults = error.errors(include_url=False)
            more = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
            raise ConfigurationError(f"{name}: {'; '.join([*map(_sentence, faults[:_SHOWN]), *more])}") from None
        if config.server.ledger is None:
            return config
        server = config.server.model_copy(update={"ledger": str(folder / config.server.ledger)})
        return config.model_copy(update={"server": server})

    def _of_keys(self) -> list[str]:
        problems = []
        if self.server.anonymous == bool(self.keys):
            problems.append(
                "a gateway needs a table [keys.NAME] (amc-gateway new-key), or else [server] anonymous = true, "
                "which serves anyone who can connect; it cannot have both"
            )
        problems += [
            f"[keys.{name}] needs sha256 or env, and not both"
            for name, key in self.keys.items()
            if (key.sha256 is None) == (key.env is None)
        ]
        budgets = {name: key.budget for name, key in self.keys.items() if key.budget is not None}
        problems += [
            f"[keys.{name}.budget] needs tokens, dollars or calls"
            for name, budget in budgets.items()
            if budget.tokens is None and budget.dollars is None and budget.calls is None
        ]
        unbounded = [name for name, upstream in self.upstreams.items() if upstream.default_max_tokens is None]
        if unbounded and any(budget.tokens or budget.dollars for budget in budgets.values()):
            problems.append(f"budgets of tokens or dollars need default_max_tokens for upstreams: {listed(unbounded)}")
        return problems

    def _of_methods(self) -> list[str]:
        problems = []
        for method, table in (("lac", self.lac), ("pnlc", self.pnlc), ("best-of-n", self.best_of_n)):
            if table is None:
                continue
            needed = not (isinstance(table, PnlcTable) and table.critique == "self")
            if needed and not table.critics:
                problems.append(f"[{method}] needs critics = [...], of the names in [critics]")
            problems += [
                f"[{method}] names the critic {quoted(name, 80)}, and [critics] has {listed(self.critics) or 'none'}"
                for name in table.critics
                if name not in self.critics
            ]
            others = [getattr(table, field, None) for field in ("world_model", "proposer")]
            problems += [
                f"[{method}] names the upstream {quoted(name, 80)}, and [upstreams] has {listed(self.upstreams)}"
                for name in (*(table.upstreams or ()), *(other for other in others if other is not None))
                if name not in self.upstreams
            ]
        return problems


def _sentence(fault: Any) -> str:
    """Describe an error of pydantic: the place, what was expected, what came."""
    expected = fault["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if not fault["loc"]:
        return str(expected)
    *tables, key = map(str, fault["loc"])
    place = f"[{'.'.join(tables)}] " if tables else ""
    if fault["type"] == "extra_forbidden":
        return f"{place or 'the top level '}has no key {quoted(key, 80)}"
    if fault["type"] == "missing":
        return f"{place}needs {key}"
    # A value may be a key that was written into the wrong place, so it is not shown.
    return f"{place}{key}: expected {expected}"
