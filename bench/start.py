"""How long a start takes before any model: package, discovery, ``--help``. Appends to ``bench/rows/start.jsonl``."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from ninfer_core.cli.rows import append, row

RUNS = 7
STARTS = {
    "interpreter": "pass",
    "import-ninfer_core": "import ninfer_core",
    "discovery": "from ninfer_core.plugins import load; load()",
    "help": "from ninfer_core.cli.main import main; main(['--help'])",
}


def milliseconds(code: str) -> float:
    """Wall time of a fresh interpreter that runs ``code``."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    rows = [row("start", name, "ninfer", [milliseconds(code) for _ in range(RUNS)]) for name, code in STARTS.items()]
    for item in rows:
        print(f"{item.shape:<20} {item.median_ms:7.1f} ms  ({item.p20_ms:.1f} to {item.p80_ms:.1f})")
    append(Path(__file__).parent / "rows" / "start.jsonl", rows)


if __name__ == "__main__":
    main()
