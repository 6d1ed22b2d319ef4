"""`relight completion`: prints the completion script for a shell.

To complete a job's name or id, the script runs `relight completion jobs` (known_jobs.py).
"""

from collections.abc import Callable, Iterator
from importlib import import_module

from relight.base.errors import EXIT_OK, RelightError, UsageError
from relight.base.text import did_you_mean
from relight.cli import warm
from relight.cli.jobs import nodes
from relight.cli.jobs.common import Page, read_arguments
from relight.cli.main import COMMANDS, JOB_COMMANDS
from relight.flags.spec import FLAGS, Flag
from relight.job import components
from relight.runner.runner import DEFAULT_SCHEDULER
from relight.schedulers import registry

_ON_JOBS = ("status", "top", "stacks", "debug", "logs", "events", "wait", "cancel", "delete",
            "describe")  # fmt: skip
"""Commands that take jobs as arguments."""
_JOBS = "relight completion jobs 2>/dev/null"
SHELLS = ("bash", "zsh", "fish")
PAGE = Page(
    "completion SHELL",
    ("Prints the completion of relight's commands, flags and jobs for bash, zsh or fish.",),
    (),
    (
        'eval "$(relight completion bash)"                  (in ~/.bashrc)',
        'eval "$(relight completion zsh)"                   (in ~/.zshrc, after compinit)',
        "relight completion fish > ~/.config/fish/completions/relight.fish",
    ),
)
_BASH = """\
_relight() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=
    local each flag= scheduler= list=
    for each in "${COMP_WORDS[@]:1:$((COMP_CWORD-1))}"; do
        case $flag in -s|--scheduler) [ "$each" = = ] && continue; scheduler=$each ;; esac
        case $each in -*) flag=$each ;; =) ;; *) [ "$flag" = -cfg ] || flag= ;; esac
    done
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="@COMMANDS@"
    elif [ "$before" = -s ] || [ "$before" = --scheduler ]; then
        words="@SCHEDULERS@"
    elif [ "$flag" = -cfg ] && { [ "$before" = -cfg ] || [ "$word" != "${word%,*}" ]; }; then
        case $scheduler in
@OPTIONS@
        esac
        [ "$word" = "${word%,*}" ] || list=${word%,*},
        compopt -o nospace 2>/dev/null || true
    else
        case "${COMP_WORDS[1]}:$word" in
@CASES@
        esac
    fi
    COMPREPLY=($(compgen -P "$list" -W "$words" -- "${word#"$list"}"))
}
complete -o default -o bashdefault -F _relight relight"""
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def main(argv: list[str]) -> int:
    """Run `relight completion`.

    Raises:
        UsageError: if the shell is unknown.
    """
    parsed = read_arguments(argv, PAGE, 1, 1, "one shell")
    shell = parsed.command[0]
    if shell not in SHELLS:
        hint = did_you_mean(shell, SHELLS, f"shells: {', '.join(SHELLS)}")
        raise UsageError(f"no completion for {shell}", hint=hint)
    print({"bash": bash, "zsh": zsh, "fish": fish}[shell]())
    return EXIT_OK


def bash() -> str:
    """Return the completion script for bash."""
    cases = []
    for command, flags in command_flags().items():
        words = " ".join(f"--{flag.name}" for flag in flags)
        cases.append(f'            {command}:-*) words="{words}" ;;')
        more = _ARGUMENTS.get(command)
        if more is not None:
            cases.append(f'            {command}:*) words="{" ".join(more())}" ;;')
        if command in _ON_JOBS:
            jobs = f"words=$({_JOBS})"
            takes_value = [f"--{flag.name}" for flag in flags if flag.parse]
            takes_value += [f"-{flag.short}" for flag in flags if flag.parse and flag.short]
            if takes_value:
                jobs = f"case $before in {'|'.join(takes_value)}) ;; *) {jobs} ;; esac"
            cases.append(f"            {command}:*) {jobs} ;;")
    options = [
        f'            {name}) words="{" ".join(names)}" ;;' for name, names in _options().items()
    ]
    return (
        _BASH.replace("@COMMANDS@", " ".join(COMMANDS))
        .replace("@SCHEDULERS@", " ".join(_schedulers()))
        .replace("@OPTIONS@", "\n".join(options))
        .replace("@CASES@", "\n".join(cases))
    )


def zsh() -> str:
    """Return the completion script for zsh, which wraps the bash script."""
    return _ZSH + bash()


def fish() -> str:
    """Return the completion script for fish."""
    lines = []
    for command, what in COMMANDS.items():
        lines.append(
            f"complete -c relight -n __fish_use_subcommand -f -a {command} -d {_quoted(what)}"
        )
    for command, flags in command_flags().items():
        where = f"complete -c relight -n '__fish_seen_subcommand_from {command}'"
        for flag in flags:
            short = f" -s {flag.short}" if len(flag.short) == 1 else ""
            takes = "" if flag.parse is None else " -r"
            if flag.name == "scheduler":
                takes = f" -x -a {_quoted(' '.join(_schedulers()))}"
            lines.append(f"{where} -l {flag.name}{short}{takes} -d {_quoted(flag.help)}")
        if command == "submit":
            lines += _fish_options()
        more = _ARGUMENTS.get(command)
        if more is not None:
            lines.append(f"{where} -a {_quoted(' '.join(more()))}")
        if command in _ON_JOBS:
            files = "" if command == "events" else " -f"
            lines.append(f"{where}{files} -a '(command -q relight; and {_JOBS})'")
    return "\n".join(lines)


def command_flags() -> dict[str, tuple[Flag, ...]]:
    """Return the flags of each command, omitting commands without flags."""
    found: dict[str, tuple[Flag, ...]] = {"run": FLAGS, "launch": FLAGS}
    for name, module in JOB_COMMANDS.items():
        page: Page = import_module(f"relight.cli.{module}").PAGE
        found[name] = page.flags
    return found


def _schedulers() -> list[str]:
    return [*registry.names(), "auto"]


def _options() -> dict[str, list[str]]:
    """Return the option names for -cfg, keyed by scheduler. The key `*` is for commands without
    one.
    """
    found = {}
    for name in registry.names():
        try:
            found[name] = [f"{option.name}=" for option in registry.find(name).options]
        except RelightError:  # a plug-in that fails to load
            continue
    return {**found, "*": found[DEFAULT_SCHEDULER]}


def _fish_options() -> Iterator[str]:
    """Yield the lines that complete -cfg: one per scheduler, with a condition and its options."""
    for name, names in _options().items():
        is_it = f"string match -qr -- '(-s|--scheduler)[ =]*{name}' (commandline -c)"
        if name == "*":
            is_it = "not string match -qr -- ' (-s|--scheduler)' (commandline -c)"
        where = _quoted(f"__fish_seen_subcommand_from submit; and {is_it}")
        words = _quoted(f'(__fish_complete_list , \'string split " " "{" ".join(names)}"\')')
        if names:
            yield f"complete -c relight -n {where} -o cfg -x -a {words}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_ARGUMENTS: dict[str, Callable[[], list[str]]] = {
    "submit": components.names,
    "components": components.names,
    "schedulers": registry.names,
    "completion": lambda: list(SHELLS),
    "warm": lambda: list(warm.VERBS),
    "nodes": lambda: list(nodes.VERBS),
}
