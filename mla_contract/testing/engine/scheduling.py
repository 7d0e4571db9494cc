"""What a scheduler did: how a run shows that it met chunked prompts, mixed steps, preemption and cache hits."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class Scheduling:
    """Counts of one run.

    Attributes:
        steps: Steps that computed something.
        mixed_steps: Steps in which some requests decoded and others computed prompts.
        chunked_requests: Requests whose prompt took more than one step.
        preemptions: How often a request lost its blocks.
        cached_tokens: Prompt tokens that were found in the prefix cache, by requests that were new.
    """

    steps: int = 0
    mixed_steps: int = 0
    chunked_requests: int = 0
    preemptions: int = 0
    cached_tokens: int = 0

    def counts(self) -> dict[str, int]:
        """Return the counts by name; nothing when no step was seen."""
        return asdict(self) if self.steps else {}

    def see(self, output: Any) -> None:
        """Count one step.

        Source: vLLM 0.32.0 v1/core/sched/output.py, SchedulerOutput
        """
        scheduled: dict[str, int] = output.num_scheduled_tokens
        if not scheduled:
            return
        self.steps += 1
        sizes = scheduled.values()
        self.mixed_steps += min(sizes) == 1 < max(sizes)
        self.preemptions += len(output.preempted_req_ids or ())
        for new in output.scheduled_new_reqs:
            self.cached_tokens += new.num_computed_tokens
            left = len(new.prompt_token_ids) - new.num_computed_tokens
            self.chunked_requests += scheduled[new.req_id] < left


def watch_scheduling(engine: Any) -> Scheduling:
    """Return counts that grow while an engine runs; they stay empty when its core is another process."""
    found = Scheduling()
    scheduler = getattr(getattr(getattr(engine, "engine_core", None), "engine_core", None), "scheduler", None)
    if scheduler is None:
        return found
    schedule = type(scheduler).schedule

    def counted(*args: Any, **kwargs: Any) -> Any:
        output = schedule(scheduler, *args, **kwargs)
        found.see(output)
        return output

    scheduler.schedule = counted
    return found
