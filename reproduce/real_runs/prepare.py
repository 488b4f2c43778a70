"""Import three public sets of agent runs: DATA/terminal-bench, DATA/tau-bench and DATA/swe-bench.

    python reproduce/real_runs/prepare.py PACKED DATA

PACKED has the files of `SOURCES`, packed from the named folders of public repositories (all MIT). The archives are
unpacked into a temporary folder, and `amc import` reads them as anyone would.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """A packed set of runs."""

    file: str
    sha256: str
    """First 16 digits."""
    repository: str
    folder: str


SOURCES = {
    "terminal-bench": Source(
        "terminal-bench-2.1_mini-swe-agent_deepseek-v4-flash.tar.xz", "543a6b66a7b77481",
        "llm-as-a-verifier/llm-as-a-verifier", "data/terminal_bench_2.1_trajs",
    ),
    "tau-bench": Source(
        "tau-bench-airline_gpt-4o.json.xz", "7ebe6154f3c8702f",
        "sierra-research/tau-bench", "historical_trajectories/gpt-4o-airline.json",
    ),
    "swe-bench": Source(
        "swe-bench-verified_mini-swe-agent_gemini-3-pro.tar.xz", "6c22aa4a0579c6ee",
        "gruckion/mini-swe-agent", "swebench_results/20251118_gemini-3-pro-74pct",
    ),
}  # fmt: skip


def unpack(source: Source, packed: Path, folder: Path) -> Path:
    """Unpack a source into a folder, and return what `amc import` reads.

    Raises:
        SystemExit: the file is missing, or not the one that was measured.
    """
    path = packed / source.file
    if not path.is_file():
        raise SystemExit(f"no file {path}: pack {source.folder} of github.com/{source.repository} under this name")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if not found.startswith(source.sha256):
        raise SystemExit(f"{path}: expected SHA-256 {source.sha256}..., found {found[:16]}...: not the measured runs")
    if source.file.endswith(".tar.xz"):
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
        return folder
    unpacked = folder / source.file.removesuffix(".xz")
    unpacked.write_bytes(lzma.decompress(path.read_bytes()))
    return unpacked


def outcomes_of(logs: Path) -> list[str]:
    """Return the options that say where the outcomes are: in a results file beside the runs, or in each record."""
    results = sorted(logs.rglob("*results*.json")) if logs.is_dir() else []
    return ["--outcomes", str(results[0])] if results else ["--reward", "reward"]


def main() -> None:
    """Import every set that is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packed", type=Path)
    parser.add_argument("data", type=Path)
    options = parser.parse_args()
    for name, source in SOURCES.items():
        out = options.data / name
        if out.is_dir():
            print(f"{out} is there already")
            continue
        with tempfile.TemporaryDirectory() as folder:
            logs = unpack(source, options.packed, Path(folder))
            amc = Path(sys.executable).with_name("amc")
            subprocess.run([amc, "import", logs, *outcomes_of(logs), "--out", out], check=True)


if __name__ == "__main__":
    main()
