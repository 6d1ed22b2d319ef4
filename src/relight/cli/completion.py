"""`relight completion`: prints the completion script of a shell."""

from collections.abc import Callable
from importlib import import_module

from relight.cli import warm
from relight.cli.jobs import HELP, Page, read_arguments
from relight.cli.main import COMMANDS, JOB_COMMANDS
from relight.errors import EXIT_OK, UsageError, did_you_mean
from relight.job import components
from relight.schedulers import registry
from relight.spec import FLAGS, Flag

SHELLS = ("bash", "zsh", "fish")
PAGE = Page(
    "completion SHELL",
    ("Prints the completion of relight's commands and flags for bash, zsh or fish.",),
    (HELP,),
    (
        'eval "$(relight completion bash)"                  (in ~/.bashrc)',
        'eval "$(relight completion zsh)"                   (in ~/.zshrc, after compinit)',
        "relight completion fish > ~/.config/fish/completions/relight.fish",
    ),
)
_BASH = """\
_relight() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="@COMMANDS@"
    elif [ "$before" = -s ] || [ "$before" = --scheduler ]; then
        words="@SCHEDULERS@"
    else
        case "${COMP_WORDS[1]}:$word" in
@CASES@
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -o bashdefault -F _relight relight"""
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def main(argv: list[str]) -> int:
    """Run `relight completion`.

    Raises:
        UsageError: the shell is unknown.
    """
    parsed = read_arguments(argv, PAGE, 1, 1, "one shell")
    shell = parsed.command[0]
    if shell not in SHELLS:
        hint = did_you_mean(shell, SHELLS, f"shells: {', '.join(SHELLS)}")
        raise UsageError(f"there is no completion for {shell}", hint=hint)
    print({"bash": bash, "zsh": zsh, "fish": fish}[shell]())
    return EXIT_OK


def bash() -> str:
    """Return the completion script for bash."""
    cases = []
    for command, flags in flags_of_commands().items():
        words = " ".join(f"--{flag.name}" for flag in flags)
        cases.append(f'            {command}:-*) words="{words}" ;;')
        more = _ARGUMENTS.get(command)
        if more is not None:
            cases.append(f'            {command}:*) words="{" ".join(more())}" ;;')
    return (
        _BASH.replace("@COMMANDS@", " ".join(COMMANDS))
        .replace("@SCHEDULERS@", " ".join(_schedulers()))
        .replace("@CASES@", "\n".join(cases))
    )


def zsh() -> str:
    """Return the completion script for zsh, which uses that of bash."""
    return _ZSH + bash()


def fish() -> str:
    """Return the completion script for fish."""
    lines = []
    for command, what in COMMANDS.items():
        lines.append(
            f"complete -c relight -n __fish_use_subcommand -f -a {command} -d {_quoted(what)}"
        )
    for command, flags in flags_of_commands().items():
        where = f"complete -c relight -n '__fish_seen_subcommand_from {command}'"
        for flag in flags:
            short = f" -s {flag.short}" if len(flag.short) == 1 else ""
            takes = "" if flag.parse is None else " -r"
            if flag.name == "scheduler":
                takes = f" -x -a {_quoted(' '.join(_schedulers()))}"
            lines.append(f"{where} -l {flag.name}{short}{takes} -d {_quoted(flag.help)}")
        more = _ARGUMENTS.get(command)
        if more is not None:
            lines.append(f"{where} -a {_quoted(' '.join(more()))}")
    return "\n".join(lines)


def flags_of_commands() -> dict[str, tuple[Flag, ...]]:
    """Return the flags of each command that has any."""
    found: dict[str, tuple[Flag, ...]] = {"run": FLAGS, "launch": FLAGS}
    for name in JOB_COMMANDS:
        page: Page = import_module(f"relight.cli.{name}").PAGE
        found[name] = page.flags
    return found


def _schedulers() -> list[str]:
    return [*registry.names(), "auto"]


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_ARGUMENTS: dict[str, Callable[[], list[str]]] = {
    "submit": components.names,
    "components": components.names,
    "schedulers": registry.names,
    "completion": lambda: list(SHELLS),
    "warm": lambda: list(warm.VERBS),
}
