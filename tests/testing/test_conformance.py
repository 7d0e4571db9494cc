"""The conformance suite accepts the reference builders, and names the clause that each bad builder breaks."""

from __future__ import annotations

import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from mla_contract.adapters.fault import InvalidConfig
from mla_contract.errors import InvalidContract
from mla_contract.testing.conformance import CHECKS, run_check
from mla_contract.testing.corpus import conformance_batches
from mla_contract.testing.target import Factory
from mla_contract.testing.targets import load_factory, reference_targets, registered_targets
from tests.testing import bad_targets, reading_targets

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


def test_what_a_builder_raises_is_handed_on_with_its_traceback() -> None:
    """The error is the builder's own object, and its traceback ends at the author's line."""
    for check in CHECKS:
        verdict = run_check(check, bad_targets.Raising, conformance_batches()["mtp_padded_padded"])
        if verdict.skipped is None:
            assert isinstance(verdict.error, ValueError)
            assert traceback.extract_tb(verdict.error.__traceback__)[-1].line == (
                'raise ValueError("padding")  # the author\'s line'
            )
    assert run_check("clauses", bad_targets.Raising, conformance_batches()["mixed_small"]).error is None


def test_target_that_is_none_is_said_before_anything_is_built() -> None:
    """Each member that is wrong is named with what was expected and found; the builder is not blamed."""
    spec = conformance_batches()["mixed_small"]
    with pytest.raises(InvalidConfig) as caught:
        run_check("clauses", bad_targets.NoExpectations, spec)
    (fault,) = caught.value.faults
    assert (fault.what, fault.got) == ("NoExpectations.expectations", ()) and "Expectations(" in fault.expected
    with pytest.raises(InvalidConfig) as caught:
        run_check("clauses", bad_targets.WrongMembers, spec)
    assert [fault.what.partition(".")[2] for fault in caught.value.faults] == [
        *("declaration", "facts", "build", "expectations.persistent"),
    ]
    with pytest.raises(LookupError, match="no block size"):
        run_check("clauses", bad_targets.RaisingProperty, spec)


READERS: dict[Factory, tuple[str, str, str]] = {
    reading_targets.Item: ("item()", "reading_targets.py", "look"),
    reading_targets.DerivedList: ("tolist()", "reading_targets.py", "look"),
    reading_targets.InHelper: ("item()", "helpers_of_targets.py", "longest_of"),
    reading_targets.ThroughBuffer: ("tolist()", "reading_targets.py", "look"),
    reading_targets.Mask: ("an index by a mask", "reading_targets.py", "look"),
}


@pytest.mark.parametrize("factory", READERS)
def test_device_read_is_found_with_its_place(factory: Factory) -> None:
    """A read is reported at the line that makes it, also in a helper and through a buffer; the way there is shown."""
    what, file, function = READERS[factory]
    (found,) = run_check("reads", factory, conformance_batches()["mixed_small"]).violations
    assert found.code == "MLA394" and found.message.startswith(what)
    assert re.search(rf"{file}:\d+ in {function}$", found.path)
    assert re.search(r"reading_targets\.py:\d+ in build", found.got)


def test_builder_that_reads_host_copies_alone_is_silent() -> None:
    """Host copies may be read, and what the device computes for itself is no read."""
    for spec in conformance_batches().values():
        assert run_check("reads", reading_targets.HostOnly, spec).violations == ()


def run_pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the plugin in a pytest of its own."""
    command = [sys.executable, "-m", "pytest", "-p", "mla_contract.testing.plugin", "-q", "-p", "no:cacheprovider"]
    chosen = ["-k", " or ".join(SMALL)]
    return subprocess.run([*command, *arguments, *chosen], cwd=ROOT, capture_output=True, text=True, check=False)


def test_plugin_on_good_target_passes() -> None:
    """The suite alone is collected: one item for each check and batch, and all pass or say why they do not apply."""
    done = run_pytest("--mla-backend", "tests.testing.bad_targets:good")
    assert done.returncode == 0, done.stdout
    assert f"{5 * len(SMALL)} passed, {len(SMALL)} skipped" in done.stdout


def test_plugin_on_bad_target_fails_with_the_clause() -> None:
    """A violation is printed as the library renders it."""
    done = run_pytest("--mla-backend", "tests.testing.bad_targets:StaleTail")
    assert done.returncode == 1
    assert "MLA333 PlainDense.decode.seq_lens" in done.stdout


def test_plugin_shows_the_authors_line_where_the_builder_raises() -> None:
    """Pytest's own traceback leads through the suite to the line that raises."""
    done = run_pytest("--mla-backend", "tests.testing.bad_targets:Raising", "--tb=long")
    assert done.returncode == 1
    assert "> " in done.stdout and 'raise ValueError("padding")  # the author\'s line' in done.stdout
    assert "bad_targets.py:" in done.stdout


def test_plugin_on_target_that_is_none_says_what_was_expected() -> None:
    """The target's own error is printed, and no code of a builder."""
    done = run_pytest("--mla-backend", "tests.testing.bad_targets:NoExpectations")
    assert done.returncode == 1
    assert "NoExpectations.expectations" in done.stdout and "MLA111" not in done.stdout


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
