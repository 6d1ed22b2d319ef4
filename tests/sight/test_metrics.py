"""Prometheus metrics: their names, and that the dashboard queries only existing ones."""

import json
import re
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S

from relight.base.errors import UsageError
from relight.core.status.goodput import Account, NodeFailures, Phases
from relight.core.status.rates import Rates
from relight.core.status.snapshot import Chart, NodeSnapshot, RankSnapshot, RankUse, WholeJob
from relight.core.status.timeline import history
from relight.inspect.gpus import Gpu
from relight.inspect.page import metrics
from relight.inspect.page.server import PageServer, Served
from relight.inspect.page.view_model import Reading

pytestmark = pytest.mark.needs_prometheus_client

MONITORING = Path(__file__).parents[2] / "examples" / "monitoring"
DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


ACCOUNT = Account(10.0, Phases(imports=1.0, productive=9.0), 0.9, False, 2, 1, 2.0, "spawn", 100.0,
                  (NodeFailures("gpu-02", 1, 100.0),), ())  # fmt: skip


CHARTS = (Chart("steps/s", 100.0, 1.0, (5.0,)),)


def reading(exit_code: int | None = None) -> Reading:
    rates = Rates()
    for second in (1.0, 2.0):
        ranks = tuple(
            RankSnapshot(n, n, 10 + n, None if n else -9, 0, "", "", "",
                         RankUse(second, second * 1.5, 1 << 20, int(5 * second),
                                 reported=("loss=0.5",), total=100) if n else None)
            for n in range(3)
        )  # fmt: skip
        job = WholeJob((NodeSnapshot("train-7", "train", 7, "gpu-01", "r", ("train.py",), "",
                                     "default", 100.0, 110.0, "running", 1, 1, 3, "x", 0, 1, 3,
                                     exit_code, "", "", ranks, ACCOUNT, charts=CHARTS),),
                       ("gpu-02",))  # fmt: skip
        rates.take(job.nodes)
    return Reading(job, rates, history({}, 0.0), True, False)


def samples(exit_code: int | None) -> dict[str, list[Any]]:
    from prometheus_client.parser import text_string_to_metric_families

    gpus = [Gpu(0, "NVIDIA H100", 97, 62641, 81559), Gpu(1, "NVIDIA H100", None, None, 81559)]
    kind, body = metrics.exposition(lambda: reading(exit_code), lambda: gpus)
    assert kind.startswith("text/plain")
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def names() -> set[str]:
    """Return the names as stored by Prometheus."""
    return {f"{name}_total" if name in metrics.COUNTERS else name for name in metrics.HELP}


def test_exported_metrics_match_job_state() -> None:
    assert set(samples(exit_code=0)) == names()
    found = samples(exit_code=None)
    states = {each.labels["state"]: each.value for each in found["relight_ranks"]}
    assert {state: n for state, n in states.items() if n} == {"running": 2, "killed": 1}
    assert {each.labels["rank"]: each.value for each in found["relight_rank_steps_per_second"]} == {
        "1": 5.0, "2": 5.0,
    }  # fmt: skip
    assert [each.value for each in found["relight_job_restarts_total"]] == [1.0]
    phases = {each.labels["phase"]: each.value for each in found["relight_phase_seconds"]}
    assert phases == {"productive": 9.0, "imports": 1.0, "unknown": 0.0}
    reported = [each.labels["name"] for each in found["relight_rank_reported"]]
    assert reported == ["loss", "loss"]
    assert found["relight_job_remaining_seconds"][0].value == (99 - 10) / 5.0
    (busy,) = found["relight_gpu_busy_ratio"]
    assert (busy.labels["gpu"], busy.labels["host"], busy.value) == ("0", "gpu-01", 0.97)
    assert len(found["relight_gpu_memory_bytes"]) == 2
    own = {"job_name": "train", "job_id": "train-7@gpu-01"}
    assert all(own.items() <= sample.labels.items() for each in found.values() for sample in each)


def test_documentation_page_lists_all_metrics() -> None:
    told = set(re.findall(r"^\| `(relight_\w+)`", DOCS.read_text(), re.MULTILINE))
    assert told == names()


def test_missing_prometheus_client_error_suggests_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(UsageError, match="prometheus-client") as raised:
        metrics.exposition(reading)
    assert "pip install 'prometheus-client" in raised.value.hint


def queries() -> list[str]:
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [*found, *(each["expr"] for each in dashboard["annotations"]["list"])]


def test_dashboard_queries_only_existing_metrics() -> None:
    text = (MONITORING / "grafana.json").read_text()
    assert set(re.findall(r"\brelight_\w+", text)) <= names()
    assert len(queries()) > 10


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    """Run a Prometheus that scrapes a page twice a second, and yield its address."""
    token = "of-all-pages-of-this-user"
    server = PageServer("127.0.0.1", 0, token, Served(dict, lambda *_: "", metrics_of_page, {}))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    config = (MONITORING / "prometheus.yml").read_text()
    config = config.replace("9400", str(server.port)).replace("10s", "500ms")
    config = config.replace("/etc/prometheus/relight-token", f"{tmp_path}/token")
    (tmp_path / "token").write_text(token + "\n")
    (tmp_path / "prometheus.yml").write_text(config)
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={tmp_path}/prometheus.yml",
             f"--storage.tsdb.path={tmp_path}/data", "--web.listen-address=127.0.0.1:0"],
            stdout=output, stderr=output,
        )  # fmt: skip
    try:
        address = address_of(log)
        wait_until_ready(address)
        yield address
    finally:
        process.terminate()
        process.wait()
        server.shutdown()
        server.server_close()


def metrics_of_page() -> tuple[str, bytes]:
    return metrics.exposition(lambda: reading(exit_code=0))


def address_of(log: Path) -> str:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        found = re.search(r"Listening on.*?address=(127\.0\.0\.1:\d+)", log.read_text())
        if found:
            return f"http://{found[1]}"
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def wait_until_ready(address: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{address}/-/ready", timeout=LIMIT_S).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(address)


@pytest.mark.slow
@pytest.mark.needs_prometheus
def test_prometheus_answers_every_dashboard_query(prometheus: str) -> None:
    def ask(query: str) -> list[Any]:
        query = query.replace("$job_name", ".*").replace("$job_id", ".*")
        asked = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"{prometheus}/api/v1/query?{asked}", timeout=LIMIT_S) as got:
            answer = json.load(got)
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])

    deadline = time.monotonic() + LIMIT_S
    left = [query for query in queries() if "changes(" not in query]  # constant over time
    while left and time.monotonic() < deadline:
        left = [query for query in left if not ask(query)]  # a rate needs two samples
        time.sleep(0.2)
    assert not left
