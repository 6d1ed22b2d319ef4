"""A place of its own for each test, as for those of `job`."""

from job.conftest import place  # noqa: F401  # a fixture
