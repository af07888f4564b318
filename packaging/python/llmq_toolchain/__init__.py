"""llmq, installed by pip: the program as it was built, and one way to call it from Python.

    import llmq_toolchain
    done = llmq_toolchain.run("quantize", "--method", "awq", "--model", "MODEL", "--output", "out/mine")
    done["digest"], done["bits_per_weight"]

What the words mean, and what the documents hold, is the program's: `llmq COMMAND --help`, and the JSON
Schemas of docs/reference/schemas.
"""
import json
import os
import subprocess
import sys

__all__ = ["Failed", "main", "program", "run"]

program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "llmq")


class Failed(Exception):
    """The program left with another exit code than 0.

    exit_code: 1 failed, 2 the usage or an input, 3 a gate was not met, negative: the signal that ended it.
    document:  what it printed: an llmq.error/1, with 3 the command's own document, None where nothing came.
    """

    def __init__(self, words, exit_code, document):
        said = (document or {}).get("message", "")
        super().__init__(f"{' '.join(words)} left with {exit_code}" + (f": {said}" if said else ""))
        self.exit_code = exit_code
        self.document = document


def run(*words):
    """Runs `llmq WORDS --json` and returns the document that it prints; raises Failed where the exit code is not 0.

    Words are texts, paths or numbers. Progress and warnings go to this process' stderr (--quiet silences them).
    """
    words = ["llmq", *(os.fspath(word) if isinstance(word, os.PathLike) else str(word) for word in words), "--json"]
    done = subprocess.run(words, executable=program, stdout=subprocess.PIPE)
    document = json.loads(done.stdout) if done.stdout.strip() else None
    if done.returncode != 0:
        raise Failed(words, done.returncode, document)
    return document


def main():
    """The command `llmq`: gives this process over to the program, so that exit codes and signals are its own."""
    try:
        os.execv(program, ["llmq", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"llmq: {program} cannot be started ({error.strerror}); install llmq-toolchain anew, without --editable")
