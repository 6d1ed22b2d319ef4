"""Whose job it is."""

import os


def user_name() -> str:
    """Return the name of the user of this process, or its number."""
    try:
        import pwd
    except ImportError:  # Windows
        import getpass

        return getpass.getuser()
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
