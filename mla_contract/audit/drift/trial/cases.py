"""The small inputs that two planners are compared on, smallest first, and what each parameter of a planner takes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

BATCH = "batch"
KV_LENS = "kv_lens"
QUERY_LENS = "query_lens"
WORKSPACE = "workspace_size"
LOGITS = "max_logits_bytes"
THRESHOLD = "decode_threshold"
INPUT_BATCH, SCHEDULER_OUTPUT = "input_batch", "scheduler_output"

_ROLES: tuple[tuple[str, str], ...] = (
    (r"common_attn_metadata|common_metadata|attn_metadata|cm|metadata", BATCH),
    (r"input_batch", INPUT_BATCH),
    (r"scheduler_output", SCHEDULER_OUTPUT),
    (r"\w*query_lens(_cpu|_np)?", QUERY_LENS),
    (r"\w*(seq|context|kv)_lens(_cpu|_np)?|lens", KV_LENS),
    (r"\w*workspace_size|row_budget|max_tokens", WORKSPACE),
    (r"max_logits_bytes", LOGITS),
    (r"\w*threshold", THRESHOLD),
)
_FLAGS = frozenset({"bool"})
_SMALL: Mapping[str, Sequence[int]] = {
    WORKSPACE: (1, 2, 3, 4, 8),
    LOGITS: (4, 8, 16, 32),
    THRESHOLD: (1, 2, 3),
    "dcp_size": (1, 2),
    "dcp_world_size": (1, 2),
    "cp_kv_cache_interleave_size": (1, 2),
    "interleave": (1, 2),
}
_LIMITS = frozenset({WORKSPACE, LOGITS})
_UNBOUND = 1 << 20
_MAX_REQUESTS = 3
_MAX_QUERY = 4

Case = dict[str, object]


def role_of(name: str, annotation: str, default: object, has_default: bool) -> str | None:
    """Return what a parameter takes, or None where small ints cannot fill it.

    Args:
        name: Name of the parameter.
        annotation: Its annotation as written.
        default: Its default, where that is a constant.
        has_default: Whether it has one.
    """
    if "CommonAttentionMetadata" in annotation:
        return BATCH
    for pattern, role in _ROLES:
        if re.fullmatch(pattern, name):
            return role
    if isinstance(default, bool) or annotation in _FLAGS:
        return f"flag:{name}"
    if name in _SMALL:
        return name
    return f"default:{name}" if has_default else None


def cases(
    roles: Sequence[str], defaults: Mapping[str, object], reads: frozenset[str], unbound: frozenset[str]
) -> Iterator[Case]:
    """Yield inputs, smallest first.

    Args:
        roles: What the two functions take.
        defaults: Default of each flag.
        reads: Attributes that the functions read, so that nothing else is varied.
        unbound: Limits that only one of the functions takes; they are set so that they do not bind.
    """
    wanted = dict.fromkeys(role for role in roles if not role.startswith("default:"))
    takes_batch = bool({BATCH, INPUT_BATCH} & wanted.keys())
    scalars = [role for role in wanted if role in _SMALL or role.startswith("flag:")]
    flags = {r: _flag_values(defaults.get(r)) for r in scalars if r.startswith("flag:")}
    choices = [(_UNBOUND,) if r in unbound & _LIMITS else flags.get(r) or _SMALL[r] for r in scalars]
    smallest = 1 if takes_batch else 0
    for num_reqs in range(smallest, _MAX_REQUESTS + 1):
        for queries in sorted(_batches(num_reqs, takes_batch), key=lambda q: (sum(q), q)):
            for values in itertools.product(*choices):
                for extra in _extras(num_reqs, wanted, reads):
                    yield {"q": queries, **dict(zip(scalars, values, strict=True)), **extra}


def _flag_values(default: object) -> tuple[bool, bool]:
    return (True, False) if default is True else (False, True)


def _batches(num_reqs: int, padded: bool) -> Iterator[tuple[int, ...]]:
    """Yield query lengths; in a batch only the last requests may be padding, of length 0."""
    for queries in itertools.product(range(0 if padded else 1, _MAX_QUERY + 1), repeat=num_reqs):
        live = [q > 0 for q in queries]
        if not padded or (live[0] and live == sorted(live, reverse=True)):
            yield queries


def _extras(num_reqs: int, wanted: Mapping[str, object], reads: frozenset[str]) -> Iterator[Case]:
    """Yield the host facts of each request that the functions read: whether it still prefills, what it has cached."""
    prefilling = [(False, True)] * num_reqs if "is_prefilling" in reads else [(False,)] * num_reqs
    cached = any("seq_lens" in name or "computed" in name for name in reads) or INPUT_BATCH in wanted
    cached = cached or {KV_LENS, QUERY_LENS} <= wanted.keys()
    contexts = [(0, 2)] * num_reqs if cached else [(0,)] * num_reqs
    for prefills in itertools.product(*prefilling):
        for context in itertools.product(*contexts):
            yield {"is_prefilling": prefills, "context": context}
