"""Which sources of a batch may hold copies of another's functions: what the compiler may have inlined, or known the registers of.

A source is compiled as one with its neighbours, so a function may lie copied in what calls it there, and there only. Those that may hold a copy are
found by words: what calls a function names it, and for a member it includes a header that names the class; what makes or destroys an object may name
neither, but includes such a header. And so on for what those define. More may be found than hold one, which costs a compilation and nothing else. A
call hidden in a header's inline function would not be found.
"""
import os
import re
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@lru_cache(maxsize=None)
def text_of(file):
    return (ROOT / file).read_text()


@lru_cache(maxsize=None)
def words_of(file):
    return frozenset(re.findall(r"\w+", text_of(file)))


@lru_cache(maxsize=None)
def included_words(source):
    """The words of every header of ours that it includes, through others too"""
    seen = [source]
    for file in seen:
        for name in re.findall(r'^#\s*include "(.+)"', text_of(file), re.M):
            places = (os.path.normpath(place) for place in (f"src/{name}", name, f"{os.path.dirname(file)}/{name}", f"tests/{name}"))
            header = next((place for place in places if (ROOT / place).exists()), None)
            if header and header not in seen:
                seen.append(header)
    return frozenset().union(*(words_of(header) for header in seen[1:]))


def defined_by(source, symbols):
    """(class or "", name) of each function and constant that others may use, of the batch whose `nm -C` is given: those whose definition begins a line"""
    signatures = re.findall(r"^\S* [TRDB] (?:.*?[ *&])??((?:\w+::)*~?\w[^(\[]*)", symbols, re.M)
    names = {word for signature in signatures for word in re.findall(r"\w+", signature)}
    lines = "\n".join(re.findall(r"^[A-Za-z].*", text_of(source), re.M))
    return {(kind, name) for kind, name in re.findall(r"(?:\b(\w+)::)?(?<!\w)~?(\w+)(?=\(| =|\[|\{)", lines) if name in names}


def may_hold(other, definitions):
    own, included = words_of(other), included_words(other)
    for kind, name in definitions:
        if name == "operator" or name == kind and name in own | included:
            return True
        if name in own and (not kind or kind in own | included):
            return True
    return False


def holders(sources, batch, symbols):
    """`sources` and the others of `batch` that may hold copies of what these define, or of what they define themselves"""
    found = list(sources)
    for member in found:
        definitions = defined_by(member, symbols)
        if re.search(r"^[A-Za-z].*\boperator\W", text_of(member), re.M):
            definitions.add(("", "operator"))  # which needs no word
        found += [other for other in batch if other not in found and may_hold(other, definitions)]
    return [source for source in batch if source in found]
