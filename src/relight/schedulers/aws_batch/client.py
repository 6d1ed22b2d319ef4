"""Connects to AWS with boto3 clients, and explains their errors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from relight.base import env
from relight.base.errors import MachineError, RelightError, UsageError
from relight.base.text import did_you_mean
from relight.schedulers.api import client_library, local_time

_ACTION = re.compile(r"not authorized to perform: (\S+)")
_REFUSALS = ("ClientException", "InvalidParameterException", "InvalidParameterValue",
             "ValidationException", "NoSuchBucket", "ResourceNotFoundException")  # fmt: skip
_CREDENTIALS = ("ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId",
                "UnrecognizedClientException", "InvalidAccessKeyId",
                "SignatureDoesNotMatch")  # fmt: skip
_DENIED = ("AccessDenied", "AccessDeniedException", "403")
_LOGIN = ("SSOError", "TokenRetrievalError", "CredentialRetrievalError", "LoginError")
"""Botocore exceptions for a missing or expired login. Not every version of botocore defines all of
them.
"""
_ACTIONS = {"ListObjectsV2": "ListBucket"}
"""Policy actions whose names differ from those of the operations."""


class Aws:
    """The account and region configured in the environment, as for the `aws` command."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, bool], Any] = {}
        self._session: Any = None

    @contextmanager
    def client(self, service: str, *, once: bool = False) -> Iterator[Any]:
        """Yield a client for a service, and convert its errors to RelightErrors.

        Args:
            service: the service's name, such as `batch`.
            once: whether to send each request only once, without retries.

        Raises:
            UsageError: if boto3, the credentials or the region are missing, or if AWS rejects the
                request.
            MachineError: if AWS does not respond.
        """
        boto3, errors = client_library(
            "AWS Batch", "boto3", "'boto3>=1.34'", "boto3", "botocore.exceptions"
        )
        try:
            if (service, once) not in self._clients:
                # Only one session: each one may ask for an MFA code.
                self._session = self._session or _session(boto3)
                self._clients[service, once] = _made(self._session, service, once)
            yield self._clients[service, once]
        except errors.NoRegionError:
            raise UsageError(
                "AWS: no region configured",
                hint="set AWS_REGION=eu-central-1, or run `aws configure`",
            ) from None
        except (errors.NoCredentialsError, errors.PartialCredentialsError):
            raise UsageError(
                "AWS: no credentials found",
                hint=(
                    "use `aws configure`, `aws sso login` or AWS_PROFILE until `aws sts "
                    "get-caller-identity` works"
                ),
            ) from None
        except errors.ProfileNotFound as error:
            raise UsageError(f"AWS: {_line(error)}", hint="check AWS_PROFILE") from None
        except errors.ParamValidationError as error:
            raise UsageError(f"AWS Batch rejects the request: {_line(error)}") from None
        except errors.ClientError as error:
            raise explained(error, service) from None
        except tuple(getattr(errors, name) for name in _LOGIN if hasattr(errors, name)) as error:
            raise UsageError(
                f"AWS: no valid credentials: {_line(error)}",
                hint="run `aws sso login` or `aws login` until `aws sts get-caller-identity` works",
            ) from None
        except errors.InvalidRegionError as error:
            raise UsageError(f"AWS: {_line(error)}", hint=_region_hint(boto3)) from None
        except errors.BotoCoreError as error:
            raise MachineError(
                f"no response from AWS: {_line(error)}", hint=_region_hint(boto3)
            ) from None

    def expiry(self) -> str | None:
        """Return the local time at which the credentials in use expire, an empty string if it is
        unknown, or None if they are long-lived.
        """
        credentials = self._session.get_credentials()
        if credentials is None or not credentials.get_frozen_credentials().token:
            return None
        at = getattr(credentials, "_expiry_time", None)  # boto3 has no public name for it
        return "" if at is None else local_time(at.timestamp() * 1000)

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()
        self._clients = {}


def _made(session: Any, service: str, once: bool) -> Any:
    from botocore.config import Config
    from botocore.exceptions import InvalidRegionError

    said: dict[str, Any] = {"retries": {"total_max_attempts": 1}} if once else {}
    if service == "s3":  # S3 no longer accepts the signature that is the default in some regions
        said["signature_version"] = "s3v4"
    try:
        return session.client(service, config=Config(**said))
    except InvalidRegionError:
        raise
    except ValueError as error:  # AWS_ENDPOINT_URL is not a URL
        raise UsageError(f"AWS: {_line(error)}", hint="AWS_ENDPOINT_URL=https://HOST") from None


def _session(boto3: Any) -> Any:
    """Return a session for the region in AWS_REGION. The `aws` command reads this variable, but
    boto3 ignores it.
    """
    return boto3.session.Session(region_name=env.read().get("AWS_REGION") or None)


def _region_hint(boto3: Any) -> str:
    """Return a hint that suggests a region if boto3 does not know the configured region."""
    session = _session(boto3)
    known = session.get_available_regions("batch")
    region = session.region_name or ""
    return "" if region in known else did_you_mean(region, known, f"the region is {region}")


def explained(error: Any, service: str) -> RelightError:
    """Convert an AWS service error to a one-line error for the user."""
    said = error.response.get("Error") or {}
    code = str(said.get("Code") or "")
    message = " ".join(str(said.get("Message") or error).split())
    if code in _CREDENTIALS:
        return UsageError(
            f"AWS rejects the credentials: {message}",
            hint="they may have expired; try `aws sso login`, then `aws sts get-caller-identity`",
        )
    if code in _DENIED:
        found = _ACTION.search(message)
        operation = _ACTIONS.get(error.operation_name, error.operation_name)
        action = found[1] if found else f"{service}:{operation}"
        return UsageError(
            f"AWS does not allow {action}: {message}",
            hint=f"attach a policy that allows {action}",
        )
    if code in _REFUSALS:
        return UsageError(f"AWS rejected {error.operation_name}: {message}")
    return MachineError(f"AWS, {error.operation_name}: {code} {message}")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
