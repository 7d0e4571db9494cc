"""DRF001: a private copy of a function that splits or chunks batches for everyone else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mla_contract.audit.drift.copies import Copy, find_copies
from mla_contract.audit.drift.difference import difference
from mla_contract.audit.drift.functions import shared_planners
from mla_contract.audit.drift.history import releases_of_function
from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.rule import Page, Rule

if TYPE_CHECKING:
    from mla_contract.audit.model.index import Function
    from mla_contract.audit.project import Project

PAGE = Page(
    what=(
        "A function has the name of a shared split, reorder or chunk function, or most of its code, and is not "
        "that function. The finding names the shared one, gives both hashes, the release whose function the copy is, "
        "and the statements that only one of the two has. Both are read, neither is run, so whether they give "
        "different results is not said. A copy that is still the same function is reported as info. A function that "
        "calls the shared one is not a copy."
    ),
    why=(
        "Layer, builder and kernel must agree on which requests are decodes and where chunks end. The shared "
        "function changes; the copy does not, and batches that used to agree are routed two ways."
    ),
    incident=(
        "vllm-ascend 0.23.0 froze the split of vLLM 0.19 to 0.25, which differs from that of 0.33 in 264 of 6,072 "
        "small batches; vLLM 0.32 itself gained a second chunker for one indexer."
    ),
    bad=(
        "def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1):\n"
        "    lens = common_attn_metadata.query_start_loc_cpu.diff()\n"
        "    ...\n"
    ),
    good="from vllm.v1.attention.backends.utils import split_decodes_and_prefills\n",
)


def check(project: Project) -> Iterator[Finding]:
    """Report every copy at its definition."""
    shared = shared_planners(project)
    for copy in find_copies(project, shared):
        function, original = copy.function, copy.original
        yield RULE.finding(
            function.module.path,
            function.node,
            f"{_name(function)} {_likeness(copy)} {_where(original)} ({_hashes(copy)}); {_drift(copy)}",
            severity=Severity.INFO if copy.is_equal else None,
            field=function.node.name,
            reader=function.qualname,
            help=f"call {original.module.name}.{_name(original)}, or give this one another name and tests",
        )


def _likeness(copy: Copy) -> str:
    if copy.is_equal:
        return "is a private copy of the shared"
    if copy.same_name:
        return f"has the name and {copy.alike:.0%} of the code of the shared"
    return f"has {copy.alike:.0%} of the code of the shared"


def _hashes(copy: Copy) -> str:
    name = copy.original.node.name
    known = releases_of_function(name, copy.digest)
    release = f", the function of vLLM {known}" if known else ""
    if copy.is_equal:
        return f"same hash {copy.digest}{release}"
    return f"hash {copy.digest}{release}; shared {copy.original_digest}"


def _drift(copy: Copy) -> str:
    if copy.is_equal:
        return "it will not follow the next change"
    return difference(copy.function.node, copy.original.node).sentence()


def _where(function: Function) -> str:
    return f"{_name(function)} ({function.module.path}:{function.node.lineno})"


def _name(function: Function) -> str:
    return function.qualname.rpartition(":")[2]


RULE = Rule("DRF001", "private-copy", "drift", Severity.WARNING, PAGE, check)
