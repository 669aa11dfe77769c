#!/usr/bin/env python3
"""Installs a wheel into an empty environment, without a network, and checks what it holds. Then packs its
binary with man pages, completions and licences.

    .ci/pack.py WHEEL TARGET OUT

OUT then has the wheel and loraloom-VERSION-TARGET.tar.gz, or .zip for Windows.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv

SHELLS = {"bash": "loraloom.bash", "zsh": "_loraloom", "fish": "loraloom.fish", "powershell": "loraloom.ps1"}
TEXTS = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"]


def run(*command, **options):
    print("$", *command, flush=True)
    return subprocess.run(command, check=True, **options)


# Bytes, which a text of Windows would change: its line ends and its encoding are others.
def says(*command):
    return run(*command, stdout=subprocess.PIPE).stdout


def check(binary, python, version, folder):
    for command in [[binary], [python, "-m", "loraloom"]]:
        said = says(*command, "--version")
        if said != f"loraloom {version}\n".encode():
            sys.exit(f"{command} is {said!r}, not version {version}")
    run(binary, "doctor", cwd=folder)
    run(binary, "init", "first", cwd=folder)
    run(binary, "train", "first/loraloom.yaml", "--set", "defaults.train.max_steps=2", cwd=folder)


def main(wheel, target, out):
    root = pathlib.Path(__file__).resolve().parent.parent
    # The name of a wheel writes 1.0.0-rc.1 as 1.0.0rc1.
    version = tomllib.loads((root / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    name = f"loraloom-{version}-{target}"
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        windows = os.name == "nt"
        # As `python -m venv` does: the copy of an interpreter may not find its library.
        venv.create(folder / "venv", with_pip=True, symlinks=not windows)
        scripts = folder / "venv" / ("Scripts" if windows else "bin")
        suffix = ".exe" if windows else ""
        binary, python = scripts / f"loraloom{suffix}", scripts / f"python{suffix}"
        run(python, "-m", "pip", "install", "--no-index", wheel)
        check(binary, python, version, folder)

        packed = folder / name
        (packed / "completions").mkdir(parents=True)
        shutil.copy(binary, packed)
        run(binary, "man", packed / "man")
        for shell, file in SHELLS.items():
            (packed / "completions" / file).write_bytes(says(binary, "completions", shell))
        for text in TEXTS:
            shutil.copy(root / text, packed)
        kind = "zip" if windows else "gztar"
        os.makedirs(out, exist_ok=True)
        shutil.copy(wheel, out)
        print(shutil.make_archive(pathlib.Path(out) / name, kind, folder, name))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
