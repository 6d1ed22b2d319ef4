"""Reads settings files, which contain defaults for the command line.

    [local]                  options of a scheduler
    log_dir = /logs
    [component:dist.ddp]     arguments of a component
    j = 1x8
    [cli:run]                component, scheduler and workspace for `relight submit`
    scheduler = slurm
    [torchx:tracker]         one name for each tracker; [tracker:NAME] has its config

Each setting is read from the first of these files that contains it: `./.relightconfig`,
`./.torchxconfig`, `~/.relightconfig`, `~/.torchxconfig`. `RELIGHTCONFIG=FILE` (or TORCHXCONFIG)
replaces all four; if it is empty, no file is read. In relight, a project's files take precedence
over those in the home directory, whereas in TorchX it is the other way around. The site's file
(flags/site) applies to all users on this machine and has the lowest precedence.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.flags import site as sites
from relight.flags.site import NO_SITE, Site

NAMES = (".relightconfig", ".torchxconfig")
VARIABLES = ("RELIGHTCONFIG", "TORCHXCONFIG")


class ConfigFile(NamedTuple):
    """The merged sections from all settings files. The `site` field contains the site's scheduler
    settings.
    """

    sections: Mapping[str, Mapping[str, str]]
    files: tuple[str, ...] = ()
    site: Site = NO_SITE

    def section(self, name: str) -> Mapping[str, str]:
        """Return a section, or an empty mapping if it does not exist."""
        return self.sections.get(name, {})

    def command(self, name: str) -> str:
        """Return a default for `relight submit`, from `[cli:submit]` or TorchX's `[cli:run]`."""
        return self.section("cli:submit").get(name) or self.section("cli:run").get(name, "")


def files(env: Environment) -> list[str]:
    """Return the paths of the settings files that exist, in order of precedence.

    Raises:
        UsageError: if a variable names a file that does not exist.
    """
    for variable in VARIABLES:
        if variable in env.variables:
            path = env.variables[variable]
            if path and not os.path.isfile(path):
                raise UsageError(f"{variable}={path}: no such file")
            return [path] if path else []
    try:
        folders = [os.getcwd()]
    except OSError:  # the directory has been removed
        folders = []
    folders = list(dict.fromkeys([*folders, os.path.join("/", env.get("HOME", "/"))]))
    paths = [os.path.join(folder, name) for folder in folders for name in NAMES]
    return [path for path in paths if os.path.isfile(path)]


def load(env: Environment) -> ConfigFile:
    """Return the merged settings from all files.

    Raises:
        UsageError: if a file can't be read or is malformed.
        MachineError: if the site's file can't be read or is malformed.
    """
    found, site = layers(env), sites.load(env)
    merged: dict[str, dict[str, str]] = {}
    for sections in (*found.values(), site.sections):
        for name, section in sections.items():
            kept = merged.setdefault(name, {})
            for key, value in section.items():
                kept.setdefault(key, value)
    return ConfigFile(merged, tuple(found), site)


def layers(env: Environment) -> dict[str, dict[str, dict[str, str]]]:
    """Return the sections in each settings file of the project and the user, in order of
    precedence.

    Raises:
        UsageError: if a file can't be read or is malformed.
    """
    return {path: _read(path) for path in files(env)}


def section_names(path: str) -> list[str]:
    """Return the names of all sections in a settings file.

    Raises:
        UsageError: if the file can't be read or is malformed.
    """
    return list(_read(path))


def _read(path: str) -> dict[str, dict[str, str]]:
    import configparser

    parser = configparser.ConfigParser(interpolation=None, allow_no_value=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # option names are case-sensitive
    try:
        with open(path, encoding="utf-8-sig") as file:
            parser.read_file(file, path)
    except (configparser.Error, UnicodeDecodeError) as error:
        raise UsageError(f"can't read {path}: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror}") from None
    found = {name: dict(parser.items(name)) for name in parser.sections()}
    if path.endswith(".torchxconfig"):  # TorchX reads '%' as a reference, so files write '%%'
        for section in found.values():
            section.update({key: value.replace("%%", "%") for key, value in section.items()})
    return found
