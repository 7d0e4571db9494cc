"""Hashes of planners, their likeness, and the trials that find a smallest input on which two of them differ."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from mla_contract.audit.drift.functions import function_hash, likeness, shared_functions, shared_planners, shingles
from mla_contract.audit.drift.history import last_release_with, releases_of_function
from mla_contract.audit.drift.trial.extraction import NotExtractableError, extract
from mla_contract.audit.drift.witness import find_witness, is_comparable
from mla_contract.audit.model.index import Function
from mla_contract.audit.project import open_project
from mla_contract.audit.source.tree import open_tree
from tests.audit.rules.drift_trees import BASE, open_case, open_files

PLAIN = """
def split(lens, decode_threshold=1):
    count = 0
    for n in lens:
        if n > decode_threshold:
            break
        count += 1
    return count
"""


def function(source: str, name: str = "split") -> Function:
    """Return a function of a one-file tree."""
    project = open_files({"vllm/__init__.py": "", "vllm/m.py": source})
    module = project.index.get("vllm.m")
    assert module is not None
    return next(f for f in project.index.functions(module) if f.node.name == name)


def digest(source: str) -> str:
    """Return the hash of the first function of a source."""
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    return function_hash(node)


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace("def split(lens, decode_threshold=1)", "def cut(xs: list[int], t: int = 1) -> int")
        .replace("lens", "xs")
        .replace("> decode_threshold", "> t")
        .replace("count", "k"),
        PLAIN.replace("    count = 0", '    """Count decodes."""\n    count: int = 0  # so far'),
        PLAIN.replace("\ndef", "\n@wrapped\ndef"),
    ],
)
def test_function_hash_rewritten_copy_is_the_same(other: str) -> None:
    """Names, annotations, docstrings, comments and decorators do not count."""
    assert digest(other) == digest(PLAIN)


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace(">", ">="),
        PLAIN.replace("count += 1", "count += 2"),
        PLAIN.replace("return count", "return decode_threshold"),
        PLAIN.replace("decode_threshold=1", "decode_threshold=2"),
    ],
)
def test_function_hash_changed_copy_differs(other: str) -> None:
    """An operator, a constant, another variable and another default count."""
    assert digest(other) != digest(PLAIN)


def test_likeness_orders_copy_before_stranger() -> None:
    """A copy with one change is near 1, another function is not."""
    copy, stranger = PLAIN.replace(">", ">="), "def f(a):\n    return [b.c for b in a if b]\n"
    plain, copied, other = (
        shingles(function(s, n).node) for s, n in ((PLAIN, "split"), (copy, "split"), (stranger, "f"))
    )
    assert likeness(plain, plain) == 1.0
    assert likeness(plain, copied) > 0.7 > 0.4 > likeness(plain, other)


def test_shared_functions_base_tree_lists_imported_planners() -> None:
    """The shared planners are those that other modules import, each with its hash."""
    hashes = shared_functions(open_case(BASE))
    home = "vllm.v1.attention.backends.utils"
    assert list(hashes) == [f"{home}:split_decodes_and_prefills", f"{home}:split_prefill_chunks"]
    assert all(len(value) == 16 for value in hashes.values())


def test_find_witness_different_functions_gives_smallest_input() -> None:
    """The first input of the enumeration on which the results differ is reported, with both results."""
    witness = find_witness(function(PLAIN), function(PLAIN.replace(">", ">=")))
    assert witness.inputs == "q=(1,), decode_threshold=1" or witness.inputs == "q=[1], decode_threshold=1"
    assert (witness.left, witness.right) == ("gives 1", "gives 0")


def test_find_witness_exception_is_a_result() -> None:
    """A function that raises where the other returns differs from it."""
    witness = find_witness(function(PLAIN), function(PLAIN.replace("return count", "return [][count]")))
    assert witness.inputs is not None and witness.right == "raises IndexError"


def test_find_witness_equal_functions_counts_inputs() -> None:
    """Where nothing differs, the number of inputs that were tried is said."""
    witness = find_witness(function(PLAIN), function(PLAIN.replace("break", "return count")))
    assert witness.inputs is None and witness.reason is None and witness.cases > 100


def test_find_witness_endless_function_ends_with_a_reason() -> None:
    """A function that does not end is stopped."""
    endless = function(PLAIN.replace("count += 1", "while lens is lens:\n            count += 1"))
    reason = find_witness(endless, function(PLAIN), seconds=0.2).reason
    assert reason in ("no end within the limits of time and memory", "no end within the time allowed")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("open('x')", "uses open"),
        ("__import__('os')", "uses __import__"),
        ("lens.__class__", "uses .__class__"),
        ("torch.load(lens)", "uses .load"),
        ("np.fromfile(lens)", "uses .fromfile"),
        ("helper(lens)", "uses .system"),
        ("getattr(lens, 'x')", "uses getattr"),
        ("f'{lens.mro}'", "uses .mro"),
    ],
)
def test_extract_unknown_name_is_refused(body: str, reason: str) -> None:
    """Only names and attributes that are known to be harmless are run."""
    helper = "import os, torch\nimport numpy as np\ndef helper(x):\n    return os.system(x)\n"
    source = f"{helper}def split(lens):\n    return {body}\n"
    with pytest.raises(NotExtractableError, match=reason.replace(".", r"\.")):
        extract(function(source))
    assert find_witness(function(source), function(PLAIN)).reason is not None


@pytest.mark.parametrize("statement", ["import os", "with lens: pass", "global x", "class A: pass", "del lens"])
def test_extract_unknown_statement_is_refused(statement: str) -> None:
    """Statements that a planner has no use for are not run."""
    with pytest.raises(NotExtractableError, match="statement"):
        extract(function(f"def split(lens):\n    {statement}\n    return 1\n"))


def test_extract_pure_helpers_and_constants_come_along() -> None:
    """A planner may use other pure functions and constants of its module."""
    source = (
        "STEP = 2\ndef up(n):\n    return -(-n // STEP) * STEP\n"
        "def split(seq_lens: list[int], workspace_size: int):\n    return [up(n) for n in seq_lens]\n"
    )
    other = source.replace("up(n) for", "n for")
    assert find_witness(function(source), function(other)).inputs == "q=[1], workspace_size=1"


def test_is_comparable_needs_all_inputs_of_the_first() -> None:
    """A function can be run beside one that takes the same things or more."""
    less, more = function("def split(lens): ..."), function("def split(seq_lens, query_lens, max_logits_bytes): ...")
    assert is_comparable(less, more) and not is_comparable(more, less)
    assert not is_comparable(function("def split(self_object): ..."), more)


def test_history_shipped_profiles_know_functions_and_fields() -> None:
    """A hash is traced to its releases, a dropped field to the last release that had it; strangers to nothing."""
    assert last_release_with("CommonAttentionMetadata", "seq_lens_cpu") == "0.29"
    assert last_release_with("CommonAttentionMetadata", "no_such_field") is None
    assert releases_of_function("split_decodes_and_prefills", "0" * 16) is None


def test_tensor_trial_agrees_with_torch_on_the_base_split() -> None:
    """The stand-in for torch gives what torch gives, on the planners of the base tree."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    from mla_contract.audit.drift.trial.cases import cases
    from mla_contract.audit.drift.trial.tensor import HostTensor, HostTorch
    from mla_contract.audit.drift.trial.worker import call, define, torch_tensors

    torch, tensor = torch_tensors()
    split = next(f for f in shared_planners(open_case(BASE)) if f.node.name == "split_decodes_and_prefills")
    parameters = [["common_attn_metadata", "batch", "tensor"], ["require_uniform", "flag:require_uniform", "tensor"]]
    ours, theirs = (define(extract(split), split.node.name, t) for t in (HostTorch(), torch))
    for case in cases(["batch", "flag:require_uniform"], {}, frozenset({"is_prefilling"}), frozenset()):
        assert call(ours, parameters, case, HostTensor) == call(theirs, parameters, case, tensor)


@pytest.mark.slow
def test_find_witness_split_of_older_release_is_found(release_tree: Callable[[str], Path]) -> None:
    """The split of 0.25 differs from that of 0.33 first on one short extend, as running both had shown."""
    old, new = (
        next(
            f
            for f in shared_planners(open_project(open_tree(release_tree(version))))
            if f.node.name == "split_decodes_and_prefills"
        )
        for version in ("0.25.1", "0.33.0")
    )
    witness = find_witness(old, new)
    assert witness.inputs == (
        "q=[1], decode_threshold=1, require_uniform=True, treat_short_extends_as_decodes=False, is_prefilling=[True]"
    )
    assert (witness.left, witness.right) == ("gives [1, 0, 1, 0]", "gives [0, 1, 0, 1]")
