"""`amc serve` starts a real vLLM with its default flags, and stops all its processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]

from amc_agents.critics.spec import parse_critic
from amc_agents.envs.crafting import generate_tasks
from amc_agents.operations.serve import ServedModel, Where, command, find_vllm
from amc_agents.operations.serve.vllm_command import VARIABLE
from amc_agents.types import Trajectory

ROOT = Path(__file__).resolve().parents[2]
STATES = [Trajectory(task, ()) for task in generate_tasks(3, "shipped")]

pytestmark = [pytest.mark.service, pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} is not set")]


async def test_the_printed_critic_scores_and_a_signal_stops_all_processes(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_API_KEY": "secret"}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    line = [
        sys.executable,
        "-c",
        "from amc_agents.cli import main; main()",
        "serve",
        "value",
        "crafting",
        "--port",
        "0",
    ]
    with subprocess.Popen(
        line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        try:
            printed = ""
            while "Ctrl-C" not in printed:
                new = running.stdout.readline()
                assert new, printed
                printed += new
            (spec,) = set(re.findall(r"vllm:http\S+crafting$", printed, re.MULTILINE))
            (server,) = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("VLLM_API_KEY", "secret")
                values = await parse_critic(spec).values(STATES)
            assert "secret" not in Path(f"/proc/{server}/cmdline").read_text()
            assert len(living(int(server))) >= 3
        finally:
            running.send_signal(signal.SIGTERM)
            status = running.wait(timeout=60)
    assert values == pytest.approx(await parse_critic("embedded:crafting").values(STATES), abs=1e-5)
    assert np.ptp(values) > 0
    assert status == 0
    assert living(int(server)) == []


def living(group):
    """Return the running processes of a group."""
    listed = subprocess.run(["ps", "-eo", "pgid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    rows = [row.split(None, 2) for row in listed.splitlines()]
    return [row for row in rows if int(row[0]) == group and not row[1].startswith("Z")]


def test_vllm_has_every_flag_of_this_library():
    vllm = find_vllm()
    module = [vllm.python, "-m", "vllm.entrypoints.openai.api_server", "--help=all"]
    known = set(re.findall(r"--[a-z-]+", subprocess.run(module, capture_output=True, text=True, check=True).stdout))
    where = Where("h", 1, 2, 2, 0.5)
    started = {flag for role in ("value", "policy", "embeddings") for flag in command(vllm, model(role), where)}
    services = yaml.safe_load((ROOT / "deploy/docker-compose.yml").read_text())["services"].values()
    composed = {flag.split("=")[0] for service in services for flag in service["command"]}
    text = re.sub(r"`amc doctor[^`]*`", "", (ROOT / "docs/serving.md").read_text())  # these flags are not vLLM's
    page = set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)+", text))
    written = {flag for flag in started | composed if flag.startswith("--")} | page
    assert len(written) > 12
    assert written - known == set()


def model(role):
    return ServedModel(role, "m", "m", "float32", 10)
