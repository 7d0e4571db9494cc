"""SIG001: calls into aiter bound to small fake checkouts, written here at several states of their signatures."""

from __future__ import annotations

from pathlib import Path

import pytest

from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.rules import aiter_signature
from mla_contract.audit.source import AuditError
from tests.audit.rules.test_policy_trees import fixture_files, project_of

DEMO = "vllm/v1/attention/backends/mla/demo_sparse.py"
VENDOR = "vllm/_vendor_ops.py"
FITTING = {
    "aiter/__init__.py": "from .ops.attention import *\nfrom . import mla\n",
    "aiter/fused_moe.py": "def fused_moe(x): ...\n",
    "aiter/mla.py": (
        "def mla_decode_fwd(q, kv_buffer, o, page_size=1, sm_scale=None, logit_cap=0.0, "
        "q_scale=None, kv_scale=None): ...\n"
    ),
    "aiter/ops/__init__.py": "",
    "aiter/ops/attention.py": (
        "import torch\n"
        "from ..jit.core import compile_ops\n\n"
        "def get_metadata(qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, heads: int, page_size: int, "
        "is_causal: bool):\n"
        "    ...\n\n"
        '@compile_ops("module_reduce")\n'
        "def mla_reduce(partial: torch.Tensor, lse: torch.Tensor, final_output: torch.Tensor) -> None: ...\n"
    ),
    "aiter/ops/old_place.py": "def moved(q, n=0, a=0): ...\n",
    "aiter/ops/triton/__init__.py": '_BACKWARD_COMPAT_MAP = {"old_logits": "attention.old_logits"}\n',
    "aiter/ops/triton/attention/__init__.py": "",
    "aiter/ops/triton/attention/old_logits.py": "def old_logits(q, n, clean=True): ...\n",
    "aiter/jit/core.py": "def compile_ops(name): ...\n",
}


def checkout(root: Path, **changed: str) -> Path:
    """Write a checkout of aiter: the fitting one, with the definition of some functions replaced."""
    for path, text in FITTING.items():
        for name, definition in changed.items():
            lines = text.splitlines()
            text = "\n".join(definition if line.startswith(f"def {name}(") else line for line in lines) + "\n"
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root


def findings(aiter: Path) -> list[Finding]:
    """Return the findings of the rule in the fixture tree."""
    return list(aiter_signature.RULE.check(project_of(fixture_files("aiter", "calls"), aiter)))


def test_signature_fitting_checkout_finds_nothing(tmp_path: Path) -> None:
    """Re-exports, old module names, probes, optional imports and two names of one function all bind."""
    assert findings(checkout(tmp_path)) == []


def test_signature_without_aiter_finds_nothing() -> None:
    """The rule has nothing to say where no sources of aiter are given."""
    assert list(aiter_signature.RULE.check(project_of(fixture_files("aiter", "calls")))) == []


@pytest.mark.parametrize("where", ["", "aiter"])
def test_signature_checkout_or_package_directory_is_accepted(tmp_path: Path, where: str) -> None:
    """The checkout, a site-packages directory and the package itself are one and the same."""
    checkout(tmp_path, moved="def moved(q): ...")
    assert len(findings(tmp_path / where)) == 1


def test_signature_directory_without_aiter_is_refused(tmp_path: Path) -> None:
    """A directory that does not hold aiter is not taken for an empty one."""
    with pytest.raises(AuditError, match="holds no aiter"):
        findings(tmp_path)


def test_signature_inserted_required_parameter_is_found(tmp_path: Path) -> None:
    """aiter#3689: an int inserted before the output binds the output, and the last parameter stays open."""
    definition = (
        "def mla_reduce(partial: torch.Tensor, lse: torch.Tensor, num_kv_splits: int, final_output: torch.Tensor): ..."
    )
    (found,) = findings(checkout(tmp_path, mla_reduce=definition))
    assert (found.path, found.line, found.field, found.severity) == (DEMO, 62, "mla_reduce", Severity.ERROR)
    assert "requires 'final_output'" in found.message
    assert "binds out to 'num_kv_splits', which is an int" in found.message
    assert found.help is not None and "num_kv_splits: int" in found.help


def test_signature_unknown_keyword_is_found(tmp_path: Path) -> None:
    """A keyword that the definition does not have, in a call through a module fetched by name."""
    (found,) = findings(checkout(tmp_path, old_logits="def old_logits(q, n): ..."))
    assert (found.path, found.field) == (DEMO, "old_logits")
    assert "has no parameter 'clean'" in found.message
    assert "aiter/ops/triton/attention/old_logits.py:1" in found.message


def test_signature_too_many_and_twice_is_found(tmp_path: Path) -> None:
    """A parameter that is gone from the front shifts the rest: one too many, and one bound twice."""
    definition = "def get_metadata(qo_indptr: torch.Tensor, heads: int, is_causal: bool):"
    (found,) = findings(checkout(tmp_path, get_metadata=definition))
    assert "takes 3 positional arguments, gets 4" in found.message
    assert "gets 'is_causal' twice" in found.message
    assert "binds indptr to 'heads', which is an int" in found.message


def test_signature_argument_of_another_name_is_found(tmp_path: Path) -> None:
    """A local of one parameter's name that binds to another parameter, while its own stays open."""
    definition = "def moved(q, page_size=1, n=0, a=0): ..."
    found = findings(checkout(tmp_path, moved=definition))
    assert ["binds n to 'page_size', not to 'n'" in f.message for f in found] == [True]


def test_signature_probed_keywords_are_not_found(tmp_path: Path) -> None:
    """What the code passes only after a look at the signature is not reported; what it passes always is one."""
    definition = "def mla_decode_fwd(q, kv_buffer, o, sm_scale=None): ..."
    (found,) = findings(checkout(tmp_path, mla_decode_fwd=definition))
    assert (found.path, found.field) == (VENDOR, "mla_decode_fwd")
    assert "has no parameter 'logit_cap'" in found.message
    assert "kv_scale" not in found.message.rpartition(")")[2]


def test_signature_missing_name_is_found_once_per_file(tmp_path: Path) -> None:
    """A function that is gone is named with its module; an optional import of another one is not."""
    root = checkout(tmp_path)
    (root / "aiter/ops/old_place.py").write_text("")
    assert findings(root) == []  # the code tries two places, and may do without both
    (root / "aiter/mla.py").unlink()
    (root / "aiter/__init__.py").write_text("from .ops.attention import *\n")
    (found,) = findings(root)
    assert "aiter has no module aiter.mla" in found.message


def test_signature_key_added_under_a_test_is_a_warning_with_its_condition(tmp_path: Path) -> None:
    """A keyword that is passed only in one configuration is reported with the test it stands under."""
    files = fixture_files("aiter", "calls")
    files[VENDOR] = files[VENDOR].replace(
        "    mla_decode_fwd(q, kv_b", "    if causal:\n        kwargs['causal'] = causal\n    mla_decode_fwd(q, kv_b"
    )
    (found,) = aiter_signature.RULE.check(project_of(files, checkout(tmp_path)))
    assert (found.severity, found.condition) == (Severity.WARNING, "causal")
    assert "has no parameter 'causal'; only where causal" in found.message
