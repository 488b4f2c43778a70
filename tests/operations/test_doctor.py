"""Each check of `amc doctor`, against healthy and faulty servers on real sockets."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
import tomllib
from pathlib import Path

import pytest

import amc_agents.operations.doctor.server_checks
from amc_agents.config import Endpoint
from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded import model_folder
from amc_agents.operations.doctor import Patient, examine
from amc_agents.operations.doctor.patient import EXTRAS, installation, saved_worlds
from tests.scripted_http import scripted_server

WORDS = [" oak", " gate"]


def models(*names, **more):
    return lambda _: (200, {"object": "list", "data": [{"id": name, "max_model_len": 1024, **more} for name in names]})


def chat(body):
    """As vLLM answers."""
    if body["model"] != "policy":
        return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
    top = [{"token": word, "logprob": -1.0} for word in WORDS][: body.get("top_logprobs", 0)]
    content = [{"token": WORDS[0], "logprob": -1.0, "top_logprobs": top}] if body.get("logprobs") else []
    choices = [
        {"index": i, "message": {"role": "assistant", "content": WORDS[0]}, "logprobs": {"content": content}}
        for i in range(body.get("n", 1))
    ]
    return 200, {"choices": choices}


def completions(body):
    """As vLLM answers."""
    chosen = {f"token_id:{token}": -2.0 for token in body.get("logprob_token_ids", [])} or {" oak": -1.0}
    prompt = [None, {"2": {"logprob": -3.0, "rank": 1}}] if "prompt_logprobs" in body else None
    return 200, {"choices": [{"text": "", "logprobs": {"top_logprobs": [chosen]}, "prompt_logprobs": prompt}]}


def overwritten(body):
    """The answer of vLLM 0.32 to a request that shares a batch with `logprob_token_ids`."""
    status, answer = completions(body)
    if body["logprobs"] == 5 if "logprobs" in body else False:
        answer["choices"][0]["logprobs"]["top_logprobs"] = [{" oak": -1.0, " gate": -9999.0}]
    return status, answer


def embeddings(body):
    return 200, {"data": [{"embedding": [0.0] * 8} for _ in body["input"]]}


def refused(status, message="no"):
    return lambda _: (status, {"error": {"message": message}})


WELL = {
    "GET /health": lambda _: (200, ""),
    "GET /version": lambda _: (200, {"version": "0.32.0"}),
    "GET /v1/models": models("policy"),
    "POST /v1/chat/completions": chat,
    "POST /v1/completions": completions,
    "POST /v1/embeddings": embeddings,
}


async def diagnosed(changes=None, part="policy", **given):
    """Return the checks of a part by name, with some routes of a healthy server changed (None: removed)."""
    routes = {route: answer for route, answer in {**WELL, **(changes or {})}.items() if answer is not None}
    with scripted_server(routes) as server:
        endpoint = Endpoint(model="policy", base_url=server.url, **given)
        checks = await examine(Patient(**{part: endpoint}))
    return {check.name.removeprefix(f"{part} "): check for check in checks if check.name.startswith(f"{part} ")}


def states(checks):
    return {name: check.state for name, check in checks.items()}


OK = dict.fromkeys(["server", "model", "chat", "n > 1", "logprobs", "chosen logprobs", "prompt logprobs",
                    "logprobs side by side"], "ok")  # fmt: skip


async def test_a_healthy_policy_passes_every_check():
    checks = await diagnosed()
    assert states(checks) == OK
    assert checks["model"].detail == "policy, reads at most 1024 tokens"
    assert not any(check.advice for check in checks.values())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "expected", "detail"),
    [
        ({"GET /health": refused(503, "engine dead")}, {"server": "failed"}, "engine dead"),
        ({"GET /health": None}, {}, ""),
        ({"GET /v1/models": models("another", "third")}, {"model": "failed"}, "another, third"),
        ({"GET /v1/models": lambda _: (200, ["policy"])}, {"model": "failed"}, "expected a list of models"),
        ({"GET /v1/models": lambda _: (200, "<html>")}, {"model": "failed"}, "expected JSON"),
        ({"POST /v1/chat/completions": refused(400, "no chat template")}, {"chat": "failed"}, "no chat template"),
        ({"POST /v1/chat/completions": lambda _: (200, {})}, {"chat": "failed"}, "OpenAI's format"),
        ({"POST /v1/chat/completions": lambda _: (200, {"choices": []})}, {"chat": "failed"}, "OpenAI's format"),
    ],
)
async def test_what_depends_on_a_failure_is_skipped(changes, expected, detail):
    checks = await diagnosed(changes)
    names = list(OK)
    after = names.index(next(iter(expected))) + 1 if expected else len(names)
    assert states(checks) == OK | expected | dict.fromkeys(names[after:], "skipped")
    for name in expected:
        assert detail in checks[name].detail
        assert checks[name].advice or "JSON" in detail


def chat_with(change):
    def answer(body):
        status, completion = chat(body)
        change(body, completion)
        return status, completion

    return {"POST /v1/chat/completions": answer}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "failed", "detail"),
    [
        (chat_with(lambda body, answer: answer.update(choices=answer["choices"][:1])), "n > 1", "1 candidate"),
        ({"POST /v1/chat/completions": lambda body: refused(400, "n must be 1")(0) if "n" in body else chat(body)},
         "n > 1", "n must be 1"),
        (chat_with(lambda body, answer: answer["choices"][0].update(logprobs=None)), "logprobs", "not in the answer"),
        ({"POST /v1/chat/completions": lambda body: chat({**body, "top_logprobs": 1})},
         "logprobs", "not in the answer"),
        ({"POST /v1/completions": lambda body: completions({**body, "logprob_token_ids": [1]})},
         "chosen logprobs", "vLLM 0.32.0: logprob_token_ids"),
        ({"POST /v1/completions": lambda body: completions({k: v for k, v in body.items() if k != "prompt_logprobs"})},
         "prompt logprobs", "vLLM 0.32.0: prompt_logprobs"),
        ({"POST /v1/completions": lambda body: overwritten(body)}, "logprobs side by side", "are -9999"),
    ],
)  # fmt: skip
async def test_a_missing_ability_fails_alone(changes, failed, detail):
    checks = await diagnosed(changes)
    assert states(checks) == OK | {failed: "failed"}
    assert detail in checks[failed].detail
    assert checks[failed].advice
    assert failed not in ("chosen logprobs", "prompt logprobs") or "vLLM 0.26 or newer" in checks[failed].advice


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("answer", "side_by_side"),
    [(refused(400, "unknown field"), "skipped"), (lambda body: completions({}), "ok"), (None, "skipped")],
)
async def test_other_servers_need_no_extensions_of_vllm(answer, side_by_side):
    checks = await diagnosed({"GET /version": None, "POST /v1/completions": answer})
    skipped = dict.fromkeys(["chosen logprobs", "prompt logprobs"], "skipped")
    assert states(checks) == OK | skipped | {"logprobs side by side": side_by_side}


def test_answers_of_servers_reach_a_terminal_escaped_and_without_keys(doctor, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-do-not-show")
    name = "\x1b[2J\x1b]0;title\x07[bold]sk-do-not-show\u202e"
    with scripted_server(WELL | {"GET /v1/models": models(name)}) as server:
        where = ("--policy-url", server.url, "--policy-model", "policy", "--policy-key-env", "MY_KEY")
        _, table = doctor(*where)
        _, text = doctor("--json", *where)
    assert "[bold]" in table
    for shown in (table, text):
        assert "sk-do-not-show" not in shown
        assert "\\u001b" in shown
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)


async def test_a_wrong_key_names_its_variable(monkeypatch):
    monkeypatch.setenv("MY_KEY", "a-wrong-secret")
    checks = await diagnosed({"GET /v1/models": refused(401, "Unauthorized")}, key_env="MY_KEY")
    assert checks["model"].state == "failed"
    assert "401" in checks["model"].detail
    assert "MY_KEY" in checks["model"].advice
    assert not any("a-wrong-secret" in f"{check.detail}{check.advice}" for check in checks.values())


async def test_the_key_is_sent(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    with scripted_server(WELL) as server:
        await examine(Patient(policy=Endpoint(model="policy", base_url=f"{server.url}/v1", key_env="MY_KEY")))
    assert {headers.get("authorization") for _, _, headers in server.asked} == {"Bearer secret"}


def dead_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


async def test_a_dead_server_does_not_stop_the_other_checks():
    dead = dead_address()
    with scripted_server(WELL) as server:
        checks = await examine(Patient(
            critic=f"vllm:{dead}?model=value",
            policy=Endpoint(model="policy", base_url=dead),
            embeddings=Endpoint(model="policy", base_url=server.url),
        ))  # fmt: skip
    by_name = {check.name: check for check in checks}
    assert [name for name, check in by_name.items() if check.state == "failed"] == ["critic server", "policy server"]
    assert "no connection" in by_name["policy server"].detail
    assert "Start the server" in by_name["policy server"].advice
    assert by_name["embeddings vectors"].detail == "vectors of 8 numbers"


@pytest.mark.parametrize("answer", [refused(404), lambda _: (200, {"data": []}), lambda _: (200, {"data": [{}]})])
async def test_a_server_that_does_not_embed_fails(answer):
    checks = await diagnosed({"POST /v1/embeddings": answer}, part="embeddings")
    assert states(checks) == {"server": "ok", "model": "ok", "vectors": "failed"}
    assert checks["vectors"].advice


# --- critics ------------------------------------------------------------------------------------------------


async def critic_checks(spec):
    return {check.name: check for check in await examine(Patient(critic=spec)) if check.name.startswith("critic")}


async def test_a_critic_in_this_process_answers():
    checks = await critic_checks("embedded:crafting")
    assert states(checks) == {"critic": "ok", "critic answers": "ok"}
    assert checks["critic answers"].detail.startswith("value ")
    assert "handshake passed" in checks["critic answers"].detail


@pytest.mark.parametrize(
    ("spec", "detail"),
    [("embeded:crafting", "did you mean 'embedded'?"), ("vllm:nowhere", "http://host:8000"), ("uniform?x=1", "x")],
)
async def test_an_invalid_critic_string_skips_the_answer(spec, detail):
    checks = await critic_checks(spec)
    assert states(checks) == {"critic": "failed", "critic answers": "skipped"}
    assert detail in checks["critic"].detail


async def test_a_server_with_other_scores_than_the_checkpoint_fails_the_handshake(tmp_path):
    def classify(body):
        rows = [{"index": i, "probs": [0.5], "num_classes": 1} for i in range(len(body["input"]))]
        return 200, {"data": rows, "usage": {"prompt_tokens": 9}}

    shutil.copy(model_folder("crafting") / "value" / "amc_value.json", tmp_path)
    shutil.copy(model_folder("crafting") / "tokenizer.json", tmp_path)
    with scripted_server({**WELL, "GET /v1/models": models("value"), "POST /classify": classify}) as server:
        checks = await critic_checks(f"vllm:{server.url}?model=value&checkpoint={tmp_path}")
        assert states(checks) == {
            "critic": "ok", "critic server": "ok", "critic model": "ok", "critic answers": "failed"
        }  # fmt: skip
        assert "golden" in checks["critic answers"].detail
        wrong = await critic_checks(f"vllm:{server.url}?model=vlaue&checkpoint={tmp_path}")
    assert wrong["critic model"].detail == "no model 'vlaue'; the server has value"
    assert wrong["critic answers"].state == "skipped"


class Broken:
    async def values(self, trajectories):
        raise RuntimeError("out of paper")


class Shapeless:
    async def values(self, trajectories):
        return [0.0, 1.0]


class Slow:
    async def values(self, trajectories):
        import asyncio

        await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("name", "detail"),
    [("Broken", "RuntimeError: out of paper"), ("Shapeless", "[0.0, 1.0]"), ("Slow", "no end within")],
)
async def test_a_critic_that_misbehaves_is_a_failed_check(monkeypatch, name, detail):
    monkeypatch.setattr(amc_agents.operations.doctor.server_checks, "PATIENCE", 0.2)
    monkeypatch.setitem(sys.modules, "doctored", sys.modules[__name__])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    checks = await critic_checks(f"doctored:{name}")
    assert states(checks) == {"critic": "ok", "critic answers": "failed"}
    assert detail in checks["critic answers"].detail


# --- this installation, and the configuration ---------------------------------------------------------------


def test_all_extras_of_the_package_are_checked():
    checks = {check.name: check for check in installation()}
    assert checks["python"].state == "ok"
    if checks["packages"].state == "skipped":
        pytest.skip("the package runs from its sources")
    assert checks["packages"].state == "ok"
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    assert EXTRAS.keys() == set(project["optional-dependencies"]) - {"dev", "docs", "all"}


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Creates the metadata of a distribution."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name, version, *requirements):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *requirements]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")

    return install


def test_absent_and_wrong_packages_differ(installed):
    installed("needed", "1.0")
    installed("patient", "0.1", "Requires-Dist: needed>=2", "Requires-Dist: absent",
              'Requires-Dist: needed<2; extra == "train"', 'Requires-Dist: torchless; extra == "serve"',
              'Requires-Dist: needed>3; extra == "sqlite"')  # fmt: skip
    checks = {check.name: check for check in installation("patient")}
    assert checks["packages"].state == "failed"
    assert checks["packages"].detail == "absent is not installed; needed is 1.0, expected >=2"
    assert (checks["extra train"].state, checks["extra train"].detail) == ("ok", "needed 1.0")
    assert (checks["extra serve"].state, checks["extra serve"].detail) == ("skipped", "not installed: torchless")
    assert "pip install 'patient[serve]'" in checks["extra serve"].advice
    assert checks["extra sqlite"].state == "failed"


def test_a_package_that_is_not_installed_is_no_failure():
    assert {check.state for check in installation("surely-not-installed")} == {"ok", "skipped"}


FILE = """
critic = "embedded:crafting"
[policy]
model = "policy"
base_url = "http://file:8000/v1"
key_env = "FILE_KEY"
[embeddings]
model = "text-embedding"
"""
NOTHING = {"base_url": None, "model": None, "key_env": None}


def test_arguments_override_the_file(tmp_path, monkeypatch):
    file = tmp_path / "amc.toml"
    file.write_text(FILE)
    patient, check = Patient.read(file, None, NOTHING)
    assert check.state == "ok"
    assert patient.critic == "embedded:crafting"
    assert patient.policy == Endpoint(model="policy", base_url="http://file:8000/v1", key_env="FILE_KEY")
    monkeypatch.setenv("AMC_CONFIG", str(file))
    patient, _ = Patient.read(None, "uniform", {**NOTHING, "base_url": "http://flag:1"})
    assert patient.critic == "uniform"
    assert patient.policy == Endpoint(model="policy", base_url="http://flag:1", key_env="FILE_KEY")


async def test_providers_are_not_called(tmp_path):
    checks = {check.name: check for check in await examine(Patient(embeddings=Endpoint(model="text-embedding")))}
    assert (checks["embeddings"].state, checks["policy"].state) == ("skipped", "skipped")
    assert "text-embedding" in checks["embeddings"].detail


def test_a_file_that_cannot_be_read_is_a_failed_check(tmp_path):
    file = tmp_path / "amc.toml"
    file.write_text("critik = 'uniform'")
    patient, check = Patient.read(file, None, NOTHING)
    assert (check.state, patient) == ("failed", Patient())
    assert "critic" in check.detail


def test_a_policy_without_a_name_is_refused():
    with pytest.raises(ConfigurationError, match="--policy-model"):
        Patient.read(None, None, {**NOTHING, "base_url": "http://flag:1"})
    with pytest.raises(ConfigurationError, match="nonsense"):
        Patient.read(None, None, {"base_url": "nonsense", "model": "m", "key_env": None})


# --- the command --------------------------------------------------------------------------------------------


@pytest.fixture
def doctor(monkeypatch, command):
    """`amc doctor` in this process: (exit code, stdout)."""
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: command("doctor", *arguments)[:2]


def test_the_table_shows_findings_and_advice(doctor):
    dead = dead_address()
    code, table = doctor("--critic", "embedded:crafting", "--policy-url", dead, "--policy-model", "m")
    assert code == 1
    assert "no connection" in table
    assert "-> Start the server" in table
    assert "1 failed" in table


def test_success_is_status_0_and_json(doctor):
    with scripted_server(WELL) as server:
        code, text = doctor("--json", "--policy-url", server.url, "--policy-model", "policy")
    report = json.loads(text)
    assert (code, report["ok"]) == (0, True)
    assert {"name": "policy n > 1", "state": "ok", "detail": "n=2 gives 2 candidates", "advice": ""} in report["checks"]


def test_a_failure_is_status_1_with_json(doctor):
    code, text = doctor("--json", "--critic", "nonsense")
    assert (code, json.loads(text)["ok"]) == (1, False)


def test_snapshots_that_nobody_removed_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert saved_worlds().detail == f"no snapshots in {tmp_path}"
    for seconds in (time.time() - 9.5 * 86_400, time.time()):
        (tmp_path / f"amc-snapshot-{int(seconds)}-0123456789abcdef").mkdir()
    (tmp_path / "amc-snapshot-of-mine").mkdir()
    check = saved_worlds()
    assert (check.state, check.detail) == ("ok", f"2 snapshots in {tmp_path}, the oldest 9 days old")
    assert "remove_snapshots(older_than=timedelta(days=30))" in check.advice
