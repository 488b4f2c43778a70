"""Imports, as far as import-linter's contracts in pyproject.toml cannot say it: no circles, no extra on the way in."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "amc_agents"
HEAVY = {
    "torch",
    "transformers",
    "tokenizers",
    "peft",
    "pyarrow",
    "accelerate",
    "vllm",
    "genai_prices",
    "psycopg",
    "vl_convert",
    "ray",
    "opentelemetry",
}
HEAVY |= {"typer", "rich", "matplotlib", "langchain_openai"}
PLOTS = ("bench/plots.py",)
HEAVY_ALLOWED = (
    "training/",
    "critics/value/hf.py",
    "models/transformers_chat.py",
    "cli/",
    *PLOTS,
)


FRAMEWORKS = {"langgraph", "langchain", "langchain_core", "langchain_openai"}
FREE_OF_FRAMEWORKS = ("smc/", "decisions.py", "lac/", "pnlc/", "psrl/")
"""Rooms whose every file is free of LangGraph and LangChain, but for the files of `FACES`."""
FACES = {
    "lac/": {"model"},
    "pnlc/": {"model"},
    "psrl/": {"episodes", "explorers", "middleware", "nodes", "options", "posterior/store"},
}
"""Files and sub-folders of a paper's folder that wrap its decision for LangGraph and LangChain."""


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names of every import in the tree, those inside functions and TYPE_CHECKING included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise AssertionError(f"relative import in line {node.lineno}: imports are absolute")
            yield from (f"{node.module}.{name.name}" for name in node.names)


def imported_at_once(tree: ast.Module) -> Iterator[str]:
    """Dotted names of what is imported when the module itself is."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imported(node)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += [child for child in ast.walk(node) if isinstance(child, ast.stmt) and child is not node]


def door_imports(path: str, source: str) -> list[str]:
    """The imports of one file that pass through the package's own door, which imports everything."""
    names = imported(ast.parse(source))
    public = {name for name in names if name.count(".") == 1 and name.startswith("amc_agents.")}
    return [
        f"{path} imports {name}"
        for name in public
        if not (PACKAGE / name.removeprefix("amc_agents.")).is_dir()
        and not (PACKAGE / f"{name.removeprefix('amc_agents.')}.py").is_file()
        and path != "__init__.py"
    ]


def heavy_imports(path: str, source: str) -> list[str]:
    """The imports of one file that make it need an extra."""
    if path.startswith(HEAVY_ALLOWED) and path != "cli/__init__.py":
        return []
    names = imported_at_once(ast.parse(source))
    return [f"{path} imports {name}" for name in names if name.split(".")[0] in HEAVY]


def framework_imports(path: str, source: str) -> list[str]:
    """The imports of one file that tie a method's core to a framework, or to a room that is built on one."""
    room = path.split("/")[0] + "/"
    stem = path.removeprefix(room).removesuffix(".py")
    faces = FACES.get(room, set())
    if room not in FREE_OF_FRAMEWORKS or stem in faces or stem.split("/")[0] in faces or stem == "__init__":
        return []
    wrong = []
    for name in imported(ast.parse(source)):
        face = any(name.startswith(f"amc_agents.{(room + face).replace('/', '.')}") for face in faces)
        if name.split(".")[0] in FRAMEWORKS or name.startswith("amc_agents.runtime") or face:
            wrong.append(f"{path} imports {name}")
    return wrong


def import_order(sources: Iterable[tuple[str, str]]) -> list[str]:
    """Dotted module names without the package's, each after the modules it imports.

    Imports inside functions and under TYPE_CHECKING count.

    Raises:
        CycleError: modules import each other.
    """
    trees = {
        path.removesuffix(".py").replace("/", ".").removesuffix("__init__").rstrip("."): ast.parse(source)
        for path, source in sources
    }
    graph: dict[str, set[str]] = {module: set() for module in trees}
    for module, tree in trees.items():
        for name in imported(tree):
            package, _, target = name.partition(".")
            while package == "amc_agents" and target not in trees:
                target = target.rpartition(".")[0]
            if package == "amc_agents" and target != module:
                graph[module].add(target)
    return list(TopologicalSorter(graph).static_order())


def files() -> list[tuple[str, str]]:
    sources = [(path.relative_to(PACKAGE).as_posix(), path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))]
    assert len(sources) > 20, "the package was not found"
    return sources


def test_no_module_imports_the_door():
    """It imports everything, on first use; a module names the module that it needs."""
    may = [(path, source) for path, source in files() if "from amc_agents import" in source]
    assert [wrong for path, source in may for wrong in door_imports(path, source)] == []


@pytest.mark.thorough
def test_no_modules_import_each_other():
    import_order(files())


@pytest.mark.thorough
def test_nothing_on_the_way_in_needs_an_extra():
    assert [heavy for path, source in files() for heavy in heavy_imports(path, source)] == []


def test_the_core_of_each_method_is_free_of_frameworks():
    assert [wrong for path, source in files() for wrong in framework_imports(path, source)] == []


def test_the_listed_faces_exist():
    faces = [PACKAGE / room / face for room, names in FACES.items() for face in names]
    assert [path for path in faces if not path.is_dir() and not path.with_suffix(".py").is_file()] == []


def test_a_framework_in_a_core_is_seen():
    assert framework_imports("lac/decision.py", "from langchain_core.messages import AIMessage")
    assert framework_imports("lac/decision.py", "from amc_agents.runtime.inner_calls import ask")
    assert framework_imports("pnlc/decision.py", "from amc_agents.pnlc.model import Thinker")
    assert not framework_imports("lac/model.py", "from langchain_core.messages import AIMessage")


def test_an_import_of_the_door_is_seen():
    assert door_imports("population/graph.py", "def f():\n    from amc_agents import amc")
    assert not door_imports("population/graph.py", "from amc_agents import smc\nfrom amc_agents.types import Task")


def test_a_circle_is_seen():
    door = ("__init__.py", "")
    first = ("smc/a.py", "def f():\n    from amc_agents.smc import b")
    assert import_order([door, first, ("smc/b.py", "import amc_agents")])[0] == ""
    with pytest.raises(CycleError):
        import_order([door, first, ("smc/b.py", "if TYPE_CHECKING:\n    from amc_agents.smc.a import f")])


def test_a_heavy_import_is_seen():
    assert heavy_imports("critics/spec.py", "try:\n    import torch.nn\nexcept ImportError:\n    torch = None")
    assert heavy_imports("critics/value/local.py", "class A:\n    from transformers import AutoModel")
    assert not heavy_imports("critics/value/local.py", "def f():\n    import torch")
    assert not heavy_imports("critics/value/local.py", "if TYPE_CHECKING:\n    import torch")
    assert not heavy_imports("critics/value/hf.py", "import torch")


@pytest.mark.thorough
def test_no_models_folder_may_run_code_of_its_own():
    calls = [
        f"{path}: {ast.unparse(node)}"
        for path, source in files()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(".from_pretrained")
        # With None, there is no folder.
        and ast.unparse(node.args[0]) != "None"
    ]
    assert len(calls) > 5, "no calls were found"
    assert [call for call in calls if "trust_remote_code=False" not in call] == []
