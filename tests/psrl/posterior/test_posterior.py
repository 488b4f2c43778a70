from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from amc_agents.errors import PosteriorError, UpdateError
from amc_agents.psrl.posterior.memory import Evidence, InMemoryPosterior, Version
from amc_agents.psrl.posterior.updates import apply_pending, diff, edit, rollback, update_posterior

PRIOR = "Lever A: 0 of 0.\nLever B: 0 of 0."


async def append_line(text, evidence):
    await asyncio.sleep(0)
    return f"{text}\n{evidence.observation}"


async def refuse(text, evidence):
    raise TimeoutError("no answer in 5 s")


def seen(text):
    """What was observed, of a posterior that `append_line` wrote."""
    return text.removeprefix(PRIOR).split()


async def test_evidence_becomes_a_version_that_says_what_changed():
    memory = InMemoryPosterior(PRIOR)
    evidence = Evidence("episode 1", "won:A", "e1")
    version = await update_posterior(memory, append_line, evidence)
    first, head = await memory.history()
    assert head == version
    assert (head.text, head.cause, head.number) == (f"{PRIOR}\nwon:A", "evidence", 2)
    assert (head.parent, head.evidence, head.dropped) == (first.id, evidence, ())
    assert (first.text, first.cause, first.parent) == (PRIOR, "prior", None)
    assert diff(first, head).splitlines()[-1] == "+won:A"
    assert await memory.pending() == ()


async def test_repeated_evidence_is_applied_once_without_a_call():
    memory = InMemoryPosterior(PRIOR)
    await update_posterior(memory, append_line, Evidence("1", "won:A", "e1"))
    version = await update_posterior(memory, refuse, Evidence("1", "won:A", "e1"))
    assert version.number == 2


@pytest.mark.parametrize("answer", ["", " \n", None, 7])
async def test_a_failed_update_keeps_the_posterior_and_the_evidence(answer):
    async def answers(text, evidence):
        return answer

    memory = InMemoryPosterior(PRIOR)
    for apply, reason in ((refuse, "TimeoutError: no answer in 5 s"), (answers, f"as a text, got {answer!r}")):
        with pytest.raises(UpdateError, match=r"stays at version 1, and the .* call apply_pending") as raised:
            await update_posterior(memory, apply, Evidence("night shift", "won:A", "e1"))
        assert reason in str(raised.value)
        assert (raised.value.number, raised.value.episode) == (1, "night shift")
        assert (await memory.head()).text == PRIOR
        assert [evidence.id for evidence in await memory.pending()] == ["e1"]
    assert (await apply_pending(memory, append_line)).text == f"{PRIOR}\nwon:A"
    assert await memory.pending() == ()


async def test_pending_evidence_that_fails_again_does_not_hold_up_the_rest():
    memory = InMemoryPosterior(PRIOR)

    async def squeamish(text, evidence):
        return await (refuse if evidence.observation == "bad" else append_line)(text, evidence)

    for name in ("bad", "good:1", "good:2"):
        with pytest.raises(UpdateError):
            await update_posterior(memory, refuse, Evidence(name, name))
    with pytest.raises(UpdateError, match="episode 'bad'"):
        await apply_pending(memory, squeamish)
    assert seen((await memory.head()).text) == ["good:1", "good:2"]
    assert [evidence.episode for evidence in await memory.pending()] == ["bad"]


async def test_twenty_tasks_at_once_lose_nothing_and_pay_for_nothing_twice():
    memory, calls = InMemoryPosterior(PRIOR), []

    async def counted(text, evidence):
        calls.append(evidence.id)
        return await append_line(text, evidence)

    await asyncio.gather(*[update_posterior(memory, counted, Evidence(f"{i}", f"x{i}")) for i in range(20)])
    assert sorted(seen((await memory.head()).text)) == sorted(f"x{i}" for i in range(20))
    assert len(calls) == 20


def test_twenty_threads_with_loops_of_their_own_lose_nothing():
    memory, together = InMemoryPosterior(PRIOR), threading.Barrier(20)

    async def slow(text, evidence):
        await asyncio.sleep(0.001)
        return await append_line(text, evidence)

    def write(i):
        together.wait()
        asyncio.run(update_posterior(memory, slow, Evidence(f"{i}", f"x{i}")))

    threads = [threading.Thread(target=write, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history = asyncio.run(memory.history())
    assert [version.number for version in history] == list(range(1, 22))
    assert sorted(seen(history[-1].text)) == sorted(f"x{i}" for i in range(20))


async def test_an_update_that_finds_another_head_is_applied_again_to_that():
    memory, texts = InMemoryPosterior(PRIOR), []

    async def overtaken(text, evidence):
        texts.append(text)
        if len(texts) == 1:
            await edit(memory, f"{PRIOR}\nowner")
        return await append_line(text, evidence)

    version = await update_posterior(memory, overtaken, Evidence("1", "won:A"))
    assert texts == [PRIOR, f"{PRIOR}\nowner"]
    assert version.text == f"{PRIOR}\nowner\nwon:A"


async def test_an_edit_of_an_older_version_wins_and_what_was_seen_since_is_applied_again():
    memory = InMemoryPosterior(PRIOR)
    opened = await memory.head()
    for i in range(3):
        await update_posterior(memory, append_line, Evidence(f"{i}", f"x{i}"))
    edited = await edit(memory, "Lever C as well.", parent=opened.id, note="a lever was built in")
    assert await memory.head() == edited
    assert (edited.cause, edited.parent, edited.number, edited.note) == ("edit", opened.id, 5, "a lever was built in")
    assert [evidence.observation for evidence in await memory.pending()] == ["x0", "x1", "x2"]
    head = await update_posterior(memory, append_line, Evidence("3", "x3"))
    assert head.text.splitlines() == ["Lever C as well.", "x3", "x0", "x1", "x2"]
    assert len(await memory.versions()) == 9
    assert await memory.pending() == ()


async def test_the_second_of_two_edits_of_one_version_is_kept_but_not_in_use():
    memory = InMemoryPosterior(PRIOR)
    opened = await memory.head()
    mine = await edit(memory, "mine", parent=opened.id)
    await update_posterior(memory, append_line, Evidence("1", "won:A"))
    with pytest.raises(PosteriorError, match=rf"version 2 \({mine.id}\) was written .* as version 4 .* not in use"):
        await edit(memory, "yours", parent=opened.id)
    assert (await memory.head()).text == "mine\nwon:A"
    assert (await memory.get("4")).text == "yours"


async def test_a_rollback_is_a_version_and_what_came_between_is_done_with():
    memory = InMemoryPosterior(PRIOR)
    for i in range(3):
        await update_posterior(memory, append_line, Evidence(f"{i}", f"x{i}"))
    back = await rollback(memory, "2", note="the sensor was broken")
    assert (back.text, back.cause, back.restores) == (f"{PRIOR}\nx0", "rollback", (await memory.get("2")).id)
    assert [version.number for version in await memory.history()] == [1, 2, 3, 4, 5]
    assert await memory.pending() == ()
    head = await update_posterior(memory, append_line, Evidence("3", "x3"))
    assert seen(head.text) == ["x0", "x3"]
    assert await rollback(memory, head.id) == head


async def test_edits_that_change_nothing_make_no_version_and_empty_ones_are_refused():
    memory = InMemoryPosterior(PRIOR)
    assert (await edit(memory, PRIOR)).number == 1
    with pytest.raises(PosteriorError, match="empty"):
        await edit(memory, "  \n")
    assert len(await memory.versions()) == 1


async def test_a_version_is_found_by_number_id_or_the_first_letters_of_it():
    memory = InMemoryPosterior(PRIOR)
    await memory.append(Version("a", "edit", (await memory.head()).id, 2, id="abcd11"))
    await memory.append(Version("b", "edit", "abcd11", 3, id="abcd22"))
    assert [(await memory.get(name)).text for name in ("2", "abcd11", "abcd2")] == ["a", "a", "b"]
    with pytest.raises(PosteriorError, match=r"2 versions match 'abcd'.* 2 \(abcd11\), 3 \(abcd22\)"):
        await memory.get("abcd")
    with pytest.raises(PosteriorError, match=r"no version matches '9'.* 3 \(abcd22\)"):
        await memory.get("9")


async def test_dropped_statements_get_a_second_try():
    calls = []

    async def forgets_once(text, evidence):
        calls.append((text, evidence.must_keep))
        return PRIOR.replace("A: 0 of 0", "A: 1 of 1") if evidence.must_keep else "Lever A: 1 of 1."

    memory = InMemoryPosterior(PRIOR)
    version = await update_posterior(memory, forgets_once, Evidence("1", "won:A", "e1"))
    assert calls == [(PRIOR, ()), (PRIOR, ("Lever B: 0 of 0.",))]
    assert (version.text, version.dropped) == ("Lever A: 1 of 1.\nLever B: 0 of 0.", ())
    assert version.evidence == Evidence("1", "won:A", "e1")


async def test_statements_dropped_twice_are_logged_with_the_diff(caplog):
    calls = []

    async def forgets(text, evidence):
        calls.append(evidence.must_keep)
        return "Lever A: 1 of 1."

    memory = InMemoryPosterior(PRIOR)
    with caplog.at_level(logging.WARNING):
        version = await update_posterior(memory, forgets, Evidence("night", "won:A"))
    assert len(calls) == 2
    assert (version.text, version.dropped) == ("Lever A: 1 of 1.", ("Lever B: 0 of 0.",))
    assert "episode night dropped known statements" in caplog.text
    assert "-Lever B: 0 of 0." in caplog.text


async def test_the_better_of_two_tries_is_taken():
    answers = iter(["Lever A: 1 of 1.", "Nothing is known any more."])

    async def worse(text, evidence):
        return next(answers)

    version = await update_posterior(InMemoryPosterior(PRIOR), worse, Evidence("1", "won:A"))
    assert (version.text, version.dropped) == ("Lever A: 1 of 1.", ("Lever B: 0 of 0.",))


async def test_a_second_try_that_fails_leaves_the_posterior_as_it_was():
    async def breaks(text, evidence):
        return await refuse(text, evidence) if evidence.must_keep else "Lever A: 1 of 1."

    memory = InMemoryPosterior(PRIOR)
    with pytest.raises(UpdateError):
        await update_posterior(memory, breaks, Evidence("1", "won:A"))
    assert (await memory.head()).text == PRIOR


async def test_without_a_guard_an_exact_updater_is_not_questioned():
    async def exact(text, evidence):
        return "Beta(2, 1)"

    version = await update_posterior(InMemoryPosterior(PRIOR), exact, Evidence("1", "won:A"), guard=None)
    assert (version.text, version.dropped) == ("Beta(2, 1)", ())
