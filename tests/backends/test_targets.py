"""All registered backends as ``mla-contract check`` sees them: judged on the whole corpus."""

from __future__ import annotations

import pytest

from mla_contract.backends.registry import RegisteredBackend, known_backends
from mla_contract.testing.conformance import CHECKS, run_check
from mla_contract.testing.corpus import conformance_batches
from mla_contract.testing.targets import load_factory, registered_targets
from tests.contract.mypy_runs import ROOT

NAMES = [name for name, one in known_backends().items() if isinstance(one, RegisteredBackend) and one.target]


def test_registered_backends_have_targets_and_classes_that_exist() -> None:
    """Three are registered by this package; each target loads, and each engine class is stated in its module."""
    assert {"rocm_sparse", "cuda_sparse", "sparse_indexer"} <= set(NAMES)
    assert [target.reason for target in registered_targets() if target.factory is None] == []
    for name in ("rocm_sparse", "cuda_sparse"):
        found = known_backends()[name]
        assert isinstance(found, RegisteredBackend)
        module, _, cls = found.engine_class.partition(":")
        assert f"class {cls}(" in (ROOT / f"{module.replace('.', '/')}.py").read_text()


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", NAMES)
def test_target_holds_on_every_batch_of_the_corpus(name: str, check: str) -> None:
    """Every clause holds, the record is the plan's, no step leaves anything behind, and addresses stay."""
    factory = load_factory(name)
    for spec in conformance_batches().values():
        verdict = run_check(check, factory, spec)
        assert [one.render() for one in verdict.violations] == [], spec.name
