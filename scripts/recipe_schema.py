"""What a key of a recipe takes, as JSON Schema, found by asking the program.

A value is written into a recipe file and the program refuses it, or does not: what it says of a word, of
a number far away, of a list and of a mapping is what the key takes. Nothing is started: the model that is
named beside the recipe does not exist, and that is only found when the recipe was read.
"""
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FAR, FARTHER = "-999999999999", "-1e300"  # below every range of whole numbers, and of numbers
NOTE = ("What a recipe of llmq's own form holds, read as YAML. Written by scripts/make_reference.py; a test fails when it is "
        "stale. Recipes of llm-compressor are read too, and have another form.")
FEW = 32  # so many whole numbers are asked for one by one


class Asker:
    """Takes recipes as text and says why the program refuses them."""

    def __init__(self, program):
        self.program = program
        self.folder = tempfile.TemporaryDirectory()
        self.file = Path(self.folder.name) / "recipe.yaml"

    def refusal(self, text):
        """The program's words without file and place; nothing where it takes the recipe."""
        self.file.write_text(text, encoding="utf-8")
        words = "quantize --method rtn --model /none --output /none --recipe".split()
        done = subprocess.run([self.program, *words, self.file], capture_output=True, text=True)
        said = re.match(rf"llmq: {re.escape(str(self.file))}: (?:\d+:\d+: )?(.*)", done.stderr)
        return said.group(1) if said else ""


def number(text):
    value = float(text)
    return int(text) if re.fullmatch(r"-?\d+", text) else int(value) if value.is_integer() else value


def bounds(said):
    found = re.search(r"from (\S+) to (\S+)", said)
    return {"minimum": number(found.group(1)), "maximum": number(found.group(2))} if found else {}


def whole_number(ask):
    known = re.search(r"this llmq reads version: (\d+)", ask(FAR))
    if known:
        return {"const": int(known.group(1))}
    form = {"type": "integer", **bounds(ask(FAR))}
    if form.get("maximum", FEW + 1) - form.get("minimum", 0) <= FEW:
        taken = [value for value in range(form["minimum"], form["maximum"] + 1) if not ask(str(value))]
        if len(taken) <= form["maximum"] - form["minimum"]:
            return {"enum": taken}
    return form


def one_value(ask):
    """What a key takes that is neither a list nor a mapping; None where it takes none."""
    said = ask("no_such_word")
    words, one_of = re.search(r"write one of (.*)$", said), re.search(r"expected ((?:\w+, )*\w+ or \w+), found", said)
    if not said:
        return {"type": "string"}
    if words:
        return {"enum": words.group(1).split(", ")}
    if one_of:
        listed = re.split(r", | or ", one_of.group(1))
        truths = {"true": True, "false": False}
        return {"type": "boolean"} if set(listed) == set(truths) else {"enum": [truths.get(word, word) for word in listed]}
    if "expected a whole number" in said:
        return whole_number(ask)
    if "expected a number" in said:
        return {"type": "number", **bounds(ask(FARTHER))}
    example = re.search(r"as in ([\w./-]+)", said)
    return {"type": "string", "examples": [example.group(1)]} if example else None


def sample(form):
    """Values of one form that the program takes, as YAML, all different."""
    if "enum" in form:
        return [str(value) for value in form["enum"]]
    return form.get("examples", ["a", "b"]) if form.get("type") == "string" else []


def a_list(ask, path, describe):
    if "found a list" in ask("[no_such_word]"):
        return None
    empty = ask("[]")
    item = describe(lambda value: "" if ask(f"[{value}]") == empty else ask(f"[{value}]"), path)
    values = sample(item)
    enough = [count for count in range(len(values)) if not ask("[" + ", ".join(values[:count]) + "]")]
    return {"type": "array", "items": item, **({"minItems": enough[0]} if enough and enough[0] else {})}


def a_mapping(ask, path, describe):
    known = re.search(r"known here are (.*)$", ask("{no_such_key: 1}"))
    if not known:
        return None
    names = known.group(1).split(", ")
    lacks = re.compile(rf"lacks '({'|'.join(names)})'")  # said when every value that is there was taken

    def alone(key):
        def ask_below(value):
            said = ask(f"{{{key}: {value}}}")
            return "" if lacks.search(said) else said

        return ask_below

    below = {key: describe(alone(key), f"{path}.{key}" if path else key) for key in names}
    form, needed, written = {"type": "object"}, [], []
    while lacking := lacks.search(ask("{" + ", ".join(written) + "}")):
        needed.append(lacking.group(1))
        forms = below[needed[-1]].get("anyOf", [below[needed[-1]]])
        written.append(f"{needed[-1]}: " + next(value for one in forms for value in sample(one)))
    if needed:
        form["required"] = needed
    return {**form, "additionalProperties": False, "properties": below}


def schema_text(schema, room=100, indent=""):
    """A schema as JSON: on one line what fits into `room` columns."""
    line = json.dumps(schema, ensure_ascii=False)
    if len(indent) + len(line) <= room or not isinstance(schema, (dict, list)):
        return line + ("" if indent else "\n")
    inner, is_object = indent + "  ", isinstance(schema, dict)
    parts = schema.items() if is_object else enumerate(schema)
    lines = []
    for key, value in parts:
        name = json.dumps(key, ensure_ascii=False) + ": " if is_object else ""
        text = schema_text(value, room - 1, inner + " " * len(name))  # a comma may follow
        if text.startswith(("{\n", "[\n")):
            text = schema_text(value, room - 1, inner)
        lines.append(inner + name + text)
    begin, end = "{}" if is_object else "[]"
    return begin + "\n" + ",\n".join(lines) + "\n" + indent + end + ("" if indent else "\n")


def explained(form, path, meanings, defaults, used):
    """The form with a description and what holds when it is left out, for each key; `used` collects the keys."""
    for one in [form, *form.get("anyOf", [])]:
        for key, below in one.get("properties", {}).items():
            place = f"{path}.{key}" if path else key
            used.add(place)
            default = {"default": defaults[place]} if place in defaults else {}
            if place in ("overrides.scheme", "vision"):
                below = {"$ref": "#/properties/scheme"}
            if place == "mixed.schemes":
                below["items"] = {"$ref": "#/properties/scheme"}
            one["properties"][key] = {"description": meanings[place], **explained(below, place, meanings, defaults, used), **default}
        if "items" in one:
            explained(one["items"], path, meanings, defaults, used)
    return form


def recipe_schema(program, meanings, defaults):
    """The schema of a recipe. `meanings`: of each dotted key; `defaults`: what holds where one is left out.

    A key without a meaning and a meaning without a key are faults.
    """
    asker, used = Asker(program), set()

    def describe(ask, path):
        forms = [form for form in (one_value(ask), a_list(ask, path, describe), a_mapping(ask, path, describe)) if form]
        default = defaults.get(path)
        if isinstance(default, str) and forms[0].get("type") == "number" and not ask(default):
            forms.insert(1, {"const": default})
        return forms[0] if len(forms) == 1 else {"anyOf": forms}

    schema = explained(a_mapping(asker.refusal, "", describe), "", meanings, defaults, used)
    if set(meanings) - used:
        sys.exit(f"these have a meaning and are no keys: {', '.join(sorted(set(meanings) - used))}")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Recipe of llmq quantize", "description": NOTE, **schema}
