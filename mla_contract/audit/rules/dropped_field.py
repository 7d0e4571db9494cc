"""DRF003: a read of a field that the builders' input batch does not have, or no longer has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mla_contract.audit.drift.batch_reads import BatchRead, missing_batch_reads
from mla_contract.audit.drift.history import last_release_with
from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.rule import Page, Rule

if TYPE_CHECKING:
    from mla_contract.audit.project import Project

PAGE = Page(
    what=(
        "A function reads, tests for, or passes to the constructor a field of the builders' input batch "
        "(CommonAttentionMetadata) that the class of the audited tree does not have. For an out-of-tree package the "
        "class of the tree it is laid over is the judge. Where an earlier release had the field, the finding names the "
        "last one. A plain read is an error; one with a default, or behind a test for the field, is a warning."
    ),
    why=(
        "A plain read raises at the first step. A read with a default does not: the default wins from then on, and "
        "what used to be a host copy becomes a device read, silently."
    ),
    incident=(
        "vllm-ascend#17172: vLLM 0.30 dropped the host copies of the sequence lengths; ATOM falls back to .cpu() at "
        "each step."
    ),
    bad=(
        "lens = getattr(common_attn_metadata, 'seq_lens_cpu', None)\n"
        "if lens is None:\n"
        "    lens = common_attn_metadata.seq_lens.cpu()\n"
    ),
    good="lens = common_attn_metadata.seq_lens_cpu_upper_bound\n",
)


def check(project: Project) -> Iterator[Finding]:
    """Report every read of a field that the batch class lacks."""
    batch = project.batch_class
    if batch is None:
        return
    for read in missing_batch_reads(project):
        certain = not (read.defaulted or read.guarded)
        last = last_release_with(batch.node.name, read.attr)
        gone = f"{batch.node.name} has no field {read.attr}" + (
            f"; the last release with it is vLLM {last}" if last else ""
        )
        yield RULE.finding(
            read.function.module.path,
            read.node,
            f"{gone}: {read.function.qualname.rpartition(':')[2]} {_effect(read)}",
            severity=None if certain else Severity.WARNING,
            cls=batch.qualname,
            field=read.attr,
            reader=read.function.qualname,
            help=f"take what {batch.module.path}:{batch.node.lineno} declares, or plan from query_start_loc_cpu",
        )


def _effect(read: BatchRead) -> str:
    if read.constructs:
        return "passes it to the constructor, which raises TypeError"
    if read.defaulted:
        return "tests for it, and always gets the default"
    if read.guarded:
        return "reads it behind a test that never holds"
    return "reads it, which raises AttributeError"


RULE = Rule("DRF003", "dropped-field-read", "drift", Severity.ERROR, PAGE, check)
