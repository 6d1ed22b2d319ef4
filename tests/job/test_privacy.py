"""Secrets, and nothing else, are hidden in a job's records and views."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import relight.job as specs
from relight.base import redaction
from relight.base.redaction import HIDDEN, redact_argv, redact_env, redact_text
from relight.job.serial import to_json

SECRET = "hunter2"


@pytest.mark.parametrize(
    "name",
    [
        "TOKEN", "HF_TOKEN", "token", "WANDB_API_KEY", "api-key", "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID", "DB_PASSWORD", "passwd", "GITHUB_CREDENTIALS", "apikey", "--api_key",
        "SSH_PRIVATE_KEY", "COOKIE", "AUTH", "db.password", "MY_SECRET_2", "passphrase",
        "MYPASSWORD", "OPENAI_KEY", "HFTOKEN", "ENCRYPTION_KEY", "SIGNING_KEY", "PASS", "PGPASS",
        "MYSQL_PWD", "db-pwd", "AZURE_STORAGE_CONNECTION_STRING", "CONN_STR", "SENTRY_DSN", "DSN",
        "SLACK_WEBHOOK_URL", "MYWEBHOOK", "SAS", "BLOB_SAS", "SAS_URL", "ACCOUNTKEY", "AccountKey",
        "MASTERKEY", "COSMOS_MASTERKEY_2", "SharedAccessKey", "STORAGE_KEY",
        "MYSECRET", "GITHUB_PAT", "CRED", "JWT", "BEARER", "wandbkey", "DB_PASS", "aws-creds",
        "KEY", "ENCRYPTION_KEYS", "API_KEYS", "KUBECONFIG_DATA", "KUBE_CONFIG_B64", "NETRC_CONTENT",
    ],
)  # fmt: skip
def test_variable_whose_name_suggests_a_secret_is_redacted(name: str) -> None:
    assert redaction.is_secret(name)
    assert redact_env({name: SECRET}) == {name: HIDDEN}
    assert redact_env({name: ""}) == {name: ""}


@pytest.mark.parametrize(
    "name",
    ["TOKENIZERS_PARALLELISM", "tokenizer", "AUTHOR", "KEYBOARD", "key", "MONKEY", "PATH", "PASS_N",
     "SECRETARY", "NCCL_DEBUG", "access", "public_key", "",
     "SASL_MECHANISM", "CONNECTION", "STRING", "CONNECTIONS", "DSNAME", "SASKIA", "HOOK",
     "num_key_value_heads", "pattern", "PATCH", "compass", "KEYS", "--key", "KUBECONFIG",
     "NETRC", "sort_keys"],
)  # fmt: skip
def test_variable_whose_name_only_resembles_a_secret_is_kept(name: str) -> None:
    assert not redaction.is_secret(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--token hunter2 -x 1", f"--token {HIDDEN} -x 1"),
        ("--token=hunter2 -x 1", f"--token={HIDDEN} -x 1"),
        ("-token hunter2", f"-token {HIDDEN}"),
        ("A=1 API_KEY=hunter2 B=2", f"A=1 API_KEY={HIDDEN} B=2"),
        ("A=1,API_KEY=hunter2,B=2", f"A=1,API_KEY={HIDDEN},B=2"),
        ("A=1;password='a hunter2';B=2", f"A=1;password={HIDDEN};B=2"),
        ("--password 'a hunter2' b", f"--password {HIDDEN} b"),
        ('--password "a hunter2" b', f"--password {HIDDEN} b"),
        ("postgres://me:hunter2@host/db", f"postgres://me:{HIDDEN}@host/db"),
        ("--tokenizer bpe --author me", "--tokenizer bpe --author me"),
        ("--token --x", "--token --x"),
        ("curl --user u:hunter2 x", f"curl --user u:{HIDDEN} x"),
        ("curl -u u:hunter2", f"curl -u u:{HIDDEN}"),
        ("docker run --user 1000:1000 x", "docker run --user 1000:1000 x"),
        ("-H 'Authorization: Bearer hunter2' x", f"-H 'Authorization: Bearer {HIDDEN}' x"),
        ("X-Api-Key: hunter2", f"X-Api-Key: {HIDDEN}"),
        ("MYPASSWORD=hunter2,OPENAI_KEY=hunter2", f"MYPASSWORD={HIDDEN},OPENAI_KEY={HIDDEN}"),
        ("--max_tokens 512 MAX_TOKENS=512 -x", "--max_tokens 512 MAX_TOKENS=512 -x"),
        ("PASSWORD=512 TOKENS=hunter2", f"PASSWORD={HIDDEN} TOKENS={HIDDEN}"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("mysql --pwd hunter2 -x", f"mysql --pwd {HIDDEN} -x"),
        ("PWD=/home/me OLDPWD=/ --pwd /home/me", "PWD=/home/me OLDPWD=/ --pwd /home/me"),
        ("PWD=$PWD Uid=me;Pwd=hunter2;x=1", f"PWD=$PWD Uid=me;Pwd={HIDDEN};x=1"),
        ("docker login -u me -p hunter2 x", f"docker login -u me -p {HIDDEN} x"),
        ("sshpass -p 'a hunter2' ssh -p 22 x", f"sshpass -p {HIDDEN} ssh -p 22 x"),
        (
            "docker run -p 8080:80/tcp -p 127.0.0.1:1:2 x",
            "docker run -p 8080:80/tcp -p 127.0.0.1:1:2 x",
        ),
        ("a -p 8080 -p 0.5 -p 1e-3 -p --x", "a -p 8080 -p 0.5 -p 1e-3 -p --x"),
        ("/bin/mkdir -p out && srun -p gpu x", "/bin/mkdir -p out && srun -p gpu x"),
        ("mkdir -p a; login -p hunter2", f"mkdir -p a; login -p {HIDDEN}"),
        ('{"api_key": "hunter2", "lr": 1}', f'{{"api_key": "{HIDDEN}", "lr": 1}}'),
        ("{'password':'hunter2'}", f"{{'password':'{HIDDEN}'}}"),
        (r"{\"token\": \"hunter2\"}", rf"{{\"token\": \"{HIDDEN}\"}}"),
        (
            '{"pwd": 1234, "auth": null, "max_tokens": 5}',
            f'{{"pwd": {HIDDEN}, "auth": null, "max_tokens": 5}}',
        ),
        ('{"tokens": ["a"], "key": "a"}', '{"tokens": ["a"], "key": "a"}'),
        (
            "AccountName=a;AccountKey=hunter2==;Suffix=b",
            f"AccountName=a;AccountKey={HIDDEN};Suffix=b",
        ),
        ("https://x/y?sv=1&sig=hunter2%3D&se=2", f"https://x/y?sv=1&sig={HIDDEN}&se=2"),
        (
            "SLACK_HOOK=https://hooks.slack.com/services/T0/B0/hunter2 x",
            f"SLACK_HOOK=https://hooks.slack.com/{HIDDEN} x",
        ),
        (
            "'https://discord.com/api/webhooks/1/hunter2'",
            f"'https://discord.com/api/webhooks/{HIDDEN}'",
        ),
        (
            "machine a login b password hunter2\nmachine c\n  password hunter2\ndefault login d",
            f"machine a login b password {HIDDEN}\nmachine c\n  password {HIDDEN}\ndefault login d",
        ),
        ("NETRC=/home/me/.netrc KUBECONFIG=/k", "NETRC=/home/me/.netrc KUBECONFIG=/k"),
        ("the default password is wrong", "the default password is wrong"),
        ("", ""),
    ],
)
def test_value_after_secret_flag_is_redacted(text: str, expected: str) -> None:
    """Nothing after it is redacted."""
    assert redact_text(text) == expected


@pytest.mark.parametrize(
    "token",
    ["hf_abcdefghijklmnopqrstuvwxyzABCDEFGH", "ghp_" + "a1" * 18, "gho_" + "a1" * 18,
     "github_pat_" + "a1_" * 20, "sk-" + "a1" * 20, "sk-ant-api03-" + "a1" * 20,
     "sk-proj-" + "a_-1" * 10, "xoxb-123456789012-abcdefABCDEF", "AKIA" + "A1" * 8,
     "ASIA" + "A1" * 8, "glpat-" + "a1" * 10, "AIza" + "a1_-b" * 7, "pypi-" + "a1" * 20,
     "npm_" + "a1" * 18, "nvapi-" + "a1" * 20],
)  # fmt: skip
def test_tokens_are_redacted_by_prefix(token: str) -> None:
    """The name of the variable or flag doesn't matter."""
    assert redact_env({"HF_HUB": token}) == {"HF_HUB": HIDDEN}
    assert redact_text(f"a.py --hub {token} X={token}") == f"a.py --hub {HIDDEN} X={HIDDEN}"
    assert redact_argv([f"--hub={token}", token]) == [f"--hub={HIDDEN}", HIDDEN]


def test_names_with_token_like_prefixes_are_kept() -> None:
    """Examples are names of models and modules."""
    text = (
        "hf_model risk-averse-portfolio-of-many-2 sk-learn-of-a-long-name AKIA hf_a_b_c_d_e_f_g_h_i"
    )
    assert redact_text(text) == text


def test_separate_word_after_secret_flag_is_redacted() -> None:
    """The word may look like anything."""
    words = [
        "a.py",
        "--api-key",
        "-hunter2",
        "--lr",
        "1",
        "--token=x",
        "--env",
        "A=1,TOKEN=hunter2",
    ]
    assert redact_argv(words) == [
        "a.py", "--api-key", HIDDEN, "--lr", "1", f"--token={HIDDEN}", "--env",
        f"A=1,TOKEN={HIDDEN}",
    ]  # fmt: skip


def test_token_count_settings_are_kept() -> None:
    """Settings about a model's tokens are kept, and so is a user name before a password."""
    words = ["--max-tokens", "512", "--tokens", SECRET, "--user", f"u:{SECRET}"]
    assert redact_argv(words) == [
        "--max-tokens", "512", "--tokens", HIDDEN, "--user", f"u:{HIDDEN}"
    ]  # fmt: skip
    assert redact_env({"MAX_TOKENS": "512"}) == {"MAX_TOKENS": "512"}


def test_directories_and_ports_that_resemble_secrets_are_kept() -> None:
    """PWD is a directory, and -p is a port, a number or a partition as often as a password."""
    found = redact_env({"PWD": "/x", "OLDPWD": "/y", "MYSQL_PWD": SECRET})
    assert found == {"PWD": "/x", "OLDPWD": "/y", "MYSQL_PWD": HIDDEN}
    for words in (["ssh", "-p", "22"], ["srun", "-p", "gpu"], ["serve", "-p", "8080:80"]):
        assert redact_argv(words) == words
    assert redact_argv(["docker", "login", "-p", SECRET, "--pwd", SECRET, "-p", "-x"]) == [
        "docker", "login", "-p", HIDDEN, "--pwd", HIDDEN, "-p", "-x"
    ]  # fmt: skip


def test_secrets_are_redacted_in_all_parts_of_app() -> None:
    """Everything else is kept."""
    role = specs.Role(
        name="r",
        image="i",
        entrypoint="bash",
        args=["-c", f"relight run a.py --token {SECRET} --lr 1", "--password", SECRET],
        env={"HF_TOKEN": SECRET, "URL": f"https://me:{SECRET}@host", "A": "1"},
        metadata={"api_key": SECRET, "deep": [{"secret": SECRET}, 1, None], "team": "vision"},
    )
    app = specs.AppDef("a", [role], {"password": SECRET, "owner": "me"})
    kept = redaction.redact_app(to_json(app))
    assert SECRET not in json.dumps(kept)
    (found,) = kept["roles"]
    assert found["env"] == {"HF_TOKEN": HIDDEN, "URL": f"https://me:{HIDDEN}@host", "A": "1"}
    assert found["metadata"] == {
        "api_key": HIDDEN, "deep": [{"secret": HIDDEN}, 1, None], "team": "vision"
    }  # fmt: skip
    assert kept["metadata"] == {"password": HIDDEN, "owner": "me"}
    assert SECRET in json.dumps(to_json(app))


def test_only_relevant_environment_variables_are_kept() -> None:
    """None of its secrets is kept."""
    found = redaction.redact_environment(
        {"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_ID": "1", "TORCH_TOKEN": SECRET, "HF_HOME": "/x",
         "OTHER": SECRET}
    )  # fmt: skip
    assert found == {"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_ID": "1", "TORCH_TOKEN": HIDDEN}


@given(st.text(alphabet="ab-_= '\",;/:@1", max_size=40))
def test_text_without_secrets_is_unchanged(text: str) -> None:
    """Text with neither a secret's name nor a password is unchanged."""
    if "://" not in text:
        assert redact_text(text) == text
