"""All registered backends as ``mla-contract check`` sees them: judged on the whole corpus."""

from __future__ import annotations

import pytest

from mla_contract.backends.registry import RegisteredBackend, known_backends
from mla_contract.testing import scoreboard
from mla_contract.testing.corpus import conformance_batches
from mla_contract.testing.scoreboard import score_targets
from mla_contract.testing.targets import load_targets, registered_targets
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


VARIANTS = {target.label: target for name in NAMES for target in load_targets(name)}


@pytest.mark.parametrize("label", VARIANTS)
def test_target_holds_on_every_batch_of_the_corpus(label: str) -> None:
    """Every clause holds, the record is the plan's, no step leaves anything behind, addresses stay, nothing is read."""
    (card,) = score_targets([VARIANTS[label]])
    assert [violation.render() for _, violation in card.examples.values()] == []
    assert card.reason == "" and card.batches > 50


def test_backends_decide_most_clauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """All variants of a backend together decide at least 80 clauses; what needs ranks or a dense decode is left."""
    every = conformance_batches()
    chosen = {name: spec for index, (name, spec) in enumerate(every.items()) if index % 8 == 0 or "padded" in name}
    monkeypatch.setattr(scoreboard, "conformance_batches", lambda: chosen)
    for name in ("rocm_sparse", "cuda_sparse"):
        (card,) = score_targets(load_targets(name))
        assert len(card.decided) >= 80, (name, len(card.decided))
        assert not {"MLA222", "MLA252", "MLA331"} & set(card.decided)
