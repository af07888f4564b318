"""Takes llm-compressor's own recipes and the fields of its modifiers out of its source archive, as they are, for the tests of
src/quant/recipe/llmcompressor_recipe.cpp.

    make_llmcompressor_recipes.py LLMCOMPRESSOR_DIR COMPRESSED_TENSORS_DIR OUT

LLMCOMPRESSOR_DIR: `pip download --no-deps --no-binary :all: llmcompressor==0.14.0.1`, unpacked; COMPRESSED_TENSORS_DIR: the wheel of
compressed-tensors 0.19.0, unpacked. Nothing of either is imported. OUT gets recipes.txt, in which a line "# == PATH" is before each recipe, and
fields.txt: "Class", and "Class field" for each field, one a line.

Recipes: the YAML files of its tests, the YAML texts within its Python examples, and the modifiers that its examples make in Python, written as YAML.
Of examples that differ in what they ignore alone the first is taken; those whose arguments are computed are left out.
"""
import ast
import json
import re
import sys
from pathlib import Path

MODIFIERS = "Modifier QuantizationMixin SparsityModifierBase".split()
ARGUMENTS = {"QuantizationArgs": "quant_args.py", "QuantizationScheme": "quant_scheme.py"}
POSITIONAL = {"AWQMapping": ("smooth_layer", "balance_layers")}


def called(node):
    return getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""


def value(node):
    """What an argument is, written out; ValueError where it is computed."""
    name = called(node)
    if name in ARGUMENTS or name in POSITIONAL:
        given = dict(zip(POSITIONAL.get(name, ()), map(value, node.args)))
        if any(one.arg is None for one in node.keywords):
            raise ValueError(name)
        return {**given, **{one.arg: value(one.value) for one in node.keywords}}
    if isinstance(node, ast.Dict):
        return {ast.literal_eval(key): value(one) for key, one in zip(node.keys, node.values)}
    if isinstance(node, (ast.List, ast.Tuple)):
        return [value(one) for one in node.elts]
    return ast.literal_eval(node)


def modifiers_of(node):
    """{name: arguments} of a modifier that is made, or of a list of them; None where it is something else."""
    calls = node.elts if isinstance(node, ast.List) else [node]
    if not calls or not all(called(one).endswith("Modifier") for one in calls):
        return None
    try:
        return {called(one): {k.arg: value(k.value) for k in one.keywords} for one in calls}
    except (ValueError, TypeError):
        return None


def in_python(path):
    """(line, YAML) of each recipe of an example."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Assign):
            continue
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) and "_modifiers:" in node.value.value:
            yield node.lineno, node.value.value.strip("\n") + "\n"
        elif made := modifiers_of(node.value):
            yield node.lineno, f"default_stage: {{default_modifiers: {json.dumps(made)}}}\n"


def recipes(root):
    seen = set()
    for path in sorted(root.glob("tests/**/*.yaml")):
        if "recipe" in str(path.relative_to(root)):
            text = path.read_text(encoding="utf-8")
            yield path.relative_to(root), "\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n"
    for path in sorted(root.glob("examples/**/*.py")):
        if not path.is_file() or "/." in str(path):
            continue
        for line, text in in_python(path):
            alike = re.sub(r'"?ignore"?: \[[^\]]*\]', "", text)
            if alike not in seen:
                seen.add(alike)
                yield f"{path.relative_to(root)}:{line}", text


def fields_of(path, wanted):
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and wanted(node.name):
            yield f"{node.name}\n"
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and not line.target.id.startswith("_") and not line.target.id.endswith("_"):
                    if line.target.id != "model_config":
                        yield f"{node.name} {line.target.id}\n"


def main():
    root, arguments, out = map(Path, sys.argv[1:])
    with open(out / "recipes.txt", "w", encoding="utf-8") as file:
        for origin, text in recipes(root):
            file.write(f"# == {origin}\n{text}")
    with open(out / "fields.txt", "w", encoding="utf-8") as file:
        for path in sorted(root.glob("src/llmcompressor/modifiers/**/*.py")):
            file.writelines(fields_of(path, lambda name: any(name.endswith(end) for end in MODIFIERS)))
        for name, place in ARGUMENTS.items():
            file.writelines(fields_of(arguments / "compressed_tensors" / "quantization" / place, name.__eq__))


if __name__ == "__main__":
    main()
