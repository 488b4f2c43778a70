import json
import subprocess
import sys
import uuid

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from amc_agents import amc
from amc_agents.errors import AgentContractError, CheckpointError, ConfigurationError
from amc_agents.operations.rollout import canary
from amc_agents.operations.rollout.call_records import Records
from amc_agents.operations.rollout.canary_comparison import Design, complete_units
from amc_agents.operations.rollout.canary_report import read_report
from tests.operations.rollout.agents import HELLO, answering, thread


def said(state):
    return state["messages"][-1].text


@pytest.fixture
def graph(tmp_path):
    return canary(answering("plain"), answering("better"), 0.5, folder=tmp_path, window=0)


def test_a_key_is_always_served_by_the_same_agent_and_about_a_share_by_the_better(graph):
    answers = {f"t{i}": said(graph.invoke(HELLO, thread(f"t{i}"))) for i in range(100)}
    assert {name: said(graph.invoke(HELLO, thread(name))) for name in answers} == answers
    assert 25 < list(answers.values()).count("better") < 75


def test_a_larger_share_keeps_the_keys_that_the_better_agent_had(graph, tmp_path):
    before = {f"t{i}" for i in range(50) if said(graph.invoke(HELLO, thread(f"t{i}"))) == "better"}
    graph.close()
    wider = canary(answering("plain"), answering("better"), 0.8, folder=tmp_path, window=0)
    after = {f"t{i}" for i in range(50) if said(wider.invoke(HELLO, thread(f"t{i}"))) == "better"}
    assert before < after


def test_machines_with_the_same_salt_assign_a_key_alike(tmp_path):
    first, second = (
        canary(answering("plain"), answering("better"), 0.5, folder=tmp_path / name, salt="s") for name in "ab"
    )
    for i in range(20):
        assert said(first.invoke(HELLO, thread(f"t{i}"))) == said(second.invoke(HELLO, thread(f"t{i}")))
    with pytest.raises(ConfigurationError, match="another salt"):
        canary(answering("plain"), answering("better"), 0.5, folder=tmp_path / "a", salt="other")


async def test_all_ways_to_call(graph):
    names = [f"t{i}" for i in range(8)]
    answers = {name: said(graph.invoke(HELLO, thread(name))) for name in names}
    assert {answer for answer in answers.values()} == {"plain", "better"}
    for name, answer in answers.items():
        assert said(await graph.ainvoke(HELLO, thread(name))) == answer
        assert [said(event["tools"]) for event in graph.stream(HELLO, thread(name), stream_mode="updates")] == [answer]
        states = [state async for state in graph.astream(HELLO, thread(name), stream_mode="values")]
        assert said(states[-1]) == answer
    graph.close()
    assert len(graph.rollout.records.calls()) == 4 * len(names)


def test_conversations_and_copies(tmp_path):
    saver = InMemorySaver()
    graph = canary(answering("plain", saver), answering("better", saver), 0.5, folder=tmp_path)
    for _ in range(2):
        state = graph.invoke(HELLO, thread("t"))
    assert len(state["messages"]) == 4
    assert len(graph.get_state(thread("t")).values["messages"]) == 4
    without = canary(answering("plain"), answering("better"), 0.5, folder=tmp_path).copy({"checkpointer": saver})
    assert len(without.invoke(HELLO, thread("t"))["messages"]) == 6
    assert len(graph.with_config(tags=["x"]).invoke(HELLO, thread("t"))["messages"]) == 8


def test_a_canary_is_a_node_of_another_graph(graph):
    outer = StateGraph(MessagesState).add_node("agent", graph).add_edge(START, "agent").compile()
    assert said(outer.invoke(HELLO, thread("t"))) in ("plain", "better")


def test_a_key_comes_from_a_function_or_a_field_and_calls_without_a_key_are_randomised_alone(tmp_path):
    by_user = canary(answering("plain"), answering("better"), 0.5, folder=tmp_path / "a", key="user")
    by_text = canary(answering("plain"), answering("better"), folder=tmp_path / "b", key=lambda given, config: "all")
    by_user.invoke(HELLO, {"configurable": {"user": 7}})
    by_user.invoke(HELLO)
    by_text.invoke(HELLO)
    by_user.close()
    by_text.close()
    calls = [*by_user.rollout.records.calls(), *by_text.rollout.records.calls()]
    assert [call["key"] for call in calls if call["sticky"]] == ["7", "all"]
    assert [call["sticky"] for call in calls] == [True, False, True]
    assert "1 calls had no key" in str(by_user.report())


def test_the_canary_stops_itself_where_it_is_worse(graph, tmp_path, caplog):
    for i in range(120):
        graph.outcome(f"t{i}", float(said(graph.invoke(HELLO, thread(f"t{i}"))) == "plain"))
        if i % 20 == 19:
            graph.close()
    report = graph.report()
    assert report.stopped is not None
    assert "the plain agent answers every call" in str(report)
    assert "the canary has stopped" in caplog.text
    assert {said(graph.invoke(HELLO, thread(f"t{i}"))) for i in range(20)} == {"plain"}
    # Another process, and one that had started before the stop, serve the plain agent too.
    again = canary(answering("plain"), answering("better"), 0.5, folder=tmp_path, window=0)
    assert {said(again.invoke(HELLO, thread(f"t{i}"))) for i in range(20)} == {"plain"}
    counted = report.comparison.n_counted
    for i in range(200, 220):
        again.outcome(f"t{i}", float(said(again.invoke(HELLO, thread(f"t{i}"))) == "plain"))
    assert again.report().comparison.n_counted == counted


def test_a_process_learns_that_another_one_stopped(graph, tmp_path):
    other = canary(answering("plain"), answering("better"), 0.5, folder=tmp_path, window=0)
    treated = next(name for i in range(50) if said(other.invoke(HELLO, thread(name := f"t{i}"))) == "better")
    graph.rollout.records.fact_or("stopped", {"why": "a test", "at": 0.0})
    other.invoke(HELLO, thread(treated))
    other.close()
    assert said(other.invoke(HELLO, thread(treated))) == "plain"


@pytest.mark.thorough
def test_the_canary_says_better(graph):
    for i in range(120):
        graph.outcome(f"t{i}", float(said(graph.invoke(HELLO, thread(f"t{i}"))) == "better"))
    report = graph.report()
    assert (report.verdict, report.stopped) == ("better", None)
    assert report.comparison.low > 0
    assert "switch on" in str(report)


def test_an_outcome_joins_by_the_id_of_a_run(graph):
    run_id = uuid.uuid4()
    graph.invoke(HELLO, {**thread("t"), "run_id": run_id})
    graph.outcome(str(run_id), 1.0)
    assert graph.report().comparison.n_counted == 1


def test_a_key_counts_once_after_its_window_and_is_never_revised():
    design = Design(window=100.0)
    calls = [
        {"id": f"r{started}", "key": "k", "thread": "", "arm": "better", "share": 0.5, "started": started}
        for started in (0.0, 50.0, 150.0)
    ]
    outcomes = {"r0.0": 1.0, "r50.0": 0.0, "r150.0": 0.0}
    assert complete_units(calls, outcomes, design, now=99.0) == []
    assert complete_units(calls, {}, design, now=101.0) == []
    unit = ("k", {"arm": "better", "share": 0.5, "outcome": 0.5})
    assert complete_units(calls, outcomes, design, now=1000.0) == [unit]


def test_a_failed_call_counts_as_the_worst_outcome(tmp_path):
    def fail(state: MessagesState):
        raise RuntimeError("no model")

    failing = StateGraph(MessagesState).add_node("tools", fail).add_edge(START, "tools").compile()
    graph = canary(answering("plain"), failing, 1.0, folder=tmp_path, outcomes=(-1.0, 1.0), window=0)
    with pytest.raises(RuntimeError, match="no model"):
        graph.invoke(HELLO, thread("t"))
    report = graph.report()
    assert report.comparison.arms["better"].n_failed == 1
    assert report.newest.mean_outcome == -1.0


def test_missing_outcomes_that_depend_on_the_arm_are_reported(graph):
    for i in range(100):
        answer = said(graph.invoke(HELLO, thread(f"t{i}")))
        if answer == "plain" or i % 4 == 0:
            graph.outcome(f"t{i}", 1.0)
    report = graph.report()
    assert report.comparison.arms["plain"].with_outcome == 1.0
    assert "outcomes are missing unequally" in str(report)


def test_value_and_size_of_an_amc_run_are_watched(tmp_path):
    searching = amc(answering("better"), lambda trajectories: [0.9] * len(trajectories), n_particles=3,
                    tools={"tools": "read"})  # fmt: skip
    graph = canary(answering("plain"), searching, 1.0, folder=tmp_path, window=0, floor=0.5)
    for i in range(60):
        graph.invoke(HELLO, thread(f"t{i}"))
        graph.outcome(f"t{i}", 0.0)
    report = graph.report()
    assert report.newest.bias == pytest.approx(0.9)
    assert report.newest.by_size[0] == pytest.approx((3, report.newest.n, 0.9, 0.0))
    assert report.comparison.n_counted == 0
    assert "the mean outcome of the newest calls is below" in (report.stopped or "")


def test_bad_arguments_are_refused_by_name(graph, tmp_path):
    plain = answering("plain")
    with pytest.raises(ConfigurationError, match="share must lie above 0"):
        canary(plain, plain, 0.0, folder=tmp_path)
    with pytest.raises(ConfigurationError, match="low < high"):
        canary(plain, plain, folder=tmp_path, outcomes=(1.0, 0.0))
    with pytest.raises(ConfigurationError, match="start again in a new folder"):
        canary(plain, plain, folder=tmp_path, window=1)
    with pytest.raises(AgentContractError, match="as better"):
        canary(plain, "amc", folder=tmp_path)  # type: ignore[arg-type]
    for value in (2.0, float("nan"), "1"):
        with pytest.raises(ConfigurationError, match="expected a number from 0 to 1"):
            graph.outcome("t", value)
    with pytest.raises(CheckpointError, match=r"has no rollout\.sqlite"):
        read_report(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="expected a shadow"):
        Records(tmp_path, "shadow")


def test_the_command_line_joins_a_table(graph, tmp_path, command):
    graph.invoke(HELLO, thread("t"))
    graph.close()
    (tmp_path / "outcomes.csv").write_text("thread_id,value\nt,1\n")
    code, printed, _ = command("canary", "report", tmp_path, "--outcomes", tmp_path / "outcomes.csv")
    assert code == 0
    assert "verdict: not yet" in printed
    code, printed, _ = command("canary", "report", tmp_path, "--json")
    assert json.loads(printed)["comparison"]["n_counted"] == 1
    assert command("canary", "report", tmp_path / "none")[0] == 2


WRITER = """
import sys
from amc_agents.operations.rollout.call_records import Records
records = Records(sys.argv[1], "canary")
for i in range(25):
    records.add_call(f"{sys.argv[2]}-{i}", float(i), {"key": "k"})
    records.add_to("counts", {"calls": 1})
"""


def test_several_processes_write_to_one_folder(tmp_path):
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, str(name)]) for name in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    records = Records(tmp_path, "canary")
    assert len(records.calls()) == 75
    assert records.counters("counts") == {"calls": 75}


def test_a_disk_that_fails_never_reaches_the_user(graph, monkeypatch):
    def fail(*_):
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(graph.rollout.records, "add_call", fail)
    assert said(graph.invoke(HELLO, thread("t")))
    graph.close()
    assert graph.rollout.writer.dropped == 1
    assert "1 records were lost" in str(graph.report())
