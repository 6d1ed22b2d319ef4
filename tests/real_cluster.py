"""Check relight on a real Kubernetes cluster, and print a table: `make kubernetes KUBECONFIG=FILE`.

The checks are in `schedulers/test_kubernetes_cluster.py`. Those that have not started after ten
minutes are skipped. The exit code is 1 if a check failed.
"""

import os
import sys
import time
from pathlib import Path

import pytest

CHECKS = Path(__file__).parent / "schedulers" / "test_kubernetes_cluster.py"
LIMIT_S = 600.0


class Table:
    """A pytest plug-in that collects a row for each check."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, float]] = []
        self._end = time.monotonic() + LIMIT_S
        self._about: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Record what each check is about."""
        for item in items:
            text = (getattr(item, "obj", None).__doc__ or item.name).splitlines()[0].rstrip(".")
            _, bracket, case = item.name.partition("[")
            self._about[item.nodeid] = f"{text} ({case.rstrip(']')})" if bracket else text

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip checks once the time is up."""
        if time.monotonic() > self._end:
            pytest.skip(f"not begun after {LIMIT_S / 60:.0f} minutes")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a check's result."""
        if report.when == "call" or (report.when == "setup" and not report.passed):
            why = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
            result = {"passed": "yes", "failed": "**no**"}.get(report.outcome, why)
            about = self._about.get(report.nodeid, report.nodeid)
            self.rows.append((about, result.removeprefix("Skipped: "), report.duration))

    def text(self) -> str:
        """Return the table as Markdown."""
        lines = ["| check | works | s |", "|---|---|---|"]
        return "\n".join(lines + [f"| {a} | {b} | {s:.0f} |" for a, b, s in self.rows])


def version(kubeconfig: str) -> str:
    """Return the version of the cluster's API server."""
    import kubernetes

    kubernetes.config.load_kube_config(kubeconfig)
    return str(kubernetes.client.VersionApi().get_code().git_version)


def main(arguments: list[str]) -> int:
    """Run the checks, and print the table."""
    default = os.environ.get("KUBECONFIG") or "~/.kube/config"
    kubeconfig = os.path.expanduser(arguments[0] if arguments else default)
    if not os.path.exists(kubeconfig):
        print(f"no such file: {kubeconfig}; make kubernetes KUBECONFIG=FILE", file=sys.stderr)
        return 2
    os.environ["RELIGHT_KUBECONFIG"] = kubeconfig
    cluster, table = version(kubeconfig), Table()
    code = pytest.main([str(CHECKS), "-q", "-p", "no:xdist", "-m", ""], plugins=[table])
    print(f"\nKubernetes {cluster}:\n\n{table.text()}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
