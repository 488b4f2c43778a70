"""The critic's string in six places, and their precedence."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
import time
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from pydantic import BaseModel
from typing_extensions import TypedDict

from amc_agents import ActorCritic, CritiqueRefine
from amc_agents.cli import main
from amc_agents.config import Config
from amc_agents.critics import spec as spec_module
from amc_agents.critics.allowed import AllowedCritics
from amc_agents.critics.spec import parse_critic
from amc_agents.errors import CheckpointError, ConfigurationError, CriticSpecError
from amc_agents.lac.model import LacOptions
from amc_agents.lac.types import LacSettings
from amc_agents.pnlc.model import PnlcOptions
from amc_agents.pnlc.types import PnlcSettings
from amc_agents.population.wrap import amc
from amc_agents.runtime.calls import MOST_KEPT
from amc_agents.runtime.effects import effect
from amc_agents.smc import AtSteps
from tests.arguments import arguments
from tests.population.worlds import ReturnSoFar, say, start, sum_world, tool_caller

asked = []
"""Names of the called critics, in order."""
loop_goes_on = threading.Event()
"""What the critic "waiting" needs to be loaded: set by the event loop, which a load upon it would stop."""


class Recording:
    def __init__(self, name):
        self.name = name

    async def values(self, trajectories):
        asked.append(self.name)
        return np.zeros(len(trajectories))


@pytest.fixture(autouse=True)
def loads(monkeypatch):
    """A kind as an installed package offers it, `recording:NAME`; gives the names that were loaded."""
    loaded = []

    def make(target, options):
        loaded.append(target)
        if target == "missing":
            raise CheckpointError("no such thing")
        if target == "slow":
            time.sleep(0.2)
        if target == "waiting":
            loaded.append(loop_goes_on.wait(timeout=10))
        return Recording(target)

    point = SimpleNamespace(name="recording", load=lambda: make)
    monkeypatch.setattr(spec_module, "entry_points", lambda group: [point] if group == "amc_agents.critics" else [])
    asked.clear()
    return loaded


def hand_written():
    """An agent without langchain's `create_agent`: a node that acts three times."""

    def act(state):
        return {"messages": [AIMessage("Action: 1"), HumanMessage("ok")]}

    builder = StateGraph(MessagesState)
    builder.add_node("act", effect("read")(act))
    builder.add_edge(START, "act")
    builder.add_conditional_edges("act", lambda state: END if len(state["messages"]) > 6 else "act")
    return builder.compile()


AGENTS = {
    "create_agent": lambda: (create_agent(tool_caller(3), [say]), {"environment": lambda s: sum_world(s, 50)}),
    "hand-written": lambda: (hand_written(), {"step_after": ["act"], "reward": lambda state: 0.0}),
}
PLACES = ["context", "configurable", "constructor", "AMC_CRITIC", "file", "default"]


def module_critic(name):
    return f"{__name__}:Recording?name={name}"


@pytest.mark.thorough
@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("first", range(len(PLACES)), ids=PLACES)
async def test_the_highest_place_that_names_a_critic_wins(agent, is_async, first, monkeypatch, tmp_path):
    """Every place from `first` down names a different critic: that of `first` is used."""
    named = set(PLACES[first:])
    file = tmp_path / "amc.toml"
    if "AMC_CRITIC" in named:
        monkeypatch.setenv("AMC_CRITIC", module_critic("AMC_CRITIC"))
    if "file" in named:
        file.write_text(f'critic = "{module_critic("file")}"')
        monkeypatch.setenv("AMC_CONFIG", str(file))
    given = {"critic": module_critic("constructor")} if "constructor" in named else {}
    compiled, settings = AGENTS[agent]()
    graph = amc(compiled, **arguments(n_particles=2, resample=AtSteps(1), **given, **settings))

    config = {"configurable": {"critic": "recording:configurable"}} if "configurable" in named else None
    context = {"context": {"critic": "recording:context"}} if "context" in named else {}
    if is_async:
        run = await graph.arun(start(), config, **context)
    else:
        run = await asyncio.to_thread(graph.run, start(), config, **context)

    place = PLACES[first]
    assert set(asked) == ({place} - {"default"})
    names = {"context": "recording:context", "configurable": "recording:configurable", "default": "uniform"}
    assert run.config["critic"] == names.get(place, module_critic(place))
    assert run.config["critic_from"] == (f"config file {file}" if place == "file" else place)


def graph(critic=None, **settings):
    agent, more = AGENTS["hand-written"]()
    return amc(agent, critic, **arguments(n_particles=2, resample=AtSteps(1), **more, **settings))


def test_none_and_an_empty_variable_name_nothing(monkeypatch):
    monkeypatch.setenv("AMC_CRITIC", "")
    monkeypatch.setenv("AMC_CONFIG", "")
    mine = graph(None)
    assert mine.run(start()).config["critic_from"] == "default"
    both = {"configurable": {"critic": "recording:configurable"}}
    assert mine.run(start(), both, context={"critic": None}).config["critic_from"] == "configurable"
    assert mine.run(start(), {"configurable": {"critic": None}}).config["critic_from"] == "default"


def test_an_object_is_reported_by_its_class():
    run = graph(ReturnSoFar()).run(start())
    assert (run.config["critic"], run.config["critic_from"]) == ("ReturnSoFar", "constructor")
    run = graph().run(start(), context={"critic": Recording("mine")})
    assert (run.config["critic"], run.config["critic_from"]) == ("Recording", "context")


@pytest.mark.parametrize("nonsense", [3, Recording, object()])
def test_an_object_that_is_not_a_critic_is_refused(nonsense):
    with pytest.raises(CriticSpecError, match="expected a critic or its string"):
        graph().run(start(), context={"critic": nonsense})


def test_the_files_table_fills_in_what_the_code_leaves_out(monkeypatch, tmp_path):
    file = tmp_path / "amc.toml"
    file.write_text('on_critic_error = "uniform"\n[amc]\nn_particles = 3\nbeta = 0.5\nresample = {at_steps = [2]}\n')
    monkeypatch.setenv("AMC_CONFIG", str(file))
    agent, more = AGENTS["hand-written"]()
    run = amc(agent, **arguments(beta=2.0, **more)).run(start())
    settings = {name: run.config[name] for name in ("n_particles", "beta", "resample", "on_critic_error", "horizon")}
    assert settings == {
        "n_particles": 3, "beta": 2.0, "resample": "AtSteps(2)", "on_critic_error": "uniform", "horizon": 50,
    }  # fmt: skip
    assert len(run.population.trajectories) == 3
    assert amc(agent, **arguments(config=Config(), **more)).run(start()).config["n_particles"] == 15


def test_a_file_given_to_amc_replaces_that_of_the_environment(monkeypatch, tmp_path):
    (tmp_path / "a.toml").write_text('critic = "recording:a"')
    (tmp_path / "b.toml").write_text('critic = "recording:b"')
    monkeypatch.setenv("AMC_CONFIG", str(tmp_path / "a.toml"))
    graph(config=Config.load(tmp_path / "b.toml")).run(start())
    assert set(asked) == {"b"}


@pytest.mark.parametrize("kind", [str, Path])
def test_every_face_takes_the_files_path(kind, tmp_path):
    file = tmp_path / "amc.toml"
    file.write_text('critic = "recording:file"\non_critic_error = "uniform"')
    assert graph(config=kind(file)).run(start()).config["critic"] == "recording:file"
    for middleware in (ActorCritic(config=kind(file)), CritiqueRefine(critique="value", config=kind(file))):
        model = middleware._build(FakeListChatModel(responses=["no"]))
        assert model.critics.own.name == "recording:file"
        assert model.settings.on_critic_error == "uniform"


@pytest.mark.parametrize(("options", "settings"), [(LacOptions, LacSettings), (PnlcOptions, PnlcSettings)])
def test_type_checkers_see_every_setting_among_the_options(options, settings):
    assert {field.name for field in fields(settings)} <= options.__annotations__.keys()


def test_a_file_that_is_wrong_is_known_where_the_graph_is_built(monkeypatch, tmp_path):
    (tmp_path / "amc.toml").write_text("[amc]\nbeat = 1")
    monkeypatch.setenv("AMC_CONFIG", str(tmp_path / "amc.toml"))
    with pytest.raises(ConfigurationError, match="did you mean 'beta'"):
        graph()


class OfBeta(Recording):
    """A value model trained by eq. 5, for beta = 0.5."""

    predicts, beta = "future", 0.5


def test_a_critic_that_does_not_fit_is_refused_wherever_it_is_named(monkeypatch, tmp_path):
    unfit = f"{__name__}:OfBeta?name=five"
    with pytest.raises(ConfigurationError, match=r"trained by eq\. 5 for beta 0\.5 and the run has beta 1"):
        graph(unfit, beta=1.0)
    with pytest.raises(ConfigurationError, match=r"trained by eq\. 5"):
        graph(beta=1.0).run(start(), context={"critic": OfBeta("five")})
    monkeypatch.setenv("AMC_CRITIC", unfit)
    with pytest.raises(ConfigurationError, match=r"trained by eq\. 5"):
        graph(beta=1.0)
    assert graph().run(start()).beta == 0.5, "its own, where none is given"
    (tmp_path / "amc.toml").write_text("[amc]\nbeta = 0.5")
    graph(config=Config.load(tmp_path / "amc.toml")).run(start())
    assert set(asked) == {"five"}


# --- strings of calls ---------------------------------------------------------------------------------------


def test_many_calls_load_their_critic_once(loads):
    mine = graph()
    for _ in range(10):
        mine.run(start(), context={"critic": "recording:a"})
        mine.run(start(), {"configurable": {"critic": "recording:b"}})
    assert loads == ["a", "b"]
    assert asked == ["a", "b"] * 10


async def test_calls_at_the_same_time_load_their_critic_once_and_off_the_event_loop(loads):
    mine = graph()
    loop_goes_on.clear()

    async def set_while_it_loads():
        while not loads:
            await asyncio.sleep(0.005)
        loop_goes_on.set()

    calls = (mine.arun(start(), context={"critic": "recording:waiting"}) for _ in range(8))
    await asyncio.gather(set_while_it_loads(), *calls)
    assert loads == ["waiting", True]


def test_calls_from_several_threads_share_the_cached_critics(loads):
    mine = graph()
    threads = [
        threading.Thread(target=mine.run, args=(start(),), kwargs={"context": {"critic": "recording:slow"}})
        for _ in range(4)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert loads == ["slow"]


@pytest.mark.thorough  # quick: test_many_calls_load_their_critic_once
async def test_the_cache_of_critics_is_bounded(loads):
    mine = graph()
    names = [str(number) for number in range(MOST_KEPT + 4)]
    for name in names:
        await mine.arun(start(), context={"critic": f"recording:{name}"})
    await mine.arun(start(), context={"critic": f"recording:{names[-1]}"})
    assert loads == names
    await mine.arun(start(), context={"critic": f"recording:{names[0]}"})
    assert loads == [*names, names[0]]


def test_a_failure_is_not_kept(loads):
    mine = graph()
    for _ in range(2):
        with pytest.raises(CheckpointError, match="no such thing"):
            mine.run(start(), context={"critic": "recording:missing"})
    assert loads == ["missing", "missing"]


@pytest.mark.parametrize("place", ["context", "configurable"])
@pytest.mark.parametrize(
    ("critic", "message"),
    [
        ("os:system?command=true", "only where the graph is built"),
        ("recording:a?key_env=HOME", "may not say key_env"),
        ("vllm:http://elsewhere?key_env=HOME&model=m", "may not say key_env"),
        ("judge:openai:gpt?base_url=http://elsewhere", "may not say base_url"),
        ("judge:openai:gpt?base%5Furl=http://elsewhere", "may not say base_url"),
    ],
)
def test_a_call_may_not_name_code_or_keys(place, critic, message, loads):
    named = {"context": {"critic": critic}} if place == "context" else {"config": {"configurable": {"critic": critic}}}
    with pytest.raises(CriticSpecError, match=message):
        graph().run(start(), **named)
    assert loads == []


def test_where_the_graph_is_built_keys_may_be_named(loads):
    parse_critic("recording:a?key_env=HOME&base_url=http://here")
    assert loads == ["a"]


# --- contexts that are not read ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("context", "message"),
    [
        ({"critc": "uniform"}, "no key 'critc', did you mean 'critic'?"),
        ({"critic": "uniform", "Critics": 1}, "no key 'Critics', did you mean 'critic'?"),
        ({"user": "ann"}, "no key 'user': the agent has no context schema"),
        (3, "context= is of type int, and the agent has no context schema"),
    ],
)
async def test_an_unread_context_is_refused(is_async, context, message):
    mine = graph()

    async def call():
        return await mine.ainvoke(start(), context=context) if is_async else mine.invoke(start(), context=context)

    with pytest.raises(ConfigurationError, match=re.escape(message)):
        await call()
    assert asked == []


class OfPydantic(BaseModel):
    number: int = 0


@dataclass
class OfDataclass:
    number: int = 0


class WithCritic(BaseModel):
    critic: str = ""


class OfKeys(TypedDict, total=False):
    number: int


def with_schema(schema):
    @effect("read")
    def act(state, runtime: Runtime):
        return {"messages": [AIMessage(f"Action: {runtime.context}"), HumanMessage("ok")]}

    builder = StateGraph(MessagesState, context_schema=schema).add_node("act", act).add_edge(START, "act")
    return amc(builder.compile(), n_particles=2, resample=AtSteps(1), step_after=["act"], reward=lambda state: 0.0)


@pytest.mark.parametrize("schema", [OfPydantic, OfDataclass])
def test_a_class_of_the_agents_has_no_place_for_the_critic_of_a_call(schema):
    with pytest.raises(ConfigurationError, match=f"schema {schema.__name__} has no field `critic`.*configurable"):
        with_schema(schema).invoke(start(), context={"number": 7, "critic": "uniform"})
    run = with_schema(schema).run(start(), {"configurable": {"critic": "uniform"}}, context={"number": 7})
    assert "number=7" in run.best.steps[0].action
    assert run.config["critic_from"] == "configurable"


def test_an_agents_own_context_goes_through():
    assert "critic='mine'" in with_schema(WithCritic).run(start(), context={"critic": "mine"}).best.steps[0].action
    assert "'more': 1" in with_schema(OfKeys).run(start(), context={"more": 1}).best.steps[0].action


async def test_a_graph_inside_another_leaves_the_outer_context_alone():
    outer = StateGraph(MessagesState, context_schema=OfKeys).add_node("amc", graph()).add_edge(START, "amc").compile()
    output = await outer.ainvoke(start(), context={"number": 3})
    assert len(output["messages"]) > 1


def test_a_misspelt_key_of_configurable_is_noted():
    run = graph().run(start(), {"configurable": {"critc": "recording:a", "user": "ann"}})
    assert run.notes[0] == ("configurable has 'critc', which amc does not read: did you mean 'critic'?")
    named = graph().run(start(), {"configurable": {"critic": "uniform", "critics": "mine"}})
    assert "configurable" not in str(named.notes)


# --- the command line ---------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["demo", "bench"])
@pytest.mark.parametrize(
    ("flag", "variable", "file", "file_variable", "used"),
    [
        ("flag", "variable", "file", "other", "flag"),
        (None, "variable", "file", "other", "variable"),
        (None, None, "file", "other", "file"),
        (None, None, None, "other", "other"),
        (None, None, None, None, None),
    ],
)
def test_the_command_lines_order(command, flag, variable, file, file_variable, used, monkeypatch, tmp_path, capsys):
    arguments = ["amc", command, "--out", str(tmp_path / "out"), "--tasks", "1", "--particles", "2", "--workers", "1",
                 "--methods", "amc"]  # fmt: skip
    for name in filter(None, (file, file_variable)):
        # The settings of the methods are their own: this quorum of 3 among 2 particles would be an error.
        (tmp_path / name).write_text(f'critic = "{module_critic(name)}"\n[amc]\nquorum = 3')
    if flag:
        arguments += ["--critic", module_critic(flag)]
    if variable:
        monkeypatch.setenv("AMC_CRITIC", module_critic(variable))
    if file:
        arguments += ["--config", str(tmp_path / file)]
    if file_variable:
        monkeypatch.setenv("AMC_CONFIG", str(tmp_path / file_variable))
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    settings = json.loads((tmp_path / "out" / "results.json").read_text())["settings"]
    assert settings["critic"] == (module_critic(used) if used else "embedded:crafting")
    assert set(asked) == ({used} - {None})


def test_a_wrong_file_is_one_line_on_the_command_line(monkeypatch, tmp_path, capsys):
    (tmp_path / "amc.toml").write_text("crtic = 1")
    monkeypatch.setattr(sys, "argv", ["amc", "demo", "--config", str(tmp_path / "amc.toml"), "--critic", "uniform"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith("amc: config file")
    assert "did you mean 'critic'?" in stderr
    assert stderr.count("\n") == 1


# Critics that a graph offers its calls

OFFERED = {"small": "recording:small", "mine": Recording("object")}


@pytest.mark.parametrize("where", ["context", "configurable"])
@pytest.mark.parametrize(("name", "shown"), [("small", "small"), ("mine", "object")])
def test_a_call_chooses_among_the_critics_that_are_offered(where, name, shown):
    mine = graph(critics=OFFERED)
    call = {"context": {"critic": name}} if where == "context" else {"config": {"configurable": {"critic": name}}}
    run = mine.run(start(), **call)
    assert set(asked) == {shown}
    assert (run.config["critic"], run.config["critic_from"]) == (name, where)


@pytest.mark.parametrize("other", ["recording:other", "uniform", "Small", "", Recording("other")])
def test_and_names_no_other(other):
    mine = graph("recording:own", critics=OFFERED)
    with pytest.raises(CriticSpecError, match=r"a call chooses its critic among small, mine, got"):
        mine.run(start(), context={"critic": other})
    with pytest.raises(CriticSpecError, match="among small, mine"):
        mine.run(start(), {"configurable": {"critic": other}})
    assert asked == []


def test_a_graphs_own_critic_may_be_one_that_it_offers():
    run = graph("small", critics=OFFERED).run(start())
    assert set(asked) == {"small"}
    assert (run.config["critic"], run.config["critic_from"]) == ("small", "constructor")


def test_offered_critics_are_read_when_the_graph_is_built():
    with pytest.raises(CriticSpecError, match="was not understood"):
        graph(critics={"bad": "nonsense:x"})
    assert graph(critics={}).run(start()).config["critic"] == "uniform"
    with pytest.raises(CriticSpecError, match="a call chooses its critic among"):
        graph(critics={}).run(start(), context={"critic": "uniform"})


SERVED = {"assistant_id": "a", "graph_id": "g"}
"""What LangGraph's server adds to `configurable`."""


def test_a_served_graph_takes_a_critic_of_a_call_only_where_it_offers_it():
    with pytest.raises(CriticSpecError, match="offers none: build it with critics="):
        graph().run(start(), {"configurable": {**SERVED, "critic": "recording:other"}})
    with pytest.raises(CriticSpecError, match="offers none: build it with critics="):
        graph().run(start(), {"configurable": SERVED}, context={"critic": "recording:other"})
    assert asked == []
    assert graph().run(start(), {"configurable": SERVED}).config["critic_from"] == "default"
    graph(critics=OFFERED).run(start(), {"configurable": SERVED}, context={"critic": "small"})
    # An object can only come from the program around the graph.
    graph().run(start(), {"configurable": SERVED}, context={"critic": Recording("passed on")})
    assert set(asked) == {"small", "passed on"}


class Odds(Recording):
    async def log_odds(self, trajectories):
        return await self.values(trajectories)


class Reaches:
    async def reach(self, trajectory, thought, goals):
        return np.full(len(goals), 0.5)


@pytest.mark.parametrize(("middleware", "critic"), [(ActorCritic, Odds("mine")), (CritiqueRefine, Reaches())])
def test_middleware_offers_critics_too(middleware, critic):
    def agent(**offered):
        return create_agent(tool_caller(1), [say], middleware=[middleware(critic, **offered)], context_schema=dict)

    with pytest.raises(CriticSpecError, match="a call chooses its critic among mine"):
        agent(critics={"mine": critic}).invoke(start(), context={"critic": "uniform"})
    with pytest.raises(CriticSpecError, match="offers none"):
        agent().invoke(start(), {"configurable": SERVED}, context={"critic": "uniform"})


def test_a_key_in_a_critics_string_is_in_no_record_of_the_run():
    run = graph("recording:own?api_key=sk-do-not-show").run(start())
    assert run.config["critic"] == "recording:own?api_key=***"
    assert "sk-do-not-show" not in repr(run)


def test_an_allow_list_decides_what_a_call_may_name(loads):
    mine = graph(critics=AllowedCritics({"mine": "recording:mine"}))
    for name in ("mine", "uniform"):
        assert mine.run(start(), context={"critic": name}).config["critic"] == name
    assert asked == ["mine"]
    for refused in ("recording:other", "vllm:http://127.0.0.1:8000", module_critic("code"), Recording("object")):
        with pytest.raises(CriticSpecError, match="mine, uniform"):
            mine.run(start(), context={"critic": refused})
    assert loads == ["mine"]
