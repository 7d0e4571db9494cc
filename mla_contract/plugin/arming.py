"""Arming the validator in one process: wrap the hooks, and say so in one line."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from threading import Lock

from mla_contract.plugin.hooks import install_hooks
from mla_contract.plugin.monitor import Monitor
from mla_contract.profiles.installed import installed_release, nearest_profile
from mla_contract.runtime.check import decided_steps
from mla_contract.runtime.settings import Mode, Settings, settings_from_environment

logger = logging.getLogger("mla_contract")
_lock = Lock()
_armed: Armed | None = None


@dataclass(frozen=True, slots=True)
class Armed:
    """What was armed in this process.

    Attributes:
        settings: Mode and level.
        release: The installed vLLM.
        minor: Minor release of the profile in use.
        hooks: What was wrapped.
        monitor: What looks at the builds.
    """

    settings: Settings
    release: str
    minor: str
    hooks: tuple[str, ...]
    monitor: Monitor


def arm() -> Armed | None:
    """Wrap the hooks; a second call changes nothing. The process that makes the first builders says what is armed.

    Returns:
        What is armed, or None when the environment sets no mode.

    Raises:
        InvalidContract: If a variable holds an unknown word.
    """
    global _armed
    settings = settings_from_environment()
    if settings.mode is Mode.OFF:
        return None
    with _lock:
        if _armed is None:
            _armed = _arm(settings)
    return _armed


def checked_builds() -> list[tuple[str, str, int, int]]:
    """Return what was checked in this process so far: kind, class, builds, and how many of them were broken."""
    return [] if _armed is None else _armed.monitor.counts()


def decided_clauses() -> dict[str, tuple[int, int]]:
    """Return for each clause on how many of the records that could be its subject it was decided, in this process.

    A record could be the subject where its check knows the configuration; a clause that the configuration rules out, or
    that was never decided, is absent, and says nothing of the engine.
    """
    found: dict[str, tuple[int, int]] = {}
    for _, decided, steps in decided_steps():
        for code, times in decided.items():
            before, of = found.get(code, (0, 0))
            found[code] = before + times, of + steps
    return dict(sorted(found.items()))


def _arm(settings: Settings) -> Armed:
    """Do it, once."""
    adopt_engine_log()
    release = installed_release() or "unknown"
    nearest = nearest_profile(release)
    monitor = Monitor(nearest.minor)
    points = install_hooks(monitor)
    if points:
        profile = nearest.minor if nearest.is_exact else f"{nearest.minor} (the nearest)"
        monitor.operator.armed = (
            f"armed: mode {settings.mode.value}, level {settings.level.value}, vLLM {release}, profile {profile}, "
            f"at {', '.join(points)}"
        )
    else:
        logger.error("mla-contract: NOT armed: vLLM %s has no known hook", release)
    return Armed(settings, release, nearest.minor, points, monitor)


def adopt_engine_log() -> None:
    """Make our lines visible: through vLLM's handlers, or through our own while vLLM has not set up its logging yet.

    Whoever configured our logger, or the root logger, keeps what was configured.
    """
    if logger.handlers or logging.getLogger().handlers:
        return
    for handler in logging.getLogger("vllm").handlers or [_own_handler()]:
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _own_handler() -> logging.Handler:
    """Return a handler that writes to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s [%(name)s pid=%(process)d] %(message)s"))
    return handler
