"""Calling a store until it answers: what failed, whether trying again helps, and how long to wait.

obstore's own retries are off for reads: they do not repeat a cut body. Waits are full-jitter exponential backoff (Marc
Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015), at least a second after 429 and 503, because
obstore does not show the Retry-After header.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from mmdata.errors import NotFound, StorageError
from mmdata.storage.settings import StorageSettings

T = TypeVar("T")

_STATUS = re.compile(r"status code: (\d{3})|status: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_TRANSIENT_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_TRANSIENT_CODES = frozenset({"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable"})
_BUSY = frozenset({429, 503})
_HOPELESS = re.compile(
    r"builder error|credential|169\.254\.169\.254|certificate|not supported|Content-Length|Invalid range", re.I
)
_NO_HOST = re.compile(r"dns error|failed to lookup address", re.I)
_BUSY_WAIT_S = 1.0
_NO_HOST_RETRIES = 2
_JITTER = random.SystemRandom()


class ShortBody(Exception):
    """Fewer bytes came than were asked for, though the object holds them."""


class AlreadyThere(StorageError):
    """A conditional write found the object present."""

    def __init__(self, message: str, attempts: int) -> None:
        super().__init__(message)
        self.attempts = attempts


@dataclass(frozen=True, slots=True)
class Fault:
    """What one failed attempt was about."""

    status: int | None
    code: str
    text: str
    transient: bool
    no_host: bool = False


def call(settings: StorageSettings, what: str, url: str, attempt: Callable[[], T]) -> T:
    """`attempt()` until it succeeds, fails for good, or `retries` or `deadline_s` are used up: then a StorageError.

    The error names `url`, what was being done, the last fault and the mend.
    """
    start = time.monotonic()
    tries = 0
    while True:
        try:
            return attempt()
        except StorageError:
            raise
        except Exception as error:
            tries += 1
            fault = diagnose(error)
            spent = time.monotonic() - start
            allowed = min(settings.retries, _NO_HOST_RETRIES) if fault.no_host else settings.retries
            wait = _wait(settings, tries, fault)
            if not fault.transient or tries > allowed or spent + wait > settings.deadline_s:
                raise _final(error, fault, what, url, tries, spent) from error
            time.sleep(wait)


def diagnose(error: Exception) -> Fault:
    """Reads status, error code and kind out of obstore's exception, which has them only in its text."""
    text = str(error)
    head = text.split("\n\nDebug source:")[0]
    match = _STATUS.search(text)
    status = int(match.group(1) or match.group(2)) if match else None
    code = _CODE.search(head)
    name = code.group(1) if code else ""
    short = " ".join(head.split("<?xml")[0].split("<!DOCTYPE")[0].split())[:300]
    if isinstance(error, (ValueError, FileNotFoundError)) or type(error).__name__ in _FINAL_ERRORS:
        transient = False
    elif status is not None:
        transient = status in _TRANSIENT_STATUS or name in _TRANSIENT_CODES
    else:
        transient = not _HOPELESS.search(text)
    return Fault(status, name, short, transient, _NO_HOST.search(text) is not None)


_FINAL_ERRORS = frozenset(
    {"PermissionDeniedError", "UnauthenticatedError", "NotSupportedError", "InvalidPathError", "AlreadyExistsError"}
    | {"PreconditionError", "UnknownConfigurationKeyError"}
)


def _wait(settings: StorageSettings, tries: int, fault: Fault) -> float:
    ceiling = min(settings.max_backoff_s, settings.backoff_s * 2.0 ** min(tries - 1, 60))
    wait = _JITTER.uniform(0.0, ceiling)
    return wait + _BUSY_WAIT_S if fault.status in _BUSY else wait


def _final(error: Exception, fault: Fault, what: str, url: str, tries: int, spent_s: float) -> StorageError:
    where = f"cannot {what} {url}: "
    times = f" (after {tries} attempts in {spent_s:.1f} s)" if tries > 1 else ""
    if type(error).__name__ == "AlreadyExistsError":
        return AlreadyThere(f"{url} exists already", tries)
    if fault.code == "NoSuchBucket":
        return NotFound(where + "the bucket does not exist on this endpoint" + times)
    if isinstance(error, FileNotFoundError) or fault.status == 404:
        return NotFound(where + "it is not there" + times)
    return StorageError(where + _mend(error, fault) + times)


def _mend(error: Exception, fault: Fault) -> str:
    """The fault in a few words, and what to change."""
    said = ", ".join(str(part) for part in (fault.status, fault.code) if part) or fault.text
    if fault.status in (301, 302, 307, 308) or fault.code in ("AuthorizationHeaderMalformed", "PermanentRedirect"):
        return f"the bucket is in another region ({said}): set storage.region or AWS_REGION"
    if fault.status in (401, 403) or type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
        return (
            f"access denied ({said}): check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3://), "
            "their rights on it, and the endpoint; for a public bucket set storage.anonymous"
        )
    if re.search(r"credential|169\.254\.169\.254", str(error), re.I):
        return (
            "no credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or the store's own variables), or "
            "storage.anonymous for a public bucket"
        )
    if fault.status == 416 or "Invalid range" in fault.text:
        return "the range begins after its last byte"
    if fault.status is None and not isinstance(error, (ValueError, ShortBody)):
        return f"{said}; check the address (storage.endpoint; AWS_ENDPOINT_URL for s3://) and the network"
    return said
