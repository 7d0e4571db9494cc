"""The rules of the audit, one module each."""

from __future__ import annotations

from mla_contract.audit.rule import Rule
from mla_contract.audit.rules import (
    aiter_signature,
    dead_field,
    defaulted_read,
    dropped_field,
    foreign_store,
    ignored_attr_error,
    ignored_flag,
    loop_allocation,
    missing_field,
    never_set,
    override_signature,
    private_copy,
    untyped_getter,
    workspace_reservation,
)

RULES: tuple[Rule, ...] = (
    missing_field.RULE,
    never_set.RULE,
    override_signature.RULE,
    ignored_flag.RULE,
    workspace_reservation.RULE,
    loop_allocation.RULE,
    private_copy.RULE,
    defaulted_read.RULE,
    dropped_field.RULE,
    foreign_store.RULE,
    dead_field.RULE,
    ignored_attr_error.RULE,
    untyped_getter.CONTEXT_RULE,
    untyped_getter.BUILDER_RULE,
    aiter_signature.RULE,
)
