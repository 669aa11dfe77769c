"""`python -m loraloom` runs the binary that was installed with this package."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path


def binary():
    folders = [
        sysconfig.get_path("scripts"),
        sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")),
        # `pip install --target`
        Path(__file__).parent.parent / "bin",
    ]
    name = "loraloom.exe" if os.name == "nt" else "loraloom"
    files = [Path(folder, name) for folder in folders]
    found = [file for file in files if file.is_file()]
    if not found:
        sys.exit("loraloom is not at " + " or ".join(map(str, files)))
    return found[0]


if __name__ == "__main__":
    command = [binary(), *sys.argv[1:]]
    if os.name == "nt":
        # A process cannot be replaced there.
        sys.exit(subprocess.run(command, check=False).returncode)
    os.execv(command[0], command)
