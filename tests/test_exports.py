"""Every door (an `__init__.py` with `__all__`) is sorted, complete, and opens; every error says what to do."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import amc_agents
from amc_agents import errors

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = {
    "amc_agents": (
        "ActorCritic Adaptive AmcError AmcGraph AmcSettings AtSteps Budget BudgetExhausted Critic CritiqueRefine "
        "Deferred EarlyStop Environment EssBelow EveryStep Forkable InformationDirected Never Population "
        "PosteriorSampling Race Retried RoleModel Run Step StorePosterior Task TimeStep Trajectory Usage "
        "actor_critic_model actor_critic_node amc canary critique_refine_model critique_refine_node current_commit "
        "current_environment effect information_directed_nodes parse_critic posterior_sampling_nodes shadow "
        "text_agent use_environment"
    ).split(),
    "amc_agents.critics": "AllowedCritics parse_critic".split(),
    "amc_agents.operations.importing": (
        "ImportReport LoggedRun Origin Outcomes Reading Refused import_logs read"
    ).split(),
    "amc_agents.lac": "ActorCritic LacSettings actor_critic_model actor_critic_node decide".split(),
    "amc_agents.pnlc": "CritiqueRefine PnlcSettings critique_refine_model critique_refine_node decide".split(),
    "amc_agents.population": "AmcGraph AmcSettings Feature amc".split(),
    "amc_agents.psrl": (
        "InformationDirected PosteriorSampling RoleModel StorePosterior exploring_text_agent "
        "information_directed_nodes posterior_sampling_nodes"
    ).split(),
    "amc_agents.operations.rollout": "CanaryReport ShadowReport canary shadow".split(),
    "amc_agents.smc": (
        "SCHEMES Adaptive AtSteps EssBelow EveryStep FilterState FinishedMode Genealogy Never ResamplingInfo Schedule "
        "Scheme begin_again ess halving_beta init keep_in_place log_evidence log_mean_exp log_sum_exp multinomial "
        "normalised overtaking_by_agreement overtaking_by_value potentials resample residual resolve_scheme restart "
        "stratified systematic weigh"
    ).split(),
    "amc_agents.training": "collect score train_goal train_value train_verdict".split(),
}
"""The public surface: changing it is a decision, so it is written down twice."""


def doors() -> list[str]:
    """Names of the packages that declare `__all__`."""
    found = []
    for path in sorted((ROOT / "amc_agents").rglob("__init__.py")):
        assigned = [node.targets[0] for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in assigned):
            found.append(".".join(path.parent.relative_to(ROOT).parts))
    return found


def order(name: str) -> tuple[int, str]:
    """CONSTANTS, then Classes, then functions: the order that ruff keeps."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


def test_there_are_doors():
    assert {"amc_agents", "amc_agents.smc"} <= set(doors())


@pytest.mark.parametrize("door", PUBLIC)
def test_the_public_surface_is_the_listed_one(door):
    assert importlib.import_module(door).__all__ == PUBLIC[door]


@pytest.mark.parametrize("door", doors())
def test_all_is_sorted(door):
    names = importlib.import_module(door).__all__
    assert list(names) == sorted(set(names), key=order)


@pytest.mark.parametrize("door", doors())
def test_every_door_has_a_page_in_the_navigation_of_the_site(door):
    line = f"      - {door}: reference/api/{door}.md\n"
    assert line in (ROOT / "mkdocs.yml").read_text(), f"add this line to `nav:` in mkdocs.yml, below Python API: {line}"


@pytest.mark.parametrize("door", doors())
def test_every_name_is_there(door):
    module = importlib.import_module(door)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("door", doors())
def test_no_public_name_is_left_out(door):
    module = importlib.import_module(door)
    ours = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and getattr(value, "__module__", "").startswith("amc_agents")
    }
    assert ours <= set(module.__all__)


ERRORS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.AmcError)]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_cause_and_a_remedy_and_is_in_the_tree(kind):
    cause, _, remedy = inspect.getdoc(kind).partition("\n\nRemedy: ")
    assert cause, "the first paragraph says when the error is raised"
    assert remedy, "a paragraph `Remedy: ...` before `Args:` says what to do; docs show it on the page of errors"
    assert re.search(rf"^    [ │├└─]*{kind.__name__}\b", errors.__doc__, re.MULTILINE), (
        "draw it in the module's docstring"
    )


def test_public_signatures_are_the_committed_ones(repository):
    # Changing one is a decision: `python -m release.public_api --write` renews the listing.
    from release.public_api import LISTING, listing

    assert (repository / LISTING).read_text() == listing()


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
