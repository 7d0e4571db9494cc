"""The rules of the audit, one module each."""

from __future__ import annotations

from mla_contract.audit.rule import Rule
from mla_contract.audit.rules import missing_field, never_set, override_signature

RULES: tuple[Rule, ...] = (
    missing_field.RULE,
    never_set.RULE,
    override_signature.RULE,
)
