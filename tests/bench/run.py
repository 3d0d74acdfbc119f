"""The side-by-side benchmark: `make bench`, or `python tests/bench/run.py [--rows tiny,large]`.

    for each row:   one process a system (side.py)  ->  check  ->  turn, turn, turn ...  ->  check  ->  judge
                    the systems take turns one after the other, so that what disturbs the machine disturbs them all

The values of every system are compared with torch's, before and after it was timed; a difference fails the run.
Writes a table (Markdown) and everything that was measured (JSON).
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import systems
from rows import LEFT_OUT, OURS, ROWS, TORCH, median

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PEER_PYTHONS = Path(".venv/peers/{}/bin/python")
"""Where `make bench PEERS=...` puts a peer's environment, within the repository."""


class SideError(Exception):
    """A measured process ended; what it said stands on the standard error."""


class Side:
    """A measured process, and what it told."""

    def __init__(self, python, system, row):
        self.system = system
        environ = dict(os.environ, PYTHONPATH=str(ROOT))
        self.process = subprocess.Popen(
            [python, str(HERE / "side.py"), system, row.name, row.kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ,
        )  # fmt: skip
        self._answer()

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SideError(f"{self.system} ended with exit code {self.process.wait()}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def measure(row, pythons):
    """Let the systems take turns at a row.

    Returns:
        What the turns of each system gave; what went wrong, as text for each system.
    """
    names = [TORCH, OURS, *row.extra, *(peer for peer in pythons if peer in systems.PEERS and row.peers)]
    turns, errors, digests, sides = {name: [] for name in names}, {}, {}, {}

    def attempt(name, step):
        """Do one step of a system; one that fails is out of this row, and the others go on."""
        if name in errors:
            return
        try:
            step()
        except (SideError, BrokenPipeError) as error:
            errors[name] = str(error)

    def begin(name):
        sides[name] = Side(pythons[name], name, row)

    def check(name):
        digests.setdefault(name, []).append(sides[name].ask("check"))

    def turn(name):
        turns[name].append(sides[name].ask("turn"))

    def fresh(name):
        begin(name)
        try:
            turn(name)
            digests.setdefault(name, []).append(turns[name][-1])
        finally:
            sides.pop(name).close()

    try:
        if row.fresh:
            for _ in range(row.turns):
                for name in names:
                    attempt(name, lambda name=name: fresh(name))
        else:
            steps = [begin, check, *[turn] * row.turns, check]
            for step in steps:
                for name in names:
                    attempt(name, lambda name=name, step=step: step(name))
    finally:
        for side in sides.values():
            side.close()
    for name in names:
        if name != "memcpy" and name not in errors:
            wrong = compare(name, digests, turns)
            if wrong:
                errors[name] = wrong
    return {name: taken for name, taken in turns.items() if len(taken) == row.turns}, errors


def compare(name, digests, turns):
    """Compare what a system loaded with torch's first epoch. Returns what differs, or an empty string."""
    if TORCH not in digests:
        return "torch gave nothing to compare with"
    key = "loose" if name in systems.PEERS else "strict"
    expected = digests[TORCH][0][key]
    for number, digest in enumerate(digests[name]):
        if digest[key] != expected:
            return f"WRONG VALUES: epoch {number} that was checked differs from torch's ({key})"
    last = f"last_{key}"
    for number, turn in enumerate(turns[name]):
        if last in turn and turn[last] != turns[TORCH][0][last]:
            return f"WRONG VALUES: the last batch of turn {number} differs from torch's ({key})"
    return ""


# ---- the table ----------------------------------------------------------------------------------------------------


def machine():
    """What it was measured on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": model,
        "cores": cores,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "numpy": importlib.metadata.version("numpy"),
        "nbloader": importlib.metadata.version("nbloader"),
        "load": round(os.getloadavg()[0], 1),
        "date": datetime.datetime.now(tz=datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def line(row, turns, errors):
    """A row of the table: what, unit, torch, ours, others, wanted and found."""
    form = "{:,.0f}" if row.unit not in ("batch/s", "ms") else "{:,.1f}"

    def cell(name):
        return form.format(median(turns, name)) if name in turns else "failed" if name in errors else "-"

    others = ", ".join(f"{name} {cell(name)}" for name in turns if name not in (TORCH, OURS)) or "-"
    try:
        verdicts = row.judge(turns)
    except KeyError as error:
        verdicts, judged = [], f"not judged: {error} is missing"
    else:
        judged = "; ".join(f"{'**met**' if v.met else '**missed**'} {v.want}: {v.found}" for v in verdicts)
    found = "; ".join([judged, *(f"{name}: {text}" for name, text in errors.items())])
    return f"| {row.title} | {row.unit} | {cell(TORCH)} | {cell(OURS)} | {others} | {found} |", verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="", help="names, with commas between: " + ",".join(row.name for row in ROWS))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="folder for table.md, results.json")
    options = parser.parse_args()
    wanted = [name for name in options.rows.split(",") if name]
    unknown = set(wanted) - {row.name for row in ROWS}
    if unknown:
        parser.error(f"no rows {sorted(unknown)}: there are {', '.join(row.name for row in ROWS)}")
    rows = [row for row in ROWS if not wanted or row.name in wanted]

    pythons = dict.fromkeys(systems.MAKERS, sys.executable)
    for peer in systems.PEERS:
        python = ROOT / str(PEER_PYTHONS).format(peer)
        if python.exists():
            pythons[peer] = str(python)
        else:
            del pythons[peer]
    facts = machine()
    head = [
        f"{facts['cores']} cores of {facts['cpu']}, {facts['system']}, Python {facts['python']}, "
        f"torch {facts['torch']}, NumPy {facts['numpy']}, {facts['date']}; load when it began: {facts['load']}.",
        "Medians; ratios are medians over turns taken one after the other.",
        "",
        "| work | unit | torch | nbloader | others | wanted and found |",
        "|---|---|---|---|---|---|",
    ]
    say("\n".join(head))
    table, results, failed = head, [], False
    for row in rows:
        turns, errors = measure(row, pythons)
        text, verdicts = line(row, turns, errors)
        failed = failed or any("WRONG" in errors.get(name, "") or name in errors for name in (TORCH, OURS))
        failed = failed or any("WRONG" in error for error in errors.values())
        say(text)
        table.append(text)
        results.append({
            "row": row.name, "title": row.title, "unit": row.unit, "turns": turns, "errors": errors,
            "verdicts": [{"want": v.want, "found": v.found, "met": v.met} for v in verdicts],
        })  # fmt: skip
    if not wanted:
        left_out = ["", *(f"Left out: {reason}." for reason in LEFT_OUT)]
        table += left_out
        say("\n".join(left_out))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "table.md").write_text("\n".join(table) + "\n", encoding="utf-8")
    (options.out / "results.json").write_text(
        json.dumps({"machine": facts, "rows": results}, indent=1) + "\n", encoding="utf-8"
    )
    return 1 if failed else 0


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
