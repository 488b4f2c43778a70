"""What the code must not do: unpickle, trust code of a model's repository, or use the network when it is imported."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

UNPICKLING = {"pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
OWN_PROCESS = {f"amc_agents/envs/real/{name}.py" for name in ("process", "process_child")}
"""Requests to a process that runs the caller's code. Its answers are not unpickled: only `process_child` loads."""
OWN_CLUSTER = {f"integrations/ray/amc_agents_ray/{name}.py" for name in ("cluster", "work")}
"""Work and results between the driver and the nodes of its own Ray cluster."""
OFFLINE = """
import importlib, pkgutil, socket, sys
for name in ("torch", "transformers", "peft", "accelerate", "vllm"):
    sys.modules[name] = None  # they take seconds to import, and are not this project's
def refuse(*arguments, **named):
    raise AssertionError(f"an import used the network: {arguments}")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse
import amc_agents
from amc_agents.errors import MissingExtra
count = 0
for module in pkgutil.walk_packages(amc_agents.__path__, "amc_agents."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
            count += 1
        except MissingExtra:
            pass
print(count)
"""


@pytest.fixture(scope="module")
def sources(repository):
    """Path -> code of every file that a distribution contains."""
    files = [*(repository / "amc_agents").rglob("*.py"), *(repository / "integrations").glob("*/amc_agents_*/**/*.py")]
    return {path.relative_to(repository).as_posix(): path.read_text() for path in files}


def imported(code):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def test_nothing_is_unpickled_but_messages_of_own_processes(sources):
    named = {path: code for path, code in sources.items() if any(name in code for name in UNPICKLING)}
    users = {path for path, code in named.items() if UNPICKLING & set(imported(code))}
    assert len(sources) > 300
    assert users <= OWN_PROCESS | OWN_CLUSTER
    loading = {path for path in OWN_PROCESS if "pickle.loads" in {name for name, _ in calls(sources[path])}}
    assert loading == {"amc_agents/envs/real/process_child.py"}


def calls(code):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {named.arg: named.value for named in node.keywords if named.arg}


@pytest.mark.thorough
def test_numpy_and_torch_load_no_pickles(sources):
    for path, code in sources.items():
        for name, arguments in calls(code):
            if name in ("np.load", "numpy.load"):
                assert "allow_pickle" not in arguments, path
            if name == "torch.load":
                assert ast.unparse(arguments.get("weights_only", ast.Constant(None))) == "True", path


@pytest.mark.thorough
def test_no_code_of_a_model_repository_is_trusted(sources):
    from_hub = []
    for path, code in sources.items():
        for name, arguments in calls(code):
            trusted = arguments.get("trust_remote_code")
            assert trusted is None or ast.unparse(trusted) == "False", path
            if name.startswith("Auto") and name.endswith(".from_pretrained"):
                from_hub.append((path, trusted is not None))
    assert from_hub
    assert [path for path, is_stated in from_hub if not is_stated] == []


@pytest.mark.thorough
def test_importing_every_module_uses_no_network(repository):
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    done = subprocess.run([sys.executable, "-c", OFFLINE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 200
