"""Prepares the images for a job. Images that the daemon doesn't have are pulled, and the workspace
is added as a layer. For schedulers whose machines pull images from a registry, the result is
pushed.
"""

import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relight import __version__
from relight.base.errors import MachineError
from relight.job import workspaces
from relight.schedulers.docker.daemon import explanation, ignoring
from relight.schedulers.docker.request import Label

_DOCKERFILES = ("Dockerfile.relight", "Dockerfile.torchx")
"""The names of a Dockerfile that a workspace may contain. Its build arguments are IMAGE and
WORKSPACE.
"""
_NEEDS_LOGIN = re.compile(r"unauthori|not authori|denied|credentials|authentication", re.IGNORECASE)
"""What daemons and registries say if a user hasn't logged in or lacks the permission."""
_GENERATED = "FROM {base}\nCOPY workspace/ ./\n"


class Images:
    """The images that a Docker daemon has.

    Args:
        client: the daemon's client.
        quiet: whether to suppress progress output on stderr.
    """

    def __init__(self, client: Any, quiet: bool) -> None:
        self._client = client
        self._progress = Progress(quiet)

    def get(self, body: Mapping[str, Any]) -> None:
        """Pull or build all images in a request.

        Raises:
            MachineError: if an image can't be pulled or built.
        """
        built = {build["image"]: build["base"] for build in body["builds"]}
        wanted = [container["config"]["Image"] for container in body["containers"]]
        for image in dict.fromkeys(built.get(image, image) for image in wanted):
            self._pull(image, body["pull"])
        for build in body["builds"]:
            self._build(build, str(body["app_id"]))

    def push(self, builds: Sequence[Mapping[str, str]], app_id: str) -> None:
        """Build images, push them to their registries, and remove them from this machine.

        Raises:
            MachineError: if an image can't be built or pushed.
        """
        for base in dict.fromkeys(build["base"] for build in builds):
            self._pull(base, "missing")
        try:
            for build in builds:
                self._build(build, app_id)
                self._push(build["image"])
        finally:
            self.remove(app_id)

    def remove(self, app_id: str) -> None:
        """Remove the images that were built for a job."""
        for image in self._client.images(filters={"label": f"{Label.APP_ID}={app_id}"}):
            with ignoring(404, 409):  # removed, or another image's base
                self._client.remove_image(image["Id"], force=True)

    def _pull(self, image: str, policy: str) -> None:
        import docker

        if policy == "never" or image.startswith("sha256:"):
            return
        if policy == "missing":
            with ignoring(404):
                self._client.inspect_image(image)
                return
        try:
            answers = self._client.pull(*_repository_and_tag(image), stream=True, decode=True)
            self._progress.show(f"pulling {image}", answers)
        except docker.errors.APIError as error:
            raise MachineError(
                f"can't pull the image {image}: {explanation(error)}",
                hint="run docker login if the image is not public",
            ) from None

    def _push(self, image: str) -> None:
        import docker

        try:
            answers = self._client.push(*_repository_and_tag(image), stream=True, decode=True)
            self._progress.show(f"pushing {image}", answers)
        except MachineError as error:
            why = error.message.removeprefix(f"pushing {image}: ")
        except docker.errors.APIError as error:
            why = explanation(error)
        else:
            return
        needs_login = _NEEDS_LOGIN.search(why)
        raise MachineError(
            f"can't push {image}: {why}",
            hint="run docker login" if needs_login else "check -cfg image_repo= and the registry",
        )

    def _build(self, build: Mapping[str, str], app_id: str) -> None:
        workspace, base = build["workspace"], build["base"]
        own = next((name for name in _DOCKERFILES if workspaces.find(workspace, name)), "")
        with tempfile.TemporaryFile() as context:
            if own:  # include it even if it matches an ignore pattern
                with open(workspaces.find(workspace, own) or own, "rb") as file:
                    text = file.read()
                workspaces.archive(workspace, context, more={own: text})
            else:
                text = _GENERATED.format(base=base).encode()
                workspaces.archive(workspace, context, "workspace", {"Dockerfile": text})
            context.seek(0)
            answers = self._client.build(
                fileobj=context,
                custom_context=True,
                dockerfile=own or "Dockerfile",
                tag=build["image"],
                buildargs={"IMAGE": base, "WORKSPACE": workspace},
                labels={Label.APP_ID: app_id, Label.VERSION: __version__},
                rm=True,
                forcerm=True,
                decode=True,
            )
            self._progress.show(f"adding {workspace} to {base}", answers)


class Progress:
    """Shows the daemon's progress on stderr. On a terminal, a single line is updated in place.
    Otherwise, two lines are printed.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._changes = sys.stderr.isatty()

    def show(self, what: str, answers: Iterator[Mapping[str, Any]]) -> None:
        """Read all responses to a request.

        Raises:
            MachineError: if a response is an error.
        """
        self._say(what)
        layers: dict[str, tuple[int, int]] = {}
        for answer in answers:
            if "error" in answer:
                self._end()
                raise MachineError(f"{what}: {' '.join(str(answer['error']).split())}")
            detail = answer.get("progressDetail") or {}
            if answer.get("status") == "Downloading" and detail.get("total"):
                layers[answer["id"]] = detail["current"], detail["total"]
                done, total = (sum(each) >> 20 for each in zip(*layers.values(), strict=True))
                if self._changes:
                    self._say(f"{what}: {done} of {total} MiB")
        if self._changes:
            self._say(f"{what}: done")
            self._end()

    def _say(self, text: str) -> None:
        if not self._quiet:
            before, after = ("\r\x1b[K", "") if self._changes else ("", "\n")
            sys.stderr.write(f"{before}relight: {text}{after}")
            sys.stderr.flush()

    def _end(self) -> None:
        if self._changes and not self._quiet:
            sys.stderr.write("\n")


def _repository_and_tag(image: str) -> tuple[str, str]:
    """Split `HOST:PORT/NAME:TAG` or `NAME@DIGEST` into a repository and a tag. As in Docker, the
    default tag is `latest`.
    """
    name, at, digest = image.partition("@")
    if at:
        return name, digest
    head, colon, tag = image.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (image, "latest")
