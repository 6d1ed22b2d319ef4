"""Pushing images, against a scripted daemon."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import MachineError
from relight.schedulers.docker.images import Images

IMAGE = "reg.example/team/train:job-x7"


class Daemon:
    """Accepts everything except the push.

    Args:
        error: why the push fails.
        is_late: whether the error is part of the response, instead of its status.
    """

    def __init__(self, error: str, *, is_late: bool) -> None:
        self.error = error
        self.is_late = is_late

    def inspect_image(self, _image: str) -> None:
        """The base image exists."""

    def build(self, **_options: Any) -> Iterator[dict[str, str]]:
        return iter(())

    def images(self, **_options: Any) -> list[dict[str, str]]:
        return []

    def push(self, *_image: str, **_options: Any) -> Iterator[dict[str, str]]:
        import docker

        if self.is_late:
            return iter([{"error": self.error}])
        raise docker.errors.APIError(self.error)


@pytest.mark.needs_docker_client
@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize(
    ("why", "hint"),
    [
        ("denied: requested access to the resource is denied", "run docker login"),
        ("no basic auth credentials", "run docker login"),
        ("no such host", "check -cfg image_repo= and the registry"),
    ],
)
def test_push_error_names_image_and_cause(
    why: str, hint: str, tmp_path: Path, *, is_late: bool
) -> None:
    build = {"image": IMAGE, "base": "img:1", "workspace": str(tmp_path)}
    with pytest.raises(MachineError) as caught:
        Images(Daemon(why, is_late=is_late), quiet=True).push([build], "job-x7")
    assert (caught.value.message, caught.value.hint) == (f"can't push {IMAGE}: {why}", hint)
