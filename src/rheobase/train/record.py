"""What it takes to check a result: the command, the sources, the machine, the seed, the data. One writer for all."""

import hashlib
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from rheobase import __version__
from rheobase.files import write_json
from rheobase.train.sources import sources

PACKAGES = ("numpy", "triton", "safetensors", "numba", "pillow", "faery", "spikingjelly", "snntorch", "tonic")
_PLACE = re.compile(r"(?:^|(?<==))(?:~[^/]*|\.\.)?/(?:.*/)?")  # the folders of a path, alone or after KEY=


def record(
    *,
    device: torch.device | str | None = None,
    seed: int | None = None,
    data: str | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """How a result is made. `data` is a checksum; without a `device` it is the CPU; `command` is this process's own."""
    where = torch.device(device or "cpu")
    return {
        "command": command or command_line(),
        "sources": dict(sources()),
        "packages": _versions(where),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device_name(where),
        "threads": torch.get_num_threads(),
        "seed": seed,
        "data": data or None,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_result(path: Path, content: Mapping[str, Any], **how: Any) -> None:
    """Write `content` to the JSON file `path`, with the `record(**how)` of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"record": record(**how), **content})


def device_name(device: torch.device) -> str:
    """The name of the GPU, or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def checksum(files: Iterable[Path]) -> str:
    """The SHA-256 of the content of all `files`, one after the other."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def command_line() -> str:
    """How this process was started, as a line to copy that names no place of this machine."""
    program, *arguments = sys.argv
    script, spec = Path(program).name, getattr(sys.modules["__main__"], "__spec__", None)
    module = "rheobase" if script == "rheobase" else spec.name.removesuffix(".__main__") if spec else None
    target = ["-m", module] if module else [script]
    if (processes := os.environ.get("LOCAL_WORLD_SIZE", "1")) != "1":
        start = ["torchrun", "--nproc-per-node", processes, *target]
    else:
        start = ["rheobase"] if module == "rheobase" else ["python", *target]
    return shlex.join([*start, *_without_places(arguments)])


def _without_places(arguments: list[str]) -> list[str]:
    """The data as DATA, and every path from outside of the working folder by its last part."""
    shown = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if before == "--data":
            shown.append("DATA")
        elif argument.startswith("--data="):
            shown.append("--data=DATA")
        else:
            shown.append(_PLACE.sub("", argument.rstrip("/")))
    return shown


def _versions(device: torch.device) -> dict[str, str]:
    found = {"rheobase": __version__, "torch": torch.__version__}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    if device.type == "cuda":
        found |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    return found
