"""What a user can set about object stores. Credentials are no settings: they come from the environment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Settings of every store that is not the local file system; None means: as the environment says.

    The environment variables are the stores' usual ones: AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; GOOGLE_APPLICATION_CREDENTIALS; AZURE_STORAGE_ACCOUNT_NAME,
    AZURE_STORAGE_ACCOUNT_KEY.
    """

    endpoint: str | None = None
    """URL of an S3, GCS or Azure compatible server; one that begins with http:// is spoken to without TLS."""
    region: str | None = None
    anonymous: bool = False
    """Send requests unsigned, for public buckets."""
    virtual_host: bool = False
    """S3: put the bucket into the host name instead of the path."""
    retries: int = 8
    """Attempts after the first, for each request."""
    backoff_s: float = 0.2
    """Upper bound of the wait before the first retry; it doubles with each."""
    max_backoff_s: float = 20.0
    deadline_s: float = 300.0
    """No retry starts when it could not begin within this time of the first attempt."""
    timeout_s: float = 60.0
    """A request that delivers no byte for this long is cut."""
