"""`--mounts type=bind,src=…`: valid values, and errors for all others."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.base.errors import UsageError
from relight.job import BindMount, DeviceMount, VolumeMount, parse_mounts
from relight.job.app import Mount


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("type=bind,src=/a,dst=/b", [BindMount("/a", "/b")]),
        ("type=bind,source=/a,destination=/b,readonly", [BindMount("/a", "/b", True)]),
        ("type=bind,src=/a,target=/b,read_only=true", [BindMount("/a", "/b", True)]),
        ("type=bind,src=/a,dst=/b,readonly=false", [BindMount("/a", "/b", False)]),
        ("type=bind,readonly,dst=/b,src=/a", [BindMount("/a", "/b", True)]),
        ("type=bind,src=/a=b,dst=/c=d", [BindMount("/a=b", "/c=d")]),
        ("type=volume,src=v,dst=/b,readonly", [VolumeMount("v", "/b", True)]),
        ("type=device,src=/dev/x", [DeviceMount("/dev/x", "/dev/x", "rwm")]),
        ("type=device,src=/dev/x,dst=/dev/y,perm=r", [DeviceMount("/dev/x", "/dev/y", "r")]),
        ("type=device,src=/dev/x,permissions=rw", [DeviceMount("/dev/x", "/dev/x", "rw")]),
        (
            "type=bind,src=/a,dst=/b,type=volume,src=v,dst=/c,type=device,src=/dev/x",
            [BindMount("/a", "/b"), VolumeMount("v", "/c"), DeviceMount("/dev/x", "/dev/x")],
        ),
    ],
)
def test_each_type_option_starts_a_new_mount(text: str, expected: list[Mount]) -> None:
    """Its options may have any order and spelling."""
    assert parse_mounts(text.split(",")) == expected


def test_empty_argument_list_gives_no_mounts() -> None:
    assert parse_mounts([]) == []


def test_tilde_in_host_path_expands_to_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume's name may also start with a tilde."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (mount,) = parse_mounts(["type=bind", "src=~/data", "dst=~/data"])
    assert mount == BindMount(f"{tmp_path}/data", "~/data")
    assert parse_mounts(["type=volume", "src=~v", "dst=/v"]) == [VolumeMount("~v", "/v")]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("src=/a,type=bind", "starts with its type, not src=/a", "type=bind,src="),
        ("type=bin,src=/a", "unknown mount type: 'bin'", "bind, volume, device"),
        ("type", "unknown mount type: ''", "bind, volume, device"),
        ("type=bind,src=/a", "mount type=bind,src=/a lacks dst", "type=bind,src="),
        ("type=bind,dst=/a", "lacks src", "type=bind,src="),
        ("type=bind,src=,dst=/a", "lacks src", ""),
        ("type=device", "mount type=device lacks src", ""),
        ("type=bind,scr=/a", "unknown mount option: 'scr'", "did you mean src?"),
        ("type=bind,wxyz", "unknown mount option: 'wxyz'", "options: type, "),
        ("type=bind,src=/a,dst=/b,readonly=no", "readonly=no: expected true or false", ""),
        ("type=bind,src=/a,src=/b", "src given twice: /a and /b", ""),
        (
            "type=bind,src=/a,dst=/b,perm=r",
            "mount type bind has no option perm",
            "it has src, dst, readonly",
        ),
        (
            "type=device,src=/a,readonly",
            "mount type device has no option readonly",
            "it has src, dst, perm",
        ),
        ("type=device,src=/a,perm=x", "perm=x: expected a combination of r, w and m", ""),
        ("type=device,src=/a,perm=", "perm=: expected a combination of r, w and m", ""),
        ("", "unknown mount option: ''", ""),
    ],
)
def test_invalid_mount_error_shows_the_mount(text: str, message: str, hint: str) -> None:
    """The hint lists the valid choices."""
    with pytest.raises(UsageError) as caught:
        parse_mounts(text.split(","))
    assert message in caught.value.message
    assert hint in caught.value.hint


WORDS = st.lists(
    st.sampled_from(
        ["type=bind", "type=volume", "type=device", "src=/a", "dst=/b", "readonly", "perm=r", "x="]
    )
)


@given(WORDS)
def test_any_arguments_give_mounts_or_a_usage_error(words: list[str]) -> None:
    """There are as many mounts as types, or else a one-line error."""
    try:
        found = parse_mounts(words)
    except UsageError as error:
        assert "\n" not in error.message
    else:
        assert len(found) == sum(word.startswith("type=") for word in words)
