"""The NamedTuple of `relight.base.typed` does what that of `typing` does."""

import pickle
import typing
from collections.abc import Callable
from typing import Any

import pytest

from relight.base import typed


def in_both(make: Callable[[Any], Any]) -> tuple[Any, Any]:
    return make(typing.NamedTuple), make(typed.NamedTuple)


def point(base: Any) -> Any:
    class Point(base):  # type: ignore[misc]
        """Somewhere."""

        x: int
        y: "int"
        unit: str = "m"
        seen: tuple[str, ...] = ()

        @property
        def is_origin(self) -> bool:
            return not (self.x or self.y)

        @classmethod
        def origin(cls) -> Any:
            return cls(0, 0)

        def moved(self, by: int) -> Any:
            return self._replace(x=self.x + by)

    return Point


OBSERVATIONS: tuple[Callable[[Any], Any], ...] = (
    lambda t: t(1, 2),
    lambda t: t(1, 2, "cm", ("a",)),
    lambda t: t(1, y=2),
    lambda t: t(seen=("a",), y=2, x=1),
    lambda t: repr(t(1, 2)),
    lambda t: t(1, 2).unit,
    lambda t: t(1, 2)[-2:],
    lambda t: tuple(t(1, 2)),
    lambda t: t(1, 2) == t(1, 2, "m") == (1, 2, "m", ()),
    lambda t: {t(1, 2): 1}[t(1, 2)],
    lambda t: sorted([t(2, 1), t(1, 2)]),
    lambda t: t(1, 2)._asdict(),
    lambda t: t(1, 2)._replace(y=5, unit="km"),
    lambda t: t._fields,
    lambda t: t._field_defaults,
    lambda t: t.__match_args__,
    lambda t: t.__doc__,
    lambda t: (t.__name__, t.__module__, t.__qualname__),
    lambda t: list(t.__annotations__),
    lambda t: t.__annotations__["seen"],
    lambda t: t.origin().is_origin,
    lambda t: t(1, 2).moved(3),
    lambda t: type(t(1, 2).moved(3)) is t,
    lambda t: issubclass(t, tuple),
    lambda t: hasattr(t(1, 2), "__dict__"),
)
ERRORS: tuple[Callable[[Any], Any], ...] = (
    lambda t: t(1),
    lambda t: t(1, 2, 3, 4, 5),
    lambda t: t(1, 2, z=3),
    lambda t: t(1, 2, x=3),
    lambda t: t(1, 2)._replace(z=3),
    lambda t: setattr(t(1, 2), "x", 3),
    lambda t: setattr(t(1, 2), "z", 3),
)


@pytest.mark.parametrize("observe", OBSERVATIONS)
def test_a_named_tuple_is_what_it_is_in_typing(observe: Callable[[Any], Any]) -> None:
    theirs, ours = in_both(point)
    assert observe(ours) == observe(theirs)


@pytest.mark.parametrize("observe", ERRORS)
def test_what_typing_refuses_is_refused(observe: Callable[[Any], Any]) -> None:
    for kind in in_both(point):
        with pytest.raises((TypeError, AttributeError, ValueError)):
            observe(kind)


def test_a_match_takes_its_fields_by_place_and_by_name() -> None:
    for kind in in_both(point):
        match kind(1, 2):
            case kind(1, y, unit="m"):
                assert y == 2
            case _:
                pytest.fail("no match")


def test_a_field_without_a_default_after_one_with_it_is_refused() -> None:
    def wrong(base: Any) -> Any:
        class Wrong(base):  # type: ignore[misc]
            first: int = 0
            second: int

        return Wrong

    for base in (typing.NamedTuple, typed.NamedTuple):
        with pytest.raises(TypeError):
            wrong(base)


def test_a_subclass_is_refused() -> None:
    """It would have no fields."""
    with pytest.raises(TypeError, match="Further: a record has no subclasses"):
        type(Pair)("Further", (Pair,), {})


class Pair(typed.NamedTuple):
    """Can be found by name."""

    first: int
    second: int = 2


def test_a_named_tuple_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(Pair(1)))
    assert type(again) is Pair
    assert again == Pair(1, 2)
