"""`amc run`: search for one answer with a graph of your own, and watch it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amc_agents.cli.graphs import load_graph
from amc_agents.cli.json_output import AsJson, console_beside, print_json
from amc_agents.cli.options import SearchBeta, SearchSteps, Watch, beta_of, particles_of, steps_of
from amc_agents.cli.printable import echo
from amc_agents.errors import ConfigurationError

if TYPE_CHECKING:
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
    from amc_agents.smc import AtSteps

    if not isinstance(graph, AmcGraph):
        return amc(
            graph,
            n_particles=None if particles is None else particles_of(particles),
            beta=beta_of(beta),
            resample=None if steps is None else AtSteps(*steps_of("--steps", steps)),
            config=config,
        )
    flags = {"--particles": particles, "--beta": beta, "--steps": steps, "--config": config}
    given = [flag for flag, value in flags.items() if value is not None]
    if given:
        raise ConfigurationError(
            f"the graph was made by amc(), which has its settings: leave {' and '.join(given)} out"
        )
    return graph


def _watched(console: Any) -> Any:
    from amc_agents.cli.watch.views import watched

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
