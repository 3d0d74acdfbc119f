"""The side-by-side benchmark: `make bench`, or `python tests/bench/run.py [--rows tiny,large]`.

    for each row:   one process per system (side.py)  ->  check  ->  turn, turn, turn ...  ->  check  ->  judge
                    the systems take turns, so that disturbances of the machine affect all of them

The values of every system are compared with torch's before and after the timing; a difference fails the run.
Writes a table (Markdown) and all measurements (JSON).
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import systems
from rows import OURS, ROWS, TORCH, median

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PEER_PYTHONS = Path(".venv/peers/{}/bin/python")
"""Where `make bench PEERS=...` creates the environment of a peer, relative to the repository."""


READING = (
    "Medians; ratios are medians over interleaved turns, with the 93% confidence interval of the median in brackets; "
    "unclear: the interval contains the target. One full epoch before and one after the timing are compared with "
    "torch's, and so is the last batch of each timed turn."
)


class SideError(Exception):
    """A measured process exited; its output is on the standard error."""


class Side:
    """A measured process and the connection to it."""

    def __init__(self, python, system, row):
        self.system = system
        environ = dict(os.environ, PYTHONPATH=str(ROOT))
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # pip caches bytecode, too
        self.process = subprocess.Popen(
            [python, str(HERE / "side.py"), system, row.name, row.kind, str(row.seconds)],
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


class Comparison:
    """Systems that take turns at one row."""

    def __init__(self, row, pythons):
        peers = [peer for peer in systems.PEERS if peer in pythons and row.peers]
        self.row = row
        self.names = [*([TORCH] if row.torch else []), OURS, *row.extra, *peers]
        self.turns = {name: [] for name in self.names}
        self.errors = {}
        self.digests = {name: [] for name in self.names}
        self._pythons = pythons
        self._sides = {}

    def run(self):
        """Measure.

        Returns:
            The results of each system's turns; the errors, as text per system.
        """
        try:
            if self.row.fresh:
                self._all([self._fresh] * self.row.turns)
            else:
                self._all([self._begin, self._check, *[self._turn] * self.row.turns, self._check])
        finally:
            for side in self._sides.values():
                side.close()
        for name in self.names:
            if self.row.torch and name not in systems.NO_LOADERS and name not in self.errors:
                wrong = compare(name, self.digests, self.turns)
                if wrong:
                    self.errors[name] = wrong
        return {name: taken for name, taken in self.turns.items() if len(taken) == self.row.turns}, self.errors

    def _all(self, steps):
        """Run each step on every system in turn. A system that fails is excluded from this row; the others continue."""
        for step in steps:
            for name in self.names:
                if name in self.errors:
                    continue
                try:
                    step(name)
                except (SideError, BrokenPipeError) as error:
                    self.errors[name] = str(error)

    def _begin(self, name):
        self._sides[name] = Side(self._pythons[name], name, self.row)

    def _check(self, name):
        self.digests[name].append(self._sides[name].ask("check"))

    def _turn(self, name):
        if name == TORCH and not self.row.beside and self.turns[name]:
            return
        self.turns[name].append(self._sides[name].ask("turn"))

    def _fresh(self, name):
        self._begin(name)
        try:
            self._turn(name)
            self.digests[name].append(self.turns[name][-1])
        finally:
            self._sides.pop(name).close()


def compare(name, digests, turns):
    """Compare the values that a system loaded with torch's first epoch. Returns the difference, or an empty string."""
    if not digests[TORCH] or not turns[TORCH]:
        return "torch gave no values to compare with"
    key = "loose" if name in systems.PEERS else "strict"
    expected = digests[TORCH][0][key]
    for number, digest in enumerate(digests[name]):
        if digest[key] != expected:
            return f"WRONG VALUES: checked epoch {number} differs from torch's ({key})"
    last = f"last_{key}"
    for number, turn in enumerate(turns[name]):
        if last in turn and turn[last] != turns[TORCH][0][last]:
            return f"WRONG VALUES: the last batch of turn {number} differs from torch's ({key})"
    return ""


# ---- the table ----------------------------------------------------------------------------------------------------


def machine():
    """The machine and the versions."""
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
        "nbloader": importlib.metadata.version("nbloader-torch"),
        "source": source(),
        "load": round(os.getloadavg()[0], 1),
        "date": dt.datetime.now(tz=dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def source():
    """A digest of the package's source files, to identify the measured version."""
    digest = hashlib.sha256()
    for file in sorted((ROOT / "nbloader").rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def line(row, turns, errors):
    """A row of the table: workload, unit, torch, ours, others, targets and results."""
    form = "{:,.0f}" if row.unit not in ("batch/s", "ms") else "{:,.1f}"

    def cell(name):
        return form.format(median(turns, name)) if name in turns else "failed" if name in errors else "-"

    others = ", ".join(f"{name} {cell(name)}" for name in turns if name not in (TORCH, OURS)) or "-"
    try:
        verdicts = [] if TORCH in errors or OURS in errors else row.judge(turns)
    except KeyError as error:
        verdicts, judged = [], f"not judged: {error} is missing"
    else:
        judged = "; ".join(f"**{v.verdict}** {v.want}: {v.found}" for v in verdicts)
    found = "; ".join([judged, *(f"{name}: {text}" for name, text in errors.items())])
    return f"| {row.title} | {row.unit} | {cell(TORCH)} | {cell(OURS)} | {others} | {found} |", verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="", help="comma-separated names: " + ",".join(row.name for row in ROWS))
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "bench", help="folder for table.md and results.json"
    )
    options = parser.parse_args()
    wanted = [name for name in options.rows.split(",") if name]
    unknown = set(wanted) - {row.name for row in ROWS} - {row.group for row in ROWS}
    if unknown:
        parser.error(f"unknown rows {sorted(unknown)}: choose from {', '.join(row.name for row in ROWS)}")
    rows = [row for row in ROWS if not wanted or row.name in wanted or row.group in wanted]
    missing = [row for row in rows if row.package and importlib.util.find_spec(row.package) is None]
    rows = [row for row in rows if row not in missing]

    pythons = dict.fromkeys(systems.MAKERS, sys.executable)
    for peer in systems.PEERS:
        python = ROOT / str(PEER_PYTHONS).format(peer)
        if python.exists():
            pythons[peer] = str(python)
        else:
            del pythons[peer]
    facts = machine()
    where = f"{facts['cores']} cores of {facts['cpu']}, {facts['system']}, Python {facts['python']}"
    versions = f"torch {facts['torch']}, NumPy {facts['numpy']}, code {facts['source']}"
    head = [
        f"{where}, {versions}, {facts['date']}; load at the start: {facts['load']}.",
        READING,
        "",
        "| workload | unit | torch | nbloader | others | targets and results |",
        "|---|---|---|---|---|---|",
    ]
    say("\n".join(head))
    for row in missing:
        say(f"left out: {row.name}, since {row.package} is not installed")
    table, results, failed = head, [], False
    for row in rows:
        turns, errors = Comparison(row, pythons).run()
        text, verdicts = line(row, turns, errors)
        failed = failed or TORCH in errors or OURS in errors or any("WRONG" in error for error in errors.values())
        say(text)
        table.append(text)
        results.append({
            "row": row.name, "title": row.title, "unit": row.unit, "turns": turns, "errors": errors,
            "verdicts": [{"want": v.want, "found": v.found, "verdict": v.verdict} for v in verdicts],
        })  # fmt: skip
    if source() != facts["source"]:
        failed = True
        table.append(
            "\nThe package's source changed during the run: the rows were measured on different versions of it."
        )
        say(table[-1])
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
