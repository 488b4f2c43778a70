"""PNLC's decision with scripted parts: requests, their order, and the outcome."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from amc_agents.decisions import Sample
from amc_agents.errors import ConfigurationError, CriticError, DecisionError, UnreadableAnswer
from amc_agents.pnlc.decision import decide
from amc_agents.pnlc.prompts import ChatGoalProposer, PnlcPrompts
from amc_agents.pnlc.types import PnlcSettings, Proposed
from amc_agents.types import Step, Task, Trajectory
from tests.lac.lac_fakes import Odds, virtual_seconds
from tests.pnlc.pnlc_fakes import KEEP, Proposals, Reaches, Script, refine

STATE = Trajectory(Task("t", "Open the door."), (Step("look", "A door.", "Where am I?"),))
P = {("push", "open"): 0.1, ("push", "stuck"): 0.9, ("pull", "open"): 0.8, ("pull", "stuck"): 0.2}
ACTS = {"pull it": "pull", "wait": "wait", "kick it": "kick"}


def minds(prompt):
    """Reads its critique: keeps a thought whose bad outcomes are unlikely, else pulls."""
    likelihoods = [float(line.split("likelihood ")[1][:4]) for line in prompt.splitlines() if line.startswith("- bad")]
    assert likelihoods, "the critique has the bad outcomes with their likelihoods"
    return refine("pull it") if max(likelihoods) > 0.5 else KEEP


def deciding(thinker=None, critic=None, *, answers=None, prompts=None, **settings):
    thinker = thinker or Script(says=minds, acts=ACTS)
    proposer = ChatGoalProposer(answers or Proposals(), prompts)
    return decide(STATE, thinker, proposer, critic or Reaches(P), PnlcSettings(**settings), prompts=prompts)


# The paper's own loop


async def test_the_order_is_thought_goals_likelihoods_critique_refinement_action():
    thinker, answers, critic = Script(says=minds, acts=ACTS), Proposals(), Reaches(P)
    decision = await deciding(thinker, critic, answers=answers)
    assert [kind for kind, _ in thinker.asked] == ["sample", "answer", "act"]
    (asked,) = answers.prompts
    assert len(asked) == 2, "the good and the bad goals are asked for side by side"
    ((trajectory, thought, goals),) = critic.asked
    assert (trajectory, thought) == (STATE, "push it")
    assert goals == [f"The door is {word}, way {i}." for word in ("open", "stuck") for i in (1, 2)]
    assert (decision.sample.action, decision.sample.payload) == ("pull", "acted")
    assert [one.thought for one in decision.thoughts] == ["push it", "pull it"]
    assert decision.chosen == 1


async def test_the_critique_lists_every_goal_with_its_likelihood_and_the_agent_reads_it():
    thinker = Script(says=minds, acts=ACTS)
    decision = await deciding(thinker)
    first = decision.thoughts[0]
    for goal in first.goals:
        kind = "good" if goal.positive else "bad"
        assert f"- {kind}, likelihood {goal.likelihood:.2f}: {goal.text}" in first.critique.splitlines()
    assert [one.likelihood for one in first.goals] == [0.1, 0.1, 0.9, 0.9]
    assert first.score == pytest.approx(-0.8)
    (prompt,) = thinker.prompts
    assert first.critique in prompt
    for part in ("Open the door.", "Thought: Where am I?\nAction: look\nObservation: A door.", "push it"):
        assert part in prompt
    assert first.answer == refine("pull it")


@pytest.mark.parametrize("stuck", [0.0, 0.3, 0.5, 0.51, 0.9, 1.0])
async def test_the_action_changes_exactly_when_the_critique_says_so(stuck):
    thinker = Script(says=minds, acts=ACTS)
    decision = await deciding(thinker, Reaches({("", "open"): 0.5, ("", "stuck"): stuck}))
    changes = stuck > 0.5
    assert decision.sample.action == ("pull" if changes else "push")
    assert decision.sample.payload == ("acted" if changes else 0), "a kept thought keeps the turn that it came with"
    assert [kind for kind, _ in thinker.asked].count("act") == changes
    assert len(decision.thoughts) == 1 + changes


@pytest.mark.parametrize("m", [1, 2, 3, 5])
async def test_at_most_m_thoughts_are_made(m):
    numbers = iter(range(100))
    acts = {f"idea {i}": f"do {i}" for i in range(100)}
    thinker = Script(says=lambda prompt: refine(f"idea {next(numbers)}"), acts=acts)
    critic, answers = Reaches({("", ""): 0.5}), Proposals()
    decision = await deciding(thinker, critic, answers=answers, m=m)
    assert len(decision.thoughts) == m
    assert decision.sample.action == ("push" if m == 1 else f"do {m - 2}")
    assert [len(critic.asked), len(answers.prompts), len(thinker.prompts)] == [m - 1] * 3
    assert [kind for kind, _ in thinker.asked].count("act") == (m > 1), "only the final thought is acted on"
    assert decision.thoughts[-1].goals == (), "nothing is asked about a thought that cannot be refined any more"


async def test_each_thought_has_its_own_goals_and_critique():
    says = iter([refine("kick it"), refine("pull it")])
    answers, critic = Proposals(), Reaches({("kick", ""): 0.4, **P})
    thinker = Script(says=lambda prompt: next(says), acts=ACTS)
    decision = await deciding(thinker, critic, answers=answers, m=3)
    assert [thought for _, thought, _ in critic.asked] == ["push it", "kick it"]
    assert ["push it" in answers.prompts[0][0], "kick it" in answers.prompts[1][0]] == [True, True]
    assert "likelihood 0.40" in thinker.prompts[1]
    assert decision.sample.action == "pull"


async def test_refinement_stops_when_the_thought_is_kept():
    says = iter([refine("pull it"), KEEP])
    thinker = Script(says=lambda prompt: next(says), acts=ACTS)
    decision = await deciding(thinker, m=6)
    assert [one.thought for one in decision.thoughts] == ["push it", "pull it"]
    assert (decision.sample.action, decision.chosen) == ("pull", 1)
    assert decision.thoughts[1].answer == KEEP


async def test_a_thought_with_the_same_words_is_not_new():
    decision = await deciding(Script(says=lambda prompt: refine("push  it\n")))
    assert (decision.sample.payload, len(decision.thoughts), decision.notes) == (0, 1, ())


async def test_an_answer_that_cannot_be_parsed_keeps_the_thought_with_a_note():
    for said in ("Hm.", "Decision: REFINE", "Decision: MAYBE\nThought: pull it", ""):
        decision = await deciding(Script(says=lambda prompt, said=said: said))
        assert decision.sample.action == "push"
        assert "could not be parsed" in decision.notes[0]
        assert decision.thoughts[0].answer == said


async def test_an_action_in_an_answer_is_ignored():
    said = refine("pull it") + "\nAction: jump"
    decision = await deciding(Script(says=lambda prompt: said, acts=ACTS))
    assert decision.sample.action == "pull"


async def test_a_turn_without_a_thought_is_judged_by_its_action():
    critic = Reaches(P)
    await deciding(Script([("", "push")], says=minds, acts=ACTS), critic)
    assert critic.asked[0][1] == "push"


async def test_a_turn_without_an_action_is_an_error():
    with pytest.raises(DecisionError, match="none of 1 samples"):
        await deciding(Script([("hm", " ")]))
    with pytest.raises(DecisionError, match="none of 1 samples"):
        await deciding(Script(says=minds, acts={"pull it": ""}))


# Goals


@pytest.mark.parametrize(("good", "bad"), [(2, 2), (1, 3), (0, 2), (3, 0)])
async def test_so_many_goals_of_each_kind(good, bad):
    answers, critic = Proposals(), Reaches({("", ""): 0.4})
    decision = await deciding(Script(), critic, answers=answers, n_positive=good, n_negative=bad)
    assert [one.positive for one in decision.thoughts[0].goals] == [True] * good + [False] * bad
    assert len(answers.prompts[0]) == (good > 0) + (bad > 0)
    assert decision.thoughts[0].score == pytest.approx(0.4 * ((good > 0) - (bad > 0)))


async def test_goals_that_cannot_be_parsed_are_requested_again_and_then_quoted():
    said = {"bad": "I would rather not."}

    def says(prompt):
        first = "could not be read" not in prompt
        if first and "to be bad" in prompt:
            return said["bad"]
        return "Goal: one thing\nGoal: another thing"

    answers = Proposals(says=says)
    decision = await deciding(Script(), Reaches({("", ""): 0.5}), answers=answers)
    assert [len(prompts) for prompts in answers.prompts] == [2, 1], "only what could not be read is asked for again"
    assert "I would rather not." in answers.prompts[1][0]
    assert answers.prompts[1][0].startswith(answers.prompts[0][1])
    assert decision.round_trips == 5, "thought, goals twice, critic, reply"
    stubborn = Proposals(says=lambda prompt: "I would rather not." if "again" in prompt else "No, thank you.")
    with pytest.raises(DecisionError, match=r"goal proposer.*twice: 'No, thank you\.', then 'I would rather not\.'"):
        await deciding(Script(), answers=stubborn)
    assert len(stubborn.prompts) == 2


@pytest.mark.parametrize(
    "said",
    ["Goal: one", "Goal: one\nGoal: two\nGoal: three", "Goal: one\nGoal: one", "one\ntwo", "Goal:\nGoal: two", ""],
)
async def test_too_few_too_many_or_equal_goals_are_refused(said):
    with pytest.raises(DecisionError, match="requested form"):
        await deciding(Script(), answers=Proposals(says=lambda prompt: said))


async def test_goals_are_parsed_from_surrounding_text():
    said = "Sure.\n  goal 1: The  door is open.\nGoal 2: It is shut.\nThat's it."
    decision = await deciding(Script(), Reaches({("", ""): 0.5}), answers=Proposals(says=lambda prompt: said))
    assert [one.text for one in decision.thoughts[0].goals[:2]] == ["The door is open.", "It is shut."]


async def test_a_custom_proposer_must_return_the_requested_numbers():
    class Own:
        async def propose(self, trajectory, thought, n_positive, n_negative):
            return Proposed(("won",), ("lost",))

    with pytest.raises(CriticError, match=r"\(1, 1\) good and bad goals, expected \(2, 2\)"):
        await decide(STATE, Script(), Own(), Reaches(P), PnlcSettings())
    found = await decide(STATE, Script(), Own(), Reaches({("", ""): 1.0}), PnlcSettings(n_positive=1, n_negative=1))
    assert [one.text for one in found.thoughts[0].goals] == ["won", "lost"]


# Settings of the prompts


async def test_task_style_and_examples_are_the_users():
    prompts = PnlcPrompts(
        task="Doors may be locked.",
        goal_style="Write it in capitals.",
        positive_goals=("THE DOOR IS OPEN",),
        negative_goals=("THE KEY BREAKS",),
        refinements=(("hit it", "look for the key"),),
    )
    thinker, answers = Script(), Proposals()
    await deciding(thinker, Reaches({("", ""): 0.5}), answers=answers, prompts=prompts)
    good, bad = answers.prompts[0]
    for prompt in (good, bad, *thinker.prompts):
        assert prompt.startswith("Doors may be locked.\n\n")
    assert "Write it in capitals." in good
    assert ["Goal: THE DOOR IS OPEN" in one for one in (good, bad)] == [True, False]
    assert ["Goal: THE KEY BREAKS" in one for one in (good, bad)] == [False, True]
    assert "Thought: hit it\nBetter thought: look for the key" in thinker.prompts[0]


async def test_templates_can_be_replaced_and_braces_in_a_history_are_harmless():
    state = STATE.extended(Step('{"name": "go"}', "{thought}"))
    prompts = PnlcPrompts(refine="{past}|{thought}|{critique}", propose="{past} {thought} {kind} {n} {{x}}")
    thinker, answers = Script(), Proposals(says=lambda prompt: "Goal: a\nGoal: b")
    proposer = ChatGoalProposer(answers, prompts)
    await decide(state, thinker, proposer, Reaches({("", ""): 0.5}), PnlcSettings(), prompts=prompts)
    assert thinker.prompts[0].split("|")[1] == "push it"
    assert "{thought}" in thinker.prompts[0]
    assert answers.prompts[0][0].endswith(" 2 {x}")


def test_a_template_without_a_required_field_is_refused():
    with pytest.raises(ConfigurationError, match=r"'refine' has the fields \['past'\]: it needs .*critique"):
        PnlcPrompts(refine="{past}")
    with pytest.raises(ConfigurationError, match="brace"):
        PnlcPrompts(act="{thought} {oops}")


# The paper's ablations


async def test_without_goals_the_agent_reads_a_likelihood_of_success():
    thinker = Script(says=lambda prompt: refine("pull it") if "of\n0.25." in prompt else KEEP, acts=ACTS)
    odds = Odds({"push": np.log(0.25 / 0.75), "pull": 3.0})
    decision = await decide(STATE, thinker, None, odds, PnlcSettings(critique="value"))
    assert decision.sample.action == "pull"
    assert decision.thoughts[0].score == pytest.approx(0.25)
    assert decision.thoughts[0].goals == ()
    assert [one.steps[-1] for one in odds.seen[0]] == [Step("push", thought="push it")]
    kept = await decide(STATE, Script(acts=ACTS), None, Odds({"push": 3.0}), PnlcSettings(critique="value"))
    assert kept.sample.action == "push"


async def test_a_critic_of_values_reads_whole_turns():
    says = iter([refine("pull it"), refine("kick it"), KEEP])
    thinker, odds = Script(says=lambda prompt: next(says), acts=ACTS), Odds({"push": 0, "pull": 0, "kick": 0})
    decision = await decide(STATE, thinker, None, odds, PnlcSettings(critique="value", m=4))
    assert [seen[0].steps[-1].action for seen in odds.seen] == ["push", "pull", "kick"]
    assert [kind for kind, _ in thinker.asked].count("act") == 2, "an action that was taken for judging is kept"
    assert decision.sample.action == "kick"


async def test_a_value_between_the_returns_is_a_likelihood():
    class Values:
        predicts = "return"

        async def values(self, trajectories):
            return np.array([0.0 for _ in trajectories])

    settings = PnlcSettings(critique="value", returns=(-1.0, 3.0))
    decision = await decide(STATE, Script(), None, Values(), settings)
    assert decision.thoughts[0].score == pytest.approx(0.25)


MANY = [("push it", "push"), ("pull it", "pull"), ("push it", "push"), ("wait", "wait"), ("pull it", "pull")]
TABLE = {**P, ("wait", ""): 0.5}


async def test_without_refinement_the_critic_takes_the_best_of_k_thoughts():
    thinker, answers, critic = Script(MANY), Proposals(), Reaches(TABLE)
    decision = await deciding(thinker, critic, answers=answers, refine=False)
    assert thinker.asked == [("sample", 5)], "nobody has to read a critique"
    assert [one.thought for one in decision.thoughts] == ["push it", "pull it", "wait"]
    assert [one.score for one in decision.thoughts] == pytest.approx([-0.8, 0.6, 0.0])
    assert (decision.chosen, decision.sample.action, decision.sample.payload) == (1, "pull", 1)
    assert len(answers.prompts) == 1, "the goals are those of the state"
    assert "push it" not in answers.prompts[0][0]
    assert [len(goals) for _, _, goals in critic.asked] == [4, 4, 4]


async def test_the_best_of_k_needs_only_an_actor():
    class Actor:
        async def sample(self, k):
            return [Sample(*one) for one in MANY]

    decision = await decide(STATE, Actor(), ChatGoalProposer(Proposals()), Reaches(TABLE), PnlcSettings(refine=False))
    assert decision.sample.action == "pull"
    with pytest.raises(ConfigurationError, match="set refine=False"):
        await decide(STATE, Actor(), ChatGoalProposer(Proposals()), Reaches(TABLE), PnlcSettings())


async def test_the_best_of_k_by_values_is_judged_in_one_batch():
    odds = Odds({"push": 0.0, "pull": -1.0, "wait": 2.0})
    decision = await decide(STATE, Script(MANY), None, odds, PnlcSettings(refine=False, critique="value"))
    assert decision.sample.action == "wait"
    assert [len(seen) for seen in odds.seen] == [3]


async def test_samples_without_an_action_are_dropped_and_equal_ones_judged_once():
    thinker = Script([("hm", ""), *MANY[:3]])
    decision = await deciding(thinker, Reaches(TABLE), refine=False, k=4)
    assert [one.thought for one in decision.thoughts] == ["push it", "pull it"]
    assert decision.notes == ("1 of 4 samples name no action and were dropped",)


async def test_the_model_itself_estimates_the_likelihoods_of_goals():
    def says(prompt):
        if "How likely" in prompt:
            assert "3. The door is stuck, way 1." in prompt
            return "1: 0.2\n2: 0.1\n3: 0.75\n4: 1"
        return minds(prompt)

    thinker = Script(says=says, acts=ACTS)
    decision = await decide(STATE, thinker, ChatGoalProposer(Proposals()), None, PnlcSettings(critique="self"))
    assert [one.likelihood for one in decision.thoughts[0].goals] == [0.2, 0.1, 0.75, 1.0]
    assert "critic" not in decision.thoughts[0].critique
    assert decision.sample.action == "pull"


@pytest.mark.parametrize(
    "said", ["1: 0.2\n2: 0.1\n3: 0.75", "1: 2 of 10\n2: 1\n3: 1\n4: 1", "1: 2\n2: 1\n3: 1\n4: 1", "likely"]
)
async def test_likelihoods_that_cannot_be_parsed_are_requested_again(said):
    thinker = Script(says=lambda prompt: said)
    with pytest.raises(DecisionError, match=r"model's own estimate.*twice"):
        await decide(STATE, thinker, ChatGoalProposer(Proposals()), None, PnlcSettings(critique="self"))
    assert len(thinker.prompts) == 2


async def test_self_plan_is_the_models_own_choice_of_k():
    def says(prompt):
        assert "2.\nThought: pull it\nAction: pull" in prompt
        return "Choice: 3"

    thinker = Script(MANY, says=says)
    decision = await decide(STATE, thinker, None, None, PnlcSettings(critique="self", refine=False))
    assert (decision.sample.action, decision.chosen) == ("wait", 2)
    alone = Script(MANY[:1], says=says)
    assert (await decide(STATE, alone, None, None, PnlcSettings(critique="self", refine=False, k=1))).chosen == 0
    assert alone.prompts == [], "nothing is left to choose"
    thinker = Script(MANY, says=lambda prompt: "Choice: 4")
    with pytest.raises(DecisionError, match=r"model's own choice.*Choice: 4"):
        await decide(STATE, thinker, None, None, PnlcSettings(critique="self", refine=False))


# What it costs


@pytest.mark.parametrize(
    ("settings", "trips", "expected"),
    [
        ({}, 5, "thought, goals, critic, refinement, action"),
        ({"m": 1}, 1, "thought"),
        ({"m": 3}, 8, "three for each further round"),
        ({"refine": False}, 2, "thoughts beside goals, critic"),
        ({"critique": "value"}, 4, "thought, critic, refinement, action"),
        ({"critique": "value", "refine": False}, 2, "thoughts, critic"),
        ({"critique": "self"}, 5, "thought, goals, estimate, refinement, action"),
        ({"critique": "self", "refine": False}, 2, "thoughts, choice"),
    ],
)
def test_round_trips_are_counted_as_on_the_clock(settings, trips, expected):
    numbers = iter(range(100))

    def says(prompt):
        if "How likely" in prompt:
            return "1: 1\n2: 1\n3: 0\n4: 0"
        return "Choice: 1" if "Choice:" in prompt else refine(f"idea {next(numbers)}")

    thinker = Script(MANY, says=says, acts={f"idea {i}": f"do {i}" for i in range(9)}, delay=1.0)
    proposer = ChatGoalProposer(Proposals(delay=1.0))
    basis = settings.get("critique", "goals")
    critic = {"goals": Reaches({("", ""): 0.5}, 1.0), "value": Odds({a: 0 for _, a in MANY}, 1.0), "self": None}[basis]
    decision, seconds = virtual_seconds(decide(STATE, thinker, proposer, critic, PnlcSettings(**settings)))
    assert (decision.round_trips, seconds) == (trips, trips), expected


def test_a_kept_thought_takes_four():
    thinker, proposer = Script(delay=1.0), ChatGoalProposer(Proposals(delay=1.0))
    decision, seconds = virtual_seconds(
        decide(STATE, thinker, proposer, Reaches({("", ""): 0.5}, 1.0), PnlcSettings(m=9))
    )
    assert (decision.round_trips, seconds) == (4, 4)


@pytest.mark.parametrize(("settings", "expected"), [({}, 5), ({"refine": False}, 2), ({"m": 1}, 1)])
def test_a_critic_processes_the_state_while_the_policy_thinks(settings, expected):
    class Reads(Reaches):
        read = 0

        async def prepare(self, trajectory):
            assert trajectory == STATE
            await asyncio.sleep(1.0)
            self.read += 1

    critic = Reads({("", ""): 0.5}, 1.0)
    thinker = Script(MANY, says=lambda prompt: refine("pull it"), acts=ACTS, delay=1.0)
    proposer = ChatGoalProposer(Proposals(delay=1.0))
    decision, seconds = virtual_seconds(decide(STATE, thinker, proposer, critic, PnlcSettings(**settings)))
    assert (decision.round_trips, seconds) == (expected, expected)
    assert critic.read == (expected > 1)


# When something fails


async def test_a_malformed_answer_of_a_critic_is_an_error_or_keeps_the_thought():
    class Nonsense:
        def __init__(self, answer):
            self.answer = answer

        async def reach(self, trajectory, thought, goals):
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    for answer, match in (
        ([0.5], r"shape \[1\]"),
        ([0.5, np.nan, 0.1, 0.2], "nan"),
        ([0.5, 1.2, 0.1, 0.2], "from 0 to 1"),
        (CriticError("gone"), "gone"),
        (ConnectionError("refused"), "critic Nonsense failed: ConnectionError: refused"),
        (ValueError("bad"), "critic Nonsense failed: ValueError: bad"),
        (["n/a"] * 4, "answered list of str, expected"),
        (None, "answered NoneType, expected"),
    ):
        with pytest.raises(CriticError, match=match):
            await deciding(Script(), Nonsense(answer))
        for more in ({}, {"refine": False}):
            decision = await deciding(Script(MANY), Nonsense(answer), on_critic_error="uniform", **more)
            assert (decision.sample.action, decision.thoughts[0].score) == ("push", None)
            assert "the thought is kept: CriticError" in decision.notes[0]


async def test_a_failing_proposer_counts_as_a_critic_failure():
    def fails(prompt):
        raise ValueError("no connection")

    for more in ({}, {"refine": False}):
        with pytest.raises(CriticError, match="goal proposer failed: ValueError: no connection"):
            await deciding(Script(MANY), answers=Proposals(says=fails), **more)
        decision = await deciding(Script(MANY), answers=Proposals(says=fails), on_critic_error="uniform", **more)
        assert decision.sample.action == "push"


async def test_any_failure_beside_the_critic_can_leave_the_plain_turn():
    class Prepares:
        async def prepare(self, trajectory):
            raise OSError("gone")

        async def reach(self, trajectory, thought, goals):
            return [0.5] * len(goals)

    class ProposesNothing:
        async def propose(self, *asked):
            return None

    for more in ({}, {"refine": False}):
        with pytest.raises(CriticError, match="critic Prepares failed: OSError"):
            await deciding(Script(MANY), Prepares(), **more)
        decision = await deciding(Script(MANY), Prepares(), on_critic_error="uniform", **more)
        assert decision.sample.action == "push"
        settings = PnlcSettings(on_critic_error="uniform", **more)
        decision = await decide(STATE, Script(MANY), ProposesNothing(), Prepares(), settings)
        assert decision.sample.action == "push"
        assert any("the goal proposer failed: AttributeError" in note for note in decision.notes)


async def test_goals_that_cannot_be_parsed_keep_the_thought():
    for more in ({}, {"refine": False}):
        with pytest.raises(DecisionError, match="goal proposer did not answer in the requested form"):
            await deciding(Script(MANY), answers=Proposals(says=lambda prompt: "hm"), **more)
        answers = Proposals(says=lambda prompt: "hm")
        decision = await deciding(Script(MANY), answers=answers, on_critic_error="uniform", **more)
        assert decision.sample.action == "push"
        assert "the thought is kept: DecisionError" in decision.notes[0]


async def test_errors_of_the_agent_are_not_wrapped():
    def fails(prompt):
        raise ValueError("the policy is gone")

    with pytest.raises(ValueError, match="the policy is gone"):
        await deciding(Script(says=fails), on_critic_error="uniform")


async def test_missing_objects_are_named():
    proposer = ChatGoalProposer(Proposals())
    with pytest.raises(ConfigurationError, match="needs a critic"):
        await decide(STATE, Script(), proposer, None, PnlcSettings())
    with pytest.raises(ConfigurationError, match="proposer is needed"):
        await decide(STATE, Script(), None, Reaches(P), PnlcSettings())
    with pytest.raises(ConfigurationError, match="pnlc does not take"):
        await decide(STATE, Script(), proposer, Odds({}), PnlcSettings())


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"m": 0}, "m must be a number of thoughts"),
        ({"k": 0}, "k must be a number of thoughts"),
        ({"n_positive": 0, "n_negative": 0}, "at least 1 goal"),
        ({"n_positive": -1}, "at least 1 goal"),
        ({"critique": "both"}, "goals, value, self"),
        ({"returns": (1, 0)}, "in ascending order"),
        ({"on_critic_error": "keep"}, "uniform"),
    ],
)
def test_invalid_settings_are_refused(wrong, match):
    with pytest.raises(ConfigurationError, match=match):
        PnlcSettings(**wrong)


async def test_a_decision_is_plain_values():
    told = json.loads(json.dumps((await deciding()).as_plain()))
    assert (told["thought"], told["action"], told["chosen"], told["round_trips"]) == ("pull it", "pull", 1, 5)
    assert told["thoughts"][0]["goals"][0] == {
        "text": "The door is open, way 1.",
        "positive": True,
        "likelihood": 0.1,
    }


async def test_a_value_that_cannot_be_read_keeps_the_thought():
    class Unread:
        predicts = "return"

        async def values(self, trajectories):
            raise UnreadableAnswer(np.full(len(trajectories), np.nan), "1 of 1 answers cannot be read")

    decision = await decide(STATE, Script(acts=ACTS), None, Unread(), PnlcSettings(critique="value"))
    assert decision.sample.action == "push"
    assert "the thought is kept: UnreadableAnswer" in decision.notes[0]
