import json

import pytest

from amc_agents.operations.importing import Reading, Refused, read
from tests.operations.importing.shop import openai_messages, seen_by_a_run, shop_agent, texts


def chat(tmp_path, *records, name="chats.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def messages_of(*questions):
    state = {"messages": []}
    for question in questions:
        state = shop_agent().invoke({"messages": [*state["messages"], ("user", question)]})
    return state["messages"]


def test_a_logged_chat_reads_as_the_run_that_amc_would_have_seen(tmp_path):
    path = chat(tmp_path, {"thread_id": "t1", "messages": openai_messages(messages_of("desk lamp"))})
    (run,) = read(path)
    expected = seen_by_a_run([("user", "desk lamp")])
    assert len(expected.steps) == 3
    assert texts(run.trajectory) == texts(expected)
    assert run.trajectory.done
    assert run.over
    assert not run.cut_off


def test_every_turn_of_a_conversation_is_the_run_of_that_call(tmp_path):
    conversation = messages_of("desk lamp", "hello", "chair")
    path = chat(tmp_path, {"thread_id": "t1", "messages": openai_messages(conversation)})
    first, second, third = read(path)
    before = [message for message in conversation if message.type == "human"]
    starts = [conversation.index(message) for message in before]
    for run, start in zip((first, second, third), starts, strict=True):
        assert texts(run.trajectory) == texts(seen_by_a_run(conversation[: start + 1]))
    assert [run.turn for run in (first, second, third)] == [0, 1, 2]
    # The first turn's text is in the instruction of the others, so they must not be split into training and test.
    assert len({run.trajectory.task.id for run in (first, second, third)}) == 1


def test_the_world_that_answers_as_the_user_is_an_observation(tmp_path):
    conversation = [
        {"role": "user", "content": "get the key"},
        {"role": "assistant", "content": "Thought: look\nAction: look around"},
        {"role": "user", "content": "a key on a nail"},
        {"role": "assistant", "content": "Action: take key"},
        {"role": "user", "content": "taken"},
    ]
    path = chat(tmp_path, {"messages": conversation})
    (run,) = read(path, Reading(turns="one"))
    assert [(step.thought, step.action, step.observation) for step in run.trajectory.steps] == [
        ("look", "look around", "a key on a nail"),
        ("", "take key", "taken"),
    ]
    assert run.over
    assert len(list(read(path))) == 2


def test_a_system_message_belongs_to_the_task_only_if_told(tmp_path):
    path = chat(tmp_path, {"id": 1, "messages": openai_messages(messages_of("hello"))})
    (without,), (with_prompt,) = read(path), read(path, Reading(system_is_task=True))
    assert without.trajectory.task.instruction == "hello"
    assert with_prompt.trajectory.task.instruction == "system: You work in a lamp shop. Never be rude.\nhuman: hello"


def test_a_conversation_that_waits_for_a_tool_is_not_over(tmp_path):
    conversation = openai_messages(messages_of("desk lamp"))[:-1]
    (run,) = read(chat(tmp_path, {"messages": conversation}))
    assert (run.over, run.cut_off) == (False, True)
    later = [*conversation, {"role": "user", "content": "hurry"}, {"role": "assistant", "content": "sorry"}]
    abandoned, answered = read(chat(tmp_path, {"messages": later}))
    assert (abandoned.over, abandoned.cut_off) == (True, True)
    assert (answered.over, answered.cut_off) == (True, False)


def test_what_cannot_be_read_is_refused_with_its_line_and_without_its_text(tmp_path):
    path = chat(
        tmp_path,
        {"messages": [{"role": "user", "content": "secret"}]},
        {"messages": [{"role": "wizard", "content": "secret"}]},
        {"messages": "secret"},
        ["secret"],
        {"messages": openai_messages(messages_of("hello"))},
    )
    path.write_text(path.read_text() + '{"messages": [secret\n')
    *refused, run, damaged = read(path)
    refused.append(damaged)
    assert all(isinstance(record, Refused) for record in refused)
    assert [record.where for record in refused] == [f"chats.jsonl line {line}" for line in (1, 2, 3, 4, 6)]
    reasons = [record.reason for record in refused]
    for reason, part in zip(
        reasons, ("no message of the agent", "unknown form", "a list", "object", "JSON"), strict=True
    ):
        assert part in reason
        assert "secret" not in reason
    assert run.trajectory.task.instruction == "hello"


@pytest.mark.parametrize(
    ("fields", "thread"),
    [({"thread_id": "t", "id": "x"}, "t"), ({"session_id": 7}, "7"), ({"id": "x"}, "x"), ({"ticket": "y"}, None)],
)
def test_the_conversations_id_is_looked_for(tmp_path, fields, thread):
    (run,) = read(chat(tmp_path, {**fields, "messages": openai_messages(messages_of("hello"))}))
    assert run.origin.thread == thread or (thread is None and len(run.origin.thread) == 16)


def test_a_named_id_must_be_there(tmp_path):
    path = chat(tmp_path, {"ticket": "y", "messages": openai_messages(messages_of("hello"))})
    assert [run.origin.thread for run in read(path, Reading(thread="ticket"))] == ["y"]
    (refused,) = read(path, Reading(thread="meta.ticket"))
    assert "'meta.ticket'" in refused.reason


def test_an_answer_that_was_given_before_is_a_step_of_its_own_turn(tmp_path):
    said = [{"role": role, "content": text} for role, text in [("user", "hi"), ("assistant", "Yes?")] * 3]
    runs = list(read(chat(tmp_path, {"messages": said})))
    assert [[step.action for step in run.trajectory.steps] for run in runs] == [["Yes?"]] * 3
