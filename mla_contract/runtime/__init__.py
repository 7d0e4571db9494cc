"""The debug mode: checks the metadata that builders return, in the running engine.

``MLA_CONTRACT_VALIDATE`` is unset, ``warn`` or ``error``; ``MLA_CONTRACT_LEVEL`` is ``structural`` or ``values``. With
the mode unset nothing is wrapped and nothing runs. Importing this package arms ``narrow`` when the environment says so.
"""

from __future__ import annotations

from mla_contract.runtime.check import MetadataReport, check_metadata, report_metadata, validate_metadata
from mla_contract.runtime.hook import arm_from_environment, validating
from mla_contract.runtime.settings import Mode, Settings, current_settings
from mla_contract.runtime.tally import Tally, tally
from mla_contract.runtime.wrap import validated

__all__ = [
    "Mode",
    "MetadataReport",
    "Settings",
    "Tally",
    "arm_from_environment",
    "check_metadata",
    "current_settings",
    "report_metadata",
    "tally",
    "validate_metadata",
    "validated",
    "validating",
]

arm_from_environment()
