"""What a survey counted: free of vLLM, so that a test can read it from the process that ran it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """A row of the table.

    Attributes:
        builder: Name of the builder.
        runner: Name of the runner.
        padding: How the batch was padded, or what else it was: a dummy, a capture, a drafter's step.
        drafts: Name of the drafts.
        dcp: Ranks of decode context parallelism.
    """

    builder: str
    runner: str
    padding: str
    drafts: str
    dcp: int


@dataclass(frozen=True, slots=True, order=True)
class Alarm:
    """A violation on a healthy engine.

    Attributes:
        row: Where.
        code: Its clause.
        where: The field.
    """

    row: Row
    code: str
    where: str


@dataclass
class Survey:
    """Counts of a survey.

    Attributes:
        rows: Builds by row.
        alarms: Violations by alarm.
        smallest: The smallest batch of each builder, code and field, with the number of its tokens.
        refused: What vLLM does not construct, with its reason.
        failed: What vLLM constructs and cannot run here, with its reason.
    """

    rows: Counter[Row] = field(default_factory=Counter)
    alarms: Counter[Alarm] = field(default_factory=Counter)
    smallest: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    refused: dict[tuple[str, str, int], str] = field(default_factory=dict)
    failed: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    @property
    def builds(self) -> int:
        """Builds so far."""
        return self.rows.total()

    def note(self, alarm: Alarm, batch: Any, violation: Any) -> None:
        """Keep the smallest batch of an alarm."""
        size = int(batch.num_actual_tokens) + int(batch.num_reqs)
        key = (alarm.code, alarm.where)
        if key not in self.smallest or size < self.smallest[key][0]:
            flags = None if batch.is_prefilling is None else batch.is_prefilling.tolist()
            text = (
                f"{'/'.join(map(str, asdict(alarm.row).values()))}: num_reqs={batch.num_reqs}"
                f" num_actual_tokens={batch.num_actual_tokens} query_start_loc={batch.query_start_loc_cpu.tolist()}"
                f" seq_lens={batch.seq_lens.tolist()} max_seq_len={batch.max_seq_len} is_prefilling={flags}"
                f" | {violation.message}; expected {violation.expected}; got {violation.got}"
            )
            self.smallest[key] = (size, text)

    def table(self) -> str:
        """Return the rows as text, with builds and alarms by code."""
        lines = [f"{'builder':<20}{'runner':<7}{'padding':<10}{'drafts':<8}{'dcp':>3}{'builds':>8}  alarms"]
        for row, count in sorted(self.rows.items()):
            codes: Counter[str] = Counter()
            for alarm, times in self.alarms.items():
                if alarm.row == row:
                    codes[alarm.code] += times
            said = " ".join(f"{code}:{times}" for code, times in sorted(codes.items()))
            start = f"{row.builder:<20}{row.runner:<7}{row.padding:<10}{row.drafts:<8}{row.dcp:>3}"
            lines.append(f"{start}{count:>8}  {said or '-'}")
        return "\n".join(lines)

    def by_code(self) -> dict[str, int]:
        """Return alarms by code and field."""
        counts: Counter[str] = Counter()
        for alarm, times in self.alarms.items():
            counts[f"{alarm.code} {alarm.where}"] += times
        return dict(sorted(counts.items()))

    def not_run(self) -> list[str]:
        """Return what could not be run, with the reason."""
        refused = [
            f"refused: {builder} {drafts} dcp={dcp}: {why}" for (builder, drafts, dcp), why in self.refused.items()
        ]
        failed = [f"failed {times} x: {one} {what}: {why}" for (one, what, why), times in self.failed.items()]
        return sorted(refused) + sorted(failed)
