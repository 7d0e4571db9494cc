"""The conformance suite accepts the reference builders, and names the clause that each bad builder breaks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mla_contract.errors import InvalidContract
from mla_contract.testing.conformance import CHECKS, Factory, run_check
from mla_contract.testing.corpus import conformance_batches
from mla_contract.testing.targets import load_factory, reference_targets, registered_targets
from tests.testing import bad_targets

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("mixed_small", "ubatch_cudagraph_padding_padded", "mtp_padded_padded", "kimi_k3_prefill_context")


@pytest.mark.parametrize("name", reference_targets())
@pytest.mark.parametrize("check", CHECKS)
def test_suite_on_reference_finds_nothing(name: str, check: str) -> None:
    """The reference builder of each kind passes every check on every batch that it can be given."""
    for spec in conformance_batches().values():
        assert run_check(check, reference_targets()[name], spec).violations == (), spec.name


def test_suite_on_reference_runs_every_batch() -> None:
    """No batch of the corpus is left out of the reference's clauses."""
    factory = reference_targets()["reference sparse"]
    assert not [spec.name for spec in conformance_batches().values() if run_check("clauses", factory, spec).skipped]


@pytest.mark.parametrize(
    ("factory", "check", "batch", "code", "path"),
    [
        (bad_targets.StaleTail, "leak", "ubatch_cudagraph_padding_padded", "MLA333", "PlainDense.decode.seq_lens"),
        (bad_targets.StaleTail, "leak", "ubatch_cudagraph_padding_padded", "MLA393", "PlainDense.decode.seq_lens"),
        (bad_targets.MissingField, "clauses", "mixed_small", "MLA101", "PlainSparse.num_decode_tokens"),
        (bad_targets.WrongSplit, "clauses", "mixed_small", "MLA237", "PlainDense.num_decodes"),
        (bad_targets.WrongSplit, "plan", "mixed_small", "MLA237", "PlainDense.num_decodes"),
        (bad_targets.MovedBuffer, "addresses", "mixed_small", "MLA247", "PlainSparse.req_id_per_token"),
        (bad_targets.Raising, "clauses", "mtp_padded_padded", "MLA111", "build(mtp_padded_padded)"),
    ],
)
def test_suite_on_bad_target_names_the_clause(factory: Factory, check: str, batch: str, code: str, path: str) -> None:
    """Each fault is found by the check that is made for it, under its clause and at its field."""
    found = run_check(check, factory, conformance_batches()[batch]).violations
    assert (code, path) in {(violation.code, violation.path) for violation in found}
    assert run_check(check, reference_targets()["reference dense"], conformance_batches()[batch]).violations == ()


def test_stale_tail_is_invisible_to_a_first_step() -> None:
    """Only a long step before the short one shows what is left of it."""
    spec = conformance_batches()["ubatch_cudagraph_padding_padded"]
    assert run_check("clauses", bad_targets.StaleTail, spec).violations == ()


def run_pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the plugin in a pytest of its own."""
    command = [sys.executable, "-m", "pytest", "-p", "mla_contract.testing.plugin", "-q", "-p", "no:cacheprovider"]
    chosen = ["-k", " or ".join(SMALL)]
    return subprocess.run([*command, *arguments, *chosen], cwd=ROOT, capture_output=True, text=True, check=False)


def test_plugin_on_good_target_passes() -> None:
    """The suite alone is collected: one item for each check and batch, and all pass or say why they do not apply."""
    done = run_pytest("--mla-backend", "tests.testing.bad_targets:good")
    assert done.returncode == 0, done.stdout
    assert f"{3 * len(SMALL)} passed, {len(SMALL)} skipped" in done.stdout


def test_plugin_on_bad_target_fails_with_the_clause() -> None:
    """A violation is printed as the library renders it."""
    done = run_pytest("--mla-backend", "tests.testing.bad_targets:StaleTail")
    assert done.returncode == 1
    assert "MLA333 PlainDense.decode.seq_lens" in done.stdout


def test_plugin_without_option_collects_nothing_of_its_own() -> None:
    """Where the option is not given, the plugin changes no run."""
    done = run_pytest("tests/testing/test_conformance.py", "--collect-only")
    assert "conformance_suite" not in done.stdout


def test_plugin_import_is_light() -> None:
    """An installed plugin that is not used imports neither torch nor NumPy nor this library's suites."""
    code = "import sys, mla_contract.testing.plugin; print({'torch', 'numpy', 'hypothesis'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", ["no_colon", "not_there:factory", "tests.testing.bad_targets:nothing", ":x"])
def test_load_factory_of_wrong_name_says_what_is_wrong(name: str) -> None:
    """A target that cannot be had is an error that repeats the name."""
    with pytest.raises(InvalidContract, match=name):
        load_factory(name)
    assert load_factory("tests.testing.bad_targets:good") is bad_targets.good


def test_registered_targets_can_be_loaded() -> None:
    """What this package registers is there, or is left out; it is never a name that cannot be loaded."""
    assert [target.reason for target in registered_targets() if target.factory is None] == []
