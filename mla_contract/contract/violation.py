"""One breach of the contract, as data, and its text.

Checks return violations; rendering is kept apart from checking so that every front end prints the same facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Violation:
    """One breach: where, what, expected, got, the axes bound at that moment, and what to do.

    Attributes:
        code: Stable identifier of the clause, such as ``MLA203``.
        path: The class and the field path inside it.
        message: One clause that states the breach.
        expected: The value that the contract wants, with its derivation.
        got: The value found, with dtype, shape and device where it is an array.
        axes: Named axes and their sizes.
        help: What to do; the pointer to ``mla-contract explain`` is added when rendering.
    """

    code: str
    path: str
    message: str
    expected: str = ""
    got: str = ""
    axes: Mapping[str, int] = field(default_factory=dict, hash=False)
    help: str = ""

    def one_line(self) -> str:
        """Return the headline: code, path and message."""
        return f"{self.code} {self.path}: {self.message}"

    def render(self) -> str:
        """Return the headline and one indented line for each fact that is known."""
        explain = f"mla-contract explain {self.code}"
        facts = {
            "expected": self.expected,
            "got": self.got,
            "axes": " ".join(f"{name}={size}" for name, size in self.axes.items()),
            "help": f"{self.help}; {explain}" if self.help else explain,
        }
        lines = [f"  {label:<8}  {text}" for label, text in facts.items() if text]
        return "\n".join([self.one_line(), *lines])

    def as_json(self) -> dict[str, object]:
        """Return a JSON-serialisable dict with every attribute."""
        return {
            "code": self.code,
            "path": self.path,
            "message": self.message,
            "expected": self.expected,
            "got": self.got,
            "axes": dict(self.axes),
            "help": self.help,
        }
