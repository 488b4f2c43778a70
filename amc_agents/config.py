"""The configuration file: settings that can change without touching code.

    critic = "vllm:http://127.0.0.1:8000?model=value"

    [amc]
    n_particles = 15
    resample = { at_steps = [4, 8] }

`docs/configuration.md` lists every key and the precedence of settings.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from amc_agents.errors import ConfigurationError
from amc_agents.prices import Price
from amc_agents.quoting import excerpt, masked, quoted
from amc_agents.settings import FILE_FIELDS, AmcSettings, OnCriticError, schedule_of, size_of

FILE_VARIABLE = "AMC_CONFIG"
"""Environment variable with the path of the file."""


class _Table(BaseModel):
    """A table of the file. Types are not converted, and unknown keys are errors."""

    # A key in the wrong place is an error, whose traceback must not show it.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


def _checked_form(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Check that a value of the file can be read, and keep its form."""

    def checked(value: Any) -> Any:
        try:
            read(value)
        except ConfigurationError:
            raise ValueError(_FORMS[read]) from None
        return value

    return checked


_FORMS: dict[Any, str] = {
    schedule_of: '{at_steps = [4, 8]} (whole steps from 1), {ess_below = 0.5} (a share in (0, 1]), "every_step" or '
    '"never"',
    size_of: 'a whole number, or "start..most" such as "4..32"',
}


def _checked_ranges(table: BaseModel) -> BaseModel:
    settings = table.model_dump(exclude_none=True, exclude={"resample"})
    if "n_particles" in settings:
        settings["n_particles"] = size_of(settings["n_particles"])
    try:
        AmcSettings(**settings)
    except ConfigurationError as error:
        raise PydanticCustomError("range", "{reason}", {"reason": excerpt(str(error))}) from error
    return table


_HINTS = get_type_hints(AmcSettings)
_TYPES: dict[str, Any] = {
    name: Annotated[Any, BeforeValidator(_checked_form(reads))] if (reads := field.metadata["reads"]) else _HINTS[name]
    for name, field in FILE_FIELDS.items()
} | {"beta": Annotated[float, WrapValidator(lambda value, check: value if value == "auto" else check(value))]}
_OPTIONAL: dict[str, Any] = {name: (kind | None, None) for name, kind in _TYPES.items()}
if TYPE_CHECKING:
    AmcTable = Any
else:
    AmcTable = create_model(
        "AmcTable",
        __base__=_Table,
        __doc__="`[amc]`: fields of `AmcSettings`, each optional. Schedules and sizes keep the form of the file.",
        __validators__={"check_ranges": model_validator(mode="after")(_checked_ranges)},
        **_OPTIONAL,
    )


def _without_key(url: str) -> str:
    if masked(url) != url or "@" in url or "?" in url:
        raise ValueError("a URL without a user name, a password or ?query: name the key's variable in key_env")
    return url


def _critic_without_key(spec: str) -> str:
    if masked(spec) != spec:
        raise ValueError("a critic's string without a key or a password: name the key's variable in key_env")
    return spec


class Endpoint(_Table):
    """A model behind an OpenAI-compatible server."""

    model: str
    """Name of the model on the server."""
    base_url: Annotated[str, Field(pattern=r"^https?://"), AfterValidator(_without_key)] | None = None
    """Base URL, such as "http://host:8000/v1"; None: the provider's default."""
    key_env: str | None = None
    """Environment variable that holds the key. The file never contains keys."""


class PolicyTable(Endpoint):
    """`[policy]`: the model that acts."""

    temperature: Annotated[float, Field(ge=0)] | None = None
    """Sampling temperature."""


class PriceTable(_Table):
    """`[prices."model"]`: dollars per million tokens."""

    input: Annotated[float, Field(ge=0)]
    """Price of input tokens."""
    output: Annotated[float, Field(ge=0)]
    """Price of output tokens."""
    cached_input: Annotated[float, Field(ge=0)] | None = None
    """Price of cached input tokens; None: as `input`."""


class Config(_Table):
    """A configuration file. All keys are optional: an empty file is `Config()`."""

    critic: Annotated[str, AfterValidator(_critic_without_key)] | None = None
    """A critic's string, as `amc_agents.critics.spec` reads it."""
    on_critic_error: OnCriticError | None = None
    """Argument of `amc()`."""
    amc: AmcTable = Field(default_factory=lambda: AmcTable())
    """Arguments of `amc()`."""
    policy: PolicyTable | None = None
    embeddings: Endpoint | None = None
    """The embedding model, for goal critics."""
    prices: Mapping[str, PriceTable] = Field(default_factory=dict)
    """Prices by model name."""

    _path: str | None = PrivateAttr(None)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file.

        Raises:
            ConfigurationError: the file cannot be read, is not TOML, or has an unknown key or a wrong value. The
                message names the place, and the nearest key.
        """
        try:
            with Path(path).open("rb") as file:
                plain = tomllib.load(file)
        except OSError as error:
            raise ConfigurationError(f"config file {path}: {error.strerror or error}") from error
        except ValueError as error:  # TOML errors with line and column, and bytes that are not text.
            raise ConfigurationError(f"config file {path} is not valid TOML: {error}") from error
        except RecursionError as error:
            raise ConfigurationError(f"config file {path}: its values are nested too deep to be read") from error
        try:
            config = cls.model_validate(plain)
        except ValidationError as error:
            faults = error.errors(include_url=False)
            sentences = [*map(_sentence, faults[:_SHOWN])]
            if len(faults) > _SHOWN:
                sentences.append(f"and {len(faults) - _SHOWN} more")
            raise ConfigurationError(f"config file {path}: {'; '.join(sentences)}") from error
        config._path = str(path)
        return config

    def price_list(self) -> dict[str, Price]:
        """Return the prices by model, as `amc_agents.prices.cost` takes them."""
        return {model: Price(**price.model_dump()) for model, price in self.prices.items()}

    @property
    def name(self) -> str:
        """Name of this configuration in reports."""
        return "config" if self._path is None else f"config file {self._path}"


ConfigLike = Config | str | os.PathLike[str]
"""A configuration, or the path of its file."""


def configured(config: ConfigLike | None = None) -> Config:
    """Return the given configuration, else the file that AMC_CONFIG names, else an empty `Config`.

    Args:
        config: the configuration, or the path of its file.

    Raises:
        ConfigurationError: as `Config.load`; or `config` has another type.
    """
    if isinstance(config, Config):
        return config
    if isinstance(config, str | os.PathLike):
        return Config.load(config)
    if config is not None:
        raise ConfigurationError(
            f'config= takes a path such as "amc.toml" or a Config, got {type(config).__name__}: convert a dictionary '
            "with Config.model_validate"
        )
    path = os.environ.get(FILE_VARIABLE)
    if not path:
        return Config()
    try:
        return Config.load(path)
    except ConfigurationError as error:
        raise ConfigurationError(f"{FILE_VARIABLE}={path}: {error}") from error


def _sentence(error: Any) -> str:
    """Describe an error of pydantic: the place, what was expected, what came."""
    if error["type"] == "range":
        return f"{_place(error['loc'])}{error['msg']}"
    *tables, key = error["loc"]
    place = _place(tables)
    if error["type"] == "extra_forbidden":
        hint = _nearest(str(key), tables[0] if tables else "")
        return f"{place or 'the top level '}has no key {quoted(key)} ({hint})"
    if error["type"] == "missing":
        return f"{place}needs {quoted(key)}"
    if error["type"] in ("model_type", "mapping_type"):
        expected = "a table"
    elif error["type"] == "string_pattern_mismatch":
        expected = "a URL that begins with http:// or https://"
    else:
        expected = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return f"{place}{key}: expected {expected}, got {quoted(error['input'])}"


def _place(tables: Any) -> str:
    return f"[{'.'.join(_quoted(str(table)) for table in tables)}] " if tables else ""


def _nearest(key: str, table: str) -> str:
    """Suggest the key that was meant, in its table or else in another table."""
    known = sorted(_TABLES[table].model_fields)
    for cutoff in (1.0, 0.6):
        for other in (table, *(name for name in _TABLES if name != table)):
            close = difflib.get_close_matches(key, _TABLES[other].model_fields, n=1, cutoff=cutoff)
            if close:
                where = "" if other == table else f" in [{other}]" if other else " at the top level"
                return f"did you mean {quoted(close[0])}{where}?"
    return f"it takes {', '.join(known)}"


def _quoted(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() else f'"{key}"'


_TABLES: dict[str, type[BaseModel]] = {
    "": Config, "amc": AmcTable, "policy": PolicyTable, "embeddings": Endpoint, "prices": PriceTable,
}  # fmt: skip
_SHOWN = 3
"""Maximum number of faults that an error lists."""
