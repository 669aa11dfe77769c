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
import venv

SHELLS = {"bash": "loraloom.bash", "zsh": "_loraloom", "fish": "loraloom.fish", "powershell": "loraloom.ps1"}
TEXTS = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"]


def run(*command, **options):
    print("$", *command, flush=True)
    return subprocess.run(command, check=True, **options)


def says(*command):
    return run(*command, stdout=subprocess.PIPE, text=True).stdout


def check(binary, python, version, folder):
    for command in [[binary], [python, "-m", "loraloom"]]:
        said = says(*command, "--version")
        if said != f"loraloom {version}\n":
            sys.exit(f"{command} is {said!r}, not version {version}")
    run(binary, "doctor", cwd=folder)
    run(binary, "init", "first", cwd=folder)
    run(binary, "train", "first/loraloom.yaml", "--set", "defaults.train.max_steps=2", cwd=folder)


def main(wheel, target, out):
    root = pathlib.Path(__file__).resolve().parent.parent
    version = pathlib.Path(wheel).name.split("-")[1]
    name = f"loraloom-{version}-{target}"
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        venv.create(folder / "venv", with_pip=True)
        windows = os.name == "nt"
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
            (packed / "completions" / file).write_text(says(binary, "completions", shell))
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
