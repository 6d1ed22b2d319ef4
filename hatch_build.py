"""A build names its commit: adds the file `relight/commit`, which `relight --version` prints."""

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    """Finds the commit of a clone. An sdist already has the file; elsewhere none is added."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling. The version `editable` stays without the file, as its commit changes."""
        if version == "editable" or not Path(self.root, ".git").exists():
            return
        command = ["git", "-C", self.root, "describe", "--always", "--abbrev=12", "--dirty"]
        try:
            found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):  # without git, or not our repository
            return
        path = Path(self.root, ".build", "commit")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found)
        inside = "relight/commit" if self.target_name == "wheel" else "src/relight/commit"
        build_data["force_include"][str(path)] = inside
