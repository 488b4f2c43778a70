"""A string -> a critic: `kind:target?key=value`, wherever a critic is accepted.

    uniform                      f = 0
    embedded:crafting            the shipped value model, in numpy
    embedded:crafting?adapter=folder     the same with another value adapter of yours
    hf:path?device=cuda          a folder that `amc train value` wrote
    vllm:http://host:8000?model=org/name      the same, served by vLLM
    judge:provider:model         a chat model that is asked for a number
    foa:provider:model           the same, asked as Fleet of Agents does
    verdict:http://host:8000?model=org/name   log-odds of GOOD and BAD, read from a model's logits
    goal:path                    a goal-conditioned value function over embeddings
    my_package.critics:make      an object of yours: a critic, a function of trajectories, or what makes a critic
    vendor:target                a kind of an installed package (entry points of the group "amc_agents.critics")

Nothing is imported before a kind is asked for.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl

from amc_agents.critics.adapting import CriticLike, adapted
from amc_agents.critics.options import allow, choice, near, needed, positive_integer
from amc_agents.critics.server.outside import named_from_outside
from amc_agents.errors import CriticSpecError
from amc_agents.quoting import quoted
from amc_agents.types import Critic

CriticFactory = Callable[[str, Mapping[str, str]], Critic]
"""(target, options) -> critic. Imports what it needs when called."""

MOST_CHARACTERS = 1000
"""Longest critic string that is parsed; ordinary paths and addresses are far shorter."""

GROUP = "amc_agents.critics"
"""Entry-point group in which other packages offer kinds; each names a `CriticFactory`."""


def parse_critic(spec: str | CriticLike, *, trusted: bool = True) -> Critic:
    """A critic from its string, or from an object or a function; one with async methods is given back as it is.

    Args:
        spec: a string, a critic (its methods may be sync: they are then called in a thread), or a function of
            trajectories, which is the method `values` by itself.
        trusted: False for a string that comes from outside (a request's context): `module:object` is then refused,
            since it would import and call whatever is named, and so are files of this machine, link-local addresses and
            the options that choose a key or where a provider's key is sent; a server's key is sent only to addresses
            that were named from inside, too.

    Raises:
        CriticSpecError: the string was not understood, and the message lists the kinds; or the object is no critic.
        CheckpointError: it was, and what it names is not a critic's checkpoint.
        MissingExtra: it needs an optional dependency.
    """
    if not isinstance(spec, str):
        found: Critic = adapted(spec)
        return found
    if len(spec) > MOST_CHARACTERS:
        raise CriticSpecError(
            f"a critic's string has at most {MOST_CHARACTERS:,} characters, got {len(spec):,} that begin with "
            f"{quoted(spec, 60)}"
        )
    kind, _, rest = spec.partition(":")
    target, _, query = rest.partition("?")
    if "?" in kind:
        kind, _, query = kind.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    factory = KINDS.get(kind) or _offered().get(kind)
    if not trusted:
        _refuse_for_calls(spec, kind, target, options)
    if factory is not None:
        with nullcontext() if trusted else named_from_outside():
            return _made(factory, spec, target, options)
    if target and not trusted:
        raise CriticSpecError(
            f"critic {quoted(spec)}: a call may name one of the kinds ({', '.join(sorted({*KINDS, *_offered()}))}); "
            "code is imported only where the graph is built: pass the object itself, or name it in the constructor"
        )
    if target and _is_module(kind):
        return _from_module(spec, kind, target, options)
    raise CriticSpecError(_not_understood(spec, kind))


def _made(factory: CriticFactory, spec: str, target: str, options: Mapping[str, str]) -> Critic:
    try:
        return cast(Critic, adapted(factory(target, options)))
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise CriticSpecError(f"critic {quoted(spec, 60)}: the file name is too long for this system") from error


def _refuse_for_calls(spec: str, kind: str, target: str, options: Mapping[str, str]) -> None:
    """What a string that comes from outside may not say. Raises `CriticSpecError`."""
    keys = [option for option in _OPTIONS_OF_KEYS if option in options]
    if keys:
        raise CriticSpecError(
            f"critic {quoted(spec)}: a call may not say {', '.join(keys)}, which would send a key of this process to "
            "an address of the caller's choice: name such a critic where the graph is built"
        )
    embedded = kind == "embedded" or (kind == "verdict" and target.startswith("embedded:"))
    names_files = (
        kind in ("hf", "goal")
        or any(option in options for option in _OPTIONS_OF_FILES)
        or (embedded and not _is_shipped(target.rpartition(":")[2]))
        # LangChain's provider that loads a model from wherever it is told to.
        or (kind in ("judge", "foa", "verdict") and target.startswith("huggingface:"))
    )
    if names_files:
        raise CriticSpecError(
            f"critic {quoted(spec)}: a call may not name files of this machine. Name such a critic where the graph is "
            'built, or offer it to calls there: critics={"name": critic}'
        )


def _is_shipped(name: str) -> bool:
    from amc_agents.critics.value.embedded import shipped_names

    # A folder of that name would go first.
    return name in shipped_names() and not Path(name).exists()


def _uniform(target: str, options: Mapping[str, str]) -> Critic:
    from amc_agents.critics.uniform import UniformCritic

    allow("uniform", options)
    if target:
        raise CriticSpecError(f"uniform takes no target, got {target!r}")
    return UniformCritic()


def _embedded(target: str, options: Mapping[str, str]) -> Critic:
    from amc_agents.critics.value.embedded import ADAPTER, EmbeddedCritic, shipped_folder

    allow("embedded", options, "adapter")
    adapter = options.get("adapter")
    folder = shipped_folder(needed("embedded", target, "crafting"), ADAPTER)
    if adapter is None:
        return EmbeddedCritic(folder)
    return EmbeddedCritic(folder, folder / adapter if (folder / adapter).is_dir() else adapter)


def _hf(target: str, options: Mapping[str, str]) -> Critic:
    from amc_agents.critics.value.hf import HFCritic

    allow("hf", options, "device", "dtype", "batch_size")
    return HFCritic(
        needed("hf", target, "path/to/value"),
        device=options.get("device", "cpu"),
        dtype=choice("hf", options, "dtype", "auto", ("auto", "float32", "bfloat16", "float16")),
        batch_size=positive_integer("hf", options, "batch_size", 32),
    )


def _from(module: str) -> CriticFactory:
    """The factory `from_spec` of a module, which is imported when it is called."""

    def make(target: str, options: Mapping[str, str]) -> Critic:
        critic: Critic = importlib.import_module(module).from_spec(target, options)
        return critic

    return make


KINDS: dict[str, CriticFactory] = {
    "uniform": _uniform,
    "embedded": _embedded,
    "hf": _hf,
    "vllm": _from("amc_agents.critics.value.pooling"),
    "judge": _from("amc_agents.critics.judge.critic"),
    "foa": _from("amc_agents.critics.judge.foa"),
    "verdict": _from("amc_agents.critics.verdict.critic"),
    "goal": _from("amc_agents.critics.goal.critic"),
}
"""The library's own kinds."""


_OPTIONS_OF_KEYS = ("key_env", "base_url")
"""Name an environment variable to be sent, or where a chat model's key is sent."""
_OPTIONS_OF_FILES = ("adapter", "checkpoint", "embeddings", "summary")
"""Name folders, or what is loaded from one."""


def _offered() -> dict[str, CriticFactory]:
    return {point.name: _loader(point) for point in entry_points(group=GROUP)}


def _loader(point: Any) -> CriticFactory:
    def make(target: str, options: Mapping[str, str]) -> Critic:
        critic: Critic = point.load()(target, options)
        return critic

    return make


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError, RecursionError):
        return False


def _from_module(spec: str, module: str, name: str, options: Mapping[str, str]) -> Critic:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise CriticSpecError(
                f"critic {quoted(spec)}: {getattr(found, '__name__', found)} has no {part!r}{near(part, dir(found))}"
            )
        found = getattr(found, part)
    if isinstance(found, type) or _makes_a_critic(found, options):
        found = found(**options)
    try:
        return cast(Critic, adapted(found))
    except CriticSpecError as error:
        raise CriticSpecError(f"critic {quoted(spec)}: {error}") from error


def _makes_a_critic(found: Any, options: Mapping[str, str]) -> bool:
    """Whether a function gives a critic. One that needs one argument, and is given no options, is a critic itself."""
    if not inspect.isroutine(found) and not isinstance(found, partial):
        return False
    if options:
        return True
    try:
        return not _can_be_called(found, "trajectories") or _can_be_called(found)
    except ValueError:  # written in C, without a signature
        return True


def _can_be_called(function: Callable[..., Any], *arguments: str) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    return True


def _not_understood(spec: str, kind: str) -> str:
    kinds = sorted({*KINDS, *_offered()})
    return (
        f"critic {quoted(spec)} was not understood: {quoted(kind, 80)} is neither a kind ({', '.join(kinds)}) nor a "
        f"module that can be imported{near(kind, kinds)}. Expected kind:target?key=value, or module:object"
    )
