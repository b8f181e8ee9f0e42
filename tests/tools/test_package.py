"""What is wrong with an archive is seen before it is installed; `make test-package` installs both kinds."""

import re
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from rheobase import __version__
from tools import package


def wheel(folder: Path, names: list[str]) -> Path:
    path = folder / "rheobase-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


def test_the_data_of_the_package_belong_to_it() -> None:
    names = package.package_files()
    for needed in ("rheobase/py.typed", "rheobase/report/page.html", "rheobase/data/sets/digits.csv.gz"):
        assert needed in names
    assert [name for name in names if name.startswith("rheobase/deploy/networks/") and "weights.safetensors" in name]
    assert not [name for name in names if name.endswith(".pyc")]


def test_the_version_is_one() -> None:
    own = tomllib.loads((package.ROOT / "pyproject.toml").read_text())["project"]["version"]
    newest = re.search(r"^## (\S+) - (\S+)$", (package.ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = (package.ROOT / "CITATION.cff").read_text()
    assert newest is not None
    assert (own, own) == (__version__, newest[1])
    assert f"\nversion: {own}\ndate-released: {newest[2]}\n" in cited


def test_every_extra_is_documented() -> None:
    project = tomllib.loads((package.ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"]) - {"dev"}
    install = (package.ROOT / "docs" / "install.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", install, re.MULTILINE)) == extras


def test_a_whole_archive_passes(tmp_path: Path) -> None:
    package.check(wheel(tmp_path, package.package_files()))
    sdist = tmp_path / "rheobase-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name in package.package_files():
            archive.addfile(tarfile.TarInfo(f"rheobase-1/src/{name}"))
    package.check(sdist)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    names = [name for name in package.package_files() if not name.endswith("py.typed")]
    with pytest.raises(ValueError, match=r"rheobase-1-py3-none-any\.whl lacks rheobase/py\.typed; see"):
        package.check(wheel(tmp_path, names))


def test_an_archive_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = wheel(tmp_path, package.package_files())
    monkeypatch.setattr(package, "LARGEST", 100)
    with pytest.raises(ValueError, match="MiB, more than 0; leave something out"):
        package.check(path)
