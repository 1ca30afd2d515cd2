"""What was measured: samples and mishaps of each lane, kept as plain JSON between runs."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OUT_OF_TIME = "the run was out of time"


@dataclass
class Record:
    """All answers of one lane to one question."""

    samples: list[float] = field(default_factory=list)
    until_result: list[float] = field(default_factory=list)
    levels: list[dict[str, Any]] = field(default_factory=list)
    capped: float | None = None
    failures: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, answer: dict[str, Any]) -> None:
        """Take in one answer of a subject."""
        self.samples += answer.get("samples", [])
        self.until_result += answer.get("until_result", [])
        self.levels += answer.get("levels", [])
        self.failures += answer.get("failures", 0)
        self.capped = answer.get("capped", self.capped)
        problem = answer.get("problem")
        if problem and problem not in self.problems:
            self.problems.append(problem)

    @property
    def finished(self) -> bool:
        """Whether more rounds would only wait for the same cap or failure again."""
        return self.capped is not None or bool(self.problems and not self.samples)

    def median(self) -> float | None:
        return statistics.median(self.samples) if self.samples else None

    def best(self) -> float | None:
        return min(self.samples, default=None)

    def percentile(self, share: float) -> float | None:
        return percentile(self.samples, share)

    def at(self, kernels: int) -> list[dict[str, Any]]:
        """The levels taken with this many kernels live (one kernel is measured twice)."""
        return [level for level in self.levels if level["kernels"] == kernels]


@dataclass
class Run:
    """One run of compare.py: where, with what, and every record by measurement and lane."""

    taken_at: str
    seconds: float
    quick: bool
    machine: dict[str, str]
    cores: int
    versions: dict[str, str]
    missing: dict[str, str]
    records: dict[str, dict[str, Record]] = field(default_factory=dict)
    left_behind: list[str] = field(default_factory=list)

    def record(self, measurement: str, lane: str) -> Record:
        """The record of this lane; empty when it was not measured."""
        return self.records.get(measurement, {}).get(lane, Record())

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> Run:
        raw = json.loads(path.read_text())
        raw["records"] = {
            measurement: {lane: Record(**record) for lane, record in lanes.items()}
            for measurement, lanes in raw["records"].items()
        }
        return cls(**raw)


def percentile(samples: list[float], share: float) -> float | None:
    """The smallest sample that at least this share of all samples does not exceed."""
    if not samples:
        return None
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]
