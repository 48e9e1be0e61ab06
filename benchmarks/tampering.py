"""Does `rankbench verify` find every change of a signed bundle, and name the file?

    python benchmarks/tampering.py [--seed 1] [--share 1.0]

A small bundle with two signatures is changed and verified, again and again, in one
process: one byte of a file, of the archive, of the archive before it is compressed, or
of a file and then the manifest; or files are swapped, removed or added. Kind, place and
value come from the seed. Keys are new in each run, which changes nothing but the names
of signatures.

A few bits of a compressed archive mean nothing: it unpacks to the same bytes without
them. Such a change is counted apart.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from tampers import Target, run  # noqa: E402

KINDS = {
    "flip_file": 1000,
    "flip_archive": 300,
    "flip_member": 200,
    "flip_and_seal": 100,
    "swap": 70,
    "remove": 65,
    "add": 65,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=1.0, help="of the trials")
    arguments = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        target = Target(Path(folder))
        for path in (target.bundle, target.archive):
            status, said = target.verify(path)
            assert status == 0, said
        print(f"seed {arguments.seed}, {len(target.files)} files", flush=True)
        for kind, most in KINDS.items():
            count = max(1, round(most * arguments.share))
            begun = time.perf_counter()
            trials = list(run(target, kind, count, arguments.seed))
            effective = [one for one in trials if not one.idle]
            refused = sum(one.refused for one in effective)
            named = sum(one.named for one in effective)
            crashed = sum(one.status is None for one in effective)
            print(
                f"{kind}: {len(effective)} changes, {refused} refused, {named} named, "
                f"{crashed} tracebacks; {count - len(effective)} without effect; "
                f"{time.perf_counter() - begun:.0f} s",
                flush=True,
            )
            for one in effective:
                if not one.named:
                    bad += 1
                    print(f"  {one.what}: status {one.status}: {one.said[-500:]}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
