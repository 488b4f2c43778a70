"""Distributions are built from a commit, twice, and compared."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile

import pytest

from release.building import ReleaseError, build_twice, differing

BUILD = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n\n'


@pytest.fixture
def root(tmp_path):
    """A folder with a licence and one project."""
    folder = tmp_path / "checkout"
    project(folder, "the_core")
    (folder / "LICENSE").write_text("Do as you like.")
    return folder


def project(folder, name):
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("")
    settings = f'[project]\nname = "{name}"\nversion = "1.0"\nrequires-python = ">=3.11"\n'
    (folder / "pyproject.toml").write_text(BUILD + settings)


def commit(folder):
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (["init", "-q"], ["add", "-A"], [*author, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *command], cwd=folder, check=True)


def build(folder, tmp_path):
    return build_twice(folder, "HEAD", tmp_path / "work", tmp_path / "out")


@pytest.mark.thorough
def test_every_project_is_built_from_the_commit_with_its_licence(root, tmp_path):
    project(root / "integrations" / "vendor", "the_vendor")
    commit(root)
    (root / "the_core" / "draft.py").write_text("not committed")
    files = {path.name: path for path in build(root, tmp_path)}
    assert set(files) == {
        *("the_core-1.0-py3-none-any.whl", "the_core-1.0.tar.gz"),
        *("the_vendor-1.0-py3-none-any.whl", "the_vendor-1.0.tar.gz"),
    }
    assert "the_core/draft.py" not in zipfile.ZipFile(files["the_core-1.0-py3-none-any.whl"]).namelist()
    wheel = zipfile.ZipFile(files["the_vendor-1.0-py3-none-any.whl"])
    assert wheel.read("the_vendor-1.0.dist-info/licenses/LICENSE") == b"Do as you like."
    assert "the_vendor-1.0/LICENSE" in tarfile.open(files["the_vendor-1.0.tar.gz"]).getnames()


@pytest.mark.thorough
def test_an_sdist_that_is_not_complete_is_no_release(root, tmp_path):
    (root / "more.txt").write_text("in the wheel only")
    with (root / "pyproject.toml").open("a") as file:
        file.write('[tool.hatch.build.targets.sdist]\nexclude = ["more.txt"]\n')
        file.write('[tool.hatch.build.targets.wheel.force-include]\n"more.txt" = "the_core/more.txt"\n')
    commit(root)
    with pytest.raises(ReleaseError, match=r"the_core-1\.0"):
        build(root, tmp_path)


def test_files_that_differ_are_named(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, content in ((one, "1"), (other, "2")):
        folder.mkdir()
        (folder / "same").write_text("0")
        (folder / "changed").write_text(content)
    (other / "extra").write_text("")
    assert differing(one, other) == ["changed", "extra"]
