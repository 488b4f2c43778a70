"""Keys in what is written for later: datasets, model cards, traces and reports. `test_canaries` names the keys."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace

import pytest

from amc_agents import quoting
from amc_agents.errors import ConfigurationError
from amc_agents.runtime.text_agent import text_agent
from amc_agents.testing import ScriptedChatModel
from amc_agents.types import Step, Task, Trajectory
from tests.scripted_http import scripted_server
from tests.test_canaries import (
    CHAT,
    CRITIC_KEY,
    HEADER_KEY,
    KEYS,
    POLICY_KEY,
    Walk,
    _fresh_secrets,
    answering,
    planted_in,
    policy,
    shown,
)

__all__ = ["_fresh_secrets"]

URL_WITH_KEY = f"http://me:{POLICY_KEY}@host/v1"
TASK = Task("t", "Walk.")


def written_in(folder):
    """All that the files of a folder hold, tables as rows too, since Parquet compresses texts."""
    read = importlib.import_module("amc_agents.training.dataset").read_records
    plain = [path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file()]
    return [*plain, *map(repr, read(folder))]


# --- datasets -----------------------------------------------------------------------------------------------


def test_a_collected_dataset_contains_no_key(tmp_path):
    pytest.importorskip("pyarrow")
    from amc_agents.training.collecting import collect

    with scripted_server({CHAT: answering}) as server:
        agent, out = text_agent(policy(server)), tmp_path / "data"
        assert collect(agent, [TASK], Walk, 2, out, policy="walker", settings={"temperature": 1.0}) == 2
    assert any(POLICY_KEY in headers["authorization"] for _, _, headers in server.asked)
    assert planted_in(*written_in(out)) == []


@pytest.mark.parametrize("described", [{"policy": URL_WITH_KEY}, {"settings": {"base_url": URL_WITH_KEY}}])
def test_a_dataset_refuses_a_url_with_a_key_as_its_policy_or_settings(tmp_path, described):
    pytest.importorskip("pyarrow")
    from amc_agents.training.collecting import collect

    agent = text_agent(ScriptedChatModel(respond=lambda messages: "Thought: on\nAction: go"))
    with pytest.raises(ConfigurationError, match="contains a key") as refused:
        collect(agent, [TASK], Walk, 1, tmp_path, **described)
    assert planted_in(shown(refused.value)) == []
    assert [*tmp_path.iterdir()] == []


def test_an_import_refuses_a_url_with_a_key_as_its_policy(tmp_path):
    pytest.importorskip("pyarrow")
    from amc_agents.operations.importing import import_logs

    logs, out = tmp_path / "logs.jsonl", tmp_path / "data"
    logs.write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}]}))
    with pytest.raises(ConfigurationError, match="contains a key") as refused:
        import_logs(logs, out, policy=URL_WITH_KEY)
    assert planted_in(shown(refused.value)) == []
    assert not out.exists()


def test_an_import_with_redaction_writes_no_key(tmp_path):
    pytest.importorskip("pyarrow")
    from amc_agents.operations.importing import import_logs

    said = {"role": "assistant", "content": f"export KEY={POLICY_KEY}"}
    asked = {"role": "user", "content": f"curl {URL_WITH_KEY} -H {HEADER_KEY}"}
    records = [
        {"id": f"a {CRITIC_KEY}", "thread_id": CRITIC_KEY, "messages": [asked, said]},
        {"id": "b", "messages": [asked, {"role": CRITIC_KEY, "content": "?"}]},
        {"id": "c", "messages": f"Bearer {HEADER_KEY}"},
        {"id": "d", "messages": [asked, said, {"role": "tool", "content": POLICY_KEY, "tool_call_id": CRITIC_KEY}]},
    ]
    logs = tmp_path / "logs.jsonl"
    logs.write_text("\n".join(map(json.dumps, records)))
    report = import_logs(logs, tmp_path / "data", redact=redact)
    assert report.trajectories
    assert report.refused
    assert planted_in(*written_in(tmp_path / "data"), report.notes()) == []


def redact(text):
    for key in KEYS:
        text = text.replace(key, "KEY")
    return text


# --- the card of a value model ------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_model_card_masks_keys(tmp_path):
    pytest.importorskip("torch")
    card = pytest.importorskip("amc_agents.training.value.saving")
    from amc_agents.critics.value.checkpoint import ValueCheckpoint
    from amc_agents.critics.value.local import ADAPTER, shipped_folder

    quoting.keep_secret(CRITIC_KEY)
    shipped = ValueCheckpoint.load(shipped_folder("crafting") / ADAPTER)
    warnings = [f"401 for {URL_WITH_KEY}", f"wrong key {CRITIC_KEY}"]
    checkpoint = replace(
        shipped, metrics={**shipped.metrics, "warnings": warnings}, settings={**shipped.settings, "hub": URL_WITH_KEY}
    )
    run = {"tracking": f"https://host/?api_key={HEADER_KEY}", "device": CRITIC_KEY}
    facts = card.CardFacts(URL_WITH_KEY, 1, 1, 1, policies=(URL_WITH_KEY, CRITIC_KEY), run=run)
    path = card.write_card(tmp_path, checkpoint, facts)
    assert "401 for" in path.read_text()
    assert planted_in(path.read_text()) == []


# --- reports ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_page_of_a_dataset_masks_keys(tmp_path):
    pytest.importorskip("pyarrow")
    from amc_agents.operations.report import report_page
    from amc_agents.training.dataset import LoggedTrajectory, write_shard

    quoting.keep_secret(CRITIC_KEY)
    step = Step(action=f"login {CRITIC_KEY}", observation=f"401 for {URL_WITH_KEY}", thought="", reward=0.0)
    path = Trajectory(Task(f"t {CRITIC_KEY}", f"Walk to {URL_WITH_KEY}."), (step,), done=True)
    write_shard(tmp_path, [LoggedTrajectory(path, 0, policy=URL_WITH_KEY)])
    page = report_page(tmp_path)
    assert "login" in page
    assert planted_in(page) == []
