"""The parts of `typing` that the launch path uses, without importing it.

`typing` costs 5 ms with `re`, which it imports, and its NamedTuple 0.1 ms per class. Type checkers
see the real ones.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any as Any
    from typing import NamedTuple as NamedTuple
    from typing import NoReturn as NoReturn
    from typing import Protocol as Protocol
    from typing import TypeVar as TypeVar
else:
    from _collections import _tuplegetter  # the field type of collections.namedtuple

    Any = NoReturn = Protocol = object

    def TypeVar(_: str) -> type:  # noqa: D103, N802
        return object

    _getters: list[Any] = []
    """The n-th one returns the n-th field, of any record."""

    class _Fields(type):
        """Turns the annotations of a class based on NamedTuple into its fields."""

        def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
            namespace["__slots__"] = ()
            if bases[0] is not tuple:
                if bases[0]._fields:
                    raise TypeError(f"{name}: a record has no subclasses")
                annotations = namespace.get("__annotations__")
                if annotations is None:  # Python 3.14 makes them on demand (PEP 649)
                    make = namespace.get("__annotate_func__")
                    annotations = make(1) if make else {}
                fields = namespace["_fields"] = namespace["__match_args__"] = tuple(annotations)
                defaults = {field: namespace[field] for field in fields if field in namespace}
                if defaults and fields[-len(defaults) :] != tuple(defaults):
                    raise TypeError(f"{name} has a field without a default after one with it")
                namespace["_field_defaults"] = defaults
                while len(_getters) < len(fields):
                    _getters.append(_tuplegetter(len(_getters), ""))
                namespace.update(zip(fields, _getters, strict=False))
            return type.__new__(cls, name, bases, namespace)

    class NamedTuple(tuple, metaclass=_Fields):
        """Works as `typing.NamedTuple`, for classes without further bases or subclasses."""

        _fields: tuple[str, ...] = ()

        def __new__(cls, *values: Any, **named: Any) -> "NamedTuple":  # noqa: D102
            if named or len(values) != len(cls._fields):
                values = cls._complete(values, named)
            return tuple.__new__(cls, values)

        @classmethod
        def _complete(cls, values: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
            if len(values) > len(cls._fields):
                raise TypeError(
                    f"{cls.__name__} takes {len(cls._fields)} values, not {len(values)}"
                )
            every = list(values)
            for field in cls._fields[len(values) :]:
                if field in named:
                    every.append(named.pop(field))
                elif field in cls._field_defaults:
                    every.append(cls._field_defaults[field])
                else:
                    raise TypeError(f"{cls.__name__} needs {field}")
            for field in named:
                why = "is given twice" if field in cls._fields else "is not a field"
                raise TypeError(f"{cls.__name__}: {field} {why}")
            return every

        def __repr__(self) -> str:
            fields = zip(self._fields, self, strict=True)
            return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in fields)})"

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, **named: Any) -> "NamedTuple":
            return type(self)(**{**self._asdict(), **named})
