"""The results of a part of the attack."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Report:
    """The outcomes by target with their counts, and the problems."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """One line for each outcome that breaks a promise, with what is needed to reproduce it."""
    facts: dict[str, Any] = field(default_factory=dict)

    def count(self, target: str, outcome: str) -> None:
        """Count one outcome for a target."""
        self.outcomes.setdefault(target, Counter())[outcome] += 1

    def total(self) -> Counter[str]:
        """Return the counts over all targets."""
        return sum(self.outcomes.values(), Counter())

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        outcomes = {target: dict(counts) for target, counts in sorted(self.outcomes.items())}
        return {"total": dict(self.total()), "facts": self.facts, "outcomes": outcomes, "problems": self.problems}
