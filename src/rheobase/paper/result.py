"""What a figure or table of the paper consists of here: plain data, charts, and sentences that compare."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rheobase.files import finite_or_null
from rheobase.report.charts import Chart
from rheobase.train.record import write_result

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Result:
    name: str
    title: str
    source: str
    """What it was computed on, said in the title of the picture."""
    data: dict[str, Any]
    comparison: list[str]
    """How it compares with the paper, sentence by sentence."""
    charts: list[Chart] = field(default_factory=list)
    device: torch.device = CPU
    to_come: int = 0
    """Parts that are still being computed."""

    def save(self, folder: Path) -> Path:
        """As JSON into `folder`."""
        path = folder / f"{self.name}.json"
        content = {"title": self.title, "source": self.source, "comparison": self.comparison, "data": self.data}
        write_result(path, finite_or_null(content), device=self.device, seed=0)  # null: not estimated
        return path
