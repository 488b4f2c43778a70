"""Compare the package with the frozen records, or write them anew.

    python -m tests.frozen            print what differs
    python -m tests.frozen --write    replace the records by what the package does now
    python -m tests.frozen --figures  print the figures whose ceilings are frozen

The records say what the package did before it was rebuilt. `--write` is allowed where a change of behaviour is wanted,
and the commit then explains each difference that this command prints without it. During the rebuild it is not allowed
for anything else: a record that no longer holds is a fault of the new code until the opposite has been explained.
"""

from __future__ import annotations

import argparse
import sys

from tests.frozen.records import FILES, played, read, write
from tests.frozen.walks import FIGURES


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.frozen", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--write", action="store_true", help="replace the records; see above for when that is allowed")
    parser.add_argument("--figures", action="store_true", help="print the figures")
    parser.add_argument("--only", default="", metavar="TEXT", help="only configurations whose name contains this text")
    given = parser.parse_args()
    if given.figures:
        for name, measure in FIGURES.items():
            print(f"{measure():>7,}  {name}")
        return 0
    found = []
    for file, configurations in FILES.items():
        then = read(file)
        now = dict(then) if given.only else {}
        for name in configurations:
            if given.only in name:
                now[name], differences = played(file, name, then)
                found += differences
        if given.write:
            write(file, now)
    print("\n".join(found) or "no difference")
    return 0 if given.write or not found else 1


if __name__ == "__main__":
    sys.exit(main())
