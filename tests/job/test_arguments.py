"""A component's signature and docstring as its command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import UsageError
from relight.job.components import arguments, loading

COMPONENT = '''
from typing import Annotated, Dict, List, Optional

import relight.job as specs


def f(
    *rest: str,
    text: str = "a",
    n: int = 1,
    x: float = 0.5,
    flag: bool = False,
    items: list[int] = [],
    pairs: Dict[str, int] = {},
    maybe: Optional[int] = None,
    either: str | None = None,
    maybe_items: Optional[List[str]] = None,
    named: Annotated[str, "-cn"] = "",
    pair: Optional[tuple[str, int]] = None,
    several: tuple[int, ...] = (),
    tex: str = "",
) -> specs.AppDef:
    """Does something.

    More of it.

    Args:
        text: what it says,
            on two lines
        n (int): how many
        rest: for the program
    """
'''


@pytest.fixture
def bound(place: Path) -> Callable[..., dict[str, Any]]:
    """Return the parameter values that result from a command line."""
    (place / "c.py").write_text(COMPONENT)

    def bind(*words: str) -> dict[str, Any]:
        signature = arguments.read_signature("c.py:f", loading.find("c.py:f"))
        rest, values = arguments.bind(signature, words, {})
        return {**values, "rest": rest} if rest else values

    return bind


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), {}),
        (("--text", "b"), {"text": "b"}),
        (("--text=--b",), {"text": "--b"}),
        (("--text", ""), {"text": ""}),
        (("--text", "-"), {"text": "-"}),
        (("--text", "-b c"), {"text": "-b c"}),
        (("-n", "2"), {"n": 2}),
        (("-n2",), {"n": 2}),
        (("-n=2",), {"n": 2}),
        (("--n", "-2"), {"n": -2}),
        (("-x", "-.5"), {"x": -0.5}),
        (("--flag", "TRUE"), {"flag": True}),
        (("--flag=false",), {"flag": False}),
        (("--items", "1, 2"), {"items": [1, 2]}),
        (("--items", ""), {"items": []}),
        (("--maybe_items", "a,,b"), {"maybe_items": ["a", "", "b"]}),
        (("--maybe-items", ""), {"maybe_items": None}),
        (("--pairs", "a=1;b=2,c=3"), {"pairs": {"a": 1, "b": 2, "c": 3}}),
        (("--maybe", "7"), {"maybe": 7}),
        (("--pair", "a, 1"), {"pair": ("a", 1)}),
        (("--pair", ""), {"pair": None}),
        (("--several", "1,2,3"), {"several": (1, 2, 3)}),
        (("--several", ""), {"several": ()}),
        (("--either", "7"), {"either": "7"}),
        (("-cn", "z"), {"named": "z"}),
        (("--na", "z"), {"named": "z"}),
        (("--tex", "z"), {"tex": "z"}),
        (("a", "--text", "b"), {"rest": ["a", "--text", "b"]}),
        (
            ("--", "--n", "--n", "$$", "${x}", "", "a'b\"c"),
            {"rest": ["--n", "--n", "$$", "${x}", "", "a'b\"c"]},
        ),
        (("--", "--", "-n"), {"rest": ["--", "-n"]}),
        (("-1", "a"), {"rest": ["-1", "a"]}),
    ],
)  # fmt: skip
def test_arguments_are_converted_to_parameter_types(
    bound: Callable[..., Any], words: tuple[str, ...], expected: dict[str, Any]
) -> None:
    """Varargs for the program are passed unchanged."""
    assert bound(*words) == expected


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--n", "a"), "--n=a: expected a whole number"),
        (("-x", "a"), "--x=a: expected a number"),
        (("--maybe", "a"), "--maybe=a: expected a whole number"),
        (("--flag", "yes"), "--flag=yes: expected true or false"),
        (("--flag", "1"), "--flag=1: expected true or false"),
        (("--flag",), "--flag needs a value"),
        (("--flag", "--n", "1"), "--flag needs a value"),
        (("--text", "--"), "--text needs a value"),
        (("--items", "1,a"), "--items=1,a: expected a whole number"),
        (("--pairs", "a"), "--pairs=a: expected key=value"),
        (("--pairs", "a=b=c"), "two '='"),
        (("--m", "1"), "--m is ambiguous: --maybe, --maybe_items"),
        (("--txet", "1"), "no parameter --txet"),
        (("--pair", "a"), "--pair=a: expected 2 values, not 1"),
        (("--pair", "a,b"), "--pair=a,b: expected a whole number"),
        (("-q", "1"), "no parameter -q"),
        (("--n", "1", "--n", "2"), "--n is given twice"),
    ],
)
def test_error_for_invalid_argument_includes_its_name(
    bound: Callable[..., Any], words: tuple[str, ...], text: str
) -> None:
    """The error names the expected type."""
    with pytest.raises(UsageError) as caught:
        bound(*words)
    assert text in caught.value.message


def test_help_text_comes_from_component_docstring(place: Path) -> None:
    """It consists of the first paragraph and the arguments' descriptions, types and defaults."""
    (place / "c.py").write_text(COMPONENT)
    text = arguments.usage(
        arguments.read_signature("c.py:f", loading.find("c.py:f")), "relight submit"
    )
    assert "Does something.\n" in text
    assert "what it says, on two lines (default a)" in text
    assert "-n, --n INT" in text and "how many (default 1)" in text
    assert "rest …" in text and "for the program" in text
    assert "More of it" not in text


@pytest.mark.parametrize(
    ("head", "line", "text"),
    [
        (
            "def f(\n    a: int,\n    b,\n) -> None: ...",
            3,
            "the parameter b of c.py:f has no type annotation",
        ),
        ("def f(a: tuple[int, list[int]]) -> None: ...", 1, "tuple[int, list[int]]"),
        ("def f(a: set[int]) -> None: ...", 1, "set[int]"),
        ("def f(a: list[list[int]]) -> None: ...", 1, "list[list[int]]"),
        ("class A: ...\ndef f(a: A) -> None: ...", 2, "type A"),
        ("def f(**a: str) -> None: ...", 1, "**a of c.py:f has no command-line"),
        ("def f(a: int | str) -> None: ...", 1, "int | str"),
        ("def f(a: 'Nope') -> None: ...", 1, "Nope"),
    ],
)
def test_unsupported_component_signature_is_rejected(
    place: Path, head: str, line: int, text: str
) -> None:
    """The error has the parameter's file and line."""
    (place / "c.py").write_text(head + "\n")
    with pytest.raises(UsageError) as caught:
        arguments.read_signature("c.py:f", loading.find("c.py:f"))
    assert caught.value.message.startswith(f"c.py:{line}: ")
    assert text in caught.value.message
    assert caught.value.hint.startswith("types: str") is text.endswith("has no type annotation")


@pytest.mark.parametrize("type_", ["dict[str, list[int]] | None", "int | str", "object"])
def test_parameter_without_textual_form_gets_its_value_from_json_or_keeps_its_default(
    place: Path, type_: str
) -> None:
    (place / "c.py").write_text(f"def f(a: {type_} = None, b: int = 1): ...\n")
    signature = arguments.read_signature("c.py:f", loading.find("c.py:f"))
    assert arguments.bind(signature, ["--b", "2"], {})[1] == {"b": 2}
    assert arguments.bind(signature, [], {}, {"a": {"x": [1]}})[1] == {"a": {"x": [1]}}
    with pytest.raises(UsageError, match="no parameter"):
        arguments.bind(signature, [], {"a": "x"})


def test_string_annotations_are_supported(place: Path) -> None:
    """`from __future__ import annotations` creates them."""
    source = "from __future__ import annotations\ndef f(l: list[int], o: int | None = None): ...\n"
    (place / "c.py").write_text(source)
    signature = arguments.read_signature("c.py:f", loading.find("c.py:f"))
    words = ["--l", "1,2", "--o", "3"]
    assert arguments.bind(signature, words, {})[1] == {"l": [1, 2], "o": 3}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--script", "a.py", "--", "--n", "2"), ("a.py", 3, ("--n", "2"), "0.1")),
        (("--script", "a.py", "--n", "2", "--lr", "1"), ("a.py", 2, (), "1")),
    ],
)
def test_parameter_before_varargs_keeps_value_or_default(
    place: Path, words: tuple[str, ...], expected: tuple[object, ...]
) -> None:
    """TorchX allows a parameter before `*args`."""
    head = "def f(script: str, n: int = 3, *rest: str, lr: str = '0.1', a: object = None):"
    (place / "c.py").write_text(f"{head} return script, n, rest, lr\n")
    function = loading.find("c.py:f")
    signature = arguments.read_signature("c.py:f", function)
    first, values = arguments.bind(signature, words, {})
    assert function(*first, **values) == expected


def test_command_line_overrides_python_values_and_settings(place: Path) -> None:
    """Values passed from Python override the settings."""
    (place / "c.py").write_text("def f(*r: str, a: int = 0, b: int = 0, c: int = 0): ...\n")
    signature = arguments.read_signature("c.py:f", loading.find("c.py:f"))
    settings = {"a": "3", "b": "3", "c": "3", "r": "x y"}
    rest, values = arguments.bind(signature, ["--a", "1"], settings, {"a": 2, "b": 2})
    assert (rest, values) == (["x", "y"], {"a": 1, "b": 2, "c": 3})


@pytest.mark.parametrize("given", [{"a": "x"}, {"a": True}, {"a": 1.5}, {"nope": 1}, {}])
def test_json_value_of_wrong_type_is_rejected(place: Path, given: dict[str, Any]) -> None:
    """Unknown and missing names are rejected too."""
    (place / "c.py").write_text("def f(a: int): ...\n")
    signature = arguments.read_signature("c.py:f", loading.find("c.py:f"))
    with pytest.raises(UsageError):
        arguments.bind(signature, [], {}, given)
