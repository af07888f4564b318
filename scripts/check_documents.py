#!/usr/bin/env python3
"""Holds what can be held of the documents: widths, links, names of files, and commands.

    check_documents.py [PROGRAM] [--root DIR]

- A line of Markdown has at most 100 columns, a row of a table at most 160; a page of docs/adr 80 lines.
- A relative link leads to a file of the repository, and an anchor to one of its headings.
- A file of the repository that a document names in `backticks`, and a document that any document or
  source file names, are there.
- With PROGRAM, every line of code that begins with `llmq` parses: its command and its flags stand in
  `PROGRAM COMMAND --help`, a flag has a value where the help shows one, and what --set changes is a key
  of docs/reference/recipe.md. Variables and a launcher with its own flags may stand before it.

Prints one line for each fault and leaves with 1 when there is any. Takes a second. DIR is another tree
than that of this script, for tests of it.
"""
import argparse
import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

root = Path(__file__).resolve().parent.parent
WIDTH, ROW_WIDTH, DECISION_LINES = 100, 160, 80
SOURCES = ("src", "kernels", "tools", "tests", "scripts", "cmake", "recipes", "packaging", ".ci")
SOURCE_ENDINGS = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".txt", ".cmake", ".yaml", ".in", ""}
DOCUMENT = re.compile(r"(?<!'s )(?<![\w/.-])docs/(?:adr/\d{4}[\w.-]*|[\w/-]+\.md)")
BEFORE_LLMQ = re.compile(r"^(?:[A-Z_]+=\S* +)*(?:(?:mpirun|mpiexec|srun) (?:.* )?)?(?=llmq )")
NAMED = re.compile(r"^(?:src|kernels|tools|tests|scripts|docs|recipes|share(?!/llmq)|cmake|packaging)/[\w./{},*-]+$")


class Page:
    """One document: its prose without code, its lines of code, and its headings as anchors."""

    def __init__(self, path):
        self.path = path
        self.lines = path.read_text(encoding="utf-8").split("\n")
        self.prose, self.code, self.anchors = [], [], set()
        self._split()

    def _split(self):
        fence, before, in_list, seen = None, "", False, {}
        for number, line in enumerate(self.lines, 1):
            mark = re.match(r"\s*(```+|~~~+)", line)
            if fence:
                if mark and line.strip().startswith(fence):
                    fence = None
                else:
                    self.code.append((number, line.strip()))
                continue
            if mark:
                fence = mark.group(1)
                continue
            if re.match(r"(?:[-*]|\d+\.) ", line):
                in_list = True
            elif line and not line.startswith(" "):
                in_list = False
            indent = 8 if in_list else 4
            if line.startswith(" " * indent) and (not before.strip() or before.startswith(" " * indent)):
                self.code.append((number, line.strip()))
            else:
                self.prose.append((number, line))
                heading = re.match(r"#+ +(.*?)\s*#*$", line)
                if heading:
                    self._add_anchor(heading.group(1), seen)
            before = line

    def _add_anchor(self, heading, seen):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        self.anchors.add(f"{slug}-{count}" if count else slug)


def documents():
    skipped = {".git", "build", "out", "node_modules"}
    for path in sorted(root.rglob("*.md")):
        if not skipped.intersection(path.relative_to(root).parts[:-1]):
            yield path


def wide_lines(page):
    for number, line in enumerate(page.lines, 1):
        most = ROW_WIDTH if line.lstrip().startswith("|") else WIDTH
        if len(line) > most:
            yield number, f"{len(line)} columns; there is room for {most}"


def long_decision(page):
    """A decision that needs more lines is two, or has what belongs to another page."""
    lines = len(page.lines) - (page.lines[-1] == "")
    if page.path.parent == root / "docs" / "adr" and lines > DECISION_LINES:
        yield lines, f"{lines} lines; a decision has {DECISION_LINES} at most"


def swallowed_commands(page):
    """Code behind a list belongs to the list's last item and is prose, unless it is fenced."""
    for number, line in page.prose:
        if re.match(r"    (?:llmq|make|scripts/\S+) ", line):
            yield number, "a command behind a list is prose: put it between fences"


def without_code(line):
    return re.sub(r"(`+).*?\1", "", line)


def paragraphs(page):
    """Prose with lines that belong together joined, so that a link may cross from one to the next."""
    text, start, last = [], 1, 0
    for number, line in page.prose + [(0, "")]:
        if not line.strip() or number != last + 1:
            if text:
                yield start, " ".join(text)
            text, start = [], number
        if line.strip():
            if not text:
                start = number
            text.append(line.strip())
        last = number


def broken_links(page, pages):
    for number, text in paragraphs(page):
        text = without_code(text)
        targets = re.findall(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)", text)
        targets += re.findall(r"(?:src|srcset|href)=\"([^\"]+)\"", text)
        for target in targets:
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            path = (page.path.parent / name).resolve() if name else page.path
            if not path.exists():
                yield number, f"the link to {target} leads nowhere"
            elif anchor and path in pages and anchor not in pages[path].anchors:
                yield number, f"{name or 'this page'} has no heading #{anchor}"


def expanded(name):
    """a.{h,cpp} -> a.h, a.cpp."""
    parts = re.split(r"\{([^}]*)\}", name)
    choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


def is_there(name):
    name = name.rstrip(".,:/")
    if re.fullmatch(r"docs/adr/\d{4}", name):
        name += "-*"
    if "*" in name:
        return any(root.glob(name))
    return (root / name).exists()


def missing_files(page):
    for number, text in paragraphs(page):
        for _, name in re.findall(r"(`+)(.*?)\1", text):
            if not NAMED.match(name):
                continue
            if not all(is_there(one) for one in expanded(name)):
                yield number, f"there is no {name}"
        for match in DOCUMENT.finditer(re.sub(r"\]\([^)]*\)", "]", without_code(text))):
            if not is_there(match.group()):
                yield number, f"there is no {match.group()}"


def missing_documents():
    """Documents that comments and scripts name, but for those of other projects: ggml's docs/gguf.md."""
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*")):
            if not path.is_file() or path.suffix not in SOURCE_ENDINGS or path.stat().st_size > 1 << 20:
                continue
            text = path.read_bytes().decode("utf-8", "replace")
            for match in DOCUMENT.finditer(text):
                if not is_there(match.group()):
                    yield path, text.count("\n", 0, match.start()) + 1, f"there is no {match.group()}"


class Program:
    """What `llmq` takes, as its help tells: for each command its flags and whether they have a value."""

    def __init__(self, program):
        self.program, self.known = program, {}
        recipe = root / "docs" / "reference" / "recipe.md"
        keys = recipe.read_text(encoding="utf-8") if recipe.exists() else ""
        self.keys = set(re.findall(r"^\| `([\w.]+)`", keys, re.M))
        self.commands = set(re.findall(r"^  ([a-z][a-z-]*) ", self._section(self._help(), "Commands:"), re.M))

    def _help(self, *command):
        done = subprocess.run([self.program, *command, "--help"], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{self.program} {' '.join(command)} --help: {done.stderr.strip()}")
        return done.stdout

    @staticmethod
    def _section(text, title):
        return text.partition("\n" + title)[2].partition("\n\n")[0] + "\n"

    def flags(self, command):
        if command not in self.known:
            flags = {}
            for text in {self._help(), self._help(*([command] if command else []))}:
                for line in re.findall(r"^ +(-[^\n]*)", text, re.M):
                    words = re.match(r"((?:-{1,2}[\w-]+,? ?)+)( ?[A-Z][A-Z0-9_=]*)?", line)
                    for flag in re.findall(r"-{1,2}[\w-]+", words.group(1)):
                        flags[flag] = bool(words.group(2))
            self.known[command] = flags
        return self.known[command]

    def fault(self, line, whole):
        """What is wrong with one command line, or None. `whole`: flags that have a value must have one."""
        try:
            words = shlex.split(line, comments=True)[1:]
        except ValueError as error:
            return str(error)
        words = [word.strip("[]") for word in words]
        command = words[0] if words and not words[0].startswith("-") else ""
        if command and not re.fullmatch(r"[a-z][a-z-]*", command):
            return None  # a place for any command
        if command and command not in self.commands:
            return f"'{command}' is no command of llmq"
        flags = self.flags(command)
        for word, following in zip(words, words[1:] + [""]):
            if not re.match(r"--?[a-z]", word):
                continue
            flag, equals, _ = word.partition("=")
            if flag not in flags:
                return f"{' '.join(['llmq', command]).strip()} has no {flag}"
            if whole and flags[flag] and not equals and (not following or following.startswith("--")):
                return f"{flag} of llmq {command} has no value"
            key = following.partition("=")[0]
            if flag == "--set" and key and key not in self.keys and key == key.lower():
                return f"no recipe key is called {key}"
        return None


def command_lines(page):
    """Lines of code that run llmq, continued ones joined, and what stands in `backticks`."""
    joined, start = "", 0
    for number, line in page.code:
        line = re.sub(r"^\$ ", "", line)
        joined, start = joined + line, start or number
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        for command in re.split(r"\s*(?:;|&&|\|\||\s\|)\s+|\s{3,}(?=llama|llmq|#)", joined):
            command = BEFORE_LLMQ.sub("", command)
            if command.startswith("llmq "):
                yield start, command, True
        joined, start = "", 0
    for number, text in paragraphs(page):
        for _, command in re.findall(r"(`+)(.*?)\1", text):
            command = BEFORE_LLMQ.sub("", command)
            if command.startswith("llmq "):
                yield number, command, False


def main():
    parser = argparse.ArgumentParser(usage=__doc__.strip())
    parser.add_argument("program", nargs="?")
    parser.add_argument("--root", type=Path)
    words = parser.parse_args()
    global root
    root = words.root.resolve() if words.root else root
    program = Program(words.program) if words.program else None
    pages = {path: Page(path) for path in documents()}
    faults = [(path, number, text) for path, number, text in missing_documents()]
    commands = 0
    for path, page in pages.items():
        found = [*wide_lines(page), *long_decision(page), *swallowed_commands(page)]
        found += [*broken_links(page, pages), *missing_files(page)]
        for number, line, whole in command_lines(page) if program else []:
            commands += 1
            fault = program.fault(line, whole)
            if fault:
                found.append((number, fault))
        faults += [(path, number, text) for number, text in found]
    for path, number, text in sorted(faults):
        print(f"{path.relative_to(root)}:{number}: {text}")
    print(f"{len(pages)} documents, {commands} commands, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
