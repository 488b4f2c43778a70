"""Old import paths that the documentation has shown, and names of packages that must not hide functions."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
import types

import pytest

import amc_agents
from amc_agents._moved import MOVED

# Warnings are errors elsewhere; `test_deprecations` expects these.
pytestmark = pytest.mark.filterwarnings("ignore:amc_agents.* is deprecated:DeprecationWarning")
SHOWN = [
    ("amc_agents.critics", ["parse_critic"]),
    ("amc_agents.envs.found", ["world"]),
    ("amc_agents.methods.lac", ["LacSettings", "Sample", "decide"]),
    ("amc_agents.methods.pnlc", ["PnlcSettings", "Proposed", "Sample", "decide"]),
    ("amc_agents.methods.posterior", ["Evidence", "InMemoryPosterior", "diff", "rollback", "update_posterior"]),
    ("amc_agents.middleware", ["ActorCritic", "CritiqueRefine", "InformationDirected", "PosteriorSampling"]),
    ("amc_agents.nodes", ["RoleModel", "StorePosterior", "actor_critic_node", "posterior_sampling_nodes"]),
    ("amc_agents.nodes.actor_critic", ["actor_critic_node"]),
    ("amc_agents.nodes.amc", ["AmcGraph", "amc"]),
    ("amc_agents.nodes.critique_refine", ["critique_refine_node"]),
    ("amc_agents.nodes.exploration", ["posterior_sampling_nodes"]),
    ("amc_agents.nodes.posterior", ["StorePosterior"]),
    ("amc_agents.nodes.text_agent", ["TextAgentState", "model_node", "world_node"]),
    ("amc_agents.nodes.world", ["current_environment", "use_environment"]),
    ("amc_agents.training", ["collect", "score", "train_goal", "train_value", "train_verdict"]),
]


@pytest.mark.parametrize(("path", "names"), SHOWN)
def test_a_path_that_was_shown_still_works(path, names):
    module = importlib.import_module(path)
    assert [name for name in names if not hasattr(module, name)] == []


def test_every_old_path_leads_to_a_module():
    assert [old for old, new in MOVED.items() if not isinstance(importlib.import_module(new), types.ModuleType)] == []
    assert {old for old in MOVED if old.startswith("amc_agents.methods.")} <= {path for path, _ in SHOWN}


def test_an_old_name_is_the_new_object():
    from amc_agents.methods.lac import decide  # type: ignore[import-not-found]

    assert decide is importlib.import_module("amc_agents.lac.decision").decide


def test_an_unknown_module_is_still_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"amc_agents\.methods\.nothing"):
        importlib.import_module("amc_agents.methods.nothing")


@pytest.mark.thorough
def test_no_submodule_hides_a_public_name():
    # Importing a submodule sets it as an attribute of its package, over a function of the same name.
    code = (
        "import pkgutil, importlib, types, amc_agents\n"
        "names = [m.name for m in pkgutil.walk_packages(amc_agents.__path__, 'amc_agents.')]\n"
        "for name in names: importlib.import_module(name)\n"
        "for name in ['amc_agents', *names]:\n"
        "    module = importlib.import_module(name)\n"
        "    for public in getattr(module, '__all__', ()):\n"
        "        assert not isinstance(getattr(module, public), types.ModuleType), (name, public)\n"
        "from amc_agents import amc\n"
        "assert callable(amc)\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)


def test_the_check_above_sees_many_modules():
    assert len(list(pkgutil.walk_packages(amc_agents.__path__, "amc_agents."))) > 200
