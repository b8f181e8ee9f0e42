"""What a part of the attack found."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Report:
    """How often the attack ended in what way, by what was attacked, and what must not be."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """One line for each outcome that breaks a promise, with what it takes to see it again."""
    facts: dict[str, Any] = field(default_factory=dict)

    def count(self, target: str, outcome: str) -> None:
        self.outcomes.setdefault(target, Counter())[outcome] += 1

    def total(self) -> Counter[str]:
        return sum(self.outcomes.values(), Counter())

    def as_dict(self) -> dict[str, Any]:
        outcomes = {target: dict(counts) for target, counts in sorted(self.outcomes.items())}
        return {"total": dict(self.total()), "facts": self.facts, "outcomes": outcomes, "problems": self.problems}
