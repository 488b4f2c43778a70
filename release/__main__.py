"""Build and check a release of the core and of every integration. Nothing is published.

    python -m release [--out dist] [--commit HEAD]

Writes into the folder: the sdist and the wheel of every project, the software bill of materials (CycloneDX), the table
of licences, the listing of public names, and SHA256SUMS. The folder is replaced as a whole, and only if every check
passes.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from release.building import ReleaseError, build_twice, export
from release.licences import licences, refusals, table
from release.materials import write_sbom
from release.projects import CORE, ROOT, disagreements, projects
from release.public_api import LISTING, RELEASED, unnamed_changes


def release(repository: Path, commit: str, out: Path) -> None:
    """Build, check, and put the results into `out`.

    Raises:
        ReleaseError: a check failed; `out` is unchanged.
    """
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".release-") as folder:
        work, built = Path(folder), Path(folder) / "built"
        built.mkdir()
        source = export(repository, commit, work / "source")
        known = projects(source)
        changelog = (source / "CHANGELOG.md").read_text()
        _refuse([*disagreements(known, changelog), *unnamed_changes(source, changelog)])
        print(f"{CORE} {known[0].version} and {len(known) - 1} integrations, each built twice", flush=True)
        files = build_twice(repository, commit, work / "builds", built)
        _check_metadata(files)
        wheel = next(path for path in files if path.name.startswith("amc_agents-") and path.suffix == ".whl")
        print("licences of what is installed", flush=True)
        sbom = write_sbom(wheel, source, work, built / f"{CORE}-{known[0].version}.cdx.json")
        found = licences(sbom)
        _refuse(refusals(found))
        (built / "licences.md").write_text(table(found) + "\n")
        shutil.copyfile(source / LISTING, built / RELEASED.name)
        write_checksums(built)
        shutil.rmtree(out, ignore_errors=True)
        built.rename(out)


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS over all files of a folder, as `sha256sum --check` reads it."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(lines))


def _refuse(reasons: object) -> None:
    if found := list(reasons):  # type: ignore[call-overload]
        raise ReleaseError("\n".join(found))


def _check_metadata(files: list[Path]) -> None:
    """Have twine check what a package index would refuse: fields, and a description that does not render."""
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(done.stdout + done.stderr)


def main() -> int:
    """Parse the arguments and make the release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--commit", default="HEAD", help="what is built; files that are not committed take no part")
    arguments = parser.parse_args()
    try:
        release(ROOT, arguments.commit, arguments.out.resolve())
    except ReleaseError as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.out} holds the release. Nothing was published.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
