"""The pages of the rules: complete, and the generated files are what the code gives."""

import re

import pytest

from mla_contract.audit import docs
from mla_contract.audit.rule import Rule
from mla_contract.audit.rules import RULES
from mla_contract.audit.tool_rules import TOOL_RULES

EVERY = (*RULES, *TOOL_RULES)


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: rule.code)
def test_rule_page_has_every_part(rule: Rule) -> None:
    """A page says what, why and where it comes from, with an example of each kind."""
    page = rule.page
    assert all((page.what.strip(), page.why.strip(), page.incident.strip(), page.bad.strip(), page.good.strip()))
    assert page.bad != page.good


def test_rules_have_distinct_codes_and_names() -> None:
    """Codes and names are API: none stands twice, and both have one form."""
    assert len({rule.code for rule in EVERY}) == len(EVERY) == len({rule.name for rule in EVERY})
    assert all(re.fullmatch(r"[A-Z]{3,4}\d{3}", rule.code) for rule in EVERY)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name) for rule in EVERY)


def test_docs_are_up_to_date() -> None:
    """`make docs` has been run since the last change to a rule."""
    assert docs.main(["--check"]) == 0
