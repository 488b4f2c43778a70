"""Copies the pages of docs/ to a build folder, with every file of the repository that they link to.

A page of the site may link to code, data and pages anywhere in the repository. These files become pages of the site
under `source/`, so that no link leaves it and none needs a server.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path, PurePosixPath

from links import relinked, with_separate_lists

from amc_agents.markdown import block

UNCHANGED = {".png", ".svg", ".ipynb"}
LANGUAGES = {".py": "python", ".sh": "bash", ".yml": "yaml", ".yaml": "yaml", ".json": "json", ".toml": "toml"}
LARGEST_PAGE = 60_000
"""Bytes; a larger file is offered as it is."""


class Staging:
    """The pages of the site on their way from the repository to the generator.

    Args:
        root: the repository.
        pages: the folder that the generator reads.
        generated: repository paths that no file has, because their pages are generated.
    """

    def __init__(self, root: Path, pages: Path, generated: frozenset[str] = frozenset()) -> None:
        self.root, self.pages, self.generated = root, pages, generated
        self._staged: dict[str, str] = {}

    def stage_docs(self) -> None:
        """Stage every page of docs/, and what they link to."""
        for path in sorted((self.root / "docs").rglob("*.md")):
            self.page_of(path.relative_to(self.root).as_posix())

    def page_of(self, path: str) -> str:
        """Stage a file or folder of the repository, and return its page's path on the site."""
        if path not in self._staged:
            self._staged[path] = self._page_name(path)
            self._stage(path, self.pages / self._staged[path])
        return self._staged[path]

    def write(self, page: str, text: str, path: str) -> None:
        """Write a page whose links are relative to `path` in the repository."""
        folder, here = PurePosixPath(path).parent, PurePosixPath(page).parent

        def target(link: str) -> str:
            to = os.path.normpath(folder / link) if link else path
            if to not in self.generated and not (self.root / to).exists():
                raise FileNotFoundError(f"{path} links to {to}, which does not exist: correct the link")
            return os.path.relpath(self.page_of(PurePosixPath(to).as_posix()), here) if link else ""

        file = self.pages / page
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(with_separate_lists(relinked(text, target)))

    def _page_name(self, path: str) -> str:
        file = self.root / path
        if path in self.generated or (path.startswith("docs/") and file.suffix in UNCHANGED | {".md"}):
            return path.removeprefix("docs/")
        if file.is_dir():
            readme = f"{path}/README.md"
            return self.page_of(readme) if (self.root / readme).exists() else f"source/{path}/index.md"
        as_it_is = file.suffix in UNCHANGED | {".md"} or not _is_text(file)
        return f"source/{path}" if as_it_is else f"source/{path}.md"

    def _stage(self, path: str, file: Path) -> None:
        source = self.root / path
        if path in self.generated or file.exists():
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        page = file.relative_to(self.pages).as_posix()
        if source.is_dir():
            self.write(page, _listing(source, path), f"{path}/index.md")
        elif source.suffix == ".md":
            self.write(page, source.read_text(), path)
        elif file.suffix == ".md":
            file.write_text(_as_page(source, path))
        else:
            shutil.copyfile(source, file)


def _is_text(file: Path) -> bool:
    if file.stat().st_size > LARGEST_PAGE:
        return False
    try:
        file.read_text()
    except UnicodeDecodeError:
        return False
    return True


def _listing(folder: Path, path: str) -> str:
    """A page that links to the files of a folder."""
    names = sorted(file.name for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    return f"# {path}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)


def _as_page(file: Path, path: str) -> str:
    return f"# {path}\n\n{block(file.read_text().rstrip(), LANGUAGES.get(file.suffix, 'text'))}\n"
