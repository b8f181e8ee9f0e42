"""What the documents name exists: Python names, commands and their options, modules, files."""

import importlib
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from rheobase import recipes
from tests.test_imports import files, own_imports, part
from tools import reference
from tools.reference import Parameter

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
]
COMMANDS = reference.command_lines()
GLOBAL = {"-h", "--help", "--version", "--debug", "--install-completion", "--show-completion"}
OTHERS = {"--max-restarts", "--nnodes", "--requeue", "--signals-to-handle"}  # of torchrun and sbatch
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def spans(document: Path) -> list[str]:
    """The code in the running text of a document."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", BLOCK.sub("", document.read_text()))]


def command_lines(document: Path) -> Iterator[list[str]]:
    """The commands of ours in its blocks, as words; what follows two spaces or # is a remark."""
    for kind, block in BLOCK.findall(document.read_text()):
        for line in block.replace("\\\n", " ").splitlines() if kind in ("", "bash", "console", "sh") else ():
            command = re.sub(r"(?<=\S)(?:\s{2,}(?!-).*| &)$", "", line.strip())
            if found := re.match(r"(?:rheobase|torchrun .* -m rheobase) (.*)", command):
                yield shlex.split(found[1], comments=True)


def imports(document: Path) -> Iterator[tuple[str, str]]:
    """Modules of the package and what the Python code in a document imports from them."""
    for kind, block in BLOCK.findall(document.read_text()):
        for module, names in re.findall(r"^\s*from (rheobase\S*) import (.*)$", block, re.MULTILINE):
            yield from ((module, name.strip()) for name in names.split(",") if kind in ("py", "python"))


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if d.name != "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_what_users_import_is_in_the_reference(document: Path) -> None:
    modules = {f"rheobase.{name}" for names in reference.PYTHON.values() for name in names}
    for module, name in imports(document):
        public = module in modules and name in reference.public(importlib.import_module(module))
        assert public or f"{module}.{name}" in modules, f"from {module} import {name}"


def problem(words: list[str], *, whole: bool = True) -> str | None:
    """What is wrong with a command line; only a `whole` one must have all its arguments."""
    if not words or words[0] in GLOBAL or stands_for(words[0]):
        return None
    if words[0] not in COMMANDS:
        return f"no command {words[0]}"
    parameters, given, rest = COMMANDS[words[0]], [], words[1:]
    settings: list[str] = []
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            given.append(word)
            continue
        flag, separator, value = word.partition("=")
        option = next((p for p in parameters if flag in p.flags), None)
        if option is None:
            if flag in GLOBAL:
                continue
            return f"{words[0]} has no option {flag}"
        if option.value or option.choices:
            if not separator and not rest:
                if whole:
                    return f"{flag} needs a value"
                continue
            value = value if separator else rest.pop(0)
            settings += [value] if "--set" in option.flags and not stands_for(value) else []
            if wrong := bad_value(option, value):
                return wrong
    arguments = [p for p in parameters if not p.flags]
    if len(given) > len(arguments) and not (arguments and arguments[-1].several):
        return f"{words[0]} takes no argument {given[-1]}"
    if whole and len(given) < sum(p.required for p in arguments):
        return f"{words[0]} needs more arguments"
    recipe = given[0] if given and arguments[0].name == "recipe" else "demo"
    if recipe not in recipes.RECIPES and "--plugin" not in words and not stands_for(recipe):
        return f"no recipe {recipe}"
    try:
        recipes.get(recipe if recipe in recipes.RECIPES else "demo").changed(settings)
    except ValueError as error:
        return f"--set: {error}"
    return None


def stands_for(word: str) -> bool:
    """Whether a word is a placeholder: RUN, KEY=VALUE, <name>."""
    return word.isupper() or word.startswith("<")


def bad_value(option: Parameter, value: str) -> str | None:
    if stands_for(value):
        return None
    if option.choices and value not in option.choices:
        return f"{option.flags[0]} takes no {value}"
    try:
        if option.value == "whole number":
            int(value)
        elif option.value == "number":
            float(value)
    except ValueError as error:
        return f"{option.flags[0]} {value}: {error}"
    return None


@each_document
def test_commands_are_those_of_the_command_line(document: Path) -> None:
    found = {shlex.join(words): problem(words) for words in command_lines(document)}
    for code in spans(document):
        if code.startswith("rheobase "):
            found[code] = problem(shlex.split(code)[1:], whole=False)
    assert {line: what for line, what in found.items() if what} == {}


@each_document
def test_options_that_are_named_exist(document: Path) -> None:
    sources = [path for folder in ("src", "tools", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    known = GLOBAL | {flag for p in (p for ps in COMMANDS.values() for p in ps) for flag in p.flags}
    known |= {flag for path in sources for flag in re.findall(r'"(--[a-z0-9-]+)"', path.read_text())}
    named = {word for code in spans(document) for word in re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", code)}
    assert named - known - OTHERS == set()


@each_document
def test_python_names_exist(document: Path) -> None:
    text = document.read_text()
    for name in re.findall(r"\brheobase(?:\.\w+)+", text):
        assert resolves(name), name
    for module in re.findall(r"python -m ((?:tools|benchmarks)\.\w+)", text):
        assert find_spec(module), module


@each_document
def test_files_that_are_named_exist(document: Path) -> None:
    rooms = "docs|results|src|tests|tools|benchmarks"
    for code in spans(document):
        if re.fullmatch(rf"(?:{rooms})/[\w./-]+", code):
            assert (ROOT / code).exists(), code


def resolves(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            if not hasattr(value, attribute):
                return False
            value = getattr(value, attribute)
        return True
    return False


def test_the_rooms_in_the_architecture_are_the_folders() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    (tree,) = re.findall(r"^```\n(src/.*?)^```", text, re.DOTALL | re.MULTILINE)
    package = ROOT / "src" / "rheobase"
    inside = {path for path in package.iterdir() if path.is_dir() or path.suffix == ".py"}
    names = {f"{path.name}/" if path.is_dir() else path.name for path in inside}
    names -= {"__init__.py", "__main__.py", "__pycache__/"}
    assert set(re.findall(r"^  (\S+)", tree, re.MULTILINE)) == names
    for folder in re.findall(r"^(\S+/)", tree, re.MULTILINE):
        assert (ROOT / folder).is_dir()
    assert sorted(drawn_rooms()) == sorted(name.removesuffix("/").removesuffix(".py") for name in names)


def drawn_rooms() -> dict[str, float]:
    """How far down every room stands in the drawing."""
    found = re.findall(r'<text x[^>]* y="([\d.]+)">(\w+)</text>', (ROOT / "docs" / "assets" / "rooms.svg").read_text())
    assert len({name for _, name in found}) == len(found)
    return {name: float(y) for y, name in found}


def test_imports_point_down_in_the_drawing() -> None:
    depth = drawn_rooms()
    arrows = {(part(path), other) for path in files() for other in own_imports(path)}
    inside = [(room, other) for room, other in arrows if room != other and room in depth]
    assert len(inside) > 50
    assert [arrow for arrow in inside if depth[arrow[0]] >= depth[arrow[1]]] == []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("train demo --set decay=0.5 --out runs/a", None),
        ("train RECIPE --from RUN", None),
        ("verify a.nir runs/a --images 20", None),
        ("predict a.nir one.png two.png --top=1", None),
        ("trian demo", "no command trian"),
        ("train demo --epochs 3", "train has no option --epochs"),
        ("train dmeo", "no recipe dmeo"),
        ("train demo --set decai=0.5", "--set: a recipe has no setting 'decai'"),
        ("export runs/a --to tflite", "--to takes no tflite"),
        ("plan demo --memory many", "--memory many: could not convert"),
        ("fold runs/a runs/b", "fold takes no argument runs/b"),
        ("verify a.nir", "verify needs more arguments"),
        ("eval runs/a --timesteps", "--timesteps needs a value"),
    ],
)
def test_wrong_command_lines_are_seen(line: str, what: str | None) -> None:
    found = problem(line.split())
    assert found is None if what is None else (found or "").startswith(what)


def test_names_that_do_not_exist_are_seen() -> None:
    assert resolves("rheobase.nn.Soma.settings")
    assert resolves("rheobase.deploy.fold")
    assert not resolves("rheobase.nn.Some")
    assert not resolves("rheobase.heap")
