"""Threads of a LangGraph checkpointer, read as `amc` would have run them."""

import json
import sqlite3
from contextlib import closing

import ormsgpack
import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from pydantic import BaseModel
from typing_extensions import TypedDict

from amc_agents import EveryStep, amc
from amc_agents.errors import CheckpointError
from amc_agents.operations.importing import Outcomes, Reading, Refused, checkpoints, import_logs, read
from amc_agents.operations.importing.checkpoints import SavedState, lineage
from amc_agents.training.dataset import read_records
from tests.operations.importing import shop
from tests.operations.importing.shop import seen_by_a_run, shop_agent, texts


class ShortMemory(AgentMiddleware):
    """Forgets all but the newest messages, as agents with long conversations do."""

    def before_model(self, state, runtime):
        return {"messages": [RemoveMessage(id=message.id) for message in state["messages"][1:-2]]}


class Solved(AgentMiddleware):
    """A field of the state beside the messages."""

    class state_schema(TypedDict):
        solved: bool


@pytest.fixture
def database(tmp_path):
    return tmp_path / "threads.sqlite"


def converse(database, *questions, thread="t1", config=None, **settings):
    """Ask the agent in production, and return the messages given to each call."""
    given = []
    invoking = {key: settings.pop(key) for key in ("durability",) if key in settings}
    with SqliteSaver.from_conn_string(str(database)) as saver:
        agent = shop_agent(checkpointer=saver, **settings)
        config = {"configurable": {"thread_id": thread}, **(config or {})}
        for question in questions:
            before = agent.get_state(config).values.get("messages", [])
            given.append([*before, HumanMessage(question)])
            agent.invoke({"messages": [("user", question)]}, config, **invoking)
    return given


@pytest.mark.thorough
def test_every_call_reads_as_the_run_that_amc_would_have_seen(database):
    given = converse(database, "desk lamp", "hello", "chair")
    runs = list(read(database))
    assert [texts(run.trajectory) for run in runs] == [texts(seen_by_a_run(messages)) for messages in given]
    assert [(run.turn, run.over, run.cut_off) for run in runs] == [(n, True, False) for n in range(3)]
    assert len({run.trajectory.task.id for run in runs}) == 1
    assert len({run.origin.version for run in runs}) == 3


def test_a_call_took_the_time_and_tokens_of_its_own_checkpoints(database, monkeypatch):
    def respond(messages, original=shop.respond):
        usage = {"input_tokens": 9, "output_tokens": 1, "total_tokens": 10}
        return original(messages).model_copy(update={"usage_metadata": usage})

    converse(database, "hello")
    monkeypatch.setattr(shop, "respond", respond)
    converse(database, "desk lamp", thread="t2")
    converse(database, "hello", thread="t2")
    without, *runs = (run.origin for run in read(database))
    assert (without.tokens, [run.tokens for run in runs]) == (None, [30, 10])
    times = [moment for run in runs for moment in (run.started, run.ended)]
    assert times == sorted(times)
    assert all(run.started < run.ended for run in runs)


def test_an_agent_that_forgets_messages_is_read_where_it_would_pause(database):
    (given,) = converse(database, "desk lamp", middleware=[ShortMemory()])
    (run,) = read(database)
    expected = seen_by_a_run(given, middleware=[ShortMemory()])
    assert len(expected.steps) == 3 > len([m for m in run.messages if m.type == "ai"])
    assert texts(run.trajectory) == texts(expected)
    # Read only at its end, the run has lost its first step.
    (at_the_end,) = read(database, Reading(step_after=("elsewhere",)))
    assert texts(at_the_end.trajectory) != texts(expected)


def test_a_thread_without_history_is_cut_at_the_users_messages(database):
    given = converse(database, "desk lamp", "hello", durability="exit")
    runs = list(read(database))
    assert [texts(run.trajectory) for run in runs] == [texts(seen_by_a_run(messages)) for messages in given]


def test_a_step_limit_and_a_crash_are_not_answers(database):
    with pytest.raises(GraphRecursionError):
        converse(database, "for ever", config={"recursion_limit": 9})
    (run,) = read(database)
    assert len(run.trajectory.steps) == 5
    assert (run.over, run.cut_off) == (False, True)
    converse(database, "hello")
    stopped, answered = read(database)
    assert (stopped.over, stopped.cut_off) == (True, True)
    assert (answered.over, answered.cut_off) == (True, False)


def test_the_newest_branch_of_a_thread_counts(database):
    converse(database, "desk lamp")
    with SqliteSaver.from_conn_string(str(database)) as saver:
        agent = shop_agent(checkpointer=saver)
        first = [state for state in agent.get_state_history({"configurable": {"thread_id": "t1"}})][-1]
        agent.invoke({"messages": [("user", "chair")]}, first.config)
    runs = list(read(database))
    assert runs[-1].trajectory.steps[-1].action == "We have chair for 12.50 EUR."
    assert all("We have desk lamp" not in step.action for run in runs for step in run.trajectory.steps)


def test_any_saver_can_be_read():
    saver = InMemorySaver()
    agent = shop_agent(checkpointer=saver)
    for thread in ("b", "a"):
        agent.invoke({"messages": [("user", "desk lamp")]}, {"configurable": {"thread_id": thread}})
    runs = list(read(saver))
    assert [run.origin.thread for run in runs] == ["a", "b"]
    expected = texts(seen_by_a_run([("user", "desk lamp")]))
    assert [texts(run.trajectory) for run in runs] == [expected, expected]


def test_messages_without_ids_are_read_once(database):
    class Plain(TypedDict):
        messages: list

    inner = shop_agent()

    def work(state):
        return {"messages": [m.model_copy(update={"id": None}) for m in inner.invoke(state)["messages"]]}

    graph = StateGraph(Plain).add_node("tools", work).add_edge(START, "tools")
    graph = graph.add_node("rest", lambda state: {"messages": state["messages"]}).add_edge("tools", "rest")
    with SqliteSaver.from_conn_string(str(database)) as saver:
        given = {"messages": [HumanMessage("desk lamp")]}
        graph.compile(checkpointer=saver).invoke(given, {"configurable": {"thread_id": "t"}})
    (run,) = read(database)
    assert len(run.trajectory.steps) == 3


class Plain(TypedDict):
    messages: list
    n: int


def forgetful(moves, make=lambda kind, text: kind(text), n_kept=0):
    """An agent without message ids that keeps its task and the newest messages; it may repeat itself."""

    def act(state):
        first, *rest = state["messages"]
        kept = rest[len(rest) - 2 * n_kept :]
        made = [make(AIMessage, moves[state["n"]]), make(HumanMessage, "wall")]
        return {"messages": [first, *kept, *made], "n": state["n"] + 1}

    graph = StateGraph(Plain).add_node("act", act).add_edge(START, "act")
    return graph.add_conditional_edges("act", lambda state: END if state["n"] == len(moves) else "act")


@pytest.mark.parametrize("n_kept", [0, 1, 2])
@pytest.mark.parametrize(
    ("moves", "make"),
    [
        *((moves, lambda kind, text: kind(text)) for moves in ("northnorth", "nnnnnnnn", "nnsnnsss")),
        # A fork copies dicts, so that a repeated one cannot be told from one that was kept.
        ("nsnsewnw", lambda kind, text: {"role": kind.__name__[:-7].lower(), "content": text}),
    ],
)
def test_no_step_without_ids_is_lost_in_a_run_or_in_an_import(database, moves, n_kept, make):
    graph = forgetful(moves, make, n_kept)
    given = {"messages": [make(HumanMessage, "go")], "n": 0}
    with SqliteSaver.from_conn_string(str(database)) as saver:
        graph.compile(checkpointer=saver).invoke(given, {"configurable": {"thread_id": "t"}})
    (imported,) = read(database, Reading(step_after=("act",)))
    searched = amc(
        graph.compile(), critic=lambda trajectories: [0.3 * (n % 2) for n, _ in enumerate(trajectories)],
        n_particles=3, beta=0.1, step_after="act", resample=EveryStep(), stateless_tools=True,
    ).run(given)  # fmt: skip
    for trajectory in [imported.trajectory, *searched.population.trajectories]:
        assert [(step.action, step.observation) for step in trajectory.steps] == [(move, "wall") for move in moves]


def test_a_message_replaced_under_its_id_reads_as_the_run_that_amc_would_have_seen(database):
    class Masked(AgentMiddleware):
        def before_model(self, state, runtime):
            kinds = HumanMessage, ToolMessage
            return {"messages": [
                message.model_copy(update={"content": message.text.replace("lamp", "****")})
                for message in state["messages"] if isinstance(message, kinds) and "Lämpchen" not in message.text
            ]}  # fmt: skip

    (given,) = converse(database, "desk lamp", middleware=[Masked()])
    (run,) = read(database)
    assert texts(run.trajectory) == texts(seen_by_a_run(given, middleware=[Masked()]))
    assert run.trajectory.task.instruction == "desk ****"
    assert "lamp" not in run.trajectory.steps[0].observation


def packed(database, value, kind="msgpack"):
    """A checkpointer's database with another state."""
    with SqliteSaver.from_conn_string(str(database)) as saver:
        config = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
        saver.put(config, {**empty_checkpoint(), "channel_values": {}}, {"source": "loop", "step": 1}, {})
    state = {**empty_checkpoint(), "channel_values": value}
    content = ormsgpack.packb(state) if kind == "msgpack" else json.dumps(state).encode()
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("update checkpoints set type=?, checkpoint=?", (kind, content))
    return database


_CALL = ("langchain_core.messages.ai", "AIMessage", {"content": "Bye", "type": "ai"}, "model_validate_json")
_OLD = {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "AIMessage"]}


@pytest.mark.parametrize("code", range(6))
def test_a_checkpoint_does_not_choose_what_is_called(database, tmp_path, code):
    mark = tmp_path / "called"
    forms = {0: ("os", "system", f"touch {mark}"), 3: ("pathlib", "Path", str(mark), "touch")}
    hostile = forms.get(code, ("subprocess", "call", [["touch", str(mark)]]))
    said = ormsgpack.Ext(5, ormsgpack.packb(_CALL))
    packed(database, {"messages": [said], "more": ormsgpack.Ext(code, ormsgpack.packb(hostile))})
    (run,) = read(database)
    assert run.trajectory.steps[0].action == "Bye"
    assert not mark.exists()


def test_the_older_format_of_checkpoints_builds_messages_only(database, tmp_path):
    mark = tmp_path / "called"
    hostile = {"lc": 2, "type": "constructor", "id": ["pathlib", "Path"], "method": "touch", "args": [str(mark)]}
    prompt = {"lc": 1, "type": "constructor", "id": ["langchain", "prompts", "prompt", "PromptTemplate"],
              "kwargs": {"template": "{x}", "input_variables": ["x"]}}  # fmt: skip
    said = {**_OLD, "kwargs": {"content": "Bye"}}
    packed(database, {"messages": [said], "hostile": hostile, "prompt": prompt}, kind="json")
    (run,) = read(database)
    assert run.trajectory.steps[0].action == "Bye"
    assert run.origin.record["prompt"] == prompt["kwargs"]
    assert not mark.exists()


def test_an_object_of_another_class_is_data(database):
    class Mine(BaseModel):
        score: float

    secret = ormsgpack.Ext(5, ormsgpack.packb((Mine.__module__, "Mine", {"score": 0.5}, "model_validate_json")))
    packed(database, {"messages": [ormsgpack.Ext(5, ormsgpack.packb(_CALL))], "result": secret})
    (run,) = read(database)
    assert Outcomes(reward="result.score").of(run) == 0.5


def test_a_database_whose_name_is_that_of_another_kind_is_not_opened_unasked(tmp_path):
    packed(tmp_path / "chats.jsonl", {"messages": [ormsgpack.Ext(5, ormsgpack.packb(_CALL))]})
    with pytest.raises(CheckpointError, match="--from checkpoints"):
        list(read(tmp_path / "chats.jsonl"))
    assert len(list(read(tmp_path / "chats.jsonl", Reading(kind="checkpoints")))) == 1


def test_the_outcome_can_be_a_field_of_the_state(database, tmp_path):
    out, rule = tmp_path / "data", Outcomes(reward="solved")
    converse(database, "hello", middleware=[Solved()])
    converse(database, "hello", thread="t2", middleware=[Solved()])
    assert import_logs(database, out, outcomes=rule).outcomes_known == 0
    with SqliteSaver.from_conn_string(str(database)) as saver:
        agent = shop_agent(checkpointer=saver, middleware=[Solved()])
        agent.update_state({"configurable": {"thread_id": "t2"}}, {"solved": True})
    report = import_logs(database, out, outcomes=rule)
    assert (report.trajectories, report.outcomes_updated) == (0, 1)
    assert sorted(record.outcome_known for record in read_records(out)) == [False, True]


def test_only_new_threads_are_read_again(database, tmp_path, monkeypatch):
    converse(database, "hello")
    converse(database, "hello", thread="t2")
    import_logs(database, tmp_path / "data")
    converse(database, "desk lamp", thread="t2")
    converse(database, "chair", thread="t3")
    history = checkpoints.SqliteThreads.history
    asked = []

    def noted(self, thread):
        asked.append(thread)
        return history(self, thread)

    monkeypatch.setattr(checkpoints.SqliteThreads, "history", noted)
    report = import_logs(database, tmp_path / "data")
    assert asked == ["t2", "t3"]
    assert (report.trajectories, report.imported_before, report.dataset_trajectories) == (2, 2, 4)


def test_the_database_of_a_running_agent_is_not_written(database):
    with closing(sqlite3.connect(database)) as other:
        converse(database, "hello")
        other.execute("BEGIN IMMEDIATE")  # the agent is writing
        assert len(list(read(database))) == 1
        other.rollback()
    before = database.read_bytes()
    list(read(database))
    assert database.read_bytes() == before


def test_threads_are_listed_in_parts(database, monkeypatch):
    monkeypatch.setattr(checkpoints, "_AT_ONCE", 2)
    for number in range(5):
        converse(database, "hello", thread=f"t{number}")
    assert [run.origin.thread for run in read(database)] == [f"t{number}" for number in range(5)]


def test_a_state_without_messages_and_a_damaged_checkpoint_are_refused(database):
    class Numbers(TypedDict):
        n: int

    graph = StateGraph(Numbers).add_node("tools", lambda state: {"n": 1}).add_edge(START, "tools")
    with SqliteSaver.from_conn_string(str(database)) as saver:
        graph.compile(checkpointer=saver).invoke({"n": 0}, {"configurable": {"thread_id": "n"}})
    converse(database, "hello")
    converse(database, "hello", thread="t2")
    with closing(sqlite3.connect(database)) as other, other:
        other.execute("UPDATE checkpoints SET checkpoint = x'c1' WHERE thread_id = 't1'")
    without, damaged, run = read(database)
    assert isinstance(without, Refused)
    assert (without.where, "no list of `messages`" in without.reason) == ("thread n", True)
    assert (damaged.where, "cannot be decoded" in damaged.reason) == ("thread t1", True)
    assert run.origin.thread == "t2"


def test_another_database_is_named(database):
    with closing(sqlite3.connect(database)) as other, other:
        other.execute("CREATE TABLE notes (text)")
    with pytest.raises(CheckpointError, match="not a readable database of LangGraph's SqliteSaver"):
        list(read(database))


def test_a_branch_is_followed_to_its_root():
    assert lineage({"1": None, "2": "1", "3": "1", "4": "3"}) == ["1", "3", "4"]
    assert lineage({"3": "pruned", "4": "3"}) == ["3", "4"]
    assert lineage({}) == []


@pytest.mark.parametrize(
    ("values", "finished"),
    [
        ({"messages": []}, True),
        ({"messages": [], "__pregel_tasks": []}, True),
        ({"__start__": {}}, False),
        ({"branch:to:model": None}, False),
        ({"__pregel_tasks": ["send"]}, False),
        ({"join:a+b:c": {"a", "b"}}, False),
        ({"join:a+b:c": {"a"}}, True),
    ],
)
def test_a_state_is_finished_if_no_node_is_due(values, finished):
    assert SavedState("1", "loop", values, {}).finished is finished


def test_nodes_ran_if_they_saw_new_versions_or_were_sent_to():
    before = SavedState("1", "loop", {"__pregel_tasks": [Send("tools", {})]}, {"model": {"a": 1}, "tools": {}})
    after = SavedState("2", "loop", {}, {"model": {"a": 2}, "tools": {}})
    assert after.nodes_since(before) == {"model", "tools"}
    assert after.nodes_since(after) == set()
