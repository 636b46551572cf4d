"""`make bench`: every benchmark that runs on this machine, each with its own table; JSON under benchmarks/out/.

python benchmarks/run.py [NAME ...]      names: step data inference fits pipeline plan pod_load pod_faults
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
FAST = ("step", "data", "pipeline")
ALL = (*FAST, "plan", "inference", "fits", "pod_load", "pod_faults")


def main(names: list[str]) -> int:
    """Run the named benchmarks, by default those that compare ours with a baseline; returns the number that failed."""
    unknown = set(names) - set(ALL)
    if unknown:
        print(f"no benchmark {sorted(unknown)[0]!r}; there are {', '.join(ALL)}", file=sys.stderr)
        return 2
    (HERE / "out").mkdir(exist_ok=True)
    failed = 0
    for name in names or FAST:
        print(f"== {name}", flush=True)
        started = time.perf_counter()
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        if name in FAST:
            command += ["--json", str(HERE / "out" / f"{name}.json")]
        failed += subprocess.run(command, check=False, cwd=HERE.parent).returncode != 0
        print(f"== {name}: {time.perf_counter() - started:.0f} s\n", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
