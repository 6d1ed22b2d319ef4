"""The user who owns a job."""

from relight.host.user import user_name as user_name
