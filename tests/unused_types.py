#!/usr/bin/env python3
"""Lists public types that only tests or their own file name, and names that public types of two crates share.

    tests/unused_types.py

Reads the source as text, in which `use` is no use. A listed type may be needed, as a result that callers need not
name; a type that shares its name with another may be missing. The lists are for a person to read.
"""
import collections
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Comments and literals; a lifetime is left alone.
NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|r(#*)".*?"\1|"(?:\\.|[^"\\])*"' r"|'(?:\\[^']+|[^'\\])'", re.DOTALL)
USE = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?use\s[^;]*;", re.MULTILINE)
TEST = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?(?:mod\s+(\w+)\s*;|)")
TYPE = re.compile(r"^[ \t]*pub\s+(?:struct|enum|trait|type|union)\s+(\w+)", re.MULTILINE)


def sources():
    """Code by file, without comments, literals, tests and imports; of an import with `as` its first name is kept."""
    files = [path for folder in ("crates/*/src", "benches/src", "benches/benches", "examples")
             for start in ROOT.glob(folder) for path in start.rglob("*.rs")]
    code, tests = {}, set()
    for path in sorted(files):
        text = NOT_CODE.sub(" ", path.read_text())
        text, modules = without_tests(text)
        folder = path.parent if path.stem in ("lib", "main", "mod") else path.with_suffix("")
        tests |= {folder / name for name in modules}
        code[path] = USE.sub(lambda found: " ".join(re.findall(r"(\w+)\s+as\s", found[0])), text)
    return {path: text for path, text in code.items()
            if tests.isdisjoint([path.with_suffix(""), *path.parents])}


def without_tests(text):
    """The text without items behind `#[cfg(test)]`, and the names of test modules in files of their own."""
    kept, modules, at = [], [], 0
    while found := TEST.search(text, at):
        kept.append(text[at:found.start()])
        at = found.end()
        if found[1]:
            modules.append(found[1])
            continue
        # The item ends with its first block, or with a semicolon before that.
        depth = 0
        while at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
            if depth == 0 and text[at - 1] in "};":
                break
    return "".join(kept) + text[at:], modules


def crate_of(path):
    parts = path.relative_to(ROOT).parts
    return parts[1] if parts[0] == "crates" else parts[0]


def main():
    code = sources()
    words = {path: collections.Counter(re.findall(r"\w+", text)) for path, text in code.items()}
    types = sorted((crate_of(path), name, path) for path, text in code.items() for name in TYPE.findall(text))
    print("Public types that no code but tests names outside their own file, with the times it does there:\n")
    for crate, name, path in types:
        if not any(name in found for other, found in words.items() if other != path):
            print(f"  {crate:10} {name:28} {words[path][name] - 1:3}  {path.relative_to(ROOT)}")
    crates = collections.defaultdict(set)
    for crate, name, _ in types:
        crates[name].add(crate)
    print("\nNames of public types in more than one crate:\n")
    for name, found in sorted(crates.items()):
        if len(found) > 1:
            print(f"  {name:28} {' '.join(sorted(found))}")


if __name__ == "__main__":
    main()
