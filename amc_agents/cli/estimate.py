"""`amc estimate`: tokens and dollars of a wrapped agent, from one plain run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amc_agents.cli.graphs import load_graph
from amc_agents.cli.json_output import AsJson, print_json
from amc_agents.cli.options import SearchBeta, SearchSteps
from amc_agents.cli.printable import echo
from amc_agents.cli.run import searching_graph

if TYPE_CHECKING:
    from amc_agents.population.estimate import Estimate


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
