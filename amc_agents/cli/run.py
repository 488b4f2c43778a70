"""`amc run` and `amc estimate`: search with a graph of your own and watch it, or estimate the cost."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amc_agents.cli.output import AsJson, console_beside, echo, print_json
from amc_agents.cli.shared_options import SearchBeta, SearchSteps, Watch, beta_of, particles_of, steps_of
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted

if TYPE_CHECKING:
    from amc_agents.population.estimate import Estimate
    from amc_agents.population.graph import AmcGraph
    from amc_agents.run import Run


def run(
    graph: Annotated[
        str, typer.Argument(metavar="MODULE:GRAPH", help="The agent: a compiled graph, or a graph that amc() returned.")
    ],
    text: Annotated[str, typer.Option("--input", help="The user message.")],
    particles: Annotated[
        str | None,
        typer.Option(metavar="N|START..MOST", help="Number of particles of a compiled graph. Default: 15."),
    ] = None,
    critic: Annotated[
        str | None,
        typer.Option(
            help="Critic, such as hf:path. Default: that of the graph or of the config file.", envvar="AMC_CRITIC"
        ),
    ] = None,
    beta: SearchBeta = None,
    steps: SearchSteps = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the run. Default: drawn, and printed.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help=r"Configuration file with \[amc].", envvar="AMC_CONFIG")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Store the run in this folder, for `amc report`.")] = None,
    watch: Watch = False,
    as_json: AsJson = False,
) -> None:
    """Search once, for real: models are called, tools run. Prints the answer and a summary of the run."""
    console = console_beside(as_json)
    searching = searching_graph(load_graph(graph), config, particles, beta, steps)
    named: dict[str, Any] = {"critic": critic, "amc_seed": seed}
    call = {"configurable": {key: value for key, value in named.items() if value is not None}}
    with _watched(console) if watch else nullcontext():
        result = searching.run({"messages": [("user", text)]}, call)  # type: ignore[arg-type]
    with result:
        files = [] if out is None else [result.save(out)]
        _print(result, files, as_json=as_json)


def searching_graph(
    graph: Any, config: Path | None, particles: str | None, beta: str | None, steps: str | None
) -> AmcGraph:
    """Wrap a compiled graph with the flags' settings; return a graph of amc() unchanged, and refuse flags for it."""
    from amc_agents.population.graph import AmcGraph
    from amc_agents.population.wrap import amc
    from amc_agents.settings import AmcSettings
    from amc_agents.smc import AtSteps

    if not isinstance(graph, AmcGraph):
        return amc(
            graph,
            n_particles=None if particles is None else particles_of(particles),
            beta=beta_of(beta),
            resample=None if steps is None else AtSteps(*steps_of("--steps", steps)),
            settings=AmcSettings(config=config),
        )
    flags = {"--particles": particles, "--beta": beta, "--steps": steps, "--config": config}
    given = [flag for flag, value in flags.items() if value is not None]
    if given:
        raise ConfigurationError(
            f"the graph was made by amc(), which has its settings: leave {' and '.join(given)} out"
        )
    return graph


def load_graph(name: str) -> Any:
    """Import a compiled graph, from the working directory too.

    Args:
        name: `module:graph`.

    Raises:
        ConfigurationError: it cannot be imported, or is no graph.
    """
    module, colon, attribute = name.partition(":")
    sys.path.insert(0, "")
    try:
        loaded = getattr(import_module(module), attribute) if colon else None
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{quoted(name)} cannot be imported: {error}") from error
    if not hasattr(loaded, "invoke"):
        raise ConfigurationError(f"expected module:graph, the name of a compiled graph, got {quoted(name)}")
    return loaded


def _watched(console: Any) -> Any:
    from amc_agents.cli.watch import watched

    return watched(console)


def _print(result: Run, files: list[Path], *, as_json: bool) -> None:
    if as_json:
        print_json({**result.as_plain(), "files": [str(file) for file in files]})
        return
    messages = result.best_output.get("messages") or []
    if messages:
        echo(f"{getattr(messages[-1], 'text', messages[-1])}\n")
    echo(str(result))
    for file in files:
        echo(f"  {file}")


def estimate(
    graph: Annotated[
        str, typer.Argument(metavar="MODULE:GRAPH", help="The agent: a compiled graph, or a graph that amc() returned.")
    ],
    text: Annotated[str, typer.Option("--input", help="The user message of the plain run.")],
    particles: Annotated[
        int | None, typer.Option(min=1, help="Number of particles. Default: that of the amc() graph, else 15.")
    ] = None,
    beta: SearchBeta = None,
    steps: SearchSteps = None,
    config: Annotated[
        Path | None, typer.Option("--config", help=r"Configuration file with \[prices].", envvar="AMC_CONFIG")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate what a call with N particles costs. The agent runs once, for real: its models are called, its tools run.

    A graph that amc() returned runs as one particle, in a world of its own, with its critic; so does a compiled graph
    with --beta or --steps, with the critic of the config file or of AMC_CRITIC.
    """
    from amc_agents.config import configured

    prices = configured(config).price_list()
    loaded = load_graph(graph)
    if beta is not None or steps is not None:
        loaded = searching_graph(loaded, config, None, beta, steps)
    estimated = _estimate(loaded, {"messages": [("user", text)]}, particles)
    if as_json:
        spent = estimated.cost(prices)
        dollars = {"total": spent.total, "is_lower_bound": spent.is_lower_bound, "unpriced": list(spent.unpriced)}
        print_json({"n_particles": estimated.n_particles, "usage": estimated.usage, "dollars": dollars})
        return
    for role, used in estimated.usage.items():
        echo(f"{role:12} {used.calls:>8,} calls {used.input_tokens:>12,} tokens in {used.output_tokens:>10,} out")
    echo(f"{estimated.n_particles} particles cost about {estimated.cost(prices)}; a plain run is 1 particle")


def _estimate(graph: Any, given: Any, particles: int | None) -> Estimate:
    from dataclasses import replace

    from amc_agents.population.estimate import Estimate
    from amc_agents.population.graph import AmcGraph
    from amc_agents.runtime.metering import PolicyMeter
    from amc_agents.usage import Meter

    if isinstance(graph, AmcGraph):
        estimated = graph.estimate(given)
        return estimated if particles is None else replace(estimated, n_particles=particles)
    meter = Meter()
    graph.invoke(given, {"callbacks": [PolicyMeter(meter)]})
    return Estimate(particles or 15, meter.by_model())
