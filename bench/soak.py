"""A real server under clients that come, go and misbehave, for a while. Appends one row to ``rows/soak.jsonl``.

Exit status 1 when something was not given back: lanes, pages, state slots or request capacity held at rest, a request
without an answer, an answer that differs from the first one, or a server that ended by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
from served import HOST, Served, write_script
from soak_clients import CHAT, Client

from ninfer_core.cli.rows import append, device, versions

CLIENTS = 12
REQUEST_MIB = 1
LANES = 4
FLAGS = (
    *("--max-concurrency", str(LANES), "--max-pending-requests", "6", "--pending-timeout-ms", "3000"),
    *(
        "--max-request-mib",
        str(REQUEST_MIB),
        "--max-context",
        "8192",
        "--kv-capacity",
        "20000",
        "--prefill-chunk",
        "256",
    ),
    *("--concurrent-prefill", "--kv-lease-growth", "--default-thinking-budget", "40", "--default-max-tokens", "300"),
    *("--log-level", "error"),
)
THOUGHT = "First I think about it for a while, and then for a while longer.</think>\n\n"
SCRIPT: dict[str, Any] = {
    "replies": [
        {"match": "count", "text": THOUGHT + "1 2 3 4 5 6 7 8 9 10", "draft": [3, 0, 5]},
        {"match": "think", "text": "I go on thinking. " * 20, "finish": "never", "delay_ms": 1},
        {"match": "split", "pieces_bytes": [[240, 159], [152, 128], [60, 47, 116]], "draft": [1]},
        {"match": "nan", "text": THOUGHT + "never seen", "nan_at": 30},
        {"match": "slow", "text": THOUGHT + "a word and another", "finish": "never", "delay_ms": 8},
    ],
    "default": {"text": THOUGHT + "OK."},
    "prefill_delay_ms": 2,
}
REFERENCE = {"messages": [{"role": "user", "content": "please count"}], "seed": 7, "max_tokens": 120}
REST_SECONDS = 30.0  # to come to rest after the last client left


@dataclass(kw_only=True, slots=True)
class Usage:
    """What the process holds."""

    at: float  # monotonic seconds
    rss_mib: float
    threads: int
    files: int


class SoakRow(msgspec.Struct, frozen=True, kw_only=True):
    minutes: float
    clients: int
    requests: int
    outcomes: dict[str, int]
    rss_mib: tuple[float, float]  # after the warm-up, at the end
    rss_slope_mib_per_hour: float  # after the warm-up, the first quarter
    threads: tuple[int, int]  # before the first client, after the last
    files: tuple[int, int]
    leaked: dict[str, int]  # held at rest; all zero when nothing leaks
    same_answer: bool  # the reference request's, before and after
    exit_status: int | None
    device: str
    versions: dict[str, str]
    measured: str


@dataclass(slots=True)
class Watched:
    """A run as it goes."""

    outcomes: Counter[str] = field(default_factory=Counter)
    samples: list[Usage] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="time with clients (default: 20)")
    parser.add_argument("--clients", type=int, default=CLIENTS, help=f"at once (default: {CLIENTS})")
    parser.add_argument("--seed", type=int, default=0, help="of the first client; others count on from it")
    arguments = parser.parse_args()
    row = soak(arguments.minutes, arguments.clients, arguments.seed)
    print(msgspec.json.format(msgspec.json.encode(row)).decode())
    append(Path(__file__).parent / "rows" / "soak.jsonl", [row])
    problems = faults(row)
    for problem in problems:
        print(f"FAULT: {problem}", file=sys.stderr)
    return 1 if problems else 0


def soak(minutes: float, clients: int, seed: int) -> SoakRow:
    with tempfile.TemporaryDirectory() as folder:
        server = Served(write_script(folder, SCRIPT), *FLAGS)
        with server:
            before = reference(server.port)
            start = usage(server.pid)
            watched = asyncio.run(watch(server, minutes * 60, clients, seed))
            leaked, end = at_rest(server)
            after = reference(server.port) if server.running else None
    steady = watched.samples[len(watched.samples) // 4 :] or [start, end]
    return SoakRow(
        minutes=minutes,
        clients=clients,
        requests=watched.outcomes.total(),
        outcomes=dict(sorted(watched.outcomes.items())),
        rss_mib=(round(steady[0].rss_mib, 1), round(end.rss_mib, 1)),
        rss_slope_mib_per_hour=round(slope(steady), 2),
        threads=(start.threads, end.threads),
        files=(start.files, end.files),
        leaked=leaked,
        same_answer=before == after,
        exit_status=server.status,
        device=device(),
        versions=versions(),
        measured=time.strftime("%Y-%m-%d %H:%M:%S"),
    )


async def watch(server: Served, seconds: float, clients: int, seed: int) -> Watched:
    """Let the clients act for that long, and note every second what the server holds."""
    watched = Watched()
    until = time.monotonic() + seconds
    acting = [Client(server.port, seed + i, REQUEST_MIB << 20, watched.outcomes) for i in range(clients)]
    tasks = [asyncio.create_task(client.run(until)) for client in acting]
    while server.running and time.monotonic() < until:
        watched.samples.append(usage(server.pid))
        await asyncio.sleep(1)
    if not server.running:
        for task in tasks:
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return watched


def at_rest(server: Served) -> tuple[dict[str, int], Usage]:
    """What is still held once everything had time to end, and the usage then."""
    deadline = time.monotonic() + REST_SECONDS
    leaked = held(server.port)
    while any(leaked.values()) and time.monotonic() < deadline:
        time.sleep(0.2)
        leaked = held(server.port)
    time.sleep(1)  # sockets of the last clients
    return leaked, usage(server.pid)


def held(port: int) -> dict[str, int]:
    report = httpx.get(f"http://{HOST}:{port}/v1/load").json()
    requests, occupancy = report["requests"], report["occupancy"]
    return {
        "capacity": requests["admitted"],
        "lanes": requests["running"],
        "waiting": requests["waiting"],
        "kv_pages": occupancy["device_main_kv_pages"],
        "state_slots": occupancy["device_state_slots"],
    }


def reference(port: int) -> dict[str, Any]:
    """The answer of a request that always gets the same one, without what names or times it."""
    answer = httpx.post(f"http://{HOST}:{port}{CHAT}", json=REFERENCE, timeout=60).json()
    return {"choices": answer.get("choices"), "usage": answer.get("usage"), "error": answer.get("error")}


def usage(pid: int) -> Usage:
    """Linux: from ``/proc``."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return Usage(
        at=time.monotonic(),
        rss_mib=int(fields["VmRSS"].split()[0]) / 1024,
        threads=int(fields["Threads"]),
        files=len(os.listdir(f"/proc/{pid}/fd")),
    )


def slope(samples: list[Usage]) -> float:
    """MiB an hour, by least squares; 0 of fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    return 3600 * statistics.linear_regression([s.at for s in samples], [s.rss_mib for s in samples]).slope


def faults(row: SoakRow) -> list[str]:
    found = [f"{count} {name} held at rest" for name, count in row.leaked.items() if count]
    unanswered = sum(count for name, count in row.outcomes.items() if name.endswith("no answer"))
    if unanswered:
        found.append(f"{unanswered} requests without an answer")
    if not row.same_answer:
        found.append("the reference request is answered otherwise than before")
    if row.exit_status:
        found.append(f"the server ended with status {row.exit_status}")
    return found


if __name__ == "__main__":
    sys.exit(main())
