"""Write results with a record of how they were made: command, sources, machine, seed and data."""

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
from torch.backends.cpu import get_cpu_capability

from rheobase import __version__
from rheobase.files import write_json
from rheobase.train.sources import sources

PACKAGES = ("numpy", "triton", "safetensors", "numba", "pillow", "faery", "spikingjelly", "snntorch", "tonic")
_PLACE = re.compile(r"(?:^|(?<==))(?:~[^/]*|\.\.)?/(?:.*/)?")  # the folders in an argument PATH or KEY=PATH


def record(
    *,
    device: torch.device | str | None = None,
    seed: int | None = None,
    data: str | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Return how a result is made. `data` is a checksum. Defaults: the CPU, and the command of this process."""
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


def write_result(path: Path, content: Mapping[str, Any], *, to_come: int = 0, **how: Any) -> None:
    """Write `content` to the JSON file `path`, together with `record(**how)`.

    `to_come` is the number of parts that are still being measured. A file that says so is unfinished.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = {"to_come": to_come} if to_come else {}
    write_json(path, {"record": record(**how), **content, **unfinished})


def device_name(device: torch.device) -> str:
    """Return the name of the GPU, or that of the processor and its vector instructions, which decide on its speed."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    name, vectors = found[1] if found else platform.processor() or platform.machine(), get_cpu_capability()
    return name if vectors == "DEFAULT" else f"{name}, {vectors}"


def checksum(files: Iterable[Path]) -> str:
    """Return the SHA-256 of the contents of all `files` in this order."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def command_line() -> str:
    """Return the command that started this process, as a line to copy. It contains no folders of this machine."""
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
    """Replace the data folder by DATA, and every path outside the working folder by its last part."""
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
