"""`relight configure`: writes a settings file for you to fill in, or shows the values in effect."""

import os

from relight.base import env as environment
from relight.base.errors import EXIT_OK, MachineError, RelightError, UsageError
from relight.cli.jobs.common import Page, read_arguments, say, switch
from relight.flags.spec import Flag
from relight.runner import settings
from relight.runner.options import FIXME
from relight.schedulers import registry
from relight.schedulers.api import Option

FILE = settings.NAMES[0]
PAGE = Page(
    "configure [flags]",
    (
        f"Writes {FILE} with a section per scheduler, which lists each option with its",
        "default, commented out. If the file exists, adds the missing sections.",
        "Values in this directory's file take precedence over those in the home directory's,",
        "and those over the site's (/etc/relight/config.toml).",
    ),
    (
        Flag("schedulers", str, "", "A,B", "only these schedulers", short="s"),
        switch("all", "don't comment out the options", short="a"),
        switch("print", "print the file instead of writing it"),
        switch("show",
               "print the values in effect and their sources; with --all, include defaults"),
    ),
    ("relight configure -s slurm", "relight configure --all --print",
     "relight configure --show"),
)  # fmt: skip
_COMMENT = 60


def main(argv: list[str]) -> int:
    """Run `relight configure`.

    Raises:
        RelightError: if a scheduler is unknown or already has a section, or the file can't be
            written.
    """
    parsed = read_arguments(argv, PAGE, 0, 0, "flags")
    if parsed.values["show"]:
        from relight.cli.jobs import effective_settings

        wanted = [name for name in parsed.values["schedulers"].split(",") if name]
        print(
            "\n".join(
                effective_settings.lines(environment.read(), wanted, every=parsed.values["all"])
            )
        )
        return EXIT_OK
    names = [name for name in parsed.values["schedulers"].split(",") if name] or registry.names()
    sections = {}
    for name in names:
        try:
            sections[name] = _section(name, every=parsed.values["all"])
        except RelightError as error:
            if parsed.values["schedulers"]:
                raise
            say(f"skipped {name}: {error.message}")  # a broken plug-in must not prevent the file
    names = list(sections)
    if parsed.values["print"]:
        print("\n\n".join(sections.values()))
        return EXIT_OK
    known = settings.section_names(FILE) if os.path.exists(FILE) else []
    if parsed.values["schedulers"]:
        there = [name for name in names if name in known]
        if there:
            raise UsageError(
                f"{FILE} already has a section [{there[0]}]",
                hint="--print shows what would be written",
            )
    new = [text for name, text in sections.items() if name not in known]
    try:
        _add(("\n" if known else "") + "\n\n".join(new) + "\n")
    except OSError as error:
        raise MachineError(f"can't write {FILE}: {error.strerror}") from None
    say(f"wrote {FILE}: sections for {', '.join(names)}")
    return EXIT_OK


def _add(text: str) -> None:
    """Append the text to the file. If the disk is full, leave the file unchanged, because partial
    text would still be read as settings.
    """
    size = os.path.getsize(FILE) if os.path.exists(FILE) else -1
    with open(FILE, "ab", buffering=0) as file:
        try:
            data = text.encode()
            while data:
                data = data[file.write(data) :]
        except OSError:
            if size < 0:
                os.unlink(FILE)
            else:
                file.truncate(size)
            raise


def _section(name: str, *, every: bool) -> str:
    lines = [f"[{name}]"]
    for option in registry.find(name).options:
        if option.required:
            text = option.help[:_COMMENT] + ("..." if len(option.help) > _COMMENT else "")
            lines.append(f"{option.name} = {FIXME}:({option.kind.__name__}) {text}")
        elif every:
            lines.append(f"{option.name} = {_default(option)}")
        else:
            default = "" if option.default is None else _default(option)
            lines += [f"# {option.help}", f"#{option.name} = {default}".rstrip()]
    return "\n".join(lines)


def _default(option: Option) -> str:
    if isinstance(option.default, (list, tuple)):
        return ";".join(option.default)
    return str(option.default).lower() if type(option.default) is bool else str(option.default)
