"""The frozen configurations of AMC: name -> a function that plays one and returns its record."""

from __future__ import annotations

import asyncio
import selectors
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from amc_agents import (
    Adaptive,
    AmcSettings,
    AtSteps,
    Budget,
    Deferred,
    EssBelow,
    EveryStep,
    Never,
    actor_critic_model,
    amc,
    effect,
    text_agent,
)
from amc_agents.envs import ReplayFork
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel
from tests.arguments import arguments
from tests.frozen.parts import (
    EFFECTS,
    START,
    TASK,
    Chosen,
    Counter,
    FirstSlot,
    LastDigit,
    LastReward,
    Notebook,
    Success,
    Unforkable,
    call,
    clerk,
    counted,
    counter,
    digit_agent,
    digits,
    fails_at_zero,
    prefers_large_refunds,
    prefers_late_letters,
    prefers_no_refund,
    results,
    say,
    shop_tools,
    talker,
    unequal,
    with_reward,
    write,
    writer,
)
from tests.frozen.record import Heard, plain, run_record, steps, usage

Record = dict[str, Any]
CONFIGURATIONS: dict[str, Callable[[], Record]] = {}
THREAD: Any = {"configurable": {"thread_id": "t"}}


def configuration(function: Callable[[], Record]) -> Callable[[], Record]:
    CONFIGURATIONS[function.__name__.replace("_", " ")] = function
    return function


def simple(name: str, critic: Any = None, agent: Any = None, way: str = "astream", **settings: Any) -> None:
    """A configuration of one call: six particles that say digits, weighed after the second step."""

    def play() -> Record:
        given = {"environment": counter(), "n_particles": 6, "resample": AtSteps(2), "beta": 1.0, "seed": 3, **settings}
        made = {key: value() if key in ("budget", "store") else value for key, value in given.items()}
        graph = amc(
            digit_agent() if agent is None else agent(),
            LastReward() if critic is None else critic(),
            **arguments(**made),
        )
        return Heard(graph, START, way).record()

    CONFIGURATIONS[name] = play


ENDS = counter(length=6, end="9")
HIDDEN = {"hide_rewards": True}

for number, scheme in enumerate(("systematic", "stratified", "residual", "multinomial")):
    way = ("stream", "astream", "run", "arun")[number]
    simple(f"scheme {scheme}", way=way, scheme=scheme, resample=EveryStep(), n_particles=8)
simple("schedule at steps", resample=AtSteps(1, 3), beta=0.25)
simple("schedule ess below", resample=EssBelow(0.75), beta=0.5, way="stream")
simple("schedule never", resample=Never())
simple("an odd number of particles", resample=EveryStep(), n_particles=7, scheme="residual", beta=0.125, seed=11)
simple("finished retire", environment=ENDS, resample=EveryStep(), n_particles=9, seed=5)
simple("finished keep", environment=ENDS, resample=EveryStep(), n_particles=9, seed=5, finished="keep", way="stream")
simple("finished with ess below", environment=ENDS, resample=EssBelow(0.9), n_particles=9, seed=6, beta=0.5)
simple("select weight", select="weight", resample=EveryStep(), environment=ENDS)
simple("select sample", select="sample", resample=EveryStep(), way="run")
simple("select value", select="value")
simple("hidden rewards", LastDigit, **HIDDEN, resample=AtSteps(1, 2))
simple("hidden rewards with a critic of half a value", lambda: LastDigit(16), **HIDDEN, select="weight", way="stream")
simple("horizon", horizon=3, resample=EveryStep())
simple("success reward of eq 5", Success, **HIDDEN, success_reward=1.0, beta=0.5, resample=AtSteps(1, 2))
simple("beta chosen", beta="auto", resample=AtSteps(1, 2))
simple("beta chosen without rewards", LastDigit, **HIDDEN, beta="auto", resample=EveryStep(), way="stream")
simple("beta of a trained critic", Chosen, **HIDDEN, beta="auto", select="weight", resample=EveryStep())
simple("beta small", beta=0.03125, resample=EveryStep(), n_particles=5)
simple("uniform critic", lambda: "uniform", resample=AtSteps(1, 3))
simple("equal weights", lambda: "uniform", beta=8192.0, resample=AtSteps(1, 3), way="stream")
simple("one particle", n_particles=1)
simple("a critic that fails", lambda: LastDigit(fails_at={2}), on_critic_error="uniform", resample=EveryStep())
simple("failed particles", None, lambda: digit_agent(fails_at_zero), quorum=1, resample=AtSteps(1, 2), n_particles=8)
simple("budget of calls", budget=lambda: Budget(calls=17), resample=AtSteps(1), environment=counter(length=4, end="7"))
simple("budget with weighings", budget=lambda: Budget(calls=22), resample=EveryStep(), seed=8, environment=ENDS)
simple("adaptive by values", lambda: LastDigit(8), **HIDDEN, n_particles=Adaptive(2, 16), resample=EveryStep())
simple("adaptive by agreement", lambda: "uniform", **HIDDEN, n_particles=Adaptive(3, 12), resample=Never(),
       environment=counter(length=1))  # fmt: skip
simple("adaptive by success", Success, **HIDDEN, n_particles=Adaptive(4, 16), resample=EveryStep(), success_reward=1.0,
       environment=counter(length=6, end="8"))  # fmt: skip
simple("a tool calling agent with events", None, lambda: create_agent(ScriptedChatModel(respond=talker), [say]),
       n_particles=4)  # fmt: skip
simple("a tool calling agent in sync", None, lambda: create_agent(ScriptedChatModel(respond=talker), [say]),
       n_particles=4, resample=EveryStep(), way="stream")  # fmt: skip
simple("settled stream", FirstSlot, emit="settled", resample=EveryStep(), n_particles=4)
simple("settled stream with retired particles", emit="settled", resample=EveryStep(), n_particles=5, environment=ENDS)
simple("reward of a function", None, environment=None, resample=AtSteps(2), step_after="tools", horizon=4,
       agent=lambda: create_agent(ScriptedChatModel(respond=clerk), shop_tools([])), stateless_tools=True,
       reward=lambda state: len(results(state["messages"], "refund")) / 4)  # fmt: skip
simple("rewards of both", rewards="both", reward=lambda state: len(state["messages"]) / 8, resample=EveryStep())
simple("lac inside particles", None, lambda: text_agent(
    actor_critic_model(ScriptedChatModel(respond=digits), "uniform", k=3)), n_particles=3)  # fmt: skip
simple("forbidden rewards", LastDigit, environment=lambda state: (with_reward(lambda action: -1.0)(), TASK), **HIDDEN)


@configuration
def every_setting() -> Record:
    """The run's `config`: its settings by name, with their defaults."""
    graph = amc(digit_agent(), LastReward(), environment=counter(), seed=1, n_particles=2)
    run = graph.run(START)
    run.close()
    return plain({"config": run.config})


@configuration
def stop_at() -> Record:
    """How far the other particles come before the run stops is left to their scheduling, so it is not recorded."""
    graph = amc(digit_agent(), LastReward(), environment=counter(length=9, end="8"), n_particles=8, resample=Never(),
                beta=1.0, seed=3, stop_at=1.5)  # fmt: skip
    record = Heard(graph, START).record()
    return {part: record[part] for part in ("answer", "log_evidence", "select", "notes")}


@configuration
def deadline() -> Record:
    """The particles whose first digit is even never end, so that only time ends the run."""

    class Sleeps(Counter):
        async def step(self, action):
            answer = await super().step(action)
            if not answer.done and self.taken[0] % 2 == 0:
                await asyncio.Event().wait()
            return answer

    async def play() -> Record:
        graph = amc(digit_agent(), environment=lambda state: (Sleeps(), TASK), n_particles=6, resample=Never(),
                    beta=1.0, seed=3, settings=AmcSettings(run_timeout=60))  # fmt: skip
        async with await graph.arun(START) as run:
            return run_record(run)

    with asyncio.Runner(loop_factory=_Hurried) as runner:
        return runner.run(play())


class _Leaping(selectors.DefaultSelector):
    """Leaps to a far timer when nothing has happened for half a second."""

    leap = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(None if timeout is None else min(timeout, 0.5))
        if not found and timeout and timeout > 30:
            self.leap += timeout
        return found


class _Hurried(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = _Leaping()
        super().__init__(self.clock)

    def time(self) -> float:
        return super().time() + self.clock.leap


@configuration
def errors() -> Record:
    """The errors that end a run: their types, and what they say."""
    given: dict[str, Any] = {"environment": counter(), "n_particles": 4, "seed": 3, "resample": AtSteps(2)}
    failing = digit_agent(lambda messages: ConnectionError("the model is down"))
    graphs = {
        "no particle is left": amc(failing, **arguments(**given)),
        "the critic fails": amc(digit_agent(), LastDigit(fails_at={1}), **arguments(**given)),
        "the budget ends first": amc(digit_agent(), **arguments(budget=Budget(calls=3), **given)),
        "a world that cannot fork": amc(
            digit_agent(),
            FirstSlot(),
            **arguments(**{**given, "environment": lambda state: (Unforkable(), TASK)}, beta=0.125),
        ),
    }
    record = {}
    for name, graph in graphs.items():
        with pytest.raises(Exception) as raised:  # noqa: PT011 - which error it is, is what the record says
            graph.run(START)
        record[name] = f"{type(raised.value).__name__}: {raised.value}"
    return record


@configuration
def worlds_that_fork() -> Record:
    log: list[str] = []
    graph = amc(digit_agent(), FirstSlot(), environment=counter(log=log), n_particles=4, resample=EveryStep(), seed=2,
                beta=1.0)  # fmt: skip
    run = graph.run(START)
    at_end = {what: log.count(what) for what in ("made", "forked", "closed")}
    taken = run.best_world.taken
    run.close()
    return {**Heard(graph, START).record(), "worlds": at_end, "best": taken, "closed": log.count("closed")}


@configuration
def worlds_that_replay() -> Record:
    log: list[str] = []
    make = lambda state: (ReplayFork(lambda seed: Unforkable(log=log)), TASK)  # noqa: E731
    graph = amc(digit_agent(), LastReward(), environment=make, n_particles=5, resample=EveryStep(), beta=0.5, seed=2)
    record = Heard(graph, START).record()
    return {**record, "worlds": {what: log.count(what) for what in ("made", "forked", "closed")}}


# Durable points


def points(graph: Any, checkpointer: Any) -> Record:
    """The durable points, oldest first, and the nodes that follow each checkpoint of the thread."""
    listed = list(reversed(graph.points(THREAD)))
    ids = [each.config["configurable"]["checkpoint_id"] for each in listed]
    order = {saved.checkpoint["id"]: number for number, saved in enumerate(
        sorted(checkpointer.list({"configurable": {**THREAD["configurable"], "checkpoint_ns": ""}}),
               key=lambda saved: saved.metadata["step"]))}  # fmt: skip
    return plain({
        "points": [{"step": each.step, "ess": each.ess, "log_evidence": each.log_evidence} for each in listed],
        "in the thread": [order[each] for each in ids],
        "ids rise": ids == sorted(ids),
        "next nodes": [list(each.next) for each in reversed(list(graph.get_state_history(THREAD)))],
    })  # fmt: skip


def broken_off(way: str, fails_at: int, agent: Any = None, **settings: Any) -> Record:
    """A run whose critic dies at a call; the same graph goes on from the last durable point."""
    saver = InMemorySaver()
    given = {"environment": counter(length=6), "n_particles": 5, "resample": AtSteps(2, 4), "beta": 1.0, "seed": 3}
    critic = LastDigit(fails_at={fails_at})
    graph = amc(agent or digit_agent(), critic, **arguments(checkpointer=saver, **{**given, **settings}))
    with pytest.raises(Exception, match="the machine dies"):
        Heard(graph, START, way, THREAD)
    before = points(graph, saver)
    again = Heard(graph, None, way, THREAD).record()
    return {**again, "broken off": before, "durable": points(graph, saver), "critic calls": critic.n_calls}


@configuration
def durable_broken_off() -> Record:
    return broken_off("astream", 2)


@configuration
def durable_broken_off_in_sync() -> Record:
    return broken_off("stream", 2, durable_every=1)


@configuration
def durable_with_retired_particles() -> Record:
    return broken_off("arun", 3, environment=ENDS, resample=EveryStep(), n_particles=8)


@configuration
def durable_adaptive() -> Record:
    return broken_off("astream", 3, n_particles=Adaptive(2, 8), resample=EveryStep(), **HIDDEN)


@configuration
def durable_replayed_from_a_point() -> Record:
    saver = InMemorySaver()
    graph = amc(digit_agent(), LastDigit(), checkpointer=saver, environment=counter(length=6), n_particles=4, beta=1.0,
                resample=AtSteps(2, 4), seed=4)  # fmt: skip
    first = Heard(graph, START, "astream", THREAD)
    oldest = graph.points(THREAD)[-1]
    again = Heard(graph, None, "astream", oldest.config)
    return {"first": first.record()["population"], "replayed": again.record(), "durable": points(graph, saver)}


def killed_graph(saver: Any, dies: Any) -> Any:
    """The graph of a process that dies in its second weighing."""

    class Dies(LastDigit):
        async def values(self, trajectories):
            if len(trajectories[0].steps) == 4:
                dies()  # The graph's checkpoints are written before each node: see `killed`.
            return await super().values(trajectories)

    return amc(digit_agent(), Dies(), environment=counter(length=6), n_particles=4, resample=AtSteps(2, 4), beta=1.0,
               seed=7, checkpointer=saver)  # fmt: skip


@configuration
def durable_killed_process() -> Record:
    root = Path(__file__).resolve().parents[2]
    with TemporaryDirectory() as folder:
        database = f"{folder}/points.db"
        died = subprocess.run([sys.executable, "-m", "tests.frozen.killed", database], cwd=root, check=False)
        with SqliteSaver.from_conn_string(database) as saver:
            graph = killed_graph(saver, lambda: None)
            before = points(graph, saver)
            again = Heard(graph, None, "stream", THREAD).record()
            return {**again, "exit": died.returncode, "broken off": before, "durable": points(graph, saver)}


# Effects that must happen once


def shop(critic: Any = prefers_large_refunds, respond: Any = clerk, way: str = "astream", **settings: Any) -> Record:
    done: list[str] = []
    given = {"n_particles": 6, "resample": AtSteps(2), "tools": EFFECTS, "seed": 1, "beta": 1.0, **settings}
    graph = amc(create_agent(ScriptedChatModel(respond=respond), shop_tools(done)), critic, **arguments(**given))
    return {**Heard(graph, START, way).record(), "done": done}


CONFIGURATIONS |= {
    "commits": shop,
    "commits at every step": lambda: shop(resample=EveryStep(), n_particles=4, beta=0.5),
    "commits without resampling": lambda: shop(resample=Never(), n_particles=4, way="stream"),
    "commits of an adaptive run": lambda: shop(n_particles=Adaptive(3, 9), resample=EveryStep(), way="arun"),
    "commits within a budget": lambda: shop(budget=Budget(calls=40), n_particles=4),
    "commits refused for a finished particle": lambda: shop(prefers_no_refund, unequal, seed=2),
    "commits preferred to finished particles": lambda: shop(respond=unequal, seed=2),
    "deferred": lambda: shop(tools={"look": "read", "refund": Deferred("queued")}),
}


@configuration
def commits_durable() -> Record:
    """The critic dies after the first commit, which must not be repeated."""
    done: list[str] = []
    saver = InMemorySaver()
    died: list[int] = []

    async def critic(trajectories):
        if done and not died:
            died.append(1)
            raise ConnectionError("the machine dies")
        return await prefers_large_refunds(trajectories)

    graph = amc(create_agent(ScriptedChatModel(respond=clerk), shop_tools(done)), critic, tools=EFFECTS, n_particles=4,
                resample=EveryStep(), seed=1, beta=1.0, checkpointer=saver)  # fmt: skip
    with pytest.raises(Exception, match="the machine dies"):
        graph.run(START, THREAD)
    again = Heard(graph, None, "astream", THREAD).record()
    return {**again, "done": done, "durable": points(graph, saver)}


def refunds_once(messages):
    if results(messages, "refund"):
        return counted(f"done {particle_rng().integers(64)}", messages)
    return counted(call("refund", "r", amount=int(particle_rng().integers(64))), messages)


@configuration
def question_to_a_human() -> Record:
    done: list[str] = []
    approval = HumanInTheLoopMiddleware(interrupt_on={"refund": True})
    agent = create_agent(ScriptedChatModel(respond=refunds_once), shop_tools(done), middleware=[approval])
    saver = InMemorySaver()
    graph = amc(agent, prefers_large_refunds, tools=EFFECTS, n_particles=4, resample=Never(), beta=1.0, seed=1,
                checkpointer=saver)  # fmt: skip
    [asked] = graph.invoke(START, THREAD)["__interrupt__"]
    answer = Command(resume={"decisions": [{"type": "approve"}]})
    record = Heard(graph, answer, "astream", THREAD).record()
    return {**record, "asked": plain(asked.value), "done": done, "durable": points(graph, saver)}


# Other features


@configuration
def proposals() -> Record:
    def speak(messages, config):
        return AIMessage(
            f"Thought: {config['configurable'].get('mood', '')}\nAction: {config['configurable']['digit']}"
        )

    graph = amc(
        text_agent(RunnableLambda(speak)),
        LastReward(),
        environment=counter(),
        seed=1,
        n_particles=6,
        settings=AmcSettings(proposals=[{"digit": 1}, {"digit": 2, "mood": "glad"}, {"digit": 7}]),
        resample=EveryStep(),
        beta=0.5,
    )
    return Heard(graph, START).record()


@configuration
def store_views() -> Record:
    @tool
    @effect("read")
    async def remember(number: int, runtime: ToolRuntime) -> str:
        """Remember a number."""
        assert runtime.store is not None
        known = sorted(item.value["n"] for item in await runtime.store.asearch(("numbers",), limit=99))
        await runtime.store.aput(("numbers",), f"{len(known)}", {"n": number})
        return f"knew {known}"

    def remembering(messages):
        if len(results(messages)) == 3:
            return counted("done", messages)
        return counted(call("remember", f"r-{len(messages)}", number=int(particle_rng().integers(64))), messages)

    store = InMemoryStore()
    store.put(("numbers",), "first", {"n": -1})
    agent = create_agent(ScriptedChatModel(respond=remembering), [remember], store=store)
    graph = amc(agent, FirstSlot(), n_particles=5, resample=AtSteps(1, 2), beta=1.0, seed=1)
    record = Heard(graph, START).record()
    kept = sorted((item.key, item.value["n"]) for item in store.search(("numbers",), limit=99))
    return {**record, "store": plain(kept)}


@configuration
def conversation_of_two_turns() -> Record:
    """The second turn starts from the messages and the world of the first turn's answer."""
    agent = create_agent(ScriptedChatModel(respond=writer), [write])
    graph = amc(agent, prefers_late_letters, environment=lambda state: Notebook(), n_particles=4, resample=EveryStep(),
                beta=0.25, seed=5, checkpointer=InMemorySaver())  # fmt: skip
    first = Heard(graph, START, "astream", THREAD)
    second = Heard(graph, {"messages": [HumanMessage("And more.")]}, "stream", THREAD)
    return {
        "first": first.record()["answer"],
        "second": second.record(),
        "kept": len(graph.get_state(THREAD).values["messages"]),
    }


@configuration
def estimate_of_a_call() -> Record:
    graph = amc(digit_agent(), LastReward(), environment=counter(), n_particles=6, resample=AtSteps(2), seed=3)
    estimate = graph.estimate(START)
    return {"usage": usage(estimate.usage), "text": str(estimate)}


@configuration
def critics_by_name_and_call() -> Record:
    graph = amc(digit_agent(), "first", critics={"first": FirstSlot(), "digit": LastDigit()}, environment=counter(),
                n_particles=5, resample=AtSteps(2), beta=1.0, seed=3)  # fmt: skip
    runs = {
        "default": graph.run(START),
        "config": graph.run(START, {"configurable": {"critic": "digit"}}),
        "context": graph.run(START, context={"critic": "digit"}),
    }
    for run in runs.values():
        run.close()
    return plain({
        name: {"critic": run.config["critic"], "values": [point.values for point in run.history],
               "trajectories": [steps(each) for each in run.population.trajectories]}
        for name, run in runs.items()
    })  # fmt: skip


@configuration
def as_a_node_of_another_graph() -> Record:
    from langgraph.graph import START as BEGIN
    from langgraph.graph import MessagesState, StateGraph

    inner = amc(digit_agent(), LastReward(), environment=counter(), n_particles=4, resample=AtSteps(2), beta=1.0,
                seed=3, name="team")  # fmt: skip
    builder = StateGraph(MessagesState)
    builder.add_node("team", inner)
    builder.add_edge(BEGIN, "team")
    heard = Heard(builder.compile(name="outer"), START, "astream")
    return heard.record()
