"""Build the package, install it into an empty environment and use it there: python -m tools.package

This tests both kinds of archive, wheel and sdist. It needs the package `build`, and an index to install PyTorch from.
"""

import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

from rheobase.deploy import shipped

ROOT = Path(__file__).parents[1]
LARGEST = 40 * 2**20
COMMANDS = (
    ("demo", "--out", "run"),
    ("models",),
    *(("predict", name, "image.npy") for name in shipped.names()),
)


def build(out: Path) -> list[Path]:
    """Build the wheel and the sdist in `out`."""
    _run([sys.executable, "-m", "build", "--outdir", out, ROOT])
    return sorted(out.iterdir())


def check(archive: Path) -> None:
    """Raise a ValueError if an archive is too large or lacks a file."""
    size = archive.stat().st_size
    if size > LARGEST:
        raise ValueError(
            f"{archive.name} is {size / 2**20:.1f} MiB, more than {LARGEST / 2**20:.0f}; leave something out"
        )
    names = contents(archive)
    if missing := [name for name in package_files() if not any(own.endswith(name) for own in names)]:
        raise ValueError(f"{archive.name} lacks {', '.join(missing)}; see [tool.hatch.build] in pyproject.toml")


def package_files() -> list[str]:
    """Return the files of the package: its modules, and the data, networks and pages beside them."""
    source = ROOT / "src"
    files = (path for path in (source / "rheobase").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted(path.relative_to(source).as_posix() for path in files)


def contents(archive: Path) -> list[str]:
    """Return the names of the files in a wheel or an sdist."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.namelist()
    with tarfile.open(archive) as sdist:
        return sdist.getnames()


def use(archives: list[Path], folder: Path) -> None:
    """Install one archive after the other into a new environment in `folder`, and run commands outside the checkout."""
    venv.create(folder / "venv", with_pip=True)
    python, rheobase = (folder / "venv" / "bin" / name for name in ("python", "rheobase"))
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    image = "import numpy; numpy.save('image.npy', numpy.zeros((3, 32, 32), numpy.uint8))"
    for archive in archives:
        place = folder / f"with-{archive.name}"
        place.mkdir()
        _run([*pip, "install", "--constraint", ROOT / "constraints.txt", archive])
        _run([python, "-c", image], place)
        for words in COMMANDS:
            _run([rheobase, *words], place)
        _run([*pip, "uninstall", "--yes", "rheobase"])
        print(f"{archive.name}: {archive.stat().st_size / 2**20:.1f} MiB, installed and used", flush=True)


def _run(command: list[object], folder: Path = ROOT) -> None:
    subprocess.run([*map(str, command)], cwd=folder, check=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        archives = build(Path(name) / "dist")
        for archive in archives:
            check(archive)
        use(archives, Path(name))


if __name__ == "__main__":
    main()
