"""Determines which user owns a job."""

import os


def user_name() -> str:
    """Return the name of this process's user, or the uid if the name is unknown."""
    try:
        import pwd
    except ImportError:  # Windows
        import getpass

        return getpass.getuser()
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
