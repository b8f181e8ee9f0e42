"""The plugins of a run: kept for the record, compared when the run is opened, never run."""

import warnings
from pathlib import Path
from typing import Any

from rheobase.files import parse_json, read_plain, write_json
from rheobase.plugins import Plugin
from rheobase.recipes import Recipe
from rheobase.train.parts import SHELVES, Parts

FILE, SOURCES = "plugins.json", "plugins"


def keep(folder: Path, recipe: Recipe, parts: Parts, given: dict[str, Any]) -> None:
    """Write which parts of the run in `folder` come from which plugin, and the sources of these plugins."""
    entries = []
    handed = {setting: Plugin("", {}) for setting in given}  # a Dataset has no source
    for setting, plugin in (handed | parts.origins()).items():
        name, digest = getattr(recipe, setting), plugin.sha256
        # a part that is not on its shelf cannot be loaded from a plugin
        on_shelf = SHELVES[setting].parts.get(name) is getattr(parts, setting)
        shown = plugin.name if on_shelf else ""
        entries.append({"part": setting, "name": name, "plugin": shown, "sha256": digest})
        for name, content in plugin.sources.items():
            path = folder / SOURCES / digest[:8] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    if entries:
        write_json(folder / FILE, entries)


def find(folder: Path, recipe: Recipe, given: dict[str, Any]) -> Parts:
    """Return the parts of the run in `folder`. Warn if a plugin has changed since."""
    kept, absent = _read(folder), Parts.missing(recipe, **given)
    for setting, shelf in SHELVES.items():
        if setting not in kept or setting in given:
            continue
        name, plugin = getattr(recipe, setting), kept[setting]["plugin"]
        if setting in absent or shelf.is_ours(name):  # a built-in part of the same name is not the run's part
            what = f"{folder} needs the {setting} '{name}'"
            if not plugin:
                raise ValueError(f"{what}, which was passed in Python; pass it again, or make it a plugin")
            raise ValueError(f"{what} of {plugin}; add --plugin {plugin}")
    try:
        parts = Parts.of(recipe, **given)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None
    for setting, origin in parts.origins().items():
        if setting in kept and kept[setting]["sha256"] != origin.sha256:
            warnings.warn(
                f"the {setting} '{getattr(recipe, setting)}' is not the one that {folder} was started with: "
                f"{origin.name} has changed; its earlier source is in {folder / SOURCES / kept[setting]['sha256'][:8]}",
                stacklevel=3,
            )
    return parts


def checksums(folder: Path) -> list[str]:
    """Return the checksums of the plugins that the run in `folder` was made with."""
    return sorted({entry["sha256"] for entry in _read(folder).values() if entry["sha256"]})


def _read(folder: Path) -> dict[str, dict[str, str]]:
    """Return the entries by setting. Their texts may come from anywhere, so unprintable characters are replaced."""
    try:
        entries = parse_json(read_plain(folder / FILE))
        return {entry["part"]: {key: _shown(entry[key]) for key in ("name", "plugin", "sha256")} for entry in entries}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{folder / FILE} is damaged; restore it, or remove it to continue without it") from None


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:200]
