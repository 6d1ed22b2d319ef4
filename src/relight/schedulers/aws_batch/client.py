"""The connection to AWS: clients of boto3, and explanations of its errors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from relight.errors import MachineError, RelightError, UsageError

_ACTION = re.compile(r"not authorized to perform: (\S+)")
_REFUSALS = ("ClientException", "InvalidParameterException", "InvalidParameterValue",
             "ValidationException", "NoSuchBucket", "ResourceNotFoundException")  # fmt: skip
_CREDENTIALS = ("ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId",
                "UnrecognizedClientException", "InvalidAccessKeyId",
                "SignatureDoesNotMatch")  # fmt: skip
_DENIED = ("AccessDenied", "AccessDeniedException", "403")


class Aws:
    """The account and region that the environment names, as for the command `aws`."""

    def __init__(self) -> None:
        self._clients: dict[str, Any] = {}

    @contextmanager
    def client(self, service: str) -> Iterator[Any]:
        """Yield a client of a service, such as `batch`; its errors become RelightErrors.

        Raises:
            UsageError: boto3, credentials or region are missing, or AWS refuses the request.
            MachineError: AWS does not answer.
        """
        try:
            import boto3
            import botocore.exceptions as errors
        except ImportError:
            raise UsageError(
                "the AWS Batch scheduler needs the package boto3",
                hint="pip install 'relight[aws_batch]', in the environment of relight",
            ) from None
        try:
            if service not in self._clients:
                self._clients[service] = boto3.session.Session().client(service)
            yield self._clients[service]
        except errors.NoRegionError:
            raise UsageError(
                "AWS: no region is known", hint="AWS_REGION=eu-central-1, or `aws configure`"
            ) from None
        except (errors.NoCredentialsError, errors.PartialCredentialsError):
            raise UsageError(
                "AWS: no credentials were found",
                hint="`aws configure`, `aws sso login` or AWS_PROFILE, until "
                "`aws sts get-caller-identity` works",
            ) from None
        except errors.ProfileNotFound as error:
            raise UsageError(f"AWS: {_line(error)}", hint="AWS_PROFILE names it") from None
        except errors.ParamValidationError as error:
            raise UsageError(f"AWS Batch can't express it: {_line(error)}") from None
        except errors.ClientError as error:
            raise explained(error) from None
        except errors.BotoCoreError as error:
            raise MachineError(f"AWS does not answer: {_line(error)}") from None

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()
        self._clients = {}


def explained(error: Any) -> RelightError:
    """Return an error of a service of AWS in one line."""
    said = error.response.get("Error") or {}
    code = str(said.get("Code") or "")
    message = " ".join(str(said.get("Message") or error).split())
    if code in _CREDENTIALS:
        return UsageError(
            f"AWS does not accept the credentials: {message}",
            hint="they may have expired: `aws sso login`, `aws sts get-caller-identity`",
        )
    if code in _DENIED:
        found = _ACTION.search(message)
        action = found[1] if found else error.operation_name
        return UsageError(
            f"AWS does not permit {action}: {message}", hint=f"a policy that allows {action}"
        )
    if code in _REFUSALS:
        return UsageError(f"AWS refuses it ({error.operation_name}): {message}")
    return MachineError(f"AWS, {error.operation_name}: {code} {message}")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
