"""What transformers' own model answers, eager and in float32, to the prompts that an engine was given.

``python -m mla_contract.testing.engine.oracle MODEL QUESTIONS [RECIPE OPTIONS]`` prints one JSON line: an answer for
each question. With a recipe it writes the model before. It is a process of its own, because transformers and vLLM
disagree about the names of models in one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mla_contract.testing.engine import models
from mla_contract.testing.engine.emulation import emulating
from mla_contract.testing.engine.question import Answer, Question

if TYPE_CHECKING:
    from torch import Tensor

LOGPROBS = 5
"""Log probabilities that are kept of each place: enough to find the engine's token among them where one differs."""


def answer(model: Any, question: Question) -> Answer:
    """Return what a model says."""
    import torch

    found = Answer([], [])
    with torch.no_grad(), emulating(model, question):
        for index, prompt in enumerate(question.prompts):
            given = None if question.given is None else question.given[index]
            rows = _free(model, prompt, question.max_tokens) if given is None else _forced(model, prompt, given)
            found.tokens.append([int(row.argmax()) for row in rows])
            found.logprobs.append([_best(row) for row in rows])
    return found


def _free(model: Any, prompt: Sequence[int], max_tokens: int) -> list[Tensor]:
    """Return the logits of each place of a greedy continuation."""
    import torch
    from transformers import DynamicCache

    cache, new, rows = DynamicCache(config=model.config), list(prompt), []
    for _ in range(max_tokens):
        out = model(torch.tensor([new]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        rows.append(out.logits[0, -1])
        new = [int(rows[-1].argmax())]
    return rows


def _forced(model: Any, prompt: Sequence[int], given: Sequence[int]) -> list[Tensor]:
    """Return the logits of each place of a given continuation."""
    import torch

    logits = model(torch.tensor([[*prompt, *given[:-1]]]), use_cache=False).logits[0]
    return list(logits[len(prompt) - 1 :])


def _best(row: Tensor) -> dict[int, float]:
    """Return the best log probabilities of one place."""
    values, tokens = row.float().log_softmax(-1).topk(LOGPROBS)
    return dict(zip(tokens.tolist(), values.tolist(), strict=True))


def load(folder: Path) -> Any:
    """Return transformers' model of a folder."""
    import torch
    import transformers

    architecture = json.loads((folder / "config.json").read_text("utf-8"))["architectures"][0]
    model_class = getattr(transformers, architecture)
    return model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def main(folder: str, questions: str, recipe: str = "", options: str = "{}") -> None:
    """Write the model if a recipe is named, answer the questions of a file, and print the answers."""
    if recipe:
        getattr(models, recipe)(Path(folder), **json.loads(options))
    asked = [Question(**one) for one in json.loads(Path(questions).read_text("utf-8"))]
    model = load(Path(folder)) if asked else None
    print("ORACLE " + json.dumps([asdict(answer(model, question)) for question in asked]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
