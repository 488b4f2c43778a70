"""The documentation site: links that leave docs/, generated pages, and files for language models."""

from __future__ import annotations

import base64
import importlib
import json
import sys
from pathlib import Path

import pytest

from amc_agents import errors

ROOT = Path(__file__).resolve().parents[1]
MODULES = (
    "links",
    "staging",
    "error_page",
    "command_page",
    "notebook_pages",
    "navigation",
    "for_language_models",
    "rendering",
)


@pytest.fixture
def site(monkeypatch):
    """The modules of the generator, by name."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "generator"))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield lambda name: importlib.import_module(name)
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def repository(tmp_path):
    """A small repository with a page and what it links to."""
    files = {
        "docs/index.md": "[code](../tool.py#L1) [folder](../data) [kept](other.md#a) [out](https://x.y/z)\n"
        "```\n[code](../tool.py)\n```\n[`README`](../README.md)\n![picture](p.png)\n",
        "docs/other.md": "# Other\nText:\n- an item\n- another\n",
        "docs/p.png": "png",
        "tool.py": "print('```')\n",
        "data/big.json": "1" * 70_000,
        "data/small.txt": "small",
        "README.md": "[docs](docs/index.md)\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_every_link_of_the_real_pages_leads_somewhere(site, tmp_path):
    site("staging").Staging(ROOT, tmp_path).stage_docs()


def test_files_outside_of_the_docs_become_pages_and_code_blocks_stay(site, repository):
    pages = repository / "build"
    site("staging").Staging(repository, pages).stage_docs()
    assert (pages / "index.md").read_text() == (
        "[code](source/tool.py.md#L1) [folder](source/data/index.md) [kept](other.md#a) [out](https://x.y/z)\n"
        "```\n[code](../tool.py)\n```\n[`README`](source/README.md)\n![picture](p.png)\n"
    )
    assert (pages / "source/tool.py.md").read_text() == "# tool.py\n\n````python\nprint('```')\n````\n"
    assert (
        pages / "source/data/index.md"
    ).read_text() == "# data\n\n- [big.json](big.json)\n- [small.txt](small.txt.md)\n"
    assert (pages / "source/data/big.json").stat().st_size == 70_000, "a large file is offered as it is"
    assert (pages / "source/README.md").read_text() == "[docs](../index.md)\n"
    assert (pages / "other.md").read_text() == "# Other\nText:\n\n- an item\n- another\n"
    assert (pages / "p.png").exists()


def test_a_broken_link_is_named_with_its_page(site, repository):
    (repository / "docs/other.md").write_text("[gone](../gone.py)")
    with pytest.raises(FileNotFoundError, match=r"docs/other\.md links to gone\.py"):
        site("staging").Staging(repository, repository / "build").stage_docs()


def test_lists_in_code_are_not_separated(site):
    text = "~~~\na\n- b\n~~~\n"
    assert site("links").with_separate_lists(text) == text


def test_the_page_of_errors_has_every_error_with_cause_remedy_and_attributes(site):
    page = site("error_page").error_page()
    for kind in site("error_page").error_classes():
        assert f"\n## {kind.__name__}\n" in page
    lost = page.split("## QuorumLost\n")[1].split("\n## ")[0]
    assert "Subclass of `PopulationError`." in lost
    assert "More particles failed than the quorum allows." in lost
    assert "**Remedy.** Fix what `causes` lists, or lower `quorum`." in lost
    assert "- `causes`: the exception of each failed particle." in lost
    assert "└── MissingExtra" in site("error_page").error_tree()
    assert issubclass(errors.StorageError, errors.AmcError)


def test_the_page_of_commands_has_every_command_with_every_option(site):
    module = site("command_page")
    page = module.command_page()
    commands = dict(module.commands())
    assert {"amc demo", "amc train value", "amc posterior rollback"} <= set(commands)
    for name, command in commands.items():
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            options = [option for option in parameter.opts if option.startswith("-")]
            assert parameter.hidden or all(option in section for option in options), (name, options)
    assert "```bash\namc demo --tasks 16\n```" in page
    assert "Example: amc new" not in page, "examples are shown once, as code"


def test_a_notebook_becomes_a_page_with_its_outputs_and_pictures(site, tmp_path):
    picture = {"data": {"image/png": base64.b64encode(b"png").decode(), "text/plain": ["<Figure>"]}}
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Purpose."]},
        {"cell_type": "code", "source": ["1 + 1"], "outputs": [{"data": {"text/plain": ["2"]}}, {"text": ["out\n"]}]},
        {"cell_type": "code", "source": ["plot()"], "outputs": [picture]},
    ]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells}))
    page = site("notebook_pages").notebook_page(tmp_path / "n.ipynb", tmp_path)
    assert page.startswith("# Title\nPurpose.\n\n*This page is the notebook [n.ipynb](n.ipynb).")
    assert "```python\n1 + 1\n```\n\n```text\n2\n```\n\n```text\nout\n```" in page
    assert page.endswith("```python\nplot()\n```\n\n![Output of the cell above](n-2-0.png)\n")
    assert (tmp_path / "n-2-0.png").read_bytes() == b"png"


def test_language_models_get_every_page_of_the_navigation_with_its_purpose(site, tmp_path):
    (tmp_path / "a.md").write_text("# Page A\n\n| x |\n|---|\n\nDo [this](b.md), e.g. now. Then that.\n")
    (tmp_path / "b.md").write_text("# Page B\n\nIt shows:\n\n    code\n")
    nav = [{"Home": "a.md"}, {"Deep": [{"Deeper": [{"B": "b.md"}]}, {"A": "a.md"}]}]
    text = site("for_language_models").llms_txt({"site_name": "S", "site_description": "D.", "nav": nav}, tmp_path)
    a = "- [Page A](a.md): Do this, e.g. now.\n"
    assert text == f"# S\n\n> D.\n\n## Home\n\n{a}\n## Deep\n\n- [Page B](b.md): It shows\n{a}"


def test_every_page_has_its_markdown_beside_it(site, tmp_path):
    for name in ("pages/a.md", "pages/results/README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    site("for_language_models").add_markdown(tmp_path / "pages", tmp_path / "site")
    assert (tmp_path / "site/a.md").read_text() == "pages/a.md"
    assert (tmp_path / "site/results/README.md").exists()
    assert (tmp_path / "site/results/index.md").exists(), "beside index.html"


def test_the_navigation_lists_pages_that_exist_or_are_generated(site):
    navigation = site("navigation")
    pages = [page for _, page in navigation.navigation_pages(navigation.configuration(ROOT / "mkdocs.yml")["nav"])]
    assert len(pages) == len(set(pages))
    assert [
        page
        for page in pages
        if not page.startswith(("reference/", "notebooks/")) and not (ROOT / "docs" / page).exists()
    ] == []


def test_equations_become_mathml_and_pipes_in_code_are_unescaped(site):
    pytest.importorskip("latex2mathml", reason="the extra docs is not installed")
    corrected = site("rendering").corrected_page
    inline = corrected(r'<p><span class="arithmatex">\(a &lt; b\)</span> <code>x\|y</code> \|</p>')
    assert inline.startswith('<p><math xmlns="http://www.w3.org/1998/Math/MathML" display="inline">')
    assert inline.endswith(r"</math> <code>x|y</code> \|</p>")
    block = corrected('<div class="arithmatex">\\[\nQ\n\\]</div>')
    assert 'display="block"' in block
    assert "<mi>Q</mi>" in block
