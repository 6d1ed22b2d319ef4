"""A stand-in for AWS, because no account can be used here: moto's server on this host, with a
queue.

    with Aws() as aws:
        aws.endpoint   # for the variable AWS_ENDPOINT_URL

Given a Docker daemon, it runs the containers of single-container jobs; otherwise jobs succeed
immediately. It does not simulate the nodes of a multi-node job.
"""

import json
import os
import subprocess
import sys
import urllib.request
from types import TracebackType
from typing import Any

from conftest import LIMIT_S

REGION = "eu-central-1"
SERVER = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


class Aws:
    """The server, with a compute environment and the queues `gpu` and `cpu`.

    Args:
        docker_host: The Docker daemon that runs containers, or an empty string.
    """

    def __init__(self, docker_host: str = "") -> None:
        self._docker_host = docker_host
        self.endpoint = ""

    def __enter__(self) -> "Aws":
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env={**os.environ, "DOCKER_HOST": self._docker_host},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._server.stdout is not None
        self.endpoint = f"http://127.0.0.1:{self._server.stdout.readline().strip()}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.kill()
        self._server.communicate()

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that give access to the server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, service: str) -> Any:
        import boto3

        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )

    def reset(self) -> None:
        """Delete everything, then create the queues again."""
        self._post("reset", {})
        self._post("config", {"batch": {"use_docker": bool(self._docker_host)}})
        trust = {"Version": "2012-10-17", "Statement": []}
        role = self.client("iam").create_role(
            RoleName="service", AssumeRolePolicyDocument=json.dumps(trust)
        )["Role"]["Arn"]
        batch = self.client("batch")
        batch.create_compute_environment(
            computeEnvironmentName="any", type="UNMANAGED", state="ENABLED", serviceRole=role
        )
        order = [{"order": 1, "computeEnvironment": "any"}]
        for name in ("gpu", "cpu"):
            batch.create_job_queue(
                jobQueueName=name, state="ENABLED", priority=1, computeEnvironmentOrder=order
            )

    def _post(self, path: str, body: dict[str, Any]) -> None:
        urllib.request.urlopen(
            urllib.request.Request(
                f"{self.endpoint}/moto-api/{path}",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
                method="POST",
            ),
            timeout=LIMIT_S,
        ).close()
