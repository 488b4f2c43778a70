"""The configuration file: what may be changed without touching code.

    critic = "vllm:http://127.0.0.1:8000?model=value"

    [amc]
    n_particles = 15
    resample = { at_steps = [4, 8] }

`docs/configuration.md` has every key, and the order in which settings win over each other.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    ValidationError,
)

from amc_agents.errors import ConfigurationError
from amc_agents.prices import Price
from amc_agents.quoting import masked, quoted

FILE_VARIABLE = "AMC_CONFIG"
"""Environment variable that names the file."""

Select = Literal["return", "value", "weight", "sample"]
Finished = Literal["retire", "keep"]
OnCriticError = Literal["raise", "uniform"]
Scheme = Literal["multinomial", "residual", "stratified", "systematic"]


def _checked_schedule(value: Any) -> Any:
    match value:
        case "every_step" | "never":
            return value
        case {"at_steps": [_, *_] as steps, **rest} if not rest and all(type(one) is int and one > 0 for one in steps):
            return value
        case {"ess_below": int() | float() as share, **rest} if not rest and type(share) is not bool and 0 < share <= 1:
            return value
    raise ValueError(
        '{at_steps = [4, 8]} (whole steps from 1), {ess_below = 0.5} (a share in (0, 1]), "every_step" or "never"'
    )


PlainSchedule = Annotated[Any, BeforeValidator(_checked_schedule)]
"""When to resample, as a file says it; `amc_agents.population.settings.schedule_of` makes a `Schedule` of it."""


class _Table(BaseModel):
    """A table of the file: values of exactly these types, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class AmcTable(_Table):
    """`[amc]`: arguments of `amc()`, under their own names. None: not said."""

    n_particles: PositiveInt | None = None
    resample: PlainSchedule = None
    scheme: Scheme | None = None
    beta: PositiveFloat | None = None
    success_reward: PositiveFloat | None = None
    select: Select | None = None
    finished: Finished | None = None
    horizon: PositiveInt | None = None
    stop_at: float | None = None
    quorum: PositiveInt | None = None
    step_timeout: PositiveFloat | None = None
    run_timeout: PositiveFloat | None = None
    seed: Annotated[int, Field(ge=0)] | None = None


def _without_key(address: str) -> str:
    if masked(address) != address or "@" in address or "?" in address:
        raise ValueError("an address without a name, a password or ?query: the key is in the variable key_env")
    return address


def _critic_without_key(spec: str) -> str:
    if masked(spec) != spec:
        raise ValueError("a critic's string without a key or a password: the key is in the variable key_env")
    return spec


class Endpoint(_Table):
    """A model behind an OpenAI-compatible server."""

    model: str
    """The name under which the server has it."""
    base_url: Annotated[str, Field(pattern=r"^https?://"), AfterValidator(_without_key)] | None = None
    """Such as "http://host:8000/v1"; None: the provider's own."""
    key_env: str | None = None
    """Environment variable that holds the key; keys themselves never stand in the file."""


class PolicyTable(Endpoint):
    """`[policy]`: the model that acts."""

    temperature: Annotated[float, Field(ge=0)] | None = None
    """Sampling temperature."""


class PriceTable(_Table):
    """`[prices."model"]`: dollars per million tokens."""

    input: Annotated[float, Field(ge=0)]
    """Of tokens read and computed."""
    output: Annotated[float, Field(ge=0)]
    """Of tokens written."""
    cached_input: Annotated[float, Field(ge=0)] | None = None
    """Of tokens read that a cache answered; None: as `input`."""


class Config(_Table):
    """A configuration file. Everything may be left out: an empty file is `Config()`."""

    critic: Annotated[str, AfterValidator(_critic_without_key)] | None = None
    """A critic's string, as `amc_agents.critics.spec` reads it."""
    on_critic_error: OnCriticError | None = None
    """Argument of `amc()`."""
    amc: AmcTable = AmcTable()
    policy: PolicyTable | None = None
    embeddings: Endpoint | None = None
    """The model that turns text into vectors, for goal critics."""
    prices: Mapping[str, PriceTable] = Field(default_factory=dict)
    """By the model's name."""

    _path: str | None = PrivateAttr(None)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file.

        Raises:
            ConfigurationError: there is none, it is no TOML, or a key or a value is not what was expected; the
                message says where, and names the nearest key.
        """
        try:
            with Path(path).open("rb") as file:
                plain = tomllib.load(file)
        except OSError as error:
            raise ConfigurationError(f"config file {path}: {error.strerror or error}") from error
        except ValueError as error:  # TOML's own, with line and column, and bytes that are no text.
            raise ConfigurationError(f"config file {path} is no TOML: {error}") from error
        except RecursionError as error:
            raise ConfigurationError(f"config file {path}: its values are nested too deep to be read") from error
        try:
            config = cls.model_validate(plain)
        except ValidationError as error:
            faults = error.errors(include_url=False)
            told = "; ".join(map(_sentence, faults[:_SHOWN])) + (
                f"; and {len(faults) - _SHOWN} more" * (len(faults) > _SHOWN)
            )
            raise ConfigurationError(f"config file {path}: {told}") from error
        config._path = str(path)
        return config

    def price_list(self) -> dict[str, Price]:
        """The prices by model, as `amc_agents.prices.cost` takes them."""
        return {model: Price(**price.model_dump()) for model, price in self.prices.items()}

    @property
    def name(self) -> str:
        """What a report calls it."""
        return "config" if self._path is None else f"config file {self._path}"


ConfigLike = Config | str | os.PathLike[str]
"""What `config=` takes: a configuration, or the path of its file."""


def configured(config: ConfigLike | None = None) -> Config:
    """The configuration: what is given, else the file that AMC_CONFIG names, else an empty `Config`.

    Args:
        config: the configuration, or the path of its file.

    Raises:
        ConfigurationError: as `Config.load`; or `config` is neither.
    """
    if isinstance(config, Config):
        return config
    if isinstance(config, str | os.PathLike):
        return Config.load(config)
    if config is not None:
        raise ConfigurationError(
            f'config= takes a path such as "amc.toml" or a Config, got {type(config).__name__}: Config.model_validate '
            "makes one of a dictionary"
        )
    path = os.environ.get(FILE_VARIABLE)
    if not path:
        return Config()
    try:
        return Config.load(path)
    except ConfigurationError as error:
        raise ConfigurationError(f"{FILE_VARIABLE}={path}: {error}") from error


def _sentence(error: Any) -> str:
    """One finding of pydantic's, in our words: the place, what was expected, what came."""
    *tables, key = error["loc"]
    place = f"[{'.'.join(_quoted(str(one)) for one in tables)}] " if tables else ""
    if error["type"] == "extra_forbidden":
        hint = _nearest(str(key), tables[0] if tables else "")
        return f"{place or 'the top level '}has no key {quoted(key, 80)} ({hint})"
    if error["type"] == "missing":
        return f"{place}needs {key!r}"
    if error["type"] in ("model_type", "mapping_type"):
        expected = "a table"
    elif error["type"] == "string_pattern_mismatch":
        expected = "an address that begins with http:// or https://"
    else:
        expected = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return f"{place}{key}: expected {expected}, got {quoted(error['input'], 80)}"


def _nearest(key: str, table: str) -> str:
    """A hint at the key that was meant, in its table or, where none is near there, in another one."""
    known = sorted(_TABLES[table].model_fields)
    for near in (1.0, 0.6):
        for other in (table, *(name for name in _TABLES if name != table)):
            close = difflib.get_close_matches(key, _TABLES[other].model_fields, n=1, cutoff=near)
            if close:
                where = "" if other == table else f" in [{other}]" if other else " at the top level"
                return f"did you mean {close[0]!r}{where}?"
    return f"it takes {', '.join(known)}"


def _quoted(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() else f'"{key}"'


_TABLES: dict[str, type[BaseModel]] = {
    "": Config, "amc": AmcTable, "policy": PolicyTable, "embeddings": Endpoint, "prices": PriceTable,
}  # fmt: skip
_SHOWN = 3
"""Faults of a file that an error names."""
