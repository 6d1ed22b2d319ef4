"""Run options: turn `-cfg` text, Python values, and settings files into option values."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.base.errors import UsageError
from relight.runner import options
from relight.schedulers.api import Option

OPTIONS = (
    Option("log_dir", str, None, "where logs are"),
    Option("mail-user", str, "nobody", "who is told"),
    Option("n", int, 1, "how many"),
    Option("share", float, 0.5, "how much"),
    Option("quiet", bool, False, "say less"),
    Option("hosts", list, None, "which"),
    Option("env", dict, None, "variables"),
    Option("pull", str, "missing", "when", choices=("always", "missing", "never")),
)
NEEDED = (Option("queue", str, None, "the queue's name", required=True),)


def resolved(text: str, file: dict[str, Any] | None = None) -> dict[str, Any]:
    values, notes = options.resolve("s", OPTIONS, options.parse(text), file)
    assert notes == []
    return values


def test_each_run_option_has_its_default() -> None:
    assert resolved("") == {option.name: option.default for option in OPTIONS}


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("log_dir=/a", "log_dir", "/a"),
        ("logDir=/a", "log_dir", "/a"),
        ("log-dir=/a", "log_dir", "/a"),
        ("mail_user=me", "mail-user", "me"),
        ("mailUser=me", "mail-user", "me"),
        ("log_dir=", "log_dir", ""),
        ("log_dir=None", "log_dir", None),
        ("log_dir=/a,b", "log_dir", "/a,b"),
        ("log_dir='/a,n=2'", "log_dir", "/a,n=2"),
        ('log_dir="a=b"', "log_dir", "a=b"),
        ("n=-3", "n", -3),
        ("share=1e3", "share", 1000.0),
        ("share=1", "share", 1.0),
        *((f"quiet={word}", "quiet", True) for word in ("true", "True", "1", "yes", "on")),
        *((f"quiet={word}", "quiet", False) for word in ("false", "FALSE", "0", "no", "off")),
        ("hosts=a;b", "hosts", ["a", "b"]),
        ("hosts=a,b", "hosts", ["a", "b"]),
        ("hosts=a;;b;", "hosts", ["a", "b"]),
        ("env=A:1;B:2", "env", {"A": "1", "B": "2"}),
        ("env=A:1,B:2", "env", {"A": "1", "B": "2"}),
        ("env=A:http://x:1", "env", {"A": "http://x:1"}),
        ("env=", "env", {}),
        ("pull=never", "pull", "never"),
    ],
)
def test_option_text_is_converted_to_option_type(text: str, name: str, value: object) -> None:
    """Names may be spelled like_this, like-this, or likeThis."""
    found = resolved(text)
    assert found[name] == value
    assert type(found[name]) is type(value)
    assert {**found, name: None} == {**resolved(""), name: None}


def test_option_pairs_are_separated_by_commas_or_semicolons() -> None:
    """The last separator before a `=` is used."""
    found = resolved("log_dir=/a,b,n=2;hosts=x;y,env=A:1")
    assert (found["log_dir"], found["n"]) == ("/a,b", 2)
    assert (found["hosts"], found["env"]) == (["x", "y"], {"A": "1"})


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("bogus=1", "s has no option bogus", "options: log_dir, mail-user"),
        ("log_dri=1", "s has no option log_dri", "did you mean log_dir?"),
        ("n=a", "n=a: expected a whole number", "how many"),
        ("n=1.5", "n=1.5: expected a whole number", "how many"),
        ("n=", "n=: expected a whole number", "how many"),
        ("share=x", "share=x: expected a number", "how much"),
        ("quiet=maybe", "quiet=maybe: expected true or false", "say less"),
        ("env=A", "env=A: expected k:v;k2:v2", "variables"),
        ("env=:1", "env=:1: expected k:v;k2:v2", "variables"),
        ("pull=nevr", "pull=nevr: expected one of always, missing, never", "did you mean never?"),
        ("pull=x", "expected one of always, missing, never", ""),
        ("log_dir=a,logDir=b", "log_dir and logDir are the same option", ""),
        ("n=1,n=2", "n is given twice", "-cfg name=value"),
        ("n", "-cfg n: expected key=value", "-cfg name=value"),
        ("=1", "-cfg =1: expected key=value", "-cfg name=value"),
        ("n=1=2", "two '='", "for values with ="),
    ],
)
def test_invalid_option_text_error_shows_the_option(text: str, message: str, hint: str) -> None:
    """The error names the expected type or the closest name."""
    with pytest.raises(UsageError) as caught:
        resolved(text)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_option_given_by_user_overrides_settings_file() -> None:
    """The option's spelling doesn't matter."""
    file = {"logDir": "/file", "n": "7", "quiet": "yes"}
    found = resolved("log_dir=/said", file)
    assert (found["log_dir"], found["n"], found["quiet"]) == ("/said", 7, True)


def test_unknown_option_in_settings_file_causes_a_note() -> None:
    """The file may have been written for another version."""
    values, notes = options.resolve("s", OPTIONS, {}, {"log_dri": "/a", "n": "2"})
    assert (values["n"], notes) == (2, ["in the settings: s has no option log_dri"])
    with pytest.raises(UsageError, match="n=x: expected a whole number"):
        options.resolve("s", OPTIONS, {}, {"n": "x"})


def test_error_asks_for_the_missing_required_option() -> None:
    """The option may come from any source."""
    with pytest.raises(UsageError, match="s needs the option queue: the queue's name") as caught:
        options.resolve("s", NEEDED, {})
    assert caught.value.hint == "-cfg queue=…"
    assert options.resolve("s", NEEDED, {"queue": "q"})[0] == {"queue": "q"}
    assert options.resolve("s", NEEDED, {}, {"queue": "q"})[0] == {"queue": "q"}


@pytest.mark.parametrize("text", ["#FIXME:(str) the queue's name", "#FIXME"])
def test_placeholder_written_by_configure_is_not_accepted_as_value(text: str) -> None:
    with pytest.raises(UsageError, match="s needs the option queue"):
        options.resolve("s", NEEDED, {}, {"queue": text})


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [("n", 2, 2), ("share", 2, 2.0), ("hosts", ("a",), ["a"]), ("env", {"A": "1"}, {"A": "1"}),
     ("quiet", True, True), ("log_dir", None, None), ("n", "2", 2)],
)  # fmt: skip
def test_option_values_in_python_may_be_typed_or_strings(
    name: str, value: object, found: object
) -> None:
    assert options.resolve("s", OPTIONS, {name: value})[0][name] == found


@pytest.mark.parametrize(
    ("name", "value"), [("n", True), ("n", 1.5), ("quiet", 1), ("hosts", {"a"}), ("log_dir", 3)]
)
def test_python_option_value_of_wrong_type_is_rejected(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"^{name}="):
        options.resolve("s", OPTIONS, {name: value})


TEXT = st.text(alphabet="ab=,;:'\" x1", max_size=30)


@given(TEXT)
def test_arbitrary_text_is_parsed_or_rejected(text: str) -> None:
    """Parsed keys are never empty, and are stripped of surrounding spaces."""
    try:
        found = options.parse(text)
    except UsageError as error:
        assert error.message.startswith(f"-cfg {text}: ")
    else:
        assert all(key and key == key.strip() for key in found)


@given(st.dictionaries(st.from_regex(r"\A[a-z]{1,5}\Z"), st.text(alphabet="ab,;: x1=", max_size=9)))
def test_quoted_option_values_are_passed_unchanged(values: dict[str, str]) -> None:
    assert options.parse(",".join(f"{key}='{value}'" for key, value in values.items())) == values


def test_tilde_in_option_value_expands_to_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell expands `~` in -cfg or in a settings file."""
    monkeypatch.setenv("HOME", "/h")
    assert resolved("log_dir=~/logs")["log_dir"] == "/h/logs"
    assert resolved("", {"log_dir": "~/logs"})["log_dir"] == "/h/logs"
    assert resolved("log_dir=a~/b")["log_dir"] == "a~/b"
    remote = Option("cwd", str, None, "there", is_remote=True)
    values, _ = options.resolve("s", [remote], {"cwd": "~/a"})
    assert values == {"cwd": "~/a"}  # expanded on another machine
