"""Chats as `llmq_chat` renders them against Transformers' apply_chat_template: the committed templates, those of --templates,
and short expressions on which the two could differ.

    chat_check.py LLMQ_CHAT WORK [--templates DIR]...
"""
import argparse, importlib.util, json, os, subprocess

import peer

GOLDEN = os.path.join(peer.ROOT, "tests", "golden", "chat")

EXPRESSIONS = """
1 + 2 * 3 - 4 // 3 % 5 ** 2 | -7 // 2 | -7 % 3 | 7 / 2 | 2 ** 10 | 2 ** -1 | 1e20 | 1.5e-7 | 0.1 + 0.2 | 100000.0 * 1e11 | -0.0 | 7.0 // 2 | -7.5 % 2 | 1_000 | 0x1f | 3 . 0 | not 1 == 2
'a' ~ 1 ~ none ~ true ~ 1.0 | 'ab' * 3 | [1, 2] * 2 | (1,) + (2, 3) | 'x' in 'axb' | 3 in [1, 2.0, 3.0] | 'k' in {'k': 1} | none in [none] | 1 < 2 < 3 | 1 < 2 > 5 | 'a' < 'b' | [1, 2] < [1, 3]
[1, 'a', none, true, 1.5, {'k': (1,), 'l': []}, 'it\\'s', "q\\"'", '\\n\\t\\x07é\\u200b🦙'] | {'a': 1, 'b': {'c': [1]}} | (1, 2) | () | {}
'abc'[0] | 'abc'[-1] | 'abc'[9] | 'aéz'[1] | 'abcdef'[1:-1] | 'abcdef'[::-1] | 'abcdef'[4:1:-2] | [1, 2, 3][1:] | [1, 2, 3][-2:] | [1, 2, 3][:-5:-1] | [1, 2, 3][5:] | (1, 2, 3)[:2] | 'abc'[-9:9:2]
'  a b '.strip() ~ '|' | 'xxaxx'.strip('x') | '\\u2003a\\u00a0'.strip() ~ '|' | 'a,b,,c'.split(',') | ' a  b '.split() | 'a b c'.split(' ', 1) | 'a b c'.rsplit(' ', 1) | ' a b  c '.split(none, 1) | ' a b  c '.rsplit(none, 1) | 'a\\nb\\r\\nc'.splitlines()
'aXbX'.replace('X', 'yy') | 'aaa'.replace('a', 'b', 2) | 'abc'.replace('', '-') | 'abc'.replace('', '-', 2) | 'hello wORLD'.title() | 'hello wORLD'.capitalize() | 'straSSe éÀ'.upper() | 'ÀÉ'.lower() | "they're".title() | 'abcabc'.find('ca') | 'abcabc'.rfind('b') | 'aéa'.find('a', ) | 'abcabc'.count('b') | 'x'.join(['a', 'b'])
'abc'.startswith('ab') | 'abc'.endswith(('x', 'bc')) | '12'.isdigit() | ''.isdigit() | 'aB'.isalpha() | ' \\t'.isspace() | 'AB1'.isupper() | 'ab'.islower() | 'abc'.removeprefix('ab') | '{} {1}'.format(1) is defined | '{} and {}'.format('a', 2) | '{0}{x}{{}}'.format('a', x=3)
{'a': 1}.get('a') | {'a': 1}.get('b') | {'a': 1}.get('b', 2) | {'a': 1}.items() | list | {'a': 1, 'b': 2}.keys() | list | {'a': 1}.values() | list | [1, 2, 1].count(1) | [1, 2].index(2) | {'items': 3}.items is callable | {'items': 3}['items']
' a ' | trim ~ '|' | 'xay' | trim('xy') | 'abc' | length | [1, 2] | length | {'a': 1} | count | x | default('d') | '' | default('d') | '' | default('d', true) | none | d(1) | [1, 'a'] | join(', ') | [{'a': 1}, {'a': 2}] | join('-', attribute='a') | [3, 1] | first | [3, 1] | last | [] | first is defined | 'ab' | list
'AbC' | upper | 'AbC' | lower | 'aB c' | capitalize | [3, 1, 2] | sort | ['b', 'A', 'c'] | sort | ['b', 'A'] | sort(case_sensitive=true) | [3, 1] | sort(reverse=true) | [{'n': 2}, {'n': 1}] | sort(attribute='n') | [1, 2, 1, 'a', 'A'] | unique | list | [3, 1, 2] | max | [3, 1, 2] | min | [1, 2] | sum | [{'v': 2}] | sum(attribute='v') | 'abc' | reverse | [1, 2] | reverse | list
'12' | int | 'x' | int | 'x' | int(5) | '1.9' | int | 1.9 | int | -1.9 | int | '1.5' | float | 'x' | float | -3 | abs | '%s-%d' | format('a', 3) | '%s' % 'b' | '%s %s' % (1, 'x') | 'a\\nb\\n\\nc' | indent | 'a\\nb' | indent(2, true) | 'a\\n\\nb\\n' | indent('> ', blank=true)
{'b': 1, 'A': 2} | dictsort | {'b': 1, 'a': 2} | dictsort(by='value') | {'b': 1} | items | list | ['a', 'B'] | map('upper') | list | [{'a': {'b': 1}}, {}] | map(attribute='a.b', default=0) | list | [1, 0, 2] | select | list | [1, 2, 3] | select('odd') | list | [1, 2, 3] | reject('gt', 1) | list | [{'a': 1}, {'a': 0}, {}] | selectattr('a') | list | [{'a': 1}, {'a': 2}] | selectattr('a', 'equalto', 2) | list | [{'a': 1}, {}] | rejectattr('a', 'defined') | list
{'a': [1, 2.0, 1e22, true, none, "é\\n\\"\\\\\\u0001\\u007f"], 'b': {}} | tojson | {'a': [1, {'b': []}], 'c': {}} | tojson(indent=2) | [1, {'z': 1, 'y': 2}] | tojson(separators=(',', ':'), sort_keys=true) | 'é🦙\\u007f' | tojson(ensure_ascii=true) | 'abc' | string | [1] | string | '<a>' | safe
x is defined | x is undefined | none is none | 'a' is string | 1 is number | true is number | 1.0 is float | 1 is integer | true is integer | true is boolean | {} is mapping | [] is sequence | 'a' is iterable | 1 is iterable | {} is sequence | x is iterable | 4 is even | 3 is odd | 6 is divisibleby 3 | 6 is divisibleby(4) | 1 is eq 1 | 1 is ne 2 | 1 is in [1] | true is sameas true | 1 is true | 'AB' is upper | 'a' is lower | 1 is not none | range is callable | not x is defined | 2 is gt 1
range(5) | list | range(2, 8, 3) | list | range(5, 0, -2) | list | dict(a=1, b=2) | namespace(a=1).a | namespace({'q': 4}).q | 'a' if true else 'b' | 'a' if false | (1 if x is defined else 2) + 1 | 1 if 0 else 2 if 0 else 3 | x == y | x ~ '!' | strftime_now('%d %b %Y %H:%M:%S %% %A') | true and 'a' or 'b' | 0 or none | 'a' and '' | -2 ** 2 | - 3 | abs | +true | true + true
x.y | x + 1 | 1 + 'a' | none.a is defined | none[0] is defined | 1.5.a is defined | none | length | [] + () | {'a': 1}.b.c | 'a' < 1 | nothing() | 'a'() | raise_exception('no') | range(100001) | [1, 2].append(3) | {}.update({}) | 1 // 0 | 1 % 0 | '%d' % 'a' | 1 in 'a' | none in 'a' | [][0] ~ '!' | x in 'abc' | 'a' in x | ['a'] is in x | 'é'.encode | {'a': 1}.__class__ is defined | ''.join([1]) | ','.join('abc')
"""

STATEMENTS = [
    "{% for i in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% endfor %}",
    "{% for i in [1, 2, 3, 4] if i % 2 == 0 %}{{ loop.length }}{{ i }}{% else %}none{% endfor %}{% for i in [] %}{% else %}empty{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + 10 %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 5 %}{% endif %}{{ x }}",
    "{% set ns = namespace(n=0) %}{% for i in range(4) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
    "{% macro m(a, b='z', c=a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=3) }}{{ m() }}{% set y = m('q') %}{{ y | upper }}{{ y | length }}",
    "{% set g = 'global' %}{% macro m() %}{{ g }}{{ i }}{% set g = 'inner' %}{{ g }}{% endmacro %}{% for i in [1] %}{{ m() }}{% endfor %}{{ g }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% set t %} a {{ 1 }} {% endset %}[{{ t }}]{% set u | trim | upper %} b {% endset %}[{{ u }}]{% filter upper %}x{{ 'y' }}{% endfilter %}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}{% set a, b = [1, 2] %}{{ a }}{{ b }}{% for c in 'aé' %}{{ c }}.{% endfor %}{% for k in {'q': 1} %}{{ k }}{% endfor %}",
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a  {%- if true -%}  b  {%- endif -%}  c", "a \n {{- 1 -}} \n b", "{% if true +%}\nx{% endif %}\n\ny\n\n", "  {%+ if true %}a{% endif %}", "x {# c #}\n  {# d -#}\n y {#- e #} z\n",
    "{% raw %}{{ x }}{% if %}{% endraw %}\nz", " {%- raw -%} {{ x }} {%- endraw -%} z", "  {% raw %}  a{% endraw %}", "a\r\nb\rc\n\n", "{{ 'a\r\nb' }}", "\n{% set x = 1 %}\n{{ x }}\n", "{{ {'a': {'b': 1}}['a'].b }}{{ {'a':{}} }}",
    "{% generation %}{% set q = 1 %}a{% endgeneration %}{{ q }}", "{{ messages[0].content | trim }}{{ messages[-1]['role'] }}{{ messages | length }}{{ tools }}{{ bos_token }}{{ sep_token }}",
    "{% if messages[0].foo is defined and messages[0].foo %}a{% elif 'content' in messages[0] %}b{% else %}c{% endif %}", "{{ 1 if }}", "{% if %}", "{% for %}", "{{ 'a }}", "{% endif %}", "{{ (1 }}", "{% set = 1 %}", "{% foo %}", "{# x", "{% raw %}x",
    "{{ x | nofilter }}", "{{ 1 is nosuchtest }}", "{% for i in 5 %}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}", "{% set x.y = 1 %}", "{% set ns = namespace() %}{% set ns.__a = 1 %}", "{% break %}", "{{ messages.0.role }}",
]


def expressions():
    # A bar between spaces parts two of them, unless a filter stands behind it.
    filters = ("trim length count default d( d join first last list upper lower capitalize sort unique max min sum reverse int float abs format indent dictsort items map "
               "select selectattr reject rejectattr tojson string safe").split()
    for line in EXPRESSIONS.strip().splitlines():
        parts = []
        for part in line.split(" | "):
            if parts and any(part == f or part.startswith((f + "(", f + " ")) for f in filters):
                parts[-1] += " | " + part
            else:
                parts.append(part)
        yield from parts


def golden():
    spec = importlib.util.spec_from_file_location("make_golden", os.path.join(GOLDEN, "make_golden.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    args = argparse.ArgumentParser()
    args.add_argument("program")
    args.add_argument("work")
    args.add_argument("--templates", action="append", default=[])
    args = args.parse_args()
    made = golden()
    tokenizer = made.peer()
    plain = {"messages": made.CHATS["system_turns"], "tools": None, "add_generation_prompt": True}
    cases = [("{{ " + e + " }}", "expression", plain) for e in expressions()] + [(s, "statement", plain) for s in STATEMENTS]
    for folder in [GOLDEN, *args.templates]:
        for file in sorted(os.listdir(folder)):
            if file.endswith(".jinja"):
                with open(os.path.join(folder, file), encoding="utf-8") as stream:
                    template = stream.read()
                cases += [(template, f"{file}, {name}", request) for name, request in made.requests()]
    lines = "".join(json.dumps({"template": t, "config": made.SPECIAL, "request": r}) + "\n" for t, _, r in cases)
    answers = subprocess.run([args.program], input=lines, capture_output=True, text=True, check=True).stdout.splitlines()
    same, refused, generators, unsupported, differ = 0, 0, 0, {}, []
    for (template, name, request), answer in zip(cases, map(json.loads, answers)):
        text, why = made.render(tokenizer, template, request)
        got = answer.get("text")
        if got is None and answer["error"].startswith("unsupported"):
            unsupported.setdefault(answer["error"], []).append(name)
        elif got == text:
            same, refused = same + (text is not None), refused + (text is None)
        elif text is None and "generator" in why:
            generators += 1  # llmq makes a list there
        else:
            what = template if len(template) < 300 else name
            differ.append(f"{name}: {what!r}\n    peer {text if text is None else text[-300:]!r} {why}\n    llmq {got if got is None else got[-300:]!r} {answer.get('error', '')}")
    for why, names in sorted(unsupported.items()):
        print(f"not supported: {why}: {len(names)} ({names[0]})")
    print("\n".join(differ[:40]))
    peer.expect(len(answers) == len(cases) and not differ, f"{len(cases)} chats: {same} texts equal Transformers', {refused} refused by both, "
                f"{generators} where Jinja prints no generator and llmq a list, "
                f"{sum(map(len, unsupported.values()))} not supported, {len(differ)} differ")
    peer.finish()


if __name__ == "__main__":
    main()
