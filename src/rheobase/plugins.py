"""Plugins: everything that a recipe names can be your own.

    from rheobase.plugins import dataset, loss, network, neuron, optimizer, recipe

    @network
    def tiny(num_classes, in_channels, image_size, **soma): ...

Each of these is a decorator, and holds the decorated functions by name, together with the built-in ones. `load` runs a
plugin: a file or an installed module that decorates functions.
"""

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, overload

__all__ = ["dataset", "load", "loaded", "loss", "network", "neuron", "optimizer", "recipe"]

Part = Callable[..., Any]
AnyPart = TypeVar("AnyPart", bound=Part)


@dataclass(frozen=True)
class Plugin:
    """The origin of parts: the name that the plugin was loaded by, and its source files by name."""

    name: str
    sources: dict[str, bytes]

    @property
    def sha256(self) -> str:
        """Checksum of the names and contents of all source files."""
        digest = hashlib.sha256()
        for name, content in sorted(self.sources.items()):
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()


class Shelf:
    """All parts of one kind by name, and the decorator that adds one."""

    def __init__(self, kind: str, *positional: str, **keywords: str) -> None:
        """Name the `kind` of part and the arguments it must accept; a part that does not is refused."""
        self.kind, self.positional, self.keywords = kind, positional, keywords
        self.parts: dict[str, Part] = {}
        self.origins: dict[str, Plugin | None] = {}

    @overload
    def __call__(self, part: str) -> Callable[[AnyPart], AnyPart]: ...

    @overload
    def __call__(self, part: AnyPart) -> AnyPart: ...

    def __call__(self, part: Any) -> Any:
        """Put `part` on the shelf under its own name, or under another one: `@shelf("another-name")`."""
        if isinstance(part, str):
            return lambda function: self.add(part, function)
        return self.add(getattr(part, "__name__", ""), part)

    def add(self, name: str, part: AnyPart) -> AnyPart:
        """Put `part` on the shelf under this name."""
        if not name or not callable(part):
            raise ValueError(f"@{self.kind} must decorate a function or class, got {part!r}")
        self._check_signature(name, part)
        if name in self.parts and _identity(self.parts[name]) != _identity(part):
            raise ValueError(f"there is already a {self.kind} named '{name}'; choose another name")
        self.parts[name], self.origins[name] = part, origin(part)
        return part

    def restore(self, parts: Mapping[str, Part], origins: Mapping[str, Plugin | None]) -> None:
        """Restore an earlier state. Keep built-in parts, as a plugin may have been the first to import them."""
        ours = {name: part for name, part in self.parts.items() if self.origins[name] is None}
        for kept, then in ((self.parts, {**parts, **ours}), (self.origins, {**origins, **dict.fromkeys(ours)})):
            kept.clear()  # in place: others refer to these dictionaries
            kept.update(then)  # type: ignore[arg-type]

    def remove(self, origin: Plugin | None) -> None:
        """Remove the parts of a plugin."""
        for name in [n for n, found in self.origins.items() if origin is not None and found == origin]:
            del self.parts[name], self.origins[name]

    def is_ours(self, name: str) -> bool:
        """Return whether the part with this name is built in."""
        return name in self.parts and self.origins[name] is None

    def get(self, name: str) -> Part:
        """Return the part with this name. If there is none, raise a ValueError that lists the names."""
        if name not in self.parts:
            raise ValueError(
                f"unknown {self.kind} '{name}'{hint(name, self.parts)}; choose one of {', '.join(self.parts)}, "
                "or give the file that defines it with --plugin"
            )
        return self.parts[name]

    def _check_signature(self, name: str, part: Part) -> None:
        try:
            inspect.signature(part).bind(*self.positional, **self.keywords)
        except TypeError as error:
            expected = ", ".join([*self.positional, *(f"{key}=" for key in self.keywords)])
            raise ValueError(
                f"the {self.kind} '{name}' cannot be called as {name}({expected}): {error}; change its parameters"
            ) from None
        except ValueError:  # a builtin without a signature: the call itself will show
            pass


def hint(name: str, names: Iterable[str]) -> str:
    """Return the known name that a mistyped one resembles, as a question in brackets; nothing if there is none."""
    close = get_close_matches(name, names, 1, cutoff=0.7)
    return f" (did you mean '{close[0]}'?)" if close else ""


_SETTINGS = {"decay": "", "v_th": "", "width": ""}

network = Shelf("network", num_classes="", in_channels="", image_size="", **_SETTINGS)
"""Decorator for a network: a function or class that returns a module."""
neuron = Shelf("neuron", "channels", branches="", **_SETTINGS)
"""Decorator for a neuron: a class of somas."""
dataset = Shelf("dataset", "path")
"""Decorator for the loader of a dataset."""
loss = Shelf("loss", "logits", "labels", "recipe")
"""Decorator for a loss."""
optimizer = Shelf("optimizer", "groups", "lr", "recipe")
"""Decorator for a function that makes an optimiser."""
recipe = Shelf("recipe")
"""Decorator for a recipe: a function without arguments."""

SHELVES = (network, neuron, dataset, loss, optimizer, recipe)

_loaded: dict[str, Plugin] = {}  # by file or module
_loading: list[Plugin] = []


def load(source: str) -> Plugin:
    """Run the plugin `source`, a file or an installed module, once. This registers its parts.

    The plugin may also import modules from its own folder, which is searched last.
    """
    is_file = source.endswith(".py") or Path(source).is_file()
    key = str(Path(source).resolve()) if is_file else source
    plugin = _from_file(source) if is_file else _from_module(source)
    if key in _loaded and plugin.sources.items() <= _loaded[key].sources.items():
        return _loaded[key]
    before = [(shelf, dict(shelf.parts), dict(shelf.origins)) for shelf in SHELVES]
    for shelf in SHELVES:
        shelf.remove(_loaded.get(key))
    known = set(sys.modules)
    try:
        with _as_loading(plugin):
            _run(key) if is_file else import_module(source)
        if is_file:
            plugin.sources.update(_beside(Path(key), set(sys.modules) - known))
        new = [
            shelf.origins[name]
            for shelf, parts, _ in before
            for name, part in shelf.parts.items()
            if parts.get(name) is not part
        ]
        if not any(new) and not _registered_before(source):
            raise ValueError("it registers nothing; decorate a function with @network, @loss or another decorator")
    except (Exception, SystemExit) as error:
        for shelf, parts, origins in before:
            shelf.restore(parts, origins)
        raise ValueError(f"plugin {source}: {_what_and_where(error, key)}") from error
    _loaded[key] = plugin
    return plugin


def _registered_before(module: str) -> bool:
    """Return whether a shelf has parts of this module already: something else may have imported it."""
    names = {getattr(part, "__module__", "") for shelf in SHELVES for part in shelf.parts.values()}
    return any(f"{name}.".startswith(f"{module}.") for name in names)


def loaded() -> list[str]:
    """Return the arguments for `load` that load the same plugins in another process."""
    return list(_loaded)


def origin(part: Any) -> Plugin | None:
    """Return where `part` comes from: the plugin being loaded, or its source file. None means it is built in."""
    name = getattr(part, "__module__", None) or ""
    if name.partition(".")[0] == __name__.partition(".")[0]:
        return None
    if _loading:
        return _loading[-1]
    file = getattr(sys.modules.get(name), "__file__", None)
    if file and Path(file).is_file():
        return Plugin(Path(file).name, {Path(file).name: Path(file).read_bytes()})
    try:
        return Plugin(name, {f"{getattr(part, '__name__', 'part')}.py": inspect.getsource(part).encode()})
    except (OSError, TypeError):
        return Plugin(name, {})


def _identity(part: Part) -> tuple[Any, ...]:
    """Return a key that stays the same when a function is defined again, for example in a notebook."""
    return getattr(part, "__module__", None), getattr(part, "__qualname__", id(part))


@contextmanager
def _as_loading(plugin: Plugin) -> Iterator[None]:
    _loading.append(plugin)
    try:
        yield
    finally:
        _loading.pop()


def _from_file(source: str) -> Plugin:
    path = Path(source)
    try:
        return Plugin(path.name, {path.name: path.read_bytes()})
    except OSError as error:
        raise ValueError(f"plugin {source}: cannot read this file ({error.strerror}); check the path") from None


def _from_module(source: str) -> Plugin:
    try:
        spec = importlib.util.find_spec(source)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise ValueError(f"plugin {source}: neither a file nor an installed module; check the path")
    file = Path(spec.origin)
    if not spec.submodule_search_locations:
        return Plugin(source, {file.name: file.read_bytes()})
    return Plugin(source, {str(p.relative_to(file.parent)): p.read_bytes() for p in file.parent.rglob("*.py")})


def _beside(path: Path, modules: set[str]) -> dict[str, bytes]:
    """Return the sources of those modules that the plugin at `path` imported from its own folder.

    Installed packages are left out, as a virtual environment may be in the same folder.
    """
    files = {getattr(sys.modules.get(name), "__file__", None) for name in modules} - {None, str(path)}
    inside = {Path(str(file)).relative_to(path.parent) for file in files if Path(str(file)).is_relative_to(path.parent)}
    own = [p for p in inside if p.suffix == ".py" and not {"site-packages", "dist-packages"} & set(p.parts)]
    return {str(p): (path.parent / p).read_bytes() for p in own}


def _run(path: str) -> ModuleType:
    name = f"{Path(path).stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError("it is not a Python file; its name must end in .py")
    folder = str(Path(path).parent)
    if folder not in sys.path:
        sys.path.append(folder)
    earlier = sys.modules.get(name)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    if sys.modules.get(Path(path).stem) in (None, earlier):
        sys.modules[Path(path).stem] = module  # so that another plugin can import it by name
    spec.loader.exec_module(module)
    return module


def place(error: BaseException) -> str:
    """Return the innermost line of a plugin in the traceback; empty if no plugin was involved."""
    files = {name for key in _loaded for name in (key, getattr(sys.modules.get(key), "__file__", None))}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""


def _what_and_where(error: BaseException, path: str) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    lines, said = [frame.lineno for frame in frames if frame.filename == path and frame.lineno], str(error)
    if isinstance(error, SyntaxError) and error.filename == path and error.lineno:
        lines.append(error.lineno)
        said = error.msg  # without the file and the line, which are told anyway
    where = f" (line {lines[-1]})" if lines else ""
    if isinstance(error, ValueError):
        return f"{error}{where}"
    first = (said.splitlines() or [""])[0]
    return f"{type(error).__name__} while loading: {first}{where}; fix the plugin"
