"""What must agree before the core and its integrations are released together."""

from __future__ import annotations

from pathlib import Path

from release.projects import Project, disagreements, projects

CHANGELOG = "# Changelog\n\n## [Unreleased]\n"


def project(name, version, *needs):
    return Project(Path(name), {"project": {"name": name, "version": version, "dependencies": list(needs)}})


def test_the_projects_of_this_repository_agree(repository):
    known = projects(repository)
    assert known[0].name == "amc-agents"
    assert len(known) == 1 + len(list((repository / "integrations").glob("*/pyproject.toml")))
    assert list(disagreements(known, (repository / "CHANGELOG.md").read_text())) == []


def test_versions_and_bounds_are_compared():
    core = project("amc-agents", "0.2.0")
    assert list(disagreements([core, project("a", "0.2.0", "amc-agents>=0.1,<0.3")], CHANGELOG)) == []
    assert "release them together" in next(disagreements([core, project("a", "0.1.0", "amc-agents<0.3")], CHANGELOG))
    for needs in ("amc-agents", "amc-agents>=0.1", "amc-agents<0.2", "numpy<3"):
        (reason,) = disagreements([core, project("a", "0.2.0", needs)], CHANGELOG)
        assert "an upper bound that admits 0.2.0" in reason


def test_the_changelog_has_a_section_of_the_version():
    core = project("amc-agents", "0.2.0")
    assert list(disagreements([core], "## [0.2.0] - 2026-01-01\n")) == []
    assert "CHANGELOG.md" in next(disagreements([core], "## [0.1.0]\n"))
