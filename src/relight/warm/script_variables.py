"""Tracks the environment variables that a script sets before its imports. The warm spawner sets the
same variables before it imports modules.
"""

from collections.abc import Mapping


class ScriptVariables:
    """The variables that are known so far. The value None means that the script removes the
    variable, or does not always set it to the same value.

    Attributes:
        values: the adopted variables.
    """

    def __init__(self) -> None:
        self.values: dict[str, str | None] = {}
        self._reported: dict[str, str | None] = {}
        self._of_libraries: set[str] = set()

    def names(self) -> set[str]:
        """Return the names of the variables that the script itself sets."""
        return {*self.values, *self._reported} - self._of_libraries

    def report(self, name: str, value: str | None, *, by_library: bool) -> None:
        """Record a variable that a worker has reported. It is adopted later."""
        if by_library:
            self._of_libraries.add(name)
        else:
            self._of_libraries.discard(name)
        if self._reported.setdefault(name, value) != value:
            self.values.setdefault(name, None)  # workers set different values

    def add(self, values: Mapping[str, str | None]) -> None:
        """Adopt values immediately."""
        self.values.update(values)

    def adopt(self) -> tuple[str, bool]:
        """Adopt the variables that workers have reported since the last call.

        Returns:
            The reason why earlier imports can no longer be used (an empty string if nothing was
            reported), and whether it can help to import the modules again with these values.
        """
        again = sorted(self._reported.keys() & self.values.keys())
        names = ", ".join(again or sorted(self._reported))
        if not names:
            return "", True
        self.values.update(self._reported)
        self._reported.clear()
        end = "not always to the same value" if again else "and the next import will use that value"
        libraries = not self._of_libraries.isdisjoint(names.split(", "))
        who = "a library" if libraries else "the script"
        return f"{who} sets {names} before it imports, {end}", not again
