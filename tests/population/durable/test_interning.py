"""Values as nodes of a table: nothing is lost, and shared parts are stored once."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command, Overwrite, Send

from amc_agents.population.features.durable.interning import Table

SERDE = JsonPlusSerializer()
ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.tuples(st.integers()), inner)
        | st.sets(ATOMS)
        | st.frozensets(ATOMS)
    ),
)


def stored(table):
    """The table as another process reads it."""
    kind, data = SERDE.dumps_typed(table.new)
    return Table(SERDE, SERDE.loads_typed((kind, data)))


def same(one, other):
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.mark.thorough
@given(VALUES)
def test_a_value_comes_back_with_its_types(value):
    table = Table(SERDE)
    key = table.encode(value)
    back = stored(table).decode(key)
    assert back == value
    if not isinstance(value, (set, frozenset)) and "{" not in repr(value):
        assert same(back, value)


@pytest.mark.parametrize("number", [0.0, -0.0, math.inf, -math.inf, 1, 1.0, True, 2**127, -(2**70), 2**63, 5e-324])
def test_numbers_that_compare_equal_stay_apart(number):
    table = Table(SERDE)
    keys = [table.encode(value) for value in (0, 0.0, False, 1, True, 1.0, number)]
    assert len(set(keys[:6])) == 6
    assert same(stored(table).decode(keys[-1]), number)


def test_nan_comes_back():
    table = Table(SERDE)
    key = table.encode(math.nan)
    assert math.isnan(stored(table).decode(key))


@pytest.mark.parametrize(
    "array", [np.arange(6.0).reshape(2, 3), np.array(-np.inf), np.array([True, False]), np.zeros(0)]
)
def test_arrays_come_back_writable(array):
    table = Table(SERDE)
    key = table.encode(array)
    back = stored(table).decode(key)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(back, array)
    back[...] = 0


def test_what_langgraph_puts_into_a_state_comes_back():
    message = HumanMessage("hello", id="1")
    command: Command = Command(
        graph=Command.PARENT, update={"messages": [message]}, goto=Send("node", {"x": [message]})
    )
    table = Table(SERDE)
    keys = [table.encode(value) for value in (command, Overwrite([message]))]
    back = stored(table)
    assert back.decode(keys[0]) == command
    assert back.decode(keys[1]) == Overwrite([message])


def test_a_message_is_stored_once_and_comes_back_as_one_object():
    messages = [HumanMessage("x" * 1000, id="1"), AIMessage("y" * 1000, id="2")]
    table = Table(SERDE)
    key = table.encode({"state": messages, "sibling": [*messages], "tail": messages[1:]})
    assert sum(len(node[2]) for node in table.new if isinstance(node, list) and len(node) > 2 and node[0] == 8) < 2900
    back = stored(table).decode(key)
    assert back == {"state": messages, "sibling": messages, "tail": messages[1:]}
    assert back["state"][1] is back["sibling"][1] is back["tail"][0]
    assert back["state"] is not back["sibling"]


def test_a_longer_conversation_adds_only_what_is_new():
    table = Table(SERDE)
    messages = [HumanMessage(f"{i}", id=str(i)) for i in range(200)]
    table.encode(messages)
    table.mark_stored()
    table.encode([*messages, AIMessage("new", id="new")])
    assert len(table.new) == 3, "the message, its link and the list"


def test_a_restored_table_knows_its_messages():
    table = Table(SERDE)
    key = table.encode([HumanMessage("a", id="1")])
    back = stored(table)
    again = back.decode(key)
    back.mark_stored()
    assert back.encode(again) == key
    assert back.new == []


class Mutable:
    """An object that only pickle can store, changed in place between two points."""

    def __init__(self, value):
        self.value = value


def test_a_mutable_object_is_stored_as_it_is_at_each_point():
    serde = JsonPlusSerializer(pickle_fallback=True)
    table, box = Table(serde), Mutable(1)
    first = table.encode([box])
    box.value = 2
    second = table.encode([box])
    back = Table(serde, table.new)
    assert [back.decode(key)[0].value for key in (first, second)] == [1, 2]
    assert back.decode(first)[0] is not back.decode(first)[0], "particles do not share it"


def test_what_cannot_be_serialised_is_refused():
    with pytest.raises(TypeError):
        Table(SERDE).encode([Mutable(1)])
