"""Installs the wheel and the sdist, each in an empty environment, and uses them: `make release-check`.

    python tests/release_check.py build/release

The environments have what NumPy output needs, and no torch, so that the check is quick and does not depend on a build
of torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("cloudpickle", "numpy", "psutil")
SMOKE = """
import importlib.metadata, pathlib, sys
import nbloader

class Squares:
    def __len__(self):
        return 100
    def __getitem__(self, i):
        return i, i * i

assert importlib.metadata.version("nbloader-torch") == nbloader.__version__ == sys.argv[1], nbloader.__version__
with nbloader.DataLoader(Squares(), batch_size=8, shuffle=True, num_workers=2, output="numpy") as loader:
    pairs = [pair for x, y in loader for pair in zip(x.tolist(), y.tolist())]
    assert sorted(pairs) == [(i, i * i) for i in range(100)]
    assert loader.stats().batches_done == 13
    print(loader.stats().verdict)
package = pathlib.Path(nbloader.__file__).parent
print(*sorted(p.relative_to(package).as_posix() for p in package.rglob("*") if p.suffix not in (".pyc", "")), sep="\\n")
"""


def main() -> None:
    """Check every distribution in the folder that the command line names."""
    distributions = sorted(Path(sys.argv[1]).resolve().iterdir())
    kinds = sorted("wheel" if path.suffix == ".whl" else "sdist" for path in distributions)
    if kinds != ["sdist", "wheel"]:
        sys.exit(f"{sys.argv[1]} has {', '.join(path.name for path in distributions)}, not one sdist and one wheel")
    for path in distributions:
        check(path)
        print(f"{path.name}: installed, used, complete")


def check(distribution: Path) -> None:
    """Install a distribution in a new environment, iterate a loader there, and compare the files of the package."""
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
        subprocess.run([*pip, *NEEDED], check=True, cwd=folder, env=env)
        subprocess.run([*pip, "--no-deps", str(distribution)], check=True, cwd=folder, env=env)
        program = Path(folder) / "smoke.py"
        program.write_text(SMOKE)
        version = distribution.name.removesuffix(".tar.gz").split("-")[1]
        done = subprocess.run(
            [python, str(program), version], check=True, cwd=folder, env=env, stdout=subprocess.PIPE, text=True
        )
    verdict, *files = done.stdout.splitlines()
    print(verdict)
    package = ROOT / "nbloader"
    expected = sorted(p.relative_to(package).as_posix() for p in package.rglob("*") if p.suffix not in {".pyc", ""})
    if files != expected:
        sys.exit(f"{distribution.name} differs from the source in {sorted(set(files) ^ set(expected))}")


if __name__ == "__main__":
    main()
