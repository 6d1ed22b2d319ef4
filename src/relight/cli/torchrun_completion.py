"""The completion script for `torchrun --print-completion`, a flag that torch 2.14 introduced."""

from collections.abc import Iterable

from relight.flags.spec import Flag

_BASH = """\
_relight_torchrun() {
    local word=${COMP_WORDS[COMP_CWORD]}
    case $word in -*) COMPREPLY=($(compgen -W "@FLAGS@" -- "$word")) ;; *) COMPREPLY=() ;; esac
}
complete -o default -o bashdefault -F _relight_torchrun torchrun"""
_SCRIPTS = {
    "bash": _BASH,
    "zsh": f"autoload -U +X bashcompinit && bashcompinit\n{_BASH}",
    "tcsh": "complete torchrun 'c/--/(@NAMES@)/' 'p/*/f/'",
    "fish": "for each in @NAMES@; complete -c torchrun -l $each; end",
}


def script(shell: str, flags: Iterable[Flag]) -> str:
    """Return a shell's completion script for the flags of `torchrun`."""
    names = [flag.name for flag in flags]
    words = " ".join(f"--{name}" for name in names)
    return _SCRIPTS[shell].replace("@FLAGS@", words).replace("@NAMES@", " ".join(names))
