"""A question of the agent to a human is asked once, by the outer graph, for the selected particle."""

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from amc_agents.errors import AgentContractError, AnswerNeeded, ConfigurationError
from amc_agents.models.seeding import particle_rng
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.population.commits.ledger import (
    EFFECTS,
    Ledger,
    call,
    prefers_large_refunds,
    refunds_in,
    results,
    shop_tools,
    start,
)
from tests.variants import variants

THREAD = {"configurable": {"thread_id": "customer"}}


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger.db")


def refunds_once(messages):
    if results(messages, "refund"):
        return f"done {particle_rng().integers(1000)}"
    return AIMessage("", tool_calls=[call("refund", "r", amount=int(particle_rng().integers(1000)))])


def with_approval(ledger, *, effects=EFFECTS, **settings):
    agent = create_agent(
        ScriptedChatModel(respond=refunds_once),
        list(shop_tools(ledger).values()),
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"refund": True})],
    )
    settings = {"n_particles": 4, "resample": Never(), "checkpointer": InMemorySaver(), "seed": 1, **settings}
    return amc(agent, prefers_large_refunds, tools=effects, **settings)


@variants("asynchronous", [True, False])
async def test_an_approval_is_asked_once_and_the_run_goes_on_with_all_particles(ledger, asynchronous, caplog):
    graph = with_approval(ledger)
    first = await graph.ainvoke(start(), THREAD) if asynchronous else graph.invoke(start(), THREAD)
    [asked] = first["__interrupt__"]
    [request] = asked.value["action_requests"]
    assert request["name"] == "refund"
    assert ledger.rows("refund") == []
    answer = Command(resume={"decisions": [{"type": "approve"}]})
    run = await graph.arun(answer, THREAD) if asynchronous else graph.run(answer, THREAD)
    assert ledger.rows("refund") == [request["args"]]
    assert len(run.population.trajectories) == 4
    assert {tuple(refunds_in(each)) for each in run.population.trajectories} == {(request["args"]["amount"],)}
    assert len({each.steps[-1].action for each in run.population.trajectories}) > 1
    assert graph.get_state(THREAD).values["messages"][-1].text == run.best.steps[-1].action
    assert "broke off" not in caplog.text, "a run that asks has not broken off"


async def test_a_rejection_reaches_the_agent_and_nothing_is_committed(ledger):
    graph = with_approval(ledger)
    await graph.ainvoke(start(), THREAD)
    answer = Command(resume={"decisions": [{"type": "reject", "message": "no money"}]})
    run = await graph.arun(answer, THREAD)
    assert ledger.rows("refund") == []
    assert "no money" in str(run.best_output["messages"])


async def test_without_a_checkpointer_a_question_cannot_be_asked(ledger):
    with pytest.raises(AgentContractError, match="give amc\\(\\) a checkpointer"):
        await with_approval(ledger, checkpointer=False).arun(start())


@tool
def ask_owner(question: str) -> str:
    """Ask the owner."""
    return interrupt(question)


def asks_twice(messages):
    answers = results(messages)
    if not answers:
        return AIMessage("", tool_calls=[call("ask_owner", "1", question="a"), call("ask_owner", "2", question="b")])
    return "; ".join(str(answer.content) for answer in answers)


async def test_two_questions_of_one_step_are_asked_one_after_the_other():
    agent = create_agent(ScriptedChatModel(respond=asks_twice), [ask_owner])
    graph = amc(agent, "uniform", stateless_tools=True, n_particles=2, checkpointer=InMemorySaver(), seed=1)
    asked = [(await graph.ainvoke(start(), THREAD))["__interrupt__"][0].value]
    asked.append((await graph.ainvoke(Command(resume="yes"), THREAD))["__interrupt__"][0].value)
    state = await graph.ainvoke(Command(resume="no"), THREAD)
    assert asked == ["a", "b"]
    assert state["messages"][-1].text == "yes; no"


async def test_a_question_inside_a_commit_tool(ledger):
    @tool
    def refund(amount: int) -> str:
        """Pay after asking."""
        answer = interrupt(f"pay {amount}?")
        ledger.add("refund", amount=amount)
        return f"paid, because: {answer}"

    agent = create_agent(ScriptedChatModel(respond=refunds_once), [refund])
    graph = amc(
        agent, prefers_large_refunds, tools={"refund": "commit"}, n_particles=3, checkpointer=InMemorySaver(), seed=1
    )
    asked = (await graph.ainvoke(start(), THREAD))["__interrupt__"][0].value
    assert ledger.rows("refund") == []
    run = await graph.arun(Command(resume="she is right"), THREAD)
    [row] = ledger.rows("refund")
    assert asked == f"pay {row['amount']}?"
    [commit] = run.commits
    assert (commit.status, commit.result) == ("ran", "paid, because: she is right")


async def test_a_question_within_a_surrounding_graph(ledger):
    builder = StateGraph(MessagesState)
    builder.add_node("amc", with_approval(ledger, checkpointer=None))
    builder.add_edge(START, "amc")
    outer = builder.compile(checkpointer=InMemorySaver())
    first = await outer.ainvoke(start(), THREAD)
    [request] = first["__interrupt__"][0].value["action_requests"]
    await outer.ainvoke(Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
    assert ledger.rows("refund") == [request["args"]]


async def test_questions_and_searching_steps(ledger):
    """Resampling before the question does not ask it twice."""
    graph = with_approval(ledger, resample=AtSteps(1, 2))
    assert len((await graph.ainvoke(start(), THREAD))["__interrupt__"]) == 1
    run = await graph.arun(Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
    assert len(ledger.rows("refund")) == len(run.commits) == 1


@variants("asynchronous", [True, False])
async def test_run_raises_the_question_and_goes_on_with_the_answer(ledger, asynchronous):
    graph = with_approval(ledger)
    with pytest.raises(AnswerNeeded, match=r"action_requests.*Command\(resume=answer\)") as needed:
        await graph.arun(start(), THREAD) if asynchronous else graph.run(start(), THREAD)
    [question] = needed.value.questions.values()
    assert question["action_requests"][0]["name"] == "refund"
    answer = Command(resume={"decisions": [{"type": "approve"}]})
    run = await graph.arun(answer, THREAD) if asynchronous else graph.run(answer, THREAD)
    assert [commit.status for commit in run.commits] == ["ran"]


def test_a_wrong_answer_is_asked_again_with_the_reason_until_it_is_right(ledger):
    graph = with_approval(ledger)
    [asked] = graph.invoke(start(), THREAD)["__interrupt__"]
    for wrong in ("yes", {"decisions": []}, {"decisions": [{"type": "perhaps"}]}, "no", "what?"):
        [again] = graph.invoke(Command(resume=wrong), THREAD)["__interrupt__"]
        assert again.value.pop("refused")
        assert again.value == asked.value
    run = graph.run(Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
    assert [commit.status for commit in run.commits] == ["ran"]
    assert len(run.population.trajectories) == 4
    assert not any(run.population.failed)
    assert len(ledger.rows("refund")) == 1


class Form(MessagesState):
    limit: int
    seen: str


def asks_for_a_limit():
    """An agent that asks, and then tells the answer and its limit: plain, and as particles."""

    def ask(state):
        return {"seen": interrupt("Which colour?")}

    def tell(state):
        return {"messages": [AIMessage(f"{state['seen']}, limit {state['limit']}")]}

    def skipped(state):
        return {"messages": [AIMessage("went there")]}

    builder = StateGraph(Form)
    builder.add_node("ask", ask)
    builder.add_node("tell", tell)
    builder.add_node("skipped", skipped)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "tell")
    wrapped = amc(builder.compile(), lambda trajectories: [1.0 for _ in trajectories], n_particles=2,
                  step_after=["tell", "ask"], tools={"ask": "read", "tell": "read"},
                  checkpointer=InMemorySaver())  # fmt: skip
    return builder.compile(checkpointer=InMemorySaver()), wrapped


@pytest.mark.parametrize("command", [
    Command(resume="red", update={"limit": 5}),
    Command(resume="red", goto="skipped"),
], ids=["update", "goto"])  # fmt: skip
def test_a_command_with_an_answer_changes_the_state_as_in_the_plain_agent(command):
    answers = []
    for graph in asks_for_a_limit():
        graph.invoke({"messages": [("user", "go")], "limit": 1}, THREAD)
        state = graph.invoke(command, THREAD)
        answers.append((sorted(message.text for message in state["messages"]), state["limit"]))
    plain, ours = answers
    assert ours == plain
    assert plain != (["go", "red, limit 1"], 1), "the command changes nothing"


async def test_a_change_of_the_state_that_the_particles_would_not_see_is_refused():
    _, graph = asks_for_a_limit()
    graph.invoke({"messages": [("user", "go")], "limit": 1}, THREAD)
    with pytest.raises(ConfigurationError, match="lies in its particles"):
        graph.update_state(THREAD, {"limit": 5})
    with pytest.raises(ConfigurationError, match="lies in its particles"):
        await graph.aupdate_state(THREAD, {"limit": 5})
    for alone in (Command(update={"limit": 5}), Command(goto="tell")):
        with pytest.raises(ConfigurationError, match="lies in its particles"):
            graph.invoke(alone, THREAD)
    assert graph.get_state(THREAD).next == ("ask",)
    assert graph.invoke(Command(resume="red"), THREAD)["messages"][-1].text == "red, limit 1"
    graph.update_state(THREAD, {"limit": 5})  # At rest, as in the plain agent.
    assert graph.get_state(THREAD).values["limit"] == 5
    with pytest.raises(ConfigurationError, match="lies in its particles"):
        graph.copy(update={"checkpointer": None}).invoke(Command(goto="tell"))


@pytest.mark.parametrize("n_particles", [1, 3])
def test_tools_see_the_callers_thread_and_the_particles_own_under_another_key(n_particles):
    seen = []

    @tool
    def look(runtime: ToolRuntime) -> str:
        """Look."""
        place = runtime.config["configurable"]
        seen.append((place["thread_id"], runtime.execution_info.thread_id, place["amc_particle_thread"]))
        return "seen"

    def respond(messages):
        n_seen = len(results(messages))
        return "done" if n_seen == 2 else AIMessage("", tool_calls=[call("look", f"look-{n_seen}")])

    graph = amc(create_agent(ScriptedChatModel(respond=respond), [look]),
                lambda trajectories: [float(number) for number, _ in enumerate(trajectories)],
                tools={"look": "read"}, n_particles=n_particles, resample=AtSteps(1),
                checkpointer=InMemorySaver())  # fmt: skip
    graph.invoke(start(), THREAD)
    assert {threads[:2] for threads in seen} == {("customer", "customer")}
    assert len({own for *_, own in seen}) >= n_particles
    assert "customer" not in {own for *_, own in seen}


def test_a_missing_thread_is_named_as_by_the_plain_agent(ledger):
    graph = with_approval(ledger)
    for config in (None, {"configurable": {"critic": "uniform"}}):
        with pytest.raises(ValueError, match=r"Checkpointer requires one or more .* keys: thread_id"):
            graph.invoke(start(), config)


class Notes:
    """A world without rewards."""

    async def fork(self, seed):
        return Notes()

    async def close(self):
        pass

    async def snapshot(self):
        return "nothing"

    async def restore(self, snapshot):
        pass

    async def release(self, snapshot):
        pass


def test_a_question_shows_what_its_particle_has_computed_and_the_run_keeps_its_input(ledger):
    inputs = []

    def world(state):
        inputs.append([message.text for message in state["messages"]])
        return Notes()

    graph = with_approval(ledger, environment=world)
    shown = graph.invoke(start(), THREAD)
    assert [message.type for message in shown["messages"]] == ["human", "ai"]
    assert graph.get_state(THREAD).values["messages"] == shown["messages"]
    answer = graph.invoke(Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
    assert [message.type for message in answer["messages"]] == ["human", "ai", "tool", "ai"]
    assert inputs == [["Refund me."]] * len(inputs), "restored worlds are made from something else than the run's input"
    assert len(inputs) > 1


class Dies(InMemorySaver):
    """Ends the process, as far as a test can, before a checkpoint of the caller's thread is stored."""

    at = 1

    def put(self, config, checkpoint, metadata, new_versions):
        if config["configurable"]["thread_id"] == "customer" and metadata["step"] == self.at:
            raise KeyboardInterrupt
        return super().put(config, checkpoint, metadata, new_versions)


@variants("at", range(4))
async def test_the_state_names_the_next_node_of_a_run_that_was_killed(ledger, at):
    saver = Dies()
    graph = with_approval(ledger, checkpointer=saver)
    saver.at = at
    with pytest.raises(KeyboardInterrupt):
        graph.invoke(start(), THREAD, durability="sync")
    saver.at = -9
    assert graph.get_state(THREAD).next
    assert (await graph.aget_state(THREAD)).next
    assert graph.invoke(None, THREAD)["__interrupt__"]
