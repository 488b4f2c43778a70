import asyncio
import functools
import gzip
import json
import math
import traceback
import urllib.parse
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest
from tenacity import AsyncRetrying

from amc_agents.concurrency.gather import RateGate
from amc_agents.critics.server import client
from amc_agents.critics.server.client import ModelServer
from amc_agents.errors import (
    AmcError,
    CheckpointError,
    ConfigurationError,
    CriticError,
    CriticServerError,
    PromptTooLong,
)
from amc_agents.usage import Usage
from tests.critics.server.scripted_server import CUT, HANG, Reply, ScriptedServer, in_turn

SECRET = "sk-do-not-show"


@pytest.fixture
def naps(monkeypatch):
    """Record the pauses between attempts instead of sleeping."""
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    async def passed(_):
        """Open the gate: no time passes in these tests."""

    monkeypatch.setattr(client, "AsyncRetrying", functools.partial(AsyncRetrying, sleep=sleep))
    monkeypatch.setattr(RateGate, "passed", passed)
    return pauses


async def fault_of(*replies, timeout=5.0, retry_for=0.0, **settings):
    """The error for these replies, and the server that sent them."""
    async with ScriptedServer(in_turn(*replies)) as server:
        with pytest.raises(CriticServerError) as caught:
            await ModelServer(server.url, timeout=timeout, retry_for=retry_for, **settings).get("/x")
    return caught.value, server


# --- retried failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Reply(500), Reply(502), Reply(503), Reply(429), CUT])
async def test_temporary_failures_are_retried(fault, naps):
    async with ScriptedServer(in_turn(fault, fault, Reply(body={"ok": 1}))) as server:
        assert await ModelServer(server.url).get("/x") == {"ok": 1}
    assert len(server.requests) == 3
    assert len(naps) == 2


async def test_pauses_grow_and_are_jittered(naps):
    async with ScriptedServer(in_turn(*[Reply(500)] * 9, Reply(body=1))) as server:
        await ModelServer(server.url).get("/x")
    ceilings = [0.25 * 2**attempt for attempt in range(6)] + [8.0] * 3
    assert len(naps) == 9
    for nap, ceiling in zip(naps, ceilings, strict=True):
        assert ceiling / 2 <= nap <= min(8.0, ceiling)
    assert len({nap / ceiling for nap, ceiling in zip(naps, ceilings, strict=True)}) == 9


@pytest.mark.parametrize("as_date", [False, True])
async def test_retry_after_is_respected(naps, as_date):
    later = "30" if not as_date else format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    async with ScriptedServer(in_turn(Reply(429, headers={"Retry-After": later}), Reply(body=1))) as server:
        assert await ModelServer(server.url).get("/x") == 1
    (nap,) = naps
    assert 28 <= nap <= 33.1


async def test_a_retry_after_beyond_retry_for_is_an_error_at_once(naps):
    error, server = await fault_of(Reply(503, headers={"Retry-After": "120"}), retry_for=60.0)
    assert naps == []
    assert len(server.requests) == 1
    assert "asks for 120 s" in str(error)
    assert "1 attempt, retry_for=60" in str(error)


async def test_retries_end_after_retry_for_and_the_error_has_the_reason():
    error, server = await fault_of(Reply(500, {"error": {"message": "EngineCore died"}}), retry_for=0.5)
    assert error.status == 500
    assert "HTTP 500: EngineCore died" in str(error)
    assert f"{len(server.requests)} attempts in 0." in str(error)
    assert len(server.requests) >= 2


async def test_a_time_out_is_retried():
    async with ScriptedServer(in_turn(HANG, Reply(body=1))) as server:
        assert await ModelServer(server.url, timeout=0.2, retry_for=5).get("/x") == 1


async def test_the_time_out_holds_for_the_whole_request():
    # Bytes keep arriving, so that no single read takes long.
    error, _ = await fault_of(Reply(body=b"1" * 100, drip=0.05), timeout=0.3)
    assert "no answer within 0.3 s" in str(error)
    assert error.status is None


# --- errors at once ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (400, "HTTP 400: too long"),
        (401, "set VLLM_API_KEY"),
        (403, "does not permit"),
        (404, "no such path or model"),
        (422, "HTTP 422: too long"),
    ],
)
async def test_a_refusal_is_not_retried(status, says):
    error, server = await fault_of(Reply(status, {"error": {"message": "too long"}}), retry_for=60)
    assert len(server.requests) == 1
    assert error.status == status
    assert says in str(error)


async def test_a_401_names_the_keys_variable():
    error, _ = await fault_of(Reply(401), key_variable="MY_KEY")
    assert "set MY_KEY" in str(error)


async def test_a_redirect_is_an_error():
    target = "https://elsewhere/x?session=private#fragment"
    error, server = await fault_of(Reply(307, b"", {"Location": target}), retry_for=60)
    assert len(server.requests) == 1
    assert "it redirects to https://elsewhere/x: use" in str(error)
    assert "private" not in str(error)


@pytest.mark.parametrize("status", [200, 500])
async def test_an_endless_answer_is_not_read_beyond_its_limit(status, monkeypatch):
    monkeypatch.setattr(client, "MOST_BYTES", 1 << 20)

    class Endless(httpx.AsyncByteStream):
        sent = 0

        async def __aiter__(self):
            while self.sent < 1 << 23:
                self.sent += 1 << 14
                yield b"x" * (1 << 14)

    stream = Endless()
    response = httpx.Response(status, stream=stream)
    if status == 200:
        with pytest.raises(CriticServerError, match="longer than 1 MiB"):
            await client.read_body("http://a", response)
    else:
        assert len(await client.read_body("http://a", response)) == 1 << 16
    assert stream.sent <= (1 << 20) + (1 << 14)


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize(
    ("body", "headers", "says"),
    [
        (b'{"data": [1, 2', {}, "expected JSON, got '{\"data\": [1, 2'"),
        (b"[" * 100_000, {}, "expected JSON, got '[[["),
        (b"<html>", {"Content-Type": "text/html; charset=hex"}, "expected JSON, got '<html>'"),
        (b"\xff\xfe\xfa", {"Content-Type": "application/json; charset=no-such"}, "expected JSON"),
        (b"<html>\x1b[2J" + b"x" * 10_000_000, {}, "expected JSON, got '<html>\\x1b[2Jxxx"),
        (gzip.compress(b"[1]"), {"Content-Encoding": "gzip"}, "compressed (gzip)"),
    ],
    ids=["truncated", "deep", "charset", "bytes", "huge", "compressed"],
)
async def test_an_unreadable_answer_is_an_error_in_one_line(body, headers, says, status):
    async with ScriptedServer(in_turn(Reply(status, body, headers))) as server:
        with pytest.raises(CriticServerError) as caught:
            await ModelServer(server.url, retry_for=0).post("/x", [{}])
    message = str(caught.value)
    assert status == 400 or says in message
    assert len(message) <= 400
    assert message.isprintable()


async def test_a_gateways_compressed_error_page_is_retried(naps):
    page = Reply(502, gzip.compress(b"<html>"), {"Content-Encoding": "gzip"})
    async with ScriptedServer(in_turn(page, Reply(body=1))) as server:
        assert await ModelServer(server.url).get("/x") == 1
    assert server.requests[0].headers["accept-encoding"] == "identity"


async def test_a_huge_integer_becomes_infinite_like_a_huge_float():
    async with ScriptedServer(in_turn(Reply(body=b"[12, 1" + b"0" * 9999 + b", 1e400]"))) as server:
        assert await ModelServer(server.url).get("/x") == [12, math.inf, math.inf]


async def test_an_endless_answer_is_an_error(monkeypatch):
    monkeypatch.setattr(client, "MOST_BYTES", 1 << 20)
    error, server = await fault_of(Reply(body=b"1" * ((1 << 20) + 1)), retry_for=60)
    assert "longer than 1 MiB" in str(error)
    assert len(server.requests) == 1


async def test_a_missing_server_is_an_error_at_once():
    async with ScriptedServer(in_turn(Reply())) as server:
        pass
    begun = asyncio.get_running_loop().time()
    with pytest.raises(CriticServerError, match="is the server started"):
        await ModelServer(server.url, retry_for=60).get("/x")
    assert asyncio.get_running_loop().time() - begun < 5


# --- servers that come and go ---------------------------------------------------------------------------------


async def test_a_killed_server_is_awaited_until_it_restarts():
    async with ScriptedServer(in_turn(Reply(body=1))) as server:
        client = ModelServer(server.url, retry_for=20)
        assert await client.get("/x") == 1
        assert client.interruptions == 0
        server.kill()
        waiting = asyncio.create_task(client.get("/x"))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await server.start()
        assert await waiting == 1
    assert client.interruptions > 0


async def test_a_server_killed_during_a_request_counts_as_an_interruption():
    async with ScriptedServer(in_turn(Reply(body=1), HANG, Reply(body=2))) as server:
        client = ModelServer(server.url, retry_for=20)
        await client.get("/x")
        waiting = asyncio.create_task(client.get("/x"))
        while len(server.requests) < 2:
            await asyncio.sleep(0.01)
        server.kill()
        await server.start()
        assert await waiting == 2
    assert client.interruptions == 1


async def test_a_time_out_is_no_interruption():
    async with ScriptedServer(in_turn(Reply(body=1), HANG, Reply(body=1))) as server:
        client = ModelServer(server.url, timeout=0.2, retry_for=5)
        await client.get("/x")
        await client.get("/x")
    assert client.interruptions == 0


async def test_a_gateway_without_a_server_behind_it_counts_as_an_interruption(naps):
    async with ScriptedServer(in_turn(Reply(502), Reply(body=1))) as server:
        client = ModelServer(server.url)
        await client.get("/x")
    assert client.interruptions == 1


def test_one_object_serves_several_event_loops():
    async def main():
        async with ScriptedServer(in_turn(Reply(body=1))) as server:
            client = ModelServer(server.url)
            return await asyncio.gather(*(asyncio.to_thread(asyncio.run, client.get("/x")) for _ in range(4)))

    assert asyncio.run(main()) == [1, 1, 1, 1]


# --- many requests --------------------------------------------------------------------------------------------


async def test_bodies_are_sent_concurrently_within_the_limit_and_answered_in_order():
    def respond(request):
        return Reply(body=request.body, wait=0.01)

    async with ScriptedServer(respond) as server:
        client = ModelServer(server.url, max_concurrent=3)
        bodies = [{"n": number} if number % 2 else b'{"n":%d}' % number for number in range(12)]
        assert await client.post("/x", bodies) == [{"n": number} for number in range(12)]
    assert server.most_open == 3


async def test_a_final_failure_cancels_the_other_requests():
    def respond(request):
        return Reply(400, {"error": {"message": "bad"}}) if request.body == 1 else HANG

    async with ScriptedServer(respond) as server:
        with pytest.raises(CriticServerError, match="bad"):
            await asyncio.wait_for(ModelServer(server.url).post("/x", [b"0", b"1", b"2"]), 5)


async def counted(respond, bodies=(b"0", b"1", b"2"), **settings):
    """The usage of requests by place, one of which fails."""
    used = []
    async with ScriptedServer(respond) as server:
        client = ModelServer(server.url, retry_for=0, **settings)
        with pytest.raises(CriticServerError):
            await client.post("/x", bodies, count=lambda place, usage: used.append((place, usage)))
    return dict(used)


async def test_each_request_is_counted_once_although_another_failed():
    answer = Reply(body={"usage": {"prompt_tokens": 7, "completion_tokens": 1}})
    used = await counted(lambda request: Reply(400) if request.body == 2 else answer, max_concurrent=1)
    assert used == {0: Usage(1, 7, 1), 1: Usage(1, 7, 1), 2: Usage(calls=1, missing=1)}


async def test_a_request_that_was_sent_and_cancelled_counts_and_others_do_not():
    asked = asyncio.Event()

    def respond(request):
        if request.body == 1:
            asked.set()
            return HANG
        return Reply(400)

    used = []
    async with ScriptedServer(respond) as server:
        client = ModelServer(server.url, max_concurrent=1)
        work = asyncio.ensure_future(client.post("/x", [b"1", b"2"], count=lambda *usage: used.append(usage)))
        await asked.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert used == [(0, Usage(calls=1, missing=1))]


async def test_a_server_that_cannot_be_reached_is_no_call():
    async with ScriptedServer(in_turn(Reply())) as server:
        url = server.url
    used = []
    with pytest.raises(CriticServerError, match="no connection"):
        await ModelServer(url, retry_for=0).post("/x", [b"0"], count=lambda *usage: used.append(usage))
    assert used == []


async def test_nobody_waits_longer_than_retry_for_after_a_longer_wish():
    """A wish of four minutes would hold back the next request for that long."""
    async with ScriptedServer(in_turn(Reply(429, headers={"Retry-After": "240"}))) as server:
        client = ModelServer(server.url, retry_for=1)
        with pytest.raises(CriticServerError, match="asks for 240 s"):
            await client.get("/x")
        assert client._gate.wait_s < 60


async def test_an_absurd_wish_is_written_briefly():
    error, _ = await fault_of(Reply(429, headers={"Retry-After": "1e300"}))
    assert "asks for 1e+300 s of patience" in str(error)
    assert len(str(error)) <= 200


@pytest.mark.parametrize("status", [403, 404, 413, 418, 429, 500])
async def test_every_refusal_names_a_remedy(status):
    error, _ = await fault_of(Reply(status))
    assert any(word in str(error) for word in ("use ", "check ", "send ", "see "))


# --- keys -----------------------------------------------------------------------------------------------------


async def test_a_key_is_sent_from_the_argument_or_the_variable(monkeypatch):
    async with ScriptedServer(in_turn(Reply())) as server:
        await ModelServer(server.url).get("/x")
        monkeypatch.setenv("VLLM_API_KEY", "from-variable\n")
        await ModelServer(server.url).get("/x")
        await ModelServer(server.url, api_key=SECRET).get("/x")
    sent = [request.headers.get("authorization") for request in server.requests]
    assert sent == [None, "Bearer from-variable", f"Bearer {SECRET}"]


async def test_a_key_that_the_server_repeats_is_masked():
    error, _ = await fault_of(Reply(500, f"wrong key {SECRET} given".encode()), api_key=SECRET)
    assert "wrong key *** given" in str(error)
    assert SECRET not in str(error)


LONG = f"sk-/+{'0123456789' * 3}"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(401, {"error": {"message": "x" * (200 - len(LONG) + 1) + LONG}}),
        Reply(400, {"error": [{"key": LONG}]}),
        Reply(400, json.dumps({"error": LONG}).replace("/", "\\/").encode()),
        Reply(400, f"<html>{LONG}".encode()),
        Reply(302, b"", {"Location": f"http://login/?t={LONG}"}),
        Reply(302, b"", {"Location": f"http://login/{urllib.parse.quote(LONG, safe='')}"}),
        Reply(200, f"<html>{LONG}".encode()),
    ],
)
async def test_errors_contain_no_part_of_a_key_that_the_server_repeats(reply):
    error, _ = await fault_of(reply, api_key=LONG)
    assert LONG[:12] not in str(error)
    assert urllib.parse.quote(LONG[:12], safe="") not in str(error)


async def test_a_key_that_cannot_be_sent_is_not_shown():
    with pytest.raises(ConfigurationError, match="VLLM_API_KEY") as caught:
        await ModelServer("http://127.0.0.1:1", api_key=f"{SECRET}\nx").get("/x")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["host:8000", "ftp://host", "http://", "", "http://host:port", "http://host:99999"])
def test_an_invalid_url_is_refused(url):
    with pytest.raises(ConfigurationError, match="looks like http://host:8000"):
        ModelServer(url)


@pytest.mark.parametrize(
    "url",
    [
        f"http://me:{SECRET}@host:8000",
        f"http://host:8000?api_key={SECRET}",
        f"http://host:8000#{SECRET}",
        f"ftp://me:{SECRET}@host",
        f"host:8000?api_key={SECRET}",
        f"http://host:{SECRET}",
    ],
)
def test_a_url_with_a_key_is_refused_and_not_shown(url):
    with pytest.raises(ConfigurationError) as caught:
        ModelServer(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["http://host:8000/", "http://host:8000/v1", "http://host:8000/v1/"])
def test_a_url_may_end_in_v1_or_a_slash(url):
    assert ModelServer(url).base_url == "http://host:8000"


async def test_an_untrusted_server_gets_no_key(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    async with ScriptedServer(in_turn(Reply(401))) as server:
        trusted = ModelServer(server.url, retry_for=0)
        with pytest.raises(CriticServerError, match="set VLLM_API_KEY"):
            await trusted.get("/x")
        # A constructor that names the same URL changes nothing, and neither does a key that is passed directly.
        for untrusted in (by_call(server.url), ModelServer(server.url, retry_for=0, trusted=False, api_key=SECRET)):
            with pytest.raises(CriticServerError, match="a call has named this URL"):
                await untrusted.get("/x")
        sent = [request.headers.get("authorization") for request in server.requests]
    assert sent == [f"Bearer {SECRET}", None, None]


# --- untrusted servers ----------------------------------------------------------------------------


@pytest.fixture
def names(monkeypatch):
    """A table of host names and addresses that replaces DNS, and the list of resolved names."""
    table, looked_up, right = {}, [], asyncio.BaseEventLoop.getaddrinfo

    async def getaddrinfo(self, host, port, **more):
        host = host.decode() if isinstance(host, bytes) else host
        if host not in table:
            return await right(self, host, port, **more)
        looked_up.append(host)
        addresses = table[host]
        return [(0, 0, 0, "", (addresses.pop(0) if len(addresses) > 1 else addresses[0], port))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return table, looked_up


def by_call(url):
    return ModelServer(url, retry_for=0, trusted=False)


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1%eth0", "::ffff:169.254.169.254", "100.100.100.200"])
async def test_an_untrusted_name_may_not_resolve_to_a_link_local_address(names, address):
    table, _ = names
    table["metadata.test"] = [address]
    with pytest.raises(ConfigurationError, match=r"a call may not name metadata\.test"):
        await by_call("http://metadata.test/").get("/x")


async def test_an_untrusted_name_is_resolved_once(names):
    """Otherwise the check and the connection could get different addresses."""
    table, looked_up = names
    async with ScriptedServer(in_turn(Reply(body=1))) as server:
        port = server.url.rpartition(":")[2]
        table["critic.test"] = ["127.0.0.1", "169.254.169.254"]
        assert await by_call(f"http://critic.test:{port}").get("/x") == 1
    assert looked_up == ["critic.test"]
    assert server.requests[0].headers["host"] == f"critic.test:{port}"


async def test_localhost_is_not_resolved(names):
    """A server may listen on only one of localhost's addresses."""
    _, looked_up = names
    async with ScriptedServer(in_turn(Reply(body=1))) as server:
        assert await by_call(server.url.replace("127.0.0.1", "localhost")).get("/x") == 1
    assert looked_up == []


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY"])
async def test_a_proxy_of_the_environment_is_used_for_trusted_servers_only(variable, monkeypatch):
    """A proxy would open the connection from its own network, to which the check of addresses does not apply."""
    async with ScriptedServer(in_turn(Reply(body=1))) as server, ScriptedServer(in_turn(Reply(body=2))) as proxy:
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv(variable, proxy.url)
        assert await by_call(server.url).get("/x") == 1
        assert await ModelServer(server.url, retry_for=0).get("/x") == 2


async def test_a_name_that_cannot_be_resolved_is_an_error(names):
    table, _ = names
    table["nowhere.test"] = []
    with pytest.raises(CriticServerError, match="no connection"):
        await by_call(f"http://{'x' * 64}.test").get("/x")


@pytest.mark.parametrize(
    "error",
    [
        CriticServerError("http://h/x", "HTTP 404: CANARY", 404),
        CriticServerError("http://h/x", "HTTP 401: CANARY", 401),
        CriticError("expected numbers, got CANARY"),
        CheckpointError("no folder for model CANARY"),
        PromptTooLong("the limit is CANARY"),
    ],
)
def test_answers_of_an_untrusted_server_go_to_the_log_only(error, caplog):
    with pytest.raises(type(error)) as inside, ModelServer("http://127.0.0.1:9").redacted():
        raise error
    assert inside.value is error
    with pytest.raises(AmcError) as outside, by_call("http://127.0.0.1:9").redacted():
        raise error
    assert isinstance(outside.value, CheckpointError if isinstance(error, CheckpointError) else CriticError)
    assert isinstance(outside.value, PromptTooLong) == isinstance(error, PromptTooLong)
    assert "CANARY" not in "".join(traceback.format_exception(outside.value))
    assert "CANARY" in caplog.text
