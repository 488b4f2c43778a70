"""Options that several commands share."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from amc_agents.settings import Beta
    from amc_agents.smc import Adaptive


Settings = TypeVar("Settings", bound="DataclassInstance")

Model = Annotated[
    str | None,
    typer.Option(
        help="The policy, the model that acts: a shipped model's name, a folder of that layout, hf:FOLDER (any "
        "transformers chat model) or provider:model (any LangChain chat model, with its key in the environment). "
        "Default: the world's own."
    ),
]
Critic = Annotated[
    str | None,
    typer.Option(
        help="Critic of AMC's resampling, such as hf:path/to/value or my_module:object. "
        "Default: the critic of the config file, otherwise the value model shipped with the policy.",
        envvar="AMC_CRITIC",
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="Configuration file that names the critic.", envvar="AMC_CONFIG")
]
Tasks = Annotated[int, typer.Option(min=1, help="Number of tasks. Tasks are generated, the same ones every time.")]
Particles = Annotated[
    str,
    typer.Option(
        metavar="N|START..MOST",
        help="N: number of trajectories that Best-of-N, SMC and AMC run in parallel. 4..32 starts with 4, adds more "
        "where the answer is undecided, up to 32, and stops when it is decided.",
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated methods. Default: react, react-greedy, best-of-n, smc, amc, amc-hidden. Others run only "
        "if named: 'race' is race-clock, race-steps and race-tokens (the first to finish is the answer); 'decisions' "
        "compares ReAct, voting and LAC, 'trees' is Tree of Thoughts and LATS; 'prompted' is reflact, self-plan and "
        "reflexion, which need a chat model (--model). An unknown name prints all names."
    ),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Number of worker processes. Default: one for each CPU, at most 4.")
]
Executor = Annotated[
    str,
    typer.Option(
        metavar="processes|shared|ray[:ADDRESS][?num_cpus=2&num_gpus=0.5]",
        help="Where the work is done. processes: on this machine (--workers). shared: the same, and every further "
        "call of the command with the same folder helps. ray: on a Ray cluster (package amc-agents-ray).",
    ),
]
Band = Annotated[
    tuple[int, int] | None,
    typer.Option(
        metavar="LOW HIGH",
        help="Difficulty of crafting tasks: minimum and maximum steps of the planner's solution. Default: 12 16.",
    ),
]
World = Annotated[str, typer.Option(help="The world: crafting, or a world that an installed package registers.")]
First = Annotated[int, typer.Option(min=0, help="Number of the first task of the split.")]
Split = Annotated[str, typer.Option(help='"test", or "train" for choosing settings; "all" of your own tasks.')]
Resume = Annotated[bool, typer.Option("--resume", help="Continue with the results in the folder.")]
SuccessReward = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="Return of a success, if every other return is 0. AMC can then weight particles by eq. 5 of its paper.",
    ),
]

SearchBeta = Annotated[
    str | None,
    typer.Option(
        "--beta",
        metavar="BETA|auto",
        help="Temperature of the target, in reward units, of a compiled graph. Default: auto, chosen in the run.",
    ),
]
SearchSteps = Annotated[
    str | None,
    typer.Option(
        "--steps", help="Steps at which particles of a compiled graph are weighed, as in 2,4,8. Default: 2,4,8,16,32."
    ),
]
Watch = Annotated[
    bool,
    typer.Option(
        "--watch", help="Show particles, values, resamplings and budget in place; lines if not on a terminal."
    ),
]


def with_settings(*kinds: type[Any], **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of settings dataclasses that has a help text (`training.settings`).

    The command's first argument is the options that were given, by the names of their fields; `filled` replaces the
    fields. The options stand before the command's last one.

    Args:
        *kinds: the dataclasses.
        **defaults: defaults of the command that differ from those of the fields.
    """
    declared = [(kind, each) for kind in kinds for each in fields(kind) if "help" in each.metadata]
    # Options of a panel stand together, in the order of the panels' first options; those without a panel come first.
    panels = ["", *dict.fromkeys(each.metadata.get("panel", "") for _, each in declared)]
    declared.sort(key=lambda pair: panels.index(pair[1].metadata.get("panel", "")))
    flags = {each.name: each.metadata.get("value") for _, each in declared}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            given = {name: arguments.pop(name) for name in flags}
            for name, value in given.items():
                if flags[name] is not None:
                    given[name] = flags[name] if value else None
                elif isinstance(value, list):
                    given[name] = tuple(value) or None
            command({name: value for name, value in given.items() if value is not None}, **arguments)

        _, *own, last = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [*own, *(_option(kind, each, defaults) for kind, each in declared), last]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def _option(kind: type[Any], declared: Any, defaults: Mapping[str, Any]) -> inspect.Parameter:
    """Return the parameter of a command for a field of settings."""
    said, name = declared.metadata, declared.name
    default = defaults.get(name, declared.default)
    text = said["help"].format(default=default) if "{default}" in said["help"] else said["help"]
    type_ = eval(declared.type, vars(sys.modules[kind.__module__]))  # annotations are strings
    if "value" in said:
        type_, default = bool, False
    elif "tuple" in declared.type:
        type_, default = list[str] | None, None
    elif "Default:" in text:
        type_, default = type_ | None, None
    names = [said["names"]] if "names" in said else [f"--{name.replace('_', '-')}"] if default is False else []
    option = typer.Option(
        *names, help=text, min=said.get("min"), max=said.get("max"), rich_help_panel=said.get("panel")
    )
    return inspect.Parameter(
        name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=Annotated[type_, option]
    )


def filled(settings: Settings, flags: Mapping[str, Any]) -> Settings:
    """Replace the fields of settings, and of settings in them, that flags name."""
    changes = {
        each.name: flags[each.name] for each in fields(settings) if "help" in each.metadata and each.name in flags
    }
    for each in fields(settings):
        nested = getattr(settings, each.name)
        if is_dataclass(nested) and not isinstance(nested, type):
            changes[each.name] = filled(nested, flags)
    return replace(settings, **changes)


def particles_of(particles: str) -> int | Adaptive:
    """Read --particles."""
    from amc_agents.settings import size_of

    if not particles.isdecimal():
        return size_of(particles)
    if not int(particles):
        raise ConfigurationError("--particles must be at least 1, got 0")
    return int(particles)


def steps_of(option: str, steps: str) -> tuple[int, ...]:
    """Read a list of steps."""
    try:
        return tuple(int(step) for step in steps.split(","))
    except ValueError:
        raise ConfigurationError(f"{option} takes steps, as in 4,8; got {quoted(steps)}") from None


def beta_of(beta: str | None) -> Beta | None:
    """Read --beta: a number, or "auto"."""
    if beta is None or beta == "auto":
        return beta  # type: ignore[return-value]
    try:
        return float(beta)
    except ValueError:
        raise ConfigurationError(f'--beta must be a number above 0, or "auto", got {quoted(beta)}') from None


def check_split(split: str) -> None:
    """Refuse an unknown split."""
    if split not in ("test", "train"):
        raise ConfigurationError(f'--split must be "test" or "train", got {quoted(split)}')


def positive(option: str, value: float | None) -> float | None:
    """Return the value of an option that must not be 0."""
    if value == 0.0:
        raise ConfigurationError(f"{option} must be above 0, got 0")
    return value


def critic_name(critic: str | None, config: Path | None) -> str | None:
    """Return the critic that --critic or AMC_CRITIC names, otherwise the critic of the configuration file."""
    if config is None:
        return critic
    from amc_agents.config import Config

    file = Config.load(config)
    return file.critic if critic is None else critic


def available_cpus() -> int:
    """Return the number of CPUs that this process may use, at most 4: every worker loads the models."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(4, usable)


def command_line() -> str:
    """Return the command line of this process, which results record."""
    program = Path(sys.argv[0])
    return " ".join([f"python {program}" if program.suffix == ".py" else "amc", *sys.argv[1:]])
