"""The private saver: LangGraph's contract, copies of threads, pruning."""

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.types import Send

from amc_agents.population.saver import ForkSaver, own_containers


def config(thread_id, checkpoint_id=None, **more):
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": checkpoint_id, **more}}


def put_chain(saver, thread_id, all_values, metadata=lambda step: {}):
    """Store a chain of checkpoints with these values, and return their ids, oldest first."""
    ids = [None]
    for step, values in enumerate(all_values):
        checkpoint = empty_checkpoint() | {"channel_values": values}
        saver.put(config(thread_id, ids[-1]), checkpoint, {"source": "loop", "step": step, **metadata(step)}, {})
        ids.append(checkpoint["id"])
    return ids[1:]


def ids_in(saver, thread_id):
    return [kept.checkpoint["id"] for kept in saver.list(config(thread_id))]


@pytest.mark.thorough  # quick: durable and forked runs use every method
async def test_fork_saver_passes_langgraphs_conformance_suite():
    conformance = pytest.importorskip("langgraph.checkpoint.conformance")

    @conformance.checkpointer_test(name="ForkSaver")
    async def fork_saver():
        yield ForkSaver()

    report = await conformance.validate(fork_saver)
    failures = {str(name): result.failures for name, result in report.results.items() if result.failures}
    assert not failures
    assert report.passed_all_base()


def test_list_applies_filter_before_and_limit():
    saver = ForkSaver()
    ids = put_chain(saver, "t", [{}, {}, {}, {}], lambda step: {"user": "anna" if step % 2 else "ben"})
    put_chain(saver, "other", [{}])
    listed = saver.list(config("t"), filter={"user": "anna"}, before=config("t", ids[3]))
    assert [kept.checkpoint["id"] for kept in listed] == [ids[1]]
    assert [kept.checkpoint["id"] for kept in saver.list(config("t"), limit=2)] == [ids[3], ids[2]]
    assert len(list(saver.list(None))) == 5
    assert list(saver.list(config("t"), filter={"user": "nobody"})) == []


def test_readers_and_writers_have_their_own_containers():
    saver = ForkSaver()
    bag = [1]
    (checkpoint_id,) = put_chain(saver, "t", [{"bag": bag}])
    saver.put_writes(config("t", checkpoint_id), [("bag", [2])], "task")
    bag.append("of the writer")
    saver.copy_thread("t", "copy")
    for thread_id in ("t", "copy"):
        read = saver.get_tuple(config(thread_id))
        assert read.checkpoint["channel_values"] == {"bag": [1]}
        assert read.pending_writes == [("task", "bag", [2])]
        read.checkpoint["channel_values"]["bag"].append("of a reader")
        read.pending_writes[0][2].append("of a reader")


def test_pruning_keeps_the_newest_checkpoint_and_its_writes():
    saver = ForkSaver()
    ids = put_chain(saver, "t", [{"step": step} for step in range(5)])
    for checkpoint_id in ids:
        saver.put_writes(config("t", checkpoint_id), [("a", checkpoint_id)], "task")
    saver.prune(["t", "unknown"])
    assert ids_in(saver, "t") == ids[-1:]
    assert saver.get_tuple(config("t")).pending_writes == [("task", "a", ids[-1])]
    saver.prune(["t"], strategy="delete")
    assert ids_in(saver, "t") == []
    with pytest.raises(ValueError, match="keep_latest"):
        saver.prune(["t"], strategy="keep_oldest")


def test_pruning_keeps_the_ancestors_that_a_delta_channel_needs():
    saver = ForkSaver()
    values = [{"log": "old snapshot"}, {"log": "snapshot"}, {}, {}]
    ids = put_chain(saver, "t", values, lambda step: {"counters_since_delta_snapshot": {"log": (1, 1)}})
    for checkpoint_id in ids:
        saver.put_writes(config("t", checkpoint_id), [("log", checkpoint_id)], "task")
    saver.prune(["t"])
    assert ids_in(saver, "t") == ids[:0:-1]
    saver.copy_thread("t", "copy")
    history = saver.get_delta_channel_history(config=config("copy"), channels=["log"])
    assert history == {"log": {"seed": "snapshot", "writes": [("task", "log", id_) for id_ in ids[1:3]]}}


@pytest.mark.parametrize(
    ("value", "inner"),
    [
        ({"a": [[0]]}, lambda value: value["a"][0]),
        ([{0}], lambda value: value[0]),
        (([0],), lambda value: value[0]),
        (Send("node", {"a": [0]}), lambda value: value.arg["a"]),
    ],
    ids=["list in a list in a dict", "set in a list", "list in a tuple", "list in a Send's argument"],
)
def test_nested_containers_are_copied_and_their_contents_shared(value, inner):
    copy = own_containers(value)
    assert copy == value
    inner(copy).clear()
    assert list(inner(value)) == [0]
    thing = object()
    assert own_containers([thing])[0] is thing


def test_containers_may_be_nested_to_any_depth():
    deep: list = []
    for _ in range(2000):
        deep = [{"inner": deep}]
    copy, given = own_containers(deep), deep
    while given:
        assert copy is not given
        assert copy[0] is not given[0]
        copy, given = copy[0]["inner"], given[0]["inner"]
    assert copy == []
