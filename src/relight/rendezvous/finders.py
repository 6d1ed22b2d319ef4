"""Chooses a job's finder."""

from relight.core.group.group_types import GroupSettings
from relight.host.loop import Loop
from relight.rendezvous.config import Meeting
from relight.rendezvous.discovery import Finder


def make_finder(loop: Loop, meeting: Meeting, settings: GroupSettings) -> Finder:
    """Return a job's finder.

    Args:
        loop: the process's event loop.
        meeting: the rendezvous.
        settings: the user's settings.
    """
    # Each finder is loaded only when it is used, to keep the others off the launch path.
    if meeting.register is not None:
        from relight.rendezvous.register_finder import RegisterFinder

        return RegisterFinder(loop, meeting)
    if len(meeting.hosts) > 1:
        from relight.rendezvous.election_finder import ElectionFinder

        return ElectionFinder(loop, meeting, settings)
    from relight.rendezvous.endpoint_finder import EndpointFinder

    return EndpointFinder(loop, meeting)
