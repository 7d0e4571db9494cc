"""Run the command line as ``python -m mla_contract.cli``."""

from __future__ import annotations

from mla_contract.cli.main import main

main()
