"""Jobs on Ray: the driver's command, the package, and the driver's decisions."""

import io
import json
import stat
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import EXIT_MACHINE, EXIT_PREEMPTED, MachineError, UsageError
from relight.job import launcher_file
from relight.job.app import AppDef, AppState, BindMount, Resource, Role
from relight.job.components import dist
from relight.schedulers.ray import dashboard, driver, request, states
from relight.schedulers.ray import scheduler as ray
from relight.schedulers.ray.dashboard import Dashboard
from relight.schedulers.ray.driver import JobCore


def ddp(*words: str, **options: Any) -> AppDef:
    return dist.ddp(*words, **{"script": "train.py", "j": "2x8", **options})


def order(app: AppDef, **cfg: Any) -> dict[str, Any]:
    return request.order(app, cfg, "train-x7", "secret")


def role(number: int = 1, image: str = "", **parts: Any) -> Role:
    return Role("main", image, entrypoint="prog", num_replicas=number, **parts)


# The launch request.


def test_agent_job_matches_recorded_launch_request() -> None:
    """It contains everything that the driver needs."""
    app = ddp("--lr", "a b", j="2:5x8", env={"X": "1"}, max_retries=2)
    made = order(app, strategy="PACK", resources={"spot": "0.5"})
    assert made == {
        "app_id": "train-x7",
        "strategy": "PACK",
        "grace_s": 40,
        "timeout_s": 0,
        "coordinator": 29500,
        "token": "secret",
        "roles": [
            {
                "name": "train",
                "file": "train",
                "least": 2,
                "most": 5,
                "retries": 2,
                "brings": True,
                "argv": [
                    "sh",
                    "-c",
                    'PATH="$PATH:$RELIGHT_LAUNCHER_PATH" exec "$@"',
                    "sh",
                    "bash",
                    "-c",
                    "relight run --rdzv_backend c10d --rdzv_endpoint "
                    "${RELIGHT_RANK0_HOST:=localhost}:${RELIGHT_RANK0_PORT} --rdzv_id 'train-x7' "
                    "--nnodes 2:5 --nproc_per_node 8 --tee 3 --role '' train.py --lr 'a b'",
                ],
                "env": {
                    "RELIGHT_TOKEN": "secret",
                    "RELIGHT_UNFIT_EXIT_CODE": "4",
                    "LOGLEVEL": "WARNING",
                    "X": "1",
                    "TORCHX_TRACKING_EXPERIMENT_NAME": "default-experiment",
                    "TORCHX_TRACKING_RUN_NAME": "train",
                },
                "resources": {"CPU": 2, "memory": 1 << 30, "spot": 0.5},
            }
        ],
    }


@pytest.mark.parametrize(
    "app",
    [
        ddp(j="1x8"),
        ddp(rdzv_backend="etcd"),
        ddp(rdzv_backend="static"),
        AppDef("job", [role(2, args=["--to", "$${${rank0_env}:=localhost}:29500"])]),
    ],
    ids=["one node", "another registry", "static", "no agents"],
)
def test_only_c10d_agents_get_a_coordinator(app: AppDef) -> None:
    """Others get the first replica's host and their own port."""
    made = order(app)
    assert made["coordinator"] is None
    assert "RELIGHT_RANK0_PORT" not in json.dumps(made)


def test_driver_substitutes_replica_id_and_working_directory() -> None:
    app = AppDef("job", [role(args=["${replica_id}", "${img_root}/x", "${app_id}", "$$", "${y}"])])
    assert order(app)["roles"][0]["argv"][1:] == [
        "${replica_id}", "${img_root}/x", "train-x7", "$$", "${y}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        (Resource(-1, -1, -1), {"CPU": 1}),
        (Resource(0, 0, 0), {"CPU": 0.001}),
        (
            Resource(8, 2, 512, devices={"tpu": 4}),
            {"CPU": 8, "GPU": 2, "memory": 1 << 29, "tpu": 4},
        ),
    ],
)
def test_resources_are_translated_to_ray_names(
    resource: Resource, expected: dict[str, float]
) -> None:
    assert order(AppDef("job", [role(resource=resource)]))["roles"][0]["resources"] == expected


def test_request_names_owner_and_replicas(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("# tools\nnumpy==2.0  # new\n\nrich\n")
    app = AppDef("job", [role(3)], {"team": "vision"})
    made = request.job(app, {"requirements": str(tmp_path / "r.txt")}, "train-x7")
    assert made["submission_id"] == "train-x7"
    assert json.loads(made["metadata"][request.ROLES]) == {"main": 3}
    assert made["metadata"]["team"] == "vision"
    assert made["runtime_env"]["pip"] == ["numpy==2.0", "rich"]
    assert int(made["runtime_env"]["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]) > request.GRACE_S


# The package.


def test_package_has_driver_launcher_and_workspace(tmp_path: Path) -> None:
    """File modes are kept, and links are replaced with their targets."""
    (tmp_path / "ws" / "sub").mkdir(parents=True)
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "deep.txt").write_text("deep")
    (tmp_path / "ws" / "run.sh").write_text("true")
    (tmp_path / "ws" / "run.sh").chmod(0o755)
    (tmp_path / "ws" / "link.sh").symlink_to("run.sh")
    (tmp_path / "ws" / "gone").symlink_to("nowhere")
    (tmp_path / "ws" / "folder").symlink_to(tmp_path / "far")
    name, data = request.package(order(ddp()), str(tmp_path / "ws"))
    archive = zipfile.ZipFile(io.BytesIO(data))
    assert set(archive.namelist()) == {
        ".relight/driver.py", ".relight/guard.py", ".relight/order.json", ".relight/relight",
        "sub/", "run.sh", "link.sh", "folder/deep.txt",
    }  # fmt: skip
    assert archive.read(".relight/relight") == launcher_file.build()
    assert json.loads(archive.read(".relight/order.json")) == order(ddp())
    assert stat.S_IMODE(archive.getinfo("link.sh").external_attr >> 16) == 0o755
    assert request.package(order(ddp()), str(tmp_path / "ws")) == (name, data)
    assert request.package(order(ddp(j="3x8")), str(tmp_path / "ws"))[0] != name


def test_launcher_is_uploaded_only_if_needed() -> None:
    _, data = request.package(order(AppDef("job", [role()])), None)
    assert ".relight/relight" not in zipfile.ZipFile(io.BytesIO(data)).namelist()


def test_dry_run_needs_no_cluster_and_hides_secrets() -> None:
    app = ddp(env={"HF_TOKEN": "hf_mine"})
    made = ray.Ray().render(app, {"dashboard_address": "nowhere.example:1"}, "train-x7")
    assert made.app_id == "nowhere.example:1:train-x7"
    token = made.body["order"]["token"]
    assert token not in made.text
    assert "hf_mine" not in made.text
    assert "POST http://nowhere.example:1/api/jobs/" in made.text
    assert json.loads(json.dumps(made.body))["order"]["roles"][0]["env"]["HF_TOKEN"] == "hf_mine"


def test_options_without_effect_cause_a_note() -> None:
    app = AppDef("job", [role(image="mine:1", mounts=[BindMount("/a", "/b")], max_retries=1)])
    notes = ray.Ray().render(app, {}, "x").notes
    assert any("mounts have no effect" in note for note in notes)
    assert any("the image mine:1 has no effect" in note for note in notes)
    assert any("retried individually" in note for note in notes)


@pytest.mark.parametrize(
    ("cfg", "said", "hint"),
    [
        ({"cluster_config_file": "c.yaml"}, "invalid value for -cfg", "ray dashboard"),
        ({"cluster_name": "mine"}, "invalid value for -cfg", "dashboard_address=HOST:8265"),
        ({"dashboard_address": "ftp://x"}, "is not a dashboard address", "HOST:8265"),
        ({"dashboard_address": "[::1"}, "is not a dashboard address", "HOST:8265"),
        ({"workspace": "/nowhere"}, "workspace /nowhere is not a directory", ""),
        ({"dashboard_address": "host:port"}, "is not a dashboard address", "HOST:8265"),
        ({"resources": {"spot": "many"}}, "expected a number above 0", "NAME:1"),
        ({"requirements": "/no/such"}, "No such file", ""),
        ({"timeout": 0}, "-cfg timeout=0: must be at least one minute", ""),
    ],
)
def test_invalid_option_is_rejected(cfg: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        ray.Ray().render(ddp(), cfg, "train-x7")
    assert hint in caught.value.hint


# Addresses.


@pytest.mark.parametrize(
    ("address", "url", "app_id"),
    [
        (None, "http://127.0.0.1:8265", "127.0.0.1:8265:job"),
        ("head", "http://head:8265", "head:8265:job"),
        ("head:1", "http://head:1", "head:1:job"),
        ("http://head", "http://head:80", "head:80:job"),
        ("https://head/", "https://head:443", "https:head:443:job"),
        ("https://head/ray/x", "https://head:443/ray/x", "https:head:443%2Fray%2Fx:job"),
        ("[::1]:8265", "http://[::1]:8265", "[::1]:8265:job"),
    ],
)
def test_job_id_contains_dashboard_address(address: str | None, url: str, app_id: str) -> None:
    assert dashboard.dashboard_url(address) == url
    assert dashboard.format_app_id(url, "job") == app_id
    assert dashboard.parse_app_id(app_id) == (url, "job")


def test_dashboard_address_is_taken_from_ray_environment_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")  # a local cluster
    assert dashboard.dashboard_url(None) == "http://127.0.0.1:8265"
    assert ray.Ray().affinity() == 0
    monkeypatch.setenv("RAY_ADDRESS", "http://10.0.0.1:8265")
    assert dashboard.dashboard_url(None) == "http://10.0.0.1:8265"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "https://other")
    assert dashboard.dashboard_url(None) == "https://other:443"
    assert ray.Ray().affinity() > 0


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("ray://head:10001", "http://head:8265"),
        ("ray://head:10001/space", "http://head:8265"),
        ("ray://[::1]:10001", "http://[::1]:8265"),
        ("head:6379", "http://head:8265"),
    ],
)
def test_ray_client_and_gcs_addresses_map_to_dashboard_address(
    monkeypatch: pytest.MonkeyPatch, address: str, url: str
) -> None:
    """`ray job submit` also accepts these addresses."""
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert dashboard.dashboard_url(None) == url
    assert ray.Ray().affinity() > 0


def test_invalid_ray_address_is_shown_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("ray://", "ray://[::1", "ftp://x"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(UsageError, match=r"RAY_ADDRESS=.* is not a dashboard address"):
            dashboard.dashboard_url(None)


@pytest.mark.parametrize("app_id", ["job", "host:job", "host:x:job"])
def test_job_id_without_dashboard_address_is_rejected(app_id: str) -> None:
    with pytest.raises(UsageError, match="not a Ray job id"):
        ray.Ray().status([app_id])


# Servers that aren't a cluster, or that refuse.


class Server:
    """A fake dashboard: the responses by path (code 0 drops the connection), and the headers and
    paths it has received.
    """

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.headers.append(dict(self.headers))
                server.paths.append(self.path)
                code, text = server.answers.get(self.path, (404, "nothing"))
                if not code:
                    return
                self.send_response(code)
                self.end_headers()
                self.wfile.write(text.encode())

            do_POST = do_PUT = do_GET

            def log_message(self, *words: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def submit(server: Server) -> str:
    scheduler = ray.Ray()
    cfg = {"dashboard_address": server.address}
    return scheduler.submit(scheduler.render(ddp(), cfg, "train-x7"))


def test_unreachable_dashboard_is_reported_on_one_line_with_hint(server: Server) -> None:
    server.close()
    with pytest.raises(MachineError, match="no response from a Ray dashboard at") as caught:
        submit(server)
    assert "\n" not in caught.value.message
    assert "dashboard_address" in caught.value.hint


@pytest.mark.parametrize(
    ("code", "said", "expected"),
    [
        (404, "nothing", "is not a Ray dashboard"),
        (200, "<html>", "is not a Ray dashboard"),
        (200, "{}", "is not a Ray dashboard"),
        (200, '{"ray_version": "2.9.3"}', "has Ray 2.9.3, but 2.52"),
        (401, "Unauthorized", "rejects the token"),
        (503, "Traceback:\n  a\nValueError: GCS is\n slow", "Ray: 503 GCS is slow"),
    ],
)
def test_server_error_is_reported_on_one_line(
    server: Server, code: int, said: str, expected: str
) -> None:
    server.answers["/api/version"] = code, said
    with pytest.raises((UsageError, MachineError), match=expected) as caught:
        submit(server)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("answer", "error", "expected"),
    [
        ((500, "ValueError: Job x already exists."), UsageError, "already exists"),
        ((400, "TypeError: metadata"), UsageError, "Ray rejected the request: metadata"),
        ((500, "No available agent"), MachineError, "Ray: 500 No available agent"),
    ],
)
def test_rejected_job_is_reported_on_one_line(
    server: Server, answer: tuple[int, str], error: type[Exception], expected: str
) -> None:
    scheduler = ray.Ray()
    rendered = scheduler.render(ddp(), {"dashboard_address": server.address}, "train-x7")
    name, _ = request.package(rendered.body["order"], None)
    server.answers |= {
        "/api/version": (200, '{"ray_version": "2.60.0"}'),
        f"/api/packages/gcs/{name}": (200, ""),
        "/api/jobs/": answer,
    }
    with pytest.raises(error, match=expected):
        scheduler.submit(rendered)


def test_request_to_newly_started_cluster_is_retried(server: Server) -> None:
    starts = [(500, "No available agent to submit job, please try again later.")]

    class Answers(dict[str, tuple[int, str]]):
        def get(self, path: str, default: Any = None) -> Any:
            return starts.pop() if path == "/api/jobs/" and starts else super().get(path, default)

    scheduler = ray.Ray()
    rendered = scheduler.render(ddp(), {"dashboard_address": server.address}, "train-x7")
    name, _ = request.package(rendered.body["order"], None)
    server.answers = Answers({
        "/api/version": (200, '{"ray_version": "2.60.0"}'),
        f"/api/packages/gcs/{name}": (200, ""),
        "/api/jobs/": (200, "{}"),
    })  # fmt: skip
    assert scheduler.submit(rendered) == f"{server.address}:train-x7"
    assert not starts


@pytest.mark.parametrize("interrupt", [False, True])
def test_job_is_stopped_if_response_to_its_submission_is_lost(
    server: Server, monkeypatch: pytest.MonkeyPatch, interrupt: bool
) -> None:
    """It may have started. The interrupt is raised after the request in flight."""

    def interrupted(call: Any, job: Any) -> None:
        call(job)
        raise KeyboardInterrupt

    if interrupt:
        monkeypatch.setattr("relight.schedulers.ray.scheduler.finished", interrupted)
    scheduler = ray.Ray()
    rendered = scheduler.render(ddp(), {"dashboard_address": server.address}, "train-x7")
    name, _ = request.package(rendered.body["order"], None)
    server.answers |= {
        "/api/version": (200, '{"ray_version": "2.60.0"}'),
        f"/api/packages/gcs/{name}": (200, ""),
        "/api/jobs/": (200, "{}") if interrupt else (0, ""),
        "/api/jobs/train-x7/stop": (200, "{}"),
    }
    with pytest.raises(KeyboardInterrupt if interrupt else MachineError):
        scheduler.submit(rendered)
    assert server.paths[-1] == "/api/jobs/train-x7/stop"


def test_auth_token_comes_from_same_sources_as_in_ray(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["/api/jobs/"] = 200, "[]"
    monkeypatch.setenv("HOME", str(tmp_path))
    cluster = Dashboard(f"http://{server.address}")
    cluster.jobs()
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("of-a-file\n")
    cluster.jobs()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-a-variable")
    cluster.jobs()
    monkeypatch.setenv("RAY_JOB_HEADERS", '{"Authorization": "Basic x"}')
    cluster.jobs()
    sent = [headers.get("Authorization") for headers in server.headers]
    assert sent == [None, "Bearer of-a-file", "Bearer of-a-variable", "Basic x"]


# The status.


def test_status_from_ray_is_used_if_driver_has_written_none() -> None:
    job = {"status": "FAILED", "message": "the runtime\nenvironment is wrong"}
    status = states.status(job, None, {"main": 2})
    assert status.state is AppState.FAILED
    assert status.message == "the runtime environment is wrong"
    assert [x.state for x in status.replicas] == [AppState.FAILED] * 2


def test_job_counts_as_running_only_while_a_replica_is_running() -> None:
    waiting = ["main", 0, "PENDING", "", None, "Unschedulable: it needs 8 GPU"]
    written = {"message": "", "restarts": 0, "replicas": [waiting]}
    status = states.status({"status": "RUNNING"}, written, {"main": 1})
    assert status.state is AppState.PENDING
    assert status.message == "main/0: Unschedulable: it needs 8 GPU"


@pytest.mark.parametrize(
    ("code", "expected"),
    [(-9, "the driver of the job was killed"), (1, "the driver of the job has failed: Oops: no")],
)
def test_killed_or_failed_driver_is_reported_as_failure_reason(code: int, expected: str) -> None:
    written = {"message": "", "restarts": 0, "replicas": [["main", 0, "RUNNING", "h", None, ""]]}
    found = {"status": "FAILED", "driver_exit_code": code, "message": "Traceback:\n a\nOops: no\n"}
    status = states.status(found, written, {"main": 1})
    assert (status.message, status.replicas[0].error) == (expected, expected)


# The driver's decisions.


def job(least: int = 2, most: int = 3, retries: int = 0) -> JobCore:
    return JobCore([{"name": "main", "least": least, "most": most, "retries": retries}])


def start(made: JobCore, *numbers: int) -> None:
    for number in numbers:
        made.placed(made.slots[number], f"host-{number}", f"node-{number}")
        made.started(made.slots[number])


def names(made: JobCore) -> list[str]:
    return [slot.name for slot in made.wanted()]


def test_job_succeeds_with_min_replicas() -> None:
    made = job()
    start(made, 0, 1)
    made.ended(made.slots[0], 0)
    assert not made.is_over
    assert names(made) == ["main/2"]
    made.ended(made.slots[1], 0)
    assert made.is_over
    assert names(made) == []
    made.close()
    assert made.exitcode == 0
    assert made.slots[2].state == driver.CANCELLED


def test_program_error_ends_job() -> None:
    made = job()
    start(made, 0, 1)
    made.ended(made.slots[1], 17)
    assert made.stopping
    assert made.message == "main/1: exit code 17"
    assert not made.is_over
    made.ended(made.slots[0], 143)
    assert made.is_over
    assert made.exitcode == 17
    assert [slot.state for slot in made.slots] == ["CANCELLED", "FAILED", "CANCELLED"]


def test_retries_are_counted_per_replica() -> None:
    made = job(retries=1)
    start(made, 0, 1, 2)
    for number in (0, 1):
        made.ended(made.slots[number], 1)
    assert names(made) == ["main/0", "main/1"]
    start(made, 0)
    made.ended(made.slots[0], 1)
    assert made.cause is made.slots[0]


@pytest.mark.parametrize("exitcode", driver.TRANSIENT)
def test_transient_failure_is_retried_a_few_times(exitcode: int) -> None:
    made = job()
    for _ in range(driver.TRIES):
        start(made, 0)
        made.ended(made.slots[0], exitcode)
        assert made.slots[0] in made.wanted()
    start(made, 0)
    made.ended(made.slots[0], exitcode)
    assert made.exitcode == exitcode


def test_elastic_job_goes_on_without_replica_on_unfit_node() -> None:
    made = job(least=2, most=3)
    start(made, 0, 1)
    for _ in range(driver.TRIES + 1):
        start(made, 2)
        made.ended(made.slots[2], EXIT_MACHINE)
    assert (made.stopping, made.wanted()) == (False, [])
    assert made.to_status()["replicas"][2][2] == driver.FAILED
    for number in (0, 1):
        made.ended(made.slots[number], 0)
    assert made.is_over
    assert made.exitcode == 0


def test_elastic_job_fails_if_too_few_replicas_are_left() -> None:
    made = job(least=2, most=3)
    start(made, 0, 1, 2)
    for number in (2, 1):
        for _ in range(driver.TRIES + 1):
            start(made, number)
            made.ended(made.slots[number], EXIT_MACHINE)
    assert made.stopping
    assert made.cause is made.slots[1]


def test_preempted_agent_is_always_restarted() -> None:
    made = job()
    for _ in range(20):
        start(made, 0)
        made.ended(made.slots[0], driver.PREEMPTED)
        assert made.slots[0] in made.wanted()
    assert driver.PREEMPTED == EXIT_PREEMPTED


def test_timed_out_replica_ends_job_unless_it_requests_restart() -> None:
    made = job(1, 1, retries=5)
    (slot,) = made.slots
    start(made, 0)
    slot.timed_out = True
    made.ended(slot, 75)
    assert names(made) == ["main/0"]
    start(made, 0)
    assert not slot.timed_out
    slot.timed_out = True
    made.ended(slot, 143)
    assert made.message == "main/0: its time limit was reached: exit code 143"
    assert made.exitcode == 143


def test_lost_replica_is_always_restarted() -> None:
    made = job()
    for _ in range(20):
        start(made, 0)
        made.lost(made.slots[0], "its node died")
        assert made.slots[0] in made.wanted()
    assert made.slots[0].error == "lost: its node died"
    assert made.to_status()["restarts"] == 19


def test_replica_lost_before_it_runs_is_not_retried_forever() -> None:
    made = job()
    for _ in range(driver.TRIES + 1):
        assert not made.stopping
        made.lost(made.slots[0], "its actor died")
    assert made.stopping
    assert made.exitcode == 1


def test_cancelled_job_does_not_count_as_successful() -> None:
    made = job(least=1, most=1)
    start(made, 0)
    made.cancel()
    made.ended(made.slots[0], 143)
    assert made.is_over
    assert made.exitcode == 143
    assert made.slots[0].state == driver.CANCELLED


def test_job_ends_once_all_roles_have_ended() -> None:
    roles = [{"name": name, "least": 1, "most": 1, "retries": 0} for name in ("reader", "trainer")]
    made = JobCore(roles)
    start(made, 0, 1)
    made.ended(made.slots[0], 0)
    assert not made.is_over
    made.ended(made.slots[1], 5)
    assert made.is_over
    assert made.exitcode == 5


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        ({"GPU": 8}, "it needs 8 GPU, but no node has more than 2 GPU"),
        (
            {"CPU": 4, "memory": 1 << 30},
            "it needs 4 CPU, 1024 MiB memory; 1 of 2 nodes have that much, "
            "free in the whole cluster: 1 CPU, 512 MiB memory",
        ),
    ],
)
def test_pending_reason_names_missing_cluster_resources(needs: dict[str, float], said: str) -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4, "memory": 2 << 30}},
        {"Alive": True, "Resources": {"CPU": 2, "GPU": 2, "memory": 2 << 30}},
        {"Alive": False, "Resources": {"CPU": 64, "GPU": 8, "memory": 64 << 30}},
    ]
    assert driver.unplaced(needs, nodes, {"CPU": 1, "memory": 1 << 29}) == said
    assert driver.unplaced(needs, nodes[2:], {}) == "each node has a replica of this job"
