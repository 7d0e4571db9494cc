"""Exception types of the library.

Types and violation codes are API; the texts are not. Nothing here imports the rest of the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mla_contract.contract.violation import Violation


class ContractError(Exception):
    """An object breaks the contract; ``violations`` holds every breach that was found."""

    def __init__(self, message: str = "", violations: Iterable[Violation] = ()) -> None:
        self.violations: tuple[Violation, ...] = tuple(violations)
        parts = [message] if message else []
        parts.extend(violation.render() for violation in self.violations)
        super().__init__("\n".join(parts))


class InvalidContract(ContractError, ValueError):
    """A statement about the contract is itself wrong: an unknown tier, a declaration that contradicts itself."""


class NoProvider(ContractError, LookupError):
    """No kernel provider can run; carries the inputs and each provider's reason."""

    def __init__(self, inputs: Mapping[str, object], reasons: Mapping[str, str]) -> None:
        self.inputs = dict(inputs)
        self.reasons = dict(reasons)
        lines = ["no provider can run these inputs"]
        lines += [f"  {name}  {reason}" for name, reason in self.reasons.items()] or ["  (no provider is registered)"]
        lines.append("  inputs  " + " ".join(f"{name}={value}" for name, value in self.inputs.items()))
        super().__init__("\n".join(lines))
