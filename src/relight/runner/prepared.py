"""A job that is ready for submission."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from relight.job import serial
from relight.job.app import AppDef
from relight.schedulers.api import Request


class Prepared(NamedTuple):
    """A job that is ready for submission, as shown by `--dryrun`.

    The `scheduler` field is the name that the user requested. The `app_id` field is unique, but the
    scheduler may assign a different id. The `missing` field is an error message if the job's script
    does not exist, or empty. The `notes` field contains messages for the user. The `images` field
    contains the images to push before the submission.
    """

    scheduler: str
    session: str
    app_id: str
    app: AppDef
    request: Request
    notes: tuple[str, ...]
    words: tuple[str, ...]
    missing: str
    workspace: str
    images: Sequence[Mapping[str, str]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--dryrun --json` prints."""
        return {
            "scheduler": self.scheduler,
            "cfg": dict(self.request.cfg),
            "app": serial.to_json(self.app),
            "request": dict(self.request.body),
            **({"images": [dict(each) for each in self.images]} if self.images else {}),
        }
