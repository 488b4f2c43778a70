"""LangSmith runs: what the tracer sends is what an export contains."""

import json

import pytest
from langchain_core.load import dumpd
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler
from langgraph.checkpoint.memory import InMemorySaver
from langsmith._internal._serde import dumps_json

from amc_agents.operations.importing import Outcomes, Refused, import_logs, read
from amc_agents.training.dataset import read_records
from tests.operations.importing.shop import seen_by_a_run, shop_agent, texts

FIELDS = "id parent_run_id name run_type inputs outputs extra error dotted_order start_time end_time".split()


def traced(*questions, checkpointer=None, **settings):
    """The runs of the agent as the tracer sends them, those inside it included; and the messages given to each call."""
    collector = RunCollectorCallbackHandler()
    agent = shop_agent(checkpointer=checkpointer or InMemorySaver(), **settings)
    config = {"configurable": {"thread_id": "t1"}, "callbacks": [collector]}
    given = []
    for question in questions:
        given.append([*agent.get_state(config).values.get("messages", []), ("user", question)])
        agent.invoke({"messages": [("user", question)]}, config)
    runs = [inner for root in collector.traced_runs for inner in (root, *root.child_runs)]
    records = [json.loads(dumps_json({name: getattr(run, name) for name in FIELDS})) for run in runs]
    return records, given


@pytest.fixture
def export(tmp_path):
    path = tmp_path / "runs.jsonl"

    def write(*records):
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path

    return write


def test_every_call_reads_as_the_run_that_amc_would_have_seen(export):
    records, given = traced("desk lamp", "hello", "chair")
    assert len(records) > 10
    runs = list(read(export(*records)))
    assert [texts(run.trajectory) for run in runs] == [texts(seen_by_a_run(messages)) for messages in given]
    assert [(run.origin.thread, run.turn, run.over, run.cut_off) for run in runs] == [
        ("t1", turn, True, False) for turn in range(3)
    ]
    assert len({run.trajectory.task.id for run in runs}) == 1


def test_a_question_asked_twice_starts_where_it_was_asked_last(export):
    records, given = traced("chair", "chair")
    runs = list(read(export(*records)))
    assert [texts(run.trajectory) for run in runs] == [texts(seen_by_a_run(messages)) for messages in given]


def test_an_agent_without_a_checkpointer_is_given_the_whole_conversation(export):
    collector = RunCollectorCallbackHandler()
    first = shop_agent().invoke({"messages": [("user", "chair")]})["messages"]
    asked = [*first, ("user", "chair")]  # the same question again
    shop_agent().invoke({"messages": asked}, {"callbacks": [collector]})
    (root,) = collector.traced_runs
    (run,) = read(export(json.loads(dumps_json({name: getattr(root, name) for name in FIELDS}))))
    assert texts(run.trajectory) == texts(seen_by_a_run(asked))
    assert run.turn == 1
    assert run.origin.thread == str(root.id)


def test_other_spellings_of_a_run_read_the_same(export):
    records, given = traced("desk lamp")
    root = records[0]
    state = InMemorySaver()
    shop = shop_agent(checkpointer=state)
    config = {"configurable": {"thread_id": "t"}}
    messages = shop.invoke({"messages": [("user", "desk lamp")]}, config)["messages"]
    constructed = root | {"outputs": {"messages": [dumpd(message) for message in messages]}}
    bulk = root | {name: json.dumps(root[name]) for name in ("inputs", "outputs", "extra")}
    alone = root | {"inputs": {"messages": {"role": "user", "content": "desk lamp"}}}
    for other in (constructed, bulk, alone):
        (run,) = read(export(other))
        assert texts(run.trajectory) == texts(seen_by_a_run(given[0]))


def test_feedback_is_an_outcome_that_may_arrive_later(export, tmp_path):
    (first, *_), _ = traced("hello")
    (second, *_), _ = traced("desk lamp")
    rule = Outcomes(feedback="solved")
    import_logs(export(first, second), tmp_path / "data", outcomes=rule)
    first["feedback_stats"] = {"solved": {"n": 2, "avg": 0.5}, "tone": {"n": 1, "avg": 1.0}}
    second["feedback_stats"] = {"solved": {"n": 0, "avg": None}}
    report = import_logs(export(first, second), tmp_path / "data", outcomes=rule)
    assert (report.trajectories, report.outcomes_updated, report.imported_before) == (0, 1, 2)
    returns = {
        record.trajectory.task.instruction: record.trajectory.return_ for record in read_records(tmp_path / "data")
    }
    assert returns["hello"] == 0.5
    assert returns["desk lamp"] != returns["desk lamp"]  # NaN: unknown


def test_an_outcome_is_joined_by_run_or_by_thread(export, tmp_path):
    records, _ = traced("hello", "chair")
    roots = [record for record in records if not record["parent_run_id"]]
    (tmp_path / "outcomes.csv").write_text(f"thread_id,value\nt1,0\n{roots[1]['id']},1\n")
    import_logs(export(*roots), tmp_path / "data", outcomes=Outcomes(table=tmp_path / "outcomes.csv"))
    returns = [record.trajectory.return_ for record in read_records(tmp_path / "data")]
    assert sorted(returns) == [0.0, 1.0]


def test_runs_that_lost_steps_or_failed_are_refused(export):
    (root, *_), _ = traced("desk lamp")
    messages = root["outputs"]["messages"]
    shortened = root | {"outputs": {"messages": messages[2:]}}
    without_calls = root | {"outputs": {"messages": [messages[0], *messages[2:]]}}
    failed = root | {"outputs": None, "error": "boom"}
    chain = root | {"inputs": {"question": "?"}}
    nameless = root | {"id": None}
    silent = root | {"outputs": {"messages": messages[:1]}}
    refused = list(read(export(shortened, without_calls, failed, chain, nameless, silent)))
    assert all(isinstance(record, Refused) for record in refused)
    parts = (
        "do not contain",
        "a tool answers",
        "without outputs",
        "no `messages`",
        "no `id`",
        "no message of the agent",
    )
    for record, part in zip(refused, parts, strict=True):
        assert part in record.reason


def test_an_interrupted_run_is_not_over(export):
    (root, *_), _ = traced("desk lamp")
    waiting = {"messages": root["outputs"]["messages"][:2], "__interrupt__": [{"value": "may I?"}]}
    (run,) = read(export(root | {"outputs": waiting}))
    assert (run.over, run.cut_off) == (False, True)
