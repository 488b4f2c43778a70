"""Parse a critic's string, `kind:target?key=value`, wherever a critic is accepted.

    uniform                      f = 0
    embedded:crafting            the shipped value model, in numpy
    embedded:crafting?adapter=folder     the same model with a value adapter that you trained
    hf:path?device=cuda          a folder that `amc train value` wrote
    vllm:http://host:8000?model=org/name      such a folder served by vLLM
    vllm:http://a:8000,http://b:8000          the same on several servers
    judge:provider:model         a chat model, asked for a number
    foa:provider:model           a chat model, prompted as in Fleet of Agents
    verdict:http://host:8000?model=org/name   log-odds of GOOD and BAD, read from a model's logits
    classify:http://host:8000?label=0         any classifier or reward model on vLLM
    calibrated:FOLDER            any of these, calibrated to your outcomes by `amc calibrate`
    quick:path                   counts and words, in under 1 ms: a folder that `amc train quick` wrote
    goal:path                    a goal-conditioned value function over embeddings
    my_package.critics:make      an object in your code: a critic, a function of trajectories, or a factory of critics
    vendor:target                a kind from an installed package (entry points of the group "amc_agents.critics")

A kind's module is imported when the kind is used.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import importlib.util
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl

import numpy as np

from amc_agents.critics.adapting import CriticLike, adapted
from amc_agents.errors import ConfigurationError, CriticSpecError
from amc_agents.quoting import quoted
from amc_agents.types import Critic, FloatArray, Trajectory
from amc_agents.usage import Usage

CriticFactory = Callable[..., Critic]
"""`make(target, options)` -> critic; imports what it needs when called.

A factory whose critic contacts the address in its string takes a keyword `trusted`, too: False where a call has named
the critic.
"""

MOST_CHARACTERS = 1000
"""Longest critic string that is parsed; ordinary paths and URLs are far shorter."""

GROUP = "amc_agents.critics"
"""Entry-point group in which other packages offer kinds; each entry names a `CriticFactory`."""


def parse_critic(spec: str | CriticLike, *, trusted: bool = True) -> Critic:
    """Make a critic from its string, or from an object or a function; return an async critic unchanged.

    Args:
        spec: a string, a critic (sync methods are called in a thread), or a function of trajectories, which serves as
            the method `values`.
        trusted: False for a string from outside, such as a request's context. It may not name code (`module:object`),
            local files, link-local addresses, or the options that choose a key or where a provider's key is sent; its
            server gets no key.

    Raises:
        CriticSpecError: the string cannot be parsed (the message lists the kinds), or the object is not a critic.
        CheckpointError: the string names something that is not a critic's checkpoint.
        MissingExtra: the kind needs an optional dependency.
    """
    if not isinstance(spec, str):
        critic: Critic = adapted(spec)
        return critic
    if len(spec) > MOST_CHARACTERS:
        raise CriticSpecError(
            f"a critic's string has at most {MOST_CHARACTERS:,} characters, got {len(spec):,} that begin with "
            f"{quoted(spec, 60)}"
        )
    kind, target, options = split(spec)
    if not trusted:
        _refuse_for_calls(spec, kind, target, options)
    factory = _find_factory(kind)
    if factory is not None:
        return _build(factory, spec, target, options, trusted)
    if target and kind in _PROVIDERS:
        raise CriticSpecError(
            f"critic {quoted(spec, 60)} names a chat model, which must be asked for a number: did you mean "
            f"{quoted(f'judge:{spec}', 70)}?"
        )
    if target and not trusted:
        raise CriticSpecError(
            f"critic {quoted(spec, 60)}: a call may name one of the kinds "
            f"({', '.join(sorted({*KINDS, *_offered()}))}); code is imported only where the graph is built: pass the "
            "object itself, or name it in the constructor"
        )
    if target and _is_module(kind):
        return _from_module(spec, kind, target, options)
    raise CriticSpecError(_not_understood(spec, kind))


def split(spec: str) -> tuple[str, str, dict[str, str]]:
    """Return the kind, target and options of a string."""
    name, _, query = spec.partition("?")
    kind, _, target = name.partition(":")
    return kind, target, dict(parse_qsl(query, keep_blank_values=True))


def _build(factory: CriticFactory, spec: str, target: str, options: Mapping[str, str], trusted: bool) -> Critic:
    try:
        critic: Critic = adapted(_call(factory, spec, target, options, trusted))
        return critic
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise CriticSpecError(f"critic {quoted(spec, 60)}: the file name is too long for this system") from error


def _call(factory: CriticFactory, spec: str, target: str, options: Mapping[str, str], trusted: bool) -> Critic:
    """Call a factory, and pass `trusted` on if it takes that."""
    if "trusted" in inspect.signature(factory).parameters:
        return factory(target, options, trusted=trusted)
    if not trusted and any("://" in value for value in (target, *options.values())):
        raise CriticSpecError(
            f"critic {quoted(spec, 60)}: a call may not name an address for this kind, whose factory takes no "
            "`trusted`: name such a critic where the graph is built"
        )
    return factory(target, options)


def _refuse_for_calls(spec: str, kind: str, target: str, options: Mapping[str, str]) -> None:
    """Refuse what an untrusted string may not name. Raises `CriticSpecError`."""
    keys = [option for option in _OPTIONS_OF_KEYS if option in options]
    if keys:
        raise CriticSpecError(
            f"critic {quoted(spec, 60)}: a call may not say {', '.join(keys)}, which would send a key of this "
            "process to an address of the caller's choice: name such a critic where the graph is built"
        )
    embedded = kind == "embedded" or (kind == "verdict" and target.startswith("embedded:"))
    names_files = (
        kind in ("hf", "goal", "quick", "calibrated")
        or any(option in options for option in _OPTIONS_OF_FILES)
        or (embedded and not _is_shipped(target.rpartition(":")[2]))
        # LangChain's provider that loads a model from any path.
        or (kind in ("judge", "foa", "verdict") and target.startswith("huggingface:"))
    )
    if names_files:
        raise CriticSpecError(
            f"critic {quoted(spec, 60)}: a call may not name files of this machine. Name such a critic where "
            'the graph is built, or offer it to calls there: critics={"name": critic}'
        )


def _is_shipped(name: str) -> bool:
    from amc_agents.models.embedded.weights import shipped_names

    # A local folder of that name would take precedence.
    return name in shipped_names() and not Path(name).exists()


def _find_factory(kind: str) -> CriticFactory | None:
    """The factory of a kind: the library's own, an entry point's, or None."""
    own = KINDS.get(kind)
    if isinstance(own, str):
        own = EntryPoint(kind, own, GROUP).load()
    elif own is None and kind in (offered := _offered()):
        own = offered[kind].load()
    return cast("CriticFactory | None", own)


KINDS: dict[str, str | CriticFactory] = {
    "uniform": "amc_agents.critics.spec:uniform",
    "calibrated": "amc_agents.critics.calibration:from_spec",
    "embedded": "amc_agents.critics.value.local:from_spec",
    "hf": "amc_agents.critics.value.hf:from_spec",
    "vllm": "amc_agents.critics.value.replicas:from_spec",
    "classify": "amc_agents.critics.classifier:from_spec",
    "judge": "amc_agents.critics.judge.critic:from_spec",
    "foa": "amc_agents.critics.judge.critic:foa_from_spec",
    "verdict": "amc_agents.critics.verdict.critic:from_spec",
    "goal": "amc_agents.critics.goal.critic:from_spec",
    "quick": "amc_agents.critics.quick:from_spec",
}
"""The library's own kinds: a factory, or its name as an entry point writes it, `module:name`."""

_PROVIDERS = frozenset(
    {"anthropic", "azure_openai", "bedrock", "bedrock_converse", "cohere", "deepseek", "fireworks", "google_genai",
     "google_vertexai", "groq", "huggingface", "mistralai", "nvidia", "ollama", "openai", "openrouter", "perplexity",
     "together", "xai"}
)  # fmt: skip
"""LangChain's names of providers, with which a chat model's name begins."""
_OPTIONS_OF_KEYS = ("key_env", "base_url")
"""Options that name an environment variable to send, or the URL to which a chat model's key is sent."""
_OPTIONS_OF_FILES = ("adapter", "checkpoint", "embeddings", "summary", "system", "tools")
"""Options that name a folder, or something that is loaded from one."""


def _offered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError, RecursionError):
        return False


def _from_module(spec: str, module: str, name: str, options: Mapping[str, str]) -> Critic:
    target: Any = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(target, part):
            owner = getattr(target, "__name__", target)
            raise CriticSpecError(f"critic {quoted(spec)}: {owner} has no {quoted(part)}{near(part, dir(target))}")
        target = getattr(target, part)
    if isinstance(target, type) or _is_factory(target, options):
        target = target(**options)
    try:
        return cast(Critic, adapted(target))
    except CriticSpecError as error:
        raise CriticSpecError(f"critic {quoted(spec)}: {error}") from error


def _is_factory(function: Any, options: Mapping[str, str]) -> bool:
    """True if a function makes a critic; given no options, a function of one required argument is a critic itself."""
    if not inspect.isroutine(function) and not isinstance(function, partial):
        return False
    if options:
        return True
    try:
        return not _accepts(function, "trajectories") or _accepts(function)
    except ValueError:  # written in C, without a signature
        return True


def _accepts(function: Callable[..., Any], *arguments: str) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    return True


def _not_understood(spec: str, kind: str) -> str:
    kinds = sorted({*KINDS, *_offered()})
    return (
        f"critic {quoted(spec)} was not understood: {quoted(kind, 60)} is neither a kind ({', '.join(kinds)}) "
        f"nor a module that can be imported{near(kind, kinds)}. Expected kind:target?key=value, or module:object"
    )


def allow(kind: str, options: Mapping[str, str], *names: str) -> None:
    """Refuse options with other names."""
    for option in options:
        if option not in names:
            known = f"it takes {', '.join(names)}" if names else "it takes none"
            raise CriticSpecError(
                f"critic kind {quoted(kind)} has no option {quoted(option, 60)}: {known}{near(option, names)}"
            )


def needed(kind: str, target: str, example: str) -> str:
    """Return the target, which must not be empty."""
    if not target:
        raise CriticSpecError(f"critic kind {quoted(kind)} needs a target, as in {kind}:{example}")
    return target


def positive_integer(kind: str, options: Mapping[str, str], option: str, default: int) -> int:
    """Read an integer of at least 1."""
    text = options.get(option, str(default))
    # Python's int() refuses thousands of digits.
    if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) < 1:
        raise CriticSpecError(
            f"critic kind {quoted(kind)}: {option} must be a positive integer, got {quoted(text, 40)}"
        )
    return int(text)


def number(kind: str, options: Mapping[str, str], option: str, default: float, *, least: float = -math.inf) -> float:
    """Read a finite number, at least `least`."""
    text = options.get(option, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= least):
        bound = f" of at least {least:g}" if math.isfinite(least) else ""
        raise CriticSpecError(f"critic kind {quoted(kind)}: {option} must be a number{bound}, got {quoted(text, 60)}")
    return value


def choice(kind: str, options: Mapping[str, str], option: str, default: str, allowed: Iterable[str]) -> str:
    """Read one of the allowed words."""
    text, words = options.get(option, default), list(allowed)
    if text not in words:
        raise CriticSpecError(
            f"critic kind {quoted(kind)}: {option} must be one of {', '.join(words)}, got {quoted(text, 60)}"
        )
    return text


@contextmanager
def understood(kind: str) -> Iterator[None]:
    """Turn a `ConfigurationError` of the block into a `CriticSpecError` that names the kind."""
    try:
        yield
    except CriticSpecError:
        raise
    except ConfigurationError as error:
        raise CriticSpecError(f"critic kind {quoted(kind)}: {error}") from error


def near(word: str, words: Iterable[str]) -> str:
    """A hint at the most similar word, or ""."""
    close = difflib.get_close_matches(word, list(words), n=1)
    return f"; did you mean {quoted(close[0])}?" if close else ""


_MOST_DIGITS = 18


def uniform(target: str, options: Mapping[str, str]) -> UniformCritic:
    """The critic of `uniform`. Raises `CriticSpecError`."""
    allow("uniform", options)
    if target:
        raise CriticSpecError(f"uniform takes no target, got {quoted(target)}")
    return UniformCritic()


class UniformCritic:
    """f = 0 for every trajectory."""

    def __init__(self) -> None:
        self.usage = Usage()

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """Return `[N]` zeros."""
        return np.zeros(len(trajectories))
