"""A separate directory for each test, as for the tests in `job`."""

from job.conftest import place  # noqa: F401  # a fixture
