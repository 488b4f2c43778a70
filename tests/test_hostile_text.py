"""Texts of models, worlds and users that try to hold up whoever reads them."""

from __future__ import annotations

import re
import signal
from collections import Counter
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amc_agents.critics.judge.style import stated_number
from amc_agents.envs.crafting.tasks import parse_instruction
from amc_agents.errors import ConfigurationError
from amc_agents.lac.imagination import before_verdict, read_imagined
from amc_agents.messages import split_turn
from amc_agents.pnlc.prompts import read_choice, read_goals, read_likelihoods, read_reply
from amc_agents.psrl import ids as estimates
from amc_agents.psrl.posterior import retained
from amc_agents.psrl.posterior.priors import parse_prior
from amc_agents.psrl.posterior.retained import dropped_statements
from amc_agents.psrl.roles import after, read_experience, read_step

LENGTH = 500_000
"""Characters. A quadratic reader takes 10^11 steps for so many: minutes at least."""


@contextmanager
def no_longer_than(seconds):
    """Ends what does not come to an end. No measurement: a linear reader needs a hundredth of it."""

    def stop(number, frame):
        raise TimeoutError(f"not read within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def long(piece, begin="", end="", *, length=LENGTH):
    return begin + piece * (length // len(piece)) + end


def statements(piece):
    """Shorter, since comparing two statements takes a thousand times as long as reading a character."""
    return long(piece, length=LENGTH // 10)


def regret(text):
    return estimates._number_after(estimates.REGRET_IS, 0.0)(text)


def likelihoods(text):
    return read_likelihoods(text, 1)


def choice(text):
    return read_choice(text, 2)


def against_itself(text):
    return dropped_statements(text, text.replace("a", "b") + text)


def in_one_line(text):
    return dropped_statements(text, " ".join(re.findall(r"\w+", text)))


TEXTS = {
    split_turn: [
        long(" ", "Thought:"),
        long("\n", "Thought: let me see"),
        long(" \n", "Thought: let me", "end"),
        long(" ", "Thought: a\nAction: get 1 clay", "b"),
        long("Action", "Thought: "),
        long(" Thought:", "Thought:"),
    ],
    read_reply: [
        long(" \n", "Decision: REFINE\nThought: a", "b"),
        long("\n", "Decision: REFINE\nThought:"),
        long("Thought:\n", "Decision: REFINE\n"),
        long("\t", "Decision:"),
    ],
    likelihoods: [long("1", "1: ", "x"), long("1", "", "x"), long(" ", "1: 1", "x")],
    choice: [long("1", "Choice: "), long("Choice: 1x\n")],
    regret: [long("1", "Expected regret: ", "x1"), long(" ", "Expected regret:", "x"), long("1e", "Expected regret: ")],
    parse_prior: [
        long(": Beta(1"),
        long(": Beta(1", "", ", 2), 3)"),
        long(": Beta(1", "a, b", ", 2"),
        long(": Dirichlet("),
        long(": Uniform over {", "", ")"),
        long(": Dirichlet(", "", "}"),
        long(" ", "a:", "Beta(1, 2"),
        long("1", "Beta(", ", 2)"),
    ],
    against_itself: [
        statements("a. "),
        statements("a x.\n"),
        statements("a 1.\n"),
        long("a ", "", "."),
        long(" ", "a.", "b"),
    ],
    in_one_line: [statements("a. ")],
    parse_instruction: [
        long("\n", "Crafting commands:\ncraft 1 a using 1 b", "x"),
        long("\n  Goal: craft a", "Crafting commands:\ncraft 1 a using 1 b"),
        long(" using ", "Crafting commands:\ncraft 1 a", "\n\nGoal: craft a."),
    ],
    read_experience: [long("Step 1\nAction: a\n"), long("\n  a", "Step 1\nAction: a", "\nObservation")],
    read_imagined: [long("Observation:"), long(" ", "Observation:\n"), long("\n")],
    before_verdict: [long("This step is "), long(" ", "This step is", "x")],
    lambda text: read_goals(text, 1): [long(" ", "Goal"), long("1", "Goal "), long(" ", "Goal:")],
    stated_number("Score:"): [long("1", "Score: ", "x"), long("\n", "Score: 1"), long(".", "Score: 1")],
    lambda text: after(text, "Posterior:"): [long("\n"), long("Posterior:\n")],
    read_step: [long("Action:"), long(" ", "Action:", "\n")],
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("read", "text"), [pytest.param(read, text, id=f"{text[:20]!r}") for read, texts in TEXTS.items() for text in texts]
)
def test_no_reader_takes_more_than_a_text_is_long(read, text):
    with no_longer_than(60), suppress(ValueError):
        read(text)


@pytest.mark.parametrize("text", ["1" * 5000 + ": 0.5", "Choice: " + "1" * 5000])
def test_an_integer_that_python_refuses_to_read_is_no_answer(text):
    assert likelihoods(text) is None
    assert choice(text) is None


def test_a_prior_that_cannot_be_read_is_not_repeated_in_full():
    with pytest.raises(ConfigurationError) as caught:
        parse_prior("x: Beta(1, " + "9x" * 5000 + ")")
    assert len(str(caught.value)) < 600


def texts_of(*pieces):
    return st.lists(st.sampled_from(pieces), max_size=14).map("".join)


@given(texts_of("Thought:", "Action:", " ", "\n", "a", "xAction:", "\u2003", "é", ":"))
def test_a_turn_is_split_as_its_plain_definition_says(text):
    turn = re.compile(r"\s*(?:Thought:\s*(?P<thought>.*?)\s*)?\bAction:\s*(?P<action>.*?)\s*", re.DOTALL)
    match = turn.fullmatch(text)
    assert split_turn(text) == ((match["thought"] or "", match["action"]) if match else ("", text.strip()))


@given(texts_of("Decision: REFINE", "Decision: KEEP", "Thought:", "\nThought: ", "\nAction:", "\n", " ", "a", "\r"))
def test_a_reply_is_read_as_its_plain_definition_says(text):
    decision = re.compile(r"^[ \t]*Decision:[ \t]*(KEEP|REFINE)\b", re.MULTILINE | re.IGNORECASE)
    thought = re.compile(r"^[ \t]*Thought:\s*(\S.*?)\s*(?=^[ \t]*Action:|\Z)", re.MULTILINE | re.DOTALL | re.IGNORECASE)
    expected = None
    if decisions := list(decision.finditer(text)):
        match = thought.search(text, decisions[-1].end())
        expected = "" if decisions[-1][1].upper() == "KEEP" else match and match[1]
    assert read_reply(text) == expected


@given(
    texts_of("arm ", "one ", "two ", "3 ", "0.5 ", ". ", "\n", "? ", "never "),
    texts_of("arm ", "one ", "two ", "3 ", "0.5 ", ". ", "\n", "? ", "never "),
)
def test_dropped_statements_are_those_of_the_plain_pairing(old, new):
    statements = retained._statements(old)
    before = [list(retained._tokens(one)) for one in statements]
    followers = [list(retained._tokens(one)) for one in retained._statements(new)]

    def alike(mine, theirs):
        begins = next(
            (k for k, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), min(len(mine), len(theirs))
        )
        return begins, (Counter(mine) & Counter(theirs)).total() / max(len(mine), len(theirs))

    def may_succeed(mine, theirs):
        words = {token for token in mine if not token[0].isdigit()} or set(mine)
        return len(words & set(theirs)) >= 0.5 * len(words)

    left = {
        (i, j): alike(mine, theirs)
        for i, mine in enumerate(before)
        for j, theirs in enumerate(followers)
        if may_succeed(mine, theirs)
    }
    kept = {i for i, mine in enumerate(before) if any(Counter(mine) <= Counter(theirs) for theirs in followers)}
    while left:
        best, successor = max(left, key=lambda pair: (left[pair], -pair[0], -pair[1]))
        kept.add(best)
        left = {pair: value for pair, value in left.items() if pair[0] != best and pair[1] != successor}
    assert dropped_statements(old, new) == tuple(one for i, one in enumerate(statements) if i not in kept)
