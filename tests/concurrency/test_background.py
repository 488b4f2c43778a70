"""The background loop: Ctrl-C ends the process once, readers leave at once, forked processes start anew."""

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest

from amc_agents.concurrency import background
from amc_agents.concurrency.background import DaemonThreads, read_sync, run_in_background
from amc_agents.population.wrap import amc
from tests.population.worlds import number_agent, start

PROGRAM = """
import asyncio, os, signal, sys, threading, time
from amc_agents import AtSteps, amc
from tests.population.worlds import TASK, ReturnSoFar, SumWorld, number_agent, start

# A shell starts its background jobs with SIGINT ignored, and Python then leaves it so.
signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupt():
    # As Ctrl-C: to the main thread, once it waits.
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

class Open(SumWorld):
    open = made = 0
"""


def outcome(program, repository):
    """Run a program to its end, which must come by itself."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM + textwrap.dedent(program)], cwd=repository,
                           capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    return ended.returncode, ended.stdout.split(), ended.stderr


CALLS = {
    "invoke": "graph.invoke(start())",
    "run": "graph.run(start())",
    "custom": "list(graph.stream(start(), stream_mode='custom'))",
    "messages": "list(graph.stream(start(), stream_mode=['messages', 'updates']))",
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("call", "hanging"),
    [
        ("run", "thread"),
        ("custom", "loop"),
        *(pytest.param(call, "thread", marks=pytest.mark.thorough) for call in ("invoke", "messages")),
    ],
)
def test_one_ctrl_c_ends_a_process_whose_critic_hangs(call, hanging, repository):
    # The critic hangs in a sync call in a thread of the loop's, as a provider's client does, or in an async one.
    program = f"""
    class Hangs:
        async def values(self, trajectories):
            threading.Timer(0.1, interrupt).start()
            await (asyncio.to_thread(threading.Event().wait) if {hanging == "thread"} else asyncio.Event().wait())

    graph = amc(number_agent(), Hangs(), n_particles=3, resample=AtSteps(1), environment=lambda s: (Open(3), TASK))
    try:
        {CALLS[call]}
    except KeyboardInterrupt:
        print("interrupted", Open.made > 0, Open.open)
        raise
    """
    code, printed, errors = outcome(program, repository)
    assert printed == ["interrupted", "True", "0"], errors
    assert code != 0
    assert "KeyboardInterrupt" in errors


def test_errors_of_a_stream_come_as_they_are():
    def environment(state):
        raise LookupError("no such task")

    with pytest.raises(LookupError, match="no such task"):
        amc(number_agent(), "uniform", environment=environment, n_particles=2).run(start())


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_makes_sync_calls_too(repository):
    program = """
    graph = amc(number_agent(), "uniform", n_particles=2, resample=AtSteps(1), environment=lambda s: (Open(3), TASK))
    graph.invoke(start())
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        graph.invoke(start())
        grandchild = os.fork()
        if grandchild == 0:
            signal.alarm(20)
            graph.run(start())
            os._exit(7)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    graph.run(start())
    print("parent")
    """
    code, printed, errors = outcome(program, repository)
    assert (code, printed) == (0, ["7", "parent"]), errors


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_objects_with_threads_work_in_a_forked_process(repository):
    # A sync critic, the shipped critic and the shipped policy's batcher, each used before the fork.
    program = """
    from amc_agents.models.embedded import EmbeddedChatModel
    from amc_agents.concurrency.background import DaemonThreads

    class Sync:
        def values(self, trajectories):
            return [0.0] * len(trajectories)

    pool = DaemonThreads(2, "mine")
    model = EmbeddedChatModel()
    graphs = [amc(number_agent(), critic, n_particles=2, resample=AtSteps(1), environment=lambda s: (Open(2), TASK))
              for critic in (Sync(), "uniform")]

    def use():
        pool.submit(len, "ab").result()
        model.invoke("Task: make a plank.")
        model.invoke("Task: make a stick.")
        for graph in graphs:
            graph.run(start())

    use()
    child = os.fork()
    if child == 0:
        signal.alarm(40)
        use()
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    code, printed, errors = outcome(program, repository)
    assert (code, printed) == (0, ["7"]), errors


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_handshake_under_way_at_a_fork_is_made_again_in_the_forked_process(repository):
    program = """
    from amc_agents.concurrency.gather import Once

    made = []
    async def make():
        made.append(os.getpid())
        if len(made) == 1:
            await asyncio.Event().wait()
        return "ready"

    once = Once(make)
    threading.Thread(target=lambda: asyncio.run(once.get()), daemon=True).start()
    while not made:
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        assert asyncio.run(once.get()) == "ready"
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)
    """
    code, printed, errors = outcome(program, repository)
    assert (code, printed) == (0, ["7"]), errors


# --- the threads --------------------------------------------------------------------------------------------


def test_a_pool_runs_calls_side_by_side_up_to_its_size():
    pool, both, order = DaemonThreads(2, "test"), threading.Barrier(2, timeout=20), []
    waiting = [pool.submit(both.wait) for _ in range(2)]
    assert sorted(future.result(20) for future in waiting) == [0, 1]
    blocked = threading.Event()
    busy = [pool.submit(blocked.wait) for _ in range(2)]
    queued = [pool.submit(order.append, i) for i in range(3)]
    assert queued[1].cancel()
    blocked.set()
    assert all(future.result(20) for future in busy)
    assert queued[2].result(20) is None
    assert order == [0, 2]


@pytest.mark.thorough  # a process; quick: the pool's other tests
def test_a_pool_gives_errors_and_ends_its_threads():
    pool = DaemonThreads(1, "test-ending")
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result(20)
    assert pool.submit(int, "3").result(20) == 3
    threads = [thread for thread in threading.enumerate() if thread.name == "test-ending"]
    assert [thread.daemon for thread in threads] == [True]
    pool.shutdown(cancel_futures=True)
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(int)
    threads[0].join(20)
    forgotten = DaemonThreads(1, "test-forgotten")
    forgotten.submit(int).result(20)
    thread = next(thread for thread in threading.enumerate() if thread.name == "test-forgotten")
    gone = weakref.ref(forgotten)
    del forgotten
    gc.collect()
    assert gone() is None
    thread.join(20)
    assert not thread.is_alive()


def test_the_loop_has_the_requested_number_of_threads():
    async def all_at_once(n):
        barrier = threading.Barrier(n, timeout=20)
        await asyncio.gather(*(asyncio.to_thread(barrier.wait) for _ in range(n)))

    run_in_background(all_at_once(40), n_workers=40)


async def test_a_sync_stream_is_closed_although_the_wait_for_it_is_cancelled(monkeypatch):
    """The thread is busy, so that its last call, which closes the stream, has not begun."""
    free, closed = threading.Event(), threading.Event()

    class Busy(DaemonThreads):
        def shutdown(self, *args, **options):
            return None

        def submit(self, fn, /, *args, **options):
            if args and args[-1] == events.close:
                super().submit(free.wait, 10)
            return super().submit(fn, *args, **options)

    def counting():
        try:
            yield from range(3)
        finally:
            closed.set()

    monkeypatch.setattr(background, "DaemonThreads", Busy)
    events = counting()
    reader = read_sync(events)
    assert await anext(reader) == 0
    closing = asyncio.create_task(reader.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    free.set()
    assert await asyncio.to_thread(closed.wait, 10)
