#!/usr/bin/env python3
"""scripts/check_documents.py names every kind of fault, once, and takes what is right.

    check_document_faults.py SOURCE_DIRECTORY

Makes a small tree with a program whose help is a few lines, and compares what is said of it word for
word. A document is written as @/name here, so that this file names none that is not there.
"""
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """#!/bin/sh
if [ "$1" = quantize ]; then
  echo 'Options:
  --set KEY=VALUE ...         Change one key
  --dry-run                   Stop'
else
  echo '
Everywhere:
  --json                      One document

Commands:
  quantize                    Pack'
fi
"""

README = f"""# Title

[there](@/page.md#two-words), [gone](@/gone.md),
[no heading](@/page.md#three), [here](#title)
{'x' * 101}
| {'y' * 156} |
| {'y' * 157} |
`scripts/run.sh`, `scripts/gone.sh`, `@/{{page,gone}}.md`, @/adr/0001, @/adr/0002,
`llmq quantize --dry`, ggml's @/other.md

    llmq quantize --dry-run --set a.b=c --json
    llmq quantize --set a.c=d --set KEY=VALUE
    llmq quantize \\
        --dry-run --sets a=b
    llmq quantise --dry-run
    llmq quantize --set --dry-run
    echo x && llmq COMMAND --help
    srun --mpi=pmix -n 2 llmq quantize --dri-run
    LLMQ_CPU_ISA=avx2 mpirun llmq quantize --dry-run --set a.d=1

```
[not a link](nowhere.md) and `scripts/nowhere.sh`
llmq --jsn
```

- a list

    llmq --json
"""

EXPECTED = """README.md:3: the link to @/gone.md leads nowhere
README.md:3: @/page.md has no heading #three
README.md:3: there is no @/adr/0002
README.md:3: there is no @/{page,gone}.md
README.md:3: there is no scripts/gone.sh
README.md:3: llmq quantize has no --dry
README.md:5: 101 columns; there is room for 100
README.md:7: 161 columns; there is room for 160
README.md:12: no recipe key is called a.c
README.md:13: llmq quantize has no --sets
README.md:15: 'quantise' is no command of llmq
README.md:16: --set of llmq quantize has no value
README.md:18: llmq quantize has no --dri-run
README.md:19: no recipe key is called a.d
README.md:23: llmq has no --jsn
README.md:28: a command behind a list is prose: put it between fences
@/adr/0003-long.md:81: 81 lines; a decision has 80 at most
scripts/run.sh:1: there is no @/gone.md
"""


def main():
    checker = Path(sys.argv[1]) / "scripts" / "check_documents.py"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in {
            "README.md": README,
            "@/reference/recipe.md": "| `a.b` | text |\n",
            "@/page.md": "# Page\n\n## Two words\n",
            "@/adr/0001-first.md": "# First\n" + "-\n" * 79,
            "@/adr/0003-long.md": "# Long\n" + "-\n" * 80,
            "scripts/run.sh": "# @/gone.md, @/page.md, ggml's @/other.md\n",
            "build/README.md": "x" * 200 + "\n",
            "program": PROGRAM,
        }.items():
            path = root / name.replace("@/", "docs/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("@/", "docs/"), encoding="utf-8")
        (root / "program").chmod(0o755)
        command = [sys.executable, checker, root / "program", "--root", root]
        done = subprocess.run(command, capture_output=True, text=True)
    expected = sorted(EXPECTED.replace("@/", "docs/").splitlines())
    said = sorted(done.stdout.splitlines()[:-1])
    for line in sorted(set(said) ^ set(expected)):
        print(("not said: " if line in expected else "said: ") + line)
    print(done.stderr, end="")
    return 0 if said == expected and done.returncode == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
