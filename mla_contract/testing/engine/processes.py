"""The two processes of a run: transformers, which also writes the model, and the engine.

They are apart because transformers and vLLM disagree about names in one process, and because an engine may die.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mla_contract.testing.engine.question import Answer, Question

LIMIT_S = 400
"""Seconds after which a process counts as hung: four times what the slowest run takes on two cores."""
OURS = ("MLA_CONTRACT_", "VLLM_PLUGINS")
"""Beginnings of the variables that a run sets itself, and does not inherit."""

_QUIET: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Models are so small that threads only wait for one another, and nothing is to be fetched or reported."""


class RunFailed(RuntimeError):
    """A process left no result; the text ends with what it said last."""


@dataclass(frozen=True, slots=True)
class EngineRun:
    """What an engine left.

    Attributes:
        outcome: The traffic's outcome, which classes were checked how often, and the double's calls.
        log: Everything that was printed.
    """

    outcome: dict[str, Any]
    log: str


def write_model(recipe: str, folder: Path, questions: Sequence[Question] = (), **options: Any) -> list[Answer]:
    """Write a model, and return transformers' answers.

    Args:
        recipe: A function of ``mla_contract.testing.engine.models``.
        folder: Where to write.
        questions: What to ask, in the same process.
        **options: The recipe's options.

    Raises:
        RunFailed: The process left no answer.
    """
    return _ask(folder, questions, recipe, json.dumps(options))


def ask_oracle(model: Path, questions: Sequence[Question]) -> list[Answer]:
    """Return transformers' answers.

    Raises:
        RunFailed: The process left no answer.
    """
    return _ask(model, questions)


def _ask(model: Path, questions: Sequence[Question], *recipe: str) -> list[Answer]:
    """Return the answers of one process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "questions.json"
        file.write_text(json.dumps([asdict(question) for question in questions]), "utf-8")
        command = [sys.executable, "-m", "mla_contract.testing.engine.oracle", str(model), str(file), *recipe]
        done = _run(command, {})
    return [_answer(one) for one in _result(done, "ORACLE")]


def _answer(one: Mapping[str, Any]) -> Answer:
    """Return an answer from JSON."""
    places = [[{int(token): value for token, value in place.items()} for place in row] for row in one["logprobs"]]
    return Answer(one["tokens"], places)


def run_engine(model: Path, traffic: Mapping[str, Any], variables: Mapping[str, str], double: str = "") -> EngineRun:
    """Send traffic through an engine.

    Args:
        model: Folder of the model.
        traffic: Fields of the traffic.
        variables: Environment of the run, beside what is inherited.
        double: Release of aiter and GPU that the double stands for, such as ``0.1.20:gfx950``; none when empty.

    Raises:
        RunFailed: The process left no outcome.
    """
    command = [sys.executable, "-m", "mla_contract.testing.engine.run", str(model), json.dumps(dict(traffic)), double]
    # Ranks on one memory node are refused unless each is told its core.
    ranks = range(traffic.get("num_workers", 1))
    bound = {"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, ranks))} if len(ranks) > 1 else {}
    done = _run(command, bound | dict(variables))
    outcome = _result(done, "OUTCOME")
    outcome["logprobs"] = _answer(outcome).logprobs
    return EngineRun(outcome, done.stdout + done.stderr)


def _run(command: Sequence[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a clean environment."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return subprocess.run(
        command,
        env={**inherited, **_QUIET, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def _result(done: subprocess.CompletedProcess[str], word: str) -> Any:
    """Return the JSON behind a word at the beginning of a line."""
    found = re.search(rf"^{word} (.*)$", done.stdout, re.MULTILINE)
    if found is None:
        raise RunFailed(f"the process left no result (exit {done.returncode}):\n{done.stderr[-3000:]}")
    return json.loads(found.group(1))
