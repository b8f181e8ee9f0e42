"""Default paths for the results of benchmarks."""

import re
from pathlib import Path

import torch

from rheobase.train.record import device_name


def result_path(benchmark: str, device: torch.device, *variants: str | None) -> Path:
    """Return results/<benchmark>-<GPU or cpu>-<variants>.json."""
    where = re.sub("[^a-z0-9]+", "-", device_name(device).lower()).strip("-") if device.type == "cuda" else "cpu"
    return Path("results") / f"{'-'.join(filter(None, (benchmark, where, *variants)))}.json"
