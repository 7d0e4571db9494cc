"""The smallest input on which two planners differ, found by running both in a process of their own."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mla_contract
from mla_contract.audit.drift.trial.cases import role_of
from mla_contract.audit.drift.trial.extraction import NotExtractableError, extract
from mla_contract.audit.model.index import Function
from mla_contract.audit.model.nodes import walk

TRIAL_SECONDS = 3.0
"""Time after which no more inputs are tried."""

_GRACE_SECONDS = 20.0
_ROOT = Path(mla_contract.__file__).parent.parent
_COMMAND = (
    f"import sys; sys.path.append({str(_ROOT)!r}); from mla_contract.audit.drift.trial.worker import main; main()"
)


@dataclass(frozen=True, slots=True)
class Witness:
    """What a trial found.

    Attributes:
        inputs: The smallest input on which the functions differ, or None where none was found.
        left: What the first function returns for it, or raises.
        right: What the second does.
        cases: How many inputs were tried where none differs.
        reason: Why the functions could not be run, or None.
    """

    inputs: str | None = None
    left: str = ""
    right: str = ""
    cases: int = 0
    reason: str | None = None

    def sentence(self, left: str, right: str) -> str:
        """Return the finding of the trial as the end of a sentence.

        Args:
            left: What to call the first function.
            right: What to call the second.
        """
        if self.reason is not None:
            return f"not run: {self.reason}"
        if self.inputs is None:
            return f"equal results on {self.cases} small batches"
        return f"they differ first at {self.inputs}: {left} {self.left}, {right} {self.right}"


def find_witness(left: Function, right: Function, *, seconds: float = TRIAL_SECONDS) -> Witness:
    """Return the smallest input on which two functions differ; an exception is a result like any other.

    Args:
        left: A function.
        right: Another, which takes the same things or more, by whatever names.
        seconds: How long to look.
    """
    try:
        trial = _trial(left, right)
    except NotExtractableError as error:
        return Witness(reason=str(error))
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _COMMAND],
            input=json.dumps({**trial, "seconds": seconds}),
            capture_output=True,
            text=True,
            timeout=seconds + _GRACE_SECONDS,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Witness(reason="no end within the time allowed")
    except OSError as error:
        return Witness(reason=f"no process could be started: {error.strerror}")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return Witness(reason=lines[-1] if lines else "no end within the limits of time and memory")
    return _witness(json.loads(done.stdout))


def is_comparable(left: Function, right: Function) -> bool:
    """Return whether a function takes everything that another does, by whatever names."""
    try:
        needed = [{role for role, _ in parameter_roles(f).values() if _is_input(role)} for f in (left, right)]
    except NotExtractableError:
        return False
    return needed[0] <= needed[1]


def parameter_roles(function: Function) -> dict[str, tuple[str, str]]:
    """Return what each parameter of a function takes, and in which form, by the name of the parameter.

    Raises:
        NotExtractableError: A parameter takes what small ints cannot fill.
    """
    found: dict[str, tuple[str, str]] = {}
    for parameter, default in _parameters(function):
        annotation = ast.unparse(parameter.annotation) if parameter.annotation is not None else ""
        constant = default.value if isinstance(default, ast.Constant) else None
        role = role_of(parameter.arg, annotation, constant, default is not None)
        if role is None:
            raise NotExtractableError(f"parameter {parameter.arg} of {function.node.name} takes no small ints")
        kind = "list" if "list" in annotation else "ndarray" if "ndarray" in annotation else "tensor"
        found[parameter.arg] = (role, kind)
    return found


def _trial(left: Function, right: Function) -> dict[str, Any]:
    sides: list[dict[str, Any]] = []
    roles: dict[str, None] = {}
    defaults: dict[str, Any] = {}
    needed: list[set[str]] = []
    for function in (left, right):
        parameters = parameter_roles(function)
        sides.append({
            "name": function.node.name,
            "source": extract(function),
            "parameters": [[name, role, kind] for name, (role, kind) in parameters.items()],
        })  # fmt: skip
        roles.update({role: None for role, _ in parameters.values()})
        for parameter, default in _parameters(function):
            role = parameters[parameter.arg][0]
            if role.startswith("flag:") and isinstance(default, ast.Constant):
                defaults[role] = default.value
        needed.append({role for role, _ in parameters.values() if _is_input(role)})
    if missing := sorted(needed[0] - needed[1]):
        raise NotExtractableError(f"{right.node.name} takes no {', '.join(missing)}")
    return {
        "sides": sides,
        "roles": list(roles),
        "defaults": defaults,
        "reads": sorted(_reads(left) | _reads(right)),
        "unbound": sorted(needed[1] - needed[0]),
    }


def _witness(outcome: dict[str, Any]) -> Witness:
    if "reason" in outcome:
        return Witness(reason=outcome["reason"])
    if "case" not in outcome:
        return Witness(cases=outcome["cases"])
    shown = []
    for name, value in outcome["case"].items():
        if name not in ("is_prefilling", "context") or any(value):
            shown.append(f"{name.removeprefix('flag:')}={value}")
    left, right = (_shown(result) for result in outcome["results"])
    return Witness(", ".join(shown), left, right)


def _shown(result: Any) -> str:
    if isinstance(result, dict) and "raises" in result:
        return f"raises {result['raises']}"
    return f"gives {result}"


def _parameters(function: Function) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """Yield the parameters of a function with their defaults; the first of a method is left out."""
    spec = function.node.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(spec.defaults))
    static = any(ast.unparse(d) == "staticmethod" for d in function.node.decorator_list)
    skip = 1 if function.owner is not None and not static else 0
    yield from list(zip(positional, [*defaults, *spec.defaults], strict=True))[skip:]
    yield from zip(spec.kwonlyargs, spec.kw_defaults, strict=True)


def _is_input(role: str) -> bool:
    return not role.startswith(("flag:", "default:"))


def _reads(function: Function) -> set[str]:
    return {node.attr for node in walk(function.node) if isinstance(node, ast.Attribute)}
