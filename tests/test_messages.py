import random
from dataclasses import replace

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from amc_agents.errors import AgentContractError
from amc_agents.messages import MessageReader, split_turn, trajectory_from_messages
from amc_agents.types import Step, Task


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Thought: look\nAction: open door", ("look", "open door")),
        ("Action: get 2 clay", ("", "get 2 clay")),
        ("Thought: two\nlines\nAction: craft 1 a using 2 b\n", ("two\nlines", "craft 1 a using 2 b")),
        ("just words", ("", "just words")),
        ("Action: say Action: twice", ("", "say Action: twice")),
        ("", ("", "")),
    ],
)
def test_a_turn_is_split_into_thought_and_action(text, expected):
    assert split_turn(text) == expected


def test_tool_calls_become_canonical_json():
    call = {"name": "f", "args": {"b": 1, "a": "é"}, "id": "1"}
    one = trajectory_from_messages(
        [HumanMessage("go"), AIMessage("why", tool_calls=[call]), ToolMessage("ok", tool_call_id="1")]
    )
    assert (one.steps[0].thought, one.steps[0].action, one.steps[0].observation) == (
        "why",
        '{"args": {"a": "é", "b": 1}, "name": "f"}',
        "ok",
    )
    two = trajectory_from_messages([HumanMessage("go"), AIMessage("", tool_calls=[call, {**call, "id": "2"}])])
    assert two.steps[0].action.startswith("[{")


def test_messages_before_the_agents_first_turn_are_the_instruction():
    assert trajectory_from_messages([HumanMessage("go"), AIMessage("a")]).task.instruction == "go"
    longer = [SystemMessage("be good"), HumanMessage("go"), AIMessage("a")]
    assert trajectory_from_messages(longer).task.instruction == "system: be good\nhuman: go"
    assert trajectory_from_messages(longer, task=Task("t", "mine")).task.id == "t"


def test_reading_piece_by_piece_equals_reading_at_once():
    messages: list[BaseMessage] = [HumanMessage("go", id="0")]
    for i in range(3):
        messages += [AIMessage(f"Action: {i}", id=f"a{i}"), HumanMessage(f"o{i}", id=f"h{i}")]
    reader = MessageReader.start(messages[:1])
    for end in range(2, len(messages) + 1):
        reader = reader.read(messages[:end])
    assert reader.trajectory.steps == trajectory_from_messages(messages, done=False).steps
    assert [step.observation for step in reader.trajectory.steps] == ["o0", "o1", "o2"]


def test_an_agent_may_shorten_its_list_without_losing_what_was_read():
    start, first, answer = HumanMessage("go", id="0"), AIMessage("Action: 1", id="1"), HumanMessage("one", id="2")
    reader = MessageReader.start([start]).read([start, first, answer])
    reader = reader.read([start, AIMessage("Action: 2", id="3"), HumanMessage("two", id="4")])
    assert [(step.action, step.observation) for step in reader.trajectory.steps] == [("1", "one"), ("2", "two")]


def test_messages_without_ids_are_known_by_their_object():
    messages = [HumanMessage("go"), AIMessage("Action: same"), HumanMessage("ok"), AIMessage("Action: same")]
    reader = MessageReader.start(messages[:1]).read(messages).read(messages)
    assert len(reader.trajectory.steps) == 2


def test_rewards_go_to_the_last_step_and_a_reward_without_a_step_is_an_error():
    start = HumanMessage("go", id="0")
    reader = MessageReader.start([start]).read([start, AIMessage("Action: 1", id="1")], reward=2.0)
    reader = reader.read([start], reward=0.5, done=True)
    assert reader.trajectory.return_ == 2.5
    assert reader.trajectory.done
    with pytest.raises(ValueError, match="before the agent's first message"):
        MessageReader.start([start]).read([start], reward=1.0)


def test_a_list_that_has_grown_is_read_from_where_it_grew(monkeypatch):
    looked_at = []

    def key(message):
        looked_at.append(message)
        return message.id

    monkeypatch.setattr("amc_agents.messages.message_key", key)
    messages: list[BaseMessage] = [HumanMessage("go", id="0")]
    reader = MessageReader.start(messages)
    for number in range(1, 100):
        messages = [*messages, AIMessage("on", id=f"a{number}"), HumanMessage("ok", id=f"h{number}")]
        looked_at.clear()
        reader = reader.read(messages)
        assert {message.id for message in looked_at} == {f"a{number}", f"h{number}"}
    assert len(reader.trajectory.steps) == 99


@pytest.mark.parametrize("seed", range(20))
def test_each_message_is_read_once_however_the_agent_edits_its_list(seed):
    rng = random.Random(seed)
    shelf = [kind(f"text {number}", id=f"id{number}" if number % 3 else None)
             for number, kind in enumerate(rng.choices([AIMessage, HumanMessage], k=30))]  # fmt: skip
    messages: list[BaseMessage] = [HumanMessage("go", id="0")]
    from_the_start = in_pieces = MessageReader.start(messages)
    for _ in range(40):
        for edit in rng.choices(["grow", "drop", "shuffle", "empty"], weights=[6, 2, 2, 1], k=rng.randint(1, 3)):
            if edit == "grow":
                absent = [message for message in shelf if all(message is not listed for listed in messages)]
                messages = [*messages, *rng.sample(absent, min(2, len(absent)))]
            elif edit == "drop":
                messages = [message for message in messages if rng.random() < 0.8]
            elif edit == "shuffle":
                messages = rng.sample(messages, len(messages))
            else:
                messages = []
        in_pieces = in_pieces.read(messages)
        # Without its list, a reader looks at every message.
        from_the_start = replace(from_the_start, listed=()).read(messages)
        assert in_pieces == from_the_start
    said = [id_ for step in in_pieces.trajectory.steps for id_ in step.message_ids]
    assert len(said) == len(set(said))


@pytest.mark.parametrize("twin", [lambda message: message, lambda message: message.model_copy()])
def test_a_message_replaced_under_its_own_id_is_read_as_it_is_now(twin):
    call = {"name": "refund", "args": {"order": 7}, "id": "c"}
    start, sent = HumanMessage("card 4711", id="0"), AIMessage("", id="1", tool_calls=[call])
    first, second = (ToolMessage("ok", tool_call_id="c", id=name) for name in ("2", "3"))
    before = MessageReader.start([start]).read([start, sent, first, second], reward=1.5)
    edited = sent.model_copy(update={"tool_calls": [{**call, "args": {"order": 8}}]})
    masked = HumanMessage("card ****", id="0")
    now = [masked, edited, twin(first), ToolMessage("failed", tool_call_id="c", id="3"), AIMessage("bye", id="4")]
    reader = before.read(now)
    assert reader.trajectory.steps[1:] == trajectory_from_messages(now).steps[1:]
    assert reader.trajectory.steps[0] == replace(trajectory_from_messages(now).steps[0], reward=1.5)
    assert reader.trajectory.task.instruction == "card ****"
    assert before.trajectory.steps[0].observation == "ok\nok"
    # The rest of the step may have left the list.
    assert reader.read([first.model_copy(update={"content": "none"})]).trajectory.steps[0].observation == "none\nfailed"


def test_the_instruction_of_an_environments_task_stays_when_the_input_is_replaced():
    reader = MessageReader.start([HumanMessage("go", id="0")], Task("t", "go"))
    assert reader.read([HumanMessage("stop", id="0")]).trajectory.task == Task("t", "go")


def test_repeated_messages_without_ids_are_steps_of_their_own_even_if_their_memory_is_used_again():
    start = HumanMessage("go")
    reader = MessageReader.start([start])
    for _ in range(50):
        reader = reader.read([start, AIMessage("north"), HumanMessage("wall")])
    assert [(step.action, step.observation) for step in reader.trajectory.steps] == [("north", "wall")] * 50


@pytest.mark.parametrize(
    "form",
    [
        lambda role, text: {"role": role, "content": text},
        lambda role, text: (role, text),
        lambda role, text: {"assistant": AIMessage, "user": HumanMessage}[role](text),
    ],
)
def test_copies_of_messages_without_ids_are_the_same_messages(form):
    def conversation(length):
        return [form("user", "go"), *(form(role, "x") for _ in range(length) for role in ("assistant", "user"))]

    reader = MessageReader.start(conversation(0))
    for length in (1, 2, 2, 3):
        reader = reader.read(conversation(length))
    assert reader.trajectory.steps == (Step("x", "x"),) * 3
    assert reader.trajectory.task.instruction == "go"


def test_an_item_that_is_no_message_is_refused():
    with pytest.raises(AgentContractError, match="hold a int that is not a message"):
        MessageReader.start([HumanMessage("go")]).read([7])


def test_a_message_that_gets_its_id_from_a_stream_is_not_read_again():
    start, turn = HumanMessage("go"), AIMessage("on")
    reader = MessageReader.start([start]).read([start, turn])
    turn.id = "late"
    assert len(reader.read([turn, HumanMessage("end")]).trajectory.steps) == 1
