#!/usr/bin/env python3
"""Writes commands.md, recipe.md and schemas/recipe.json of docs/reference from what the program says of itself.

    make_reference.py PROGRAM            writes all three
    make_reference.py PROGRAM --check    leaves with 1 where one of them is stale

Commands and flags are those of `PROGRAM --help` and `PROGRAM COMMAND --help`. Keys of recipes are those
that the program lists when it refuses an unknown one; what a key takes is what it says when it refuses a
value (recipe_schema.py), and what it is when left out is read from the report of a run on the small model
of the tests. What a key is for is said below, in MEANINGS, and a key without a meaning or a meaning
without a key is a fault.
"""
import json
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from recipe_schema import recipe_schema, schema_text

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
MODEL = ROOT / "tests" / "models" / "tinystories-656k"
WIDTH, COLUMN = 100, 30  # of a document; where a description begins in the program's help
NOTE = "Written by `scripts/make_reference.py`; a test fails when it is stale. Do not edit it."
MEANINGS = {
    "version": "version of this form of recipes",
    "model": "what is quantized: a directory, a `.gguf` file or a hub name",
    "adapter": "directory of a LoRA that is folded into the model first, as `llmq merge` would; left out: none",
    "output": "directory or `.gguf` file to write; or a mapping of the three keys below",
    "output.dir": "the directory",
    "output.versioned": "a directory for each version below it, and the link `latest`",
    "output.keep": "versions that are kept; left out: all",
    "shard_bytes": "most bytes of a shard of the output, or of each file of a GGUF; left out: 5000000000, and one file",
    "method": "one method, or a list that is applied in order",
    "scheme": "what the bits of a weight mean; left out: 4 bits, inputs as they are; of a GGUF `q4_k_m`",
    "format": "how codes lie in files",
    "calibration.text": "`builtin:c4`, `builtin:code`, `builtin:technical` or files; one or a list",
    "calibration.samples": "samples",
    "calibration.sequence_length": "tokens of a sample",
    "calibration.seed": "of the draw of samples",
    "calibration.shuffle": "draw samples from all of the text, not from its beginning",
    "calibration.chat_template": "lines with `messages` are read as chats, by the model's template",
    "rotate.value": "`hadamard`: the channels of each head are rotated between values and `o_proj`, in the weights (R2)",
    "kv_cache.dtype": "calibrate scales of keys and values, and write them",
    "ignore": "linears that are left dense: names or `re:` patterns",
    "overrides": "a list of `{match, scheme}`: another scheme for the linears that match, of any form; of a GGUF another type",
    "vision": "round the vision tower beside a decoder, too: `w8a16`; left out: it stays as it is",
    "target_bits": "mixed precision: stored bits per weight that may be spent",
    "mixed.bits": "candidates; 16 is left dense; left out: 4, 8 and 16, as far as the format mixes them",
    "mixed.schemes": "whole schemes as candidates, in place of `mixed.bits` and `scheme`; `dense` is left dense",
    "mixed.samples": "samples of the measuring pass",
    "awq.grid": "steps of the scale search",
    "awq.duo_scaling": "whether scales depend on weights beside activations",
    "awq.clip": "search clipping ranges, too",
    "awq.salient_fp16": "share of input channels that stay as they are; for comparison",
    "awq.loss": "the one loss that there is",
    "gptq.damp": "what is added to the Gram matrix's diagonal, of its mean",
    "gptq.order": "in which order columns are rounded",
    "gptq.scale_search": "how a group's scale is chosen",
    "gptq.full_range": "symmetric: scales of either sign",
    "gptq.refit_scales": "fit scales again, codes as they are",
    "gptq.retry_scales": "round groups again under scales around their own",
    "gptq.descent_sweeps": "sweeps over the codes, one by one; left out: 2 behind a fold, else 1",
    "gptq.upstream_share": "share of the upstream error that is taken back; left out: 0.5 behind AWQ, else 0",
    "floats.scales": "scales of weights of `nvfp4`, `mxfp4`, `mxfp8`: what loses least, or compressed-tensors' own",
    "gguf.importance": "`none`, `calibration` or a file; left out: by the method",
    "gguf.search": "scales of blocks: llama.cpp's search or a wider one; left out: by the method",
    "gguf.imatrix_out": "where the importance of the calibration text is written",
    "smoothquant.alpha": "one exponent for all inputs; `search`: the scales that lose least",
    "activations.range": "what a calibrated scale of inputs covers",
    "activations.percentile": "with `range: percentile`: the share of values that it covers",
    "portable": "the same bytes on every processor with AVX2",
    "evaluate.text": "what is scored when the output is written; left out: `builtin:wikitext-2`",
    "evaluate.max_ppl": "gate: largest perplexity",
    "evaluate.max_delta_ppl": "gate: largest change of perplexity",
    "evaluate.max_kl": "gate: largest KL divergence",
    "evaluate.max_windows": "windows that are scored; 0: all",
    "base_model": "into the model card: hub name of the original; left out: of a model in the hub's cache",
    "license": "into the model card: the hub's identifier; left out: the model's own, where its files are sure",
    "datasets": "into the model card: hub names of the calibration text; left out: those of `builtin:` texts",
    "quantized_by": "into the model card: who quantized",
}
# Of keys of which others are nested, and of those within a scheme or an override: they stand in the schema.
MEANINGS_OF_PARTS = {
    "calibration": "text that the model reads while it is quantized",
    "rotate": "changes of basis that go into the weights before they are rounded",
    "kv_cache": "scales of keys and values",
    "mixed": "what `target_bits` chooses from",
    "awq": "options of `awq`",
    "gptq": "options of `gptq`",
    "floats": "options of floats in groups",
    "gguf": "options of the format `gguf`",
    "smoothquant": "options of `smoothquant`",
    "activations": "scales of 8-bit inputs that are found by calibration",
    "evaluate": "score the output, and the original beside it; `{}`: with defaults",
    "overrides.match": "name of a linear, or a `re:` pattern",
    "overrides.scheme": "scheme of the linears that match, in a GGUF a type such as `q6_k`; `dense` leaves them as they are",
    "scheme.weights": "codes of weights",
    "scheme.weights.bits": "bits of a code",
    "scheme.weights.group_size": "weights of a row that share a scale; left out: by the method and the format",
    "scheme.weights.symmetric": "without zero points",
    "scheme.activations": "inputs of the linears",
    "scheme.activations.bits": "bits of an input; 16: as it is",
    "scheme.activations.dynamic": "scales of inputs are found while the model runs, not by calibration",
}


def ask(program, *words):
    return subprocess.run([program, *words], capture_output=True, text=True, cwd=ROOT)


def help_of(program, *command):
    done = ask(program, *command, "--help")
    if done.returncode:
        sys.exit(f"{program} {' '.join(command)} --help: {done.stderr.strip()}")
    return done.stdout


def wrapped(text, first="", rest=""):
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False,
                         break_on_hyphens=False)


def code_spans(text):
    """Flags and hub-like names stay words; what Markdown would read as markup is put into a code span."""
    return re.sub(r"(?<![`\w])(--[a-z][\w-]*|[^\s(`]*[<>_*][^\s),;`]*)", r"`\1`", text)


def options(lines):
    """(words, description) of each option or argument of a section of help."""
    found = []
    for line in lines:
        if re.match(r"  \S", line):
            head = line[:COLUMN]  # words that are too long for it stand alone, and may have a space there
            fits = len(line) > COLUMN and head[-1] == " " and head.count("[") == head.count("]")
            words, about = (line[:COLUMN], line[COLUMN:]) if fits else (line, "")
            found.append([words.strip(), about.strip()])
        elif found:
            found[-1][1] = (found[-1][1] + " " + line.strip()).strip()
    return found


def option_lines(line):
    words, about = line
    words = re.sub(r":INT in \[(\S+) - (\S+)\]", r" (\1 to \2)", words)
    words = re.sub(r" ?:\{([^}]*)\}", lambda m: " (" + m.group(1).replace(",", ", ") + ")", words)
    words = words.replace(",--", ", --").replace(" ...", "")
    flags, _, bounds = words.partition(" (")
    more = f" ({bounds}" if bounds else ""
    return wrapped(f"`{flags}`{more}: {code_spans(about)}", "- ", "  ")


def command_lines(line):
    """An example, continued by a backslash where it is too long."""
    lines, words = [], re.split(r" (?=--)", line.strip())
    for word in words:
        if lines and len(lines[-1]) + len(word) + 3 <= WIDTH:
            lines[-1] += " " + word
        else:
            lines.append(("    " if lines else "") + word)
    return [one + (" \\" if one is not lines[-1] else "") for one in lines]


def sections(text):
    """What stands before the first title, and the lines of each titled section."""
    found, title = {"": []}, ""
    for line in text.splitlines():
        if re.match(r"[A-Z][\w ]*:$", line):
            title = line[:-1]
            found[title] = []
        else:
            found[title].append(line)
    return found


def command_page(program, name, summary):
    parts = sections(help_of(program, name))
    usage = next(line for line in parts[""] if line.startswith("Usage: "))
    page = [f"## llmq {name}", "", *wrapped(summary + "."), "", "    " + usage[len("Usage: "):].strip(), ""]
    for title, lines in parts.items():
        listed = [one for one in options(lines) if not one[0].startswith("-h,")]
        if title not in ("", "Examples") and listed:
            page += [f"{title}:", ""] if title != "Options" or "Arguments" in parts else []
            for one in listed:
                page += option_lines(one)
            page.append("")
    examples = [line for line in parts.get("Examples", []) if line.startswith("  ")]
    if examples:
        page += ["```sh", *[one for line in examples for one in command_lines(line)], "```", ""]
    return page


def commands_document(program):
    parts = sections(help_of(program))
    page = ["# The command line", "", NOTE, ""]
    page += ["Every command takes the flags of the first section, and refuses `--memory-limit` where none is kept.", "", "## Everywhere", ""]
    for one in options(parts["Everywhere"]):
        page += option_lines(one)
    page.append("")
    for name, summary in options([line for line in parts["Commands"] if line.startswith("  ")]):
        page += command_page(program, name, summary)
    return "\n".join(page).rstrip() + "\n"


def refusal(program, assignment):
    """What the program says against KEY=VALUE, without the key; nothing where it takes it."""
    done = ask(program, "quantize", *"--method rtn --model /none --output /none --set".split(), assignment)
    said = re.match(r"llmq: --set(?: \S+)?: (?:1:1: )?(.*)", done.stderr)
    return said.group(1) if said else ""


def keys_below(program, prefix):
    said = refusal(program, f"{prefix}no_such_key=1")
    return re.search(r"there (?:is|are) (.*)$", said).group(1).split(", ")


def recipe_keys(program):
    """Keys in the program's order; a key that is a mapping, too, comes before those below it."""
    first = keys_below(program, "")
    for key in first:
        below = keys_below(program, key + ".")
        if below == first:
            yield key
        else:
            if not refusal(program, f"{key}=some_text"):
                yield key
            yield from (f"{key}.{one}" for one in below)


def form_at(schema, key):
    """What a dotted key takes, in the schema of recipes."""
    for word in key.split("."):
        mapping = next(form for form in [schema, *schema.get("anyOf", [])] if "properties" in form)
        schema = mapping["properties"][word]
    return schema


def words_of(form):
    """What a key takes, in words: of several forms the first, and single words beside it."""
    form, *others = form.get("anyOf", [form])
    if words := [f"`{other['const']}`" for other in others if "const" in other]:
        return ", or ".join([words_of(form), *words])
    if "$ref" in form:
        return "a scheme ([words](../terms.md#schemes))"
    if "const" in form:
        return str(form["const"])
    if form.get("type") == "boolean":
        return "`true`, `false`"
    if "enum" in form:
        return ", ".join(f"`{json.dumps(word).strip(chr(34))}`" for word in form["enum"])
    if "minimum" in form:
        return f"{form['minimum']} to {form['maximum']}"
    if form["type"] == "array":
        return "a list"
    example = form.get("examples", [""])[0]
    if example.startswith("w4a16"):
        return "a scheme ([words](../terms.md#schemes))"
    return f"text, as `{example}`" if example else "text"


def defaults(program):
    """The recipe of a run that was told nothing but what it must be told."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out"
        done = ask(program, *"quantize --quiet --method rtn --model".split(), MODEL, "--output", output)
        if done.returncode:
            sys.exit(done.stderr.strip())
        return json.loads((output / "report.json").read_text(encoding="utf-8"))["recipe"]


def default_of(recipe, key):
    """What holds when a key is left out; None where nothing does."""
    if key in ("version", "model", "output", "method", "output.dir"):
        return None
    value = recipe
    for word in key.split("."):
        value = value.get(word) if isinstance(value, dict) else None
    return None if value in ("", []) else value


def default_words(value):
    if value is None:
        return ""
    return "`" + (value if isinstance(value, str) else json.dumps(value)) + "`"


def recipe_documents(program):
    """The page of keys, and the schema."""
    keys, recipe = list(recipe_keys(program)), defaults(program)
    strange = sorted(set(keys).symmetric_difference(MEANINGS))
    if strange:
        sys.exit(f"MEANINGS and the program's keys differ: {', '.join(strange)}")
    values = {key: value for key in keys if (value := default_of(recipe, key)) is not None}
    schema = recipe_schema(program, {**MEANINGS, **MEANINGS_OF_PARTS}, values)
    page = ["# Recipes: every key", "", NOTE, ""]
    page += wrapped(
        "A recipe is YAML: `version: 1` and the keys below, nested at their points. `--set KEY=VALUE` "
        "changes one of them. A key that is not known is refused, and so is a value out of range. Recipes of "
        "llm-compressor are read as they are. What holds when a key is left out stands in the third column; "
        "where that is empty, nothing does, or it depends on the method or the model. An editor that takes "
        "[schemas/recipe.json](schemas/recipe.json) checks a recipe while it is written."
    )
    page += ["", "| key | takes | left out | what it is |", "|---|---|---|---|"]
    for key in keys:
        takes, left_out = words_of(form_at(schema, key)), default_words(values.get(key))
        page.append(f"| `{key}` | {takes} | {left_out} | {MEANINGS[key]} |")
    return "\n".join(page) + "\n", schema_text(schema)


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--check"]) or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    program, stale = str(Path(sys.argv[1]).resolve()), []
    page, schema = recipe_documents(program)
    written = {"commands.md": commands_document(program), "recipe.md": page, "schemas/recipe.json": schema}
    for name, text in written.items():
        path = FOLDER / name
        if len(sys.argv) == 2:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    for name in stale:
        print(f"docs/reference/{name} is stale: run scripts/make_reference.py PROGRAM")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
