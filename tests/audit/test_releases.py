"""The REQUIRED rules on real releases of vLLM: the exact table of what shipped broken, and silence on what did not."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.project import open_project
from mla_contract.audit.rules import missing_field, never_set
from mla_contract.audit.source.tree import open_tree

pytestmark = pytest.mark.slow

LAYER = "vllm/model_executor/layers/attention/mla_attention.py"
ROCM = "vllm.v1.attention.backends.mla.rocm_aiter_mla_sparse.ROCMAiterMLASparseMetadata"
XPU = "vllm.v1.attention.backends.mla.xpu_mla_sparse.XPUMLASparseMetadata"
SITES = {
    "0.26.0": (749, 750, 751, 753, 757, 1133),
    "0.27.0": (767, 768, 769, 771, 777, 1199),
    "0.28.0": (799, 800, 801, 803, 809, 1216),
}
FIELDS = (
    "num_decodes",
    "num_prefills",
    "num_decode_tokens",
    "num_decode_tokens",
    "prefill_max_seq_len",
    "num_decode_tokens",
)
BROKEN = {"0.26.0": (ROCM, XPU), "0.27.0": (XPU,), "0.28.0": (XPU,)}
CLEAN = ("0.24.0", "0.25.1", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
NEVER_SET = {"0.27.0": {(ROCM, "prefill"), (ROCM, "prefill_max_seq_len")}, "0.26.0": set(), "0.33.0": set()}


@pytest.fixture(scope="module")
def findings_of(release_tree: Callable[[str], Path]) -> Iterator[Callable[[str], list[Finding]]]:
    """Return a function from a version to the findings of REQ001 and REQ002 in that release, each computed once."""
    known: dict[str, list[Finding]] = {}

    def findings(version: str) -> list[Finding]:
        if version not in known:
            gc.disable()
            try:
                project = open_project(open_tree(release_tree(version)), release=version)
                known[version] = [f for rule in (missing_field.RULE, never_set.RULE) for f in rule.check(project)]
            finally:
                gc.enable()
        return known[version]

    yield findings
    known.clear()


def errors(findings: list[Finding]) -> list[Finding]:
    """Return the errors among findings."""
    return [finding for finding in findings if finding.severity is Severity.ERROR]


@pytest.mark.parametrize("version", sorted(BROKEN))
def test_missing_field_broken_release_is_found_at_every_site(
    version: str, findings_of: Callable[[str], list[Finding]]
) -> None:
    """Each class that shipped without the fields is named at each line that reads one, and no other error stands."""
    table = {(LAYER, line, c, f) for c in BROKEN[version] for line, f in zip(SITES[version], FIELDS, strict=True)}
    found = [(f.path, f.line, f.cls, f.field) for f in errors(findings_of(version))]
    assert set(found) == table
    assert len(found) == len(table)


@pytest.mark.parametrize("version", CLEAN)
def test_missing_field_sound_release_has_no_error(version: str, findings_of: Callable[[str], list[Finding]]) -> None:
    """A release whose backends have what they need gives no error."""
    assert errors(findings_of(version)) == []


@pytest.mark.parametrize("version", ["0.26.0", "0.27.0", "0.28.0", "0.33.0"])
def test_missing_field_conditional_finding_names_its_condition(
    version: str, findings_of: Callable[[str], list[Finding]]
) -> None:
    """What is not an error says which capability it takes, in the finding and in its message."""
    for finding in findings_of(version):
        if finding.code == "REQ001" and finding.severity is not Severity.ERROR:
            assert finding.severity is Severity.WARNING
            assert finding.condition and finding.condition in finding.message, finding


@pytest.mark.parametrize("version", sorted(NEVER_SET))
def test_never_set_release_has_exactly_the_known_fields(
    version: str, findings_of: Callable[[str], list[Finding]]
) -> None:
    """In 0.27.0 the ROCm sparse builder leaves two declared fields at their defaults."""
    found = {(f.cls, f.field) for f in findings_of(version) if f.code == "REQ002"}
    assert found == NEVER_SET[version]
