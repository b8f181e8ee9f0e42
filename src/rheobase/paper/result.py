"""The result for a figure or table of the paper: plain data, charts, and sentences that compare."""

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
    """A reproduced figure, table or theorem."""

    name: str
    title: str
    source: str
    """What it was computed on; part of the title of the plot."""
    data: dict[str, Any]
    comparison: list[str]
    """Sentences that compare it with the paper."""
    charts: list[Chart] = field(default_factory=list)
    device: torch.device = CPU
    to_come: int = 0
    """Parts that are still being computed."""

    def save(self, folder: Path) -> Path:
        """Save the result as JSON in `folder` and return the path."""
        path = folder / f"{self.name}.json"
        content = {"title": self.title, "source": self.source, "comparison": self.comparison, "data": self.data}
        content = finite_or_null(content)  # null means not estimated
        write_result(path, content, to_come=self.to_come, device=self.device, seed=0)
        return path
