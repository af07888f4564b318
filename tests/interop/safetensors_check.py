"""llmq reads the safetensors files that the reference reader reads (PyPI safetensors), and refuses the rest.

safetensors_check.py LLMQ_SAFETENSORS WORK

Hundreds of headers, odd ones and broken ones: each rule by hand, each pair of the harmless oddities, and drawn from a grammar of headers with a fixed seed. Both
readers must agree on every one: whether it is read, and then on the names, types, shapes, bytes and metadata. What llmq refuses on purpose stands in EXCEPTIONS
with its reason; an exception that no case meets is a failure, too.
"""
import itertools, json, random, re, struct, subprocess, sys
import safetensors
from peer import expect, finish

program, work = sys.argv[1:3]

# A part of llmq's sentence -> why it refuses what the reference reads.
EXCEPTIONS = {
    "occurs twice": "the reference keeps one of two equal keys: two readers of one file may see two models",
    "control character": "names are printed on terminals and written into reports and indices",
    "bytes long, more than 4096": "a name that long is an attack, not a name",
    "more than 8": "shapes of more than 8 extents: no model has one",
    "the product of the shape overflows": "an empty tensor whose other extents overflow when they are multiplied in another order: the reference itself refuses "
                                          "the same extents with the 0 behind them",
    "not a non-negative integer below 2^63": "an empty tensor with an extent from 2^63 on: nobody's sizes are that wide",
    "its description is an array": "a tensor's members without their names: an accident of the reference's parser (serde), in no document",
    "dtype is an object": "the type as {\"F32\": null}: the same accident",
}
DTYPES = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6,
          "F6_E3M2": 6, "C64": 64, "I64": 64, "U64": 64, "I32": 32, "U32": 32, "I16": 16, "U16": 16, "I8": 8, "U8": 8, "BOOL": 8}
cases = []  # (what it is, bytes)


def case(what, header, data=b"", length=None):
    header = header.encode() if isinstance(header, str) else header
    cases.append((what, struct.pack("<Q", len(header) if length is None else length) + header + data))


def entry(name="t", dtype="F32", shape="1", offsets="0,4"):
    return f'"{name}":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{offsets}]}}'


def obj(*members):
    return "{" + ",".join(members) + "}"


FOUR, GOOD = b"\0\1\2\3", entry()


def lengths_and_ends():
    good = obj(GOOD)
    cases.extend(("a short file", b"\1" * n) for n in range(9))
    for length in (0, 1, 2, len(good) - 1, len(good) + 1, len(good) + 4, len(good) + 5, 100_000_000, 100_000_001, 2**31, 2**32 + len(good), 2**63, 2**64 - 1):
        case(f"length {length}", good, FOUR, length)
    for bytes_there in range(9):
        case(f"{bytes_there} bytes of a tensor of 4", good, b"x" * bytes_there)
        case(f"{bytes_there} bytes of none", "{}", b"x" * bytes_there)
    case("a tensor of 2^32 bytes that are not there", obj(entry(dtype="U8", shape="4294967296", offsets="0,4294967296")))


def spaces_and_json():
    for space in (" ", "\n", "\t", "\r", "  \n\t\r ", "\0", "\v", "\f", "\u00a0", "\ufeff", "x", "{}", ",", "//"):
        case(f"before it {space!r}", space + obj(GOOD), FOUR)
        case(f"behind it {space!r}", obj(GOOD) + space, FOUR)
        case(f"between {space!r}", obj(GOOD).replace(":", space + ":" + space), FOUR)
    for text in ("", " ", "null", "[]", "1", '"t"', "{", "}", "{]", "{}{}", "{,}", "{t:1}", "{'t':1}", obj(GOOD, ""), obj("", GOOD), obj(GOOD) + "}", obj(GOOD)[:-1],
                 obj('"t"'), obj('"t":'), obj('"t":nul'), obj(f"/**/{GOOD}"), obj('"t":NaN'), obj('1:{}')):
        case(f"text {text!r}", text, FOUR if "F32" in text else b"")
    for depth in (1, 2, 20, 124, 125, 126, 127, 128, 200, 100_000):
        case(f"{depth} arrays in a member nobody reads", obj(GOOD[:-1] + ',"x":' + "[" * depth + "]" * depth + "}"), FOUR)
        case(f"{depth} objects in a member nobody reads", obj(GOOD[:-1] + ',"x":' + '{"y":' * depth + "0" + "}" * depth + "}"), FOUR)


def metadata():
    for value in ("null", "{}", '{"format":"pt"}', '{"a":"b","c":"d"}', '{"":""}', '{"a":null}', '{"a":1}', '{"a":1.5}', '{"a":true}', '{"a":[]}', '{"a":{}}', "[]",
                  '"x"', "1", "true", "false", '{"a":"1","a":"2"}', '{"\\u0061":"1","a":"2"}', '{"a":"\\u0000\\n\\ud83d\\ude00"}', '{"a":"\\ud83d"}', '{"a":"\\x"}',
                  json.dumps({str(i): str(i) * 50 for i in range(300)}), '{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'):
        member = f'"__metadata__":{value}'
        case(f"metadata {value[:60]}", obj(member), b"")
        case(f"metadata {value[:60]} before a tensor", obj(member, GOOD), FOUR)
        case(f"metadata {value[:60]} behind a tensor", obj(GOOD, member), FOUR)
        case(f"metadata {value[:60]} twice", obj(member, GOOD, member), FOUR)
    case("metadata under an escaped name", obj('"__metad\\u0061ta__":{"a":"b"}', GOOD), FOUR)
    case("metadata that is a tensor", obj(entry("__metadata__")), FOUR)
    case("metadata of another case", obj('"__METADATA__":{"a":"b"}', GOOD), FOUR)


def names():
    for name in ("", "a", "a.b", "é", "😀", "\x7f", "\u2028", "x" * 4096, "x" * 4097, "x" * 100_000, "../a", "/", "\\\\", '\\"', "\\/", "\\b\\f\\n\\r\\t", "\\u0000", "\\u001f",
                 "\\u0041", "\\ud83d\\ude00", "\\ud83d", "\\ude00", "\\ud83dx", "\\ud83d\\u0041", "\\u12", "\\x41", "\\", "\x01", "\n", "\t", "a\x00b"):
        case(f"name {name[:40]!r} of {len(name)}", obj(entry(name)), FOUR)
    for name in (b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80"):
        case(f"name {name!r}", b'{"' + name + b'":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', FOUR)
    for twin in ("t", "\\u0074"):
        case(f"t and {twin}", obj(GOOD, entry(twin)), FOUR)
        case(f"t and {twin}, of other bytes", obj(entry(shape="2", offsets="0,8"), entry(twin)), FOUR)


def members():
    fields = ['"dtype":"F32"', '"shape":[1]', '"data_offsets":[0,4]']
    for order in itertools.permutations(fields):
        case(f"order {order}", obj('"t":' + obj(*order)), FOUR)
    for left_out in range(3):
        rest = fields[:left_out] + fields[left_out + 1:]
        case(f"without {fields[left_out]}", obj('"t":' + obj(*rest)), FOUR)
        case(f"{fields[left_out]} twice", obj('"t":' + obj(*fields, fields[left_out])), FOUR)
        key = fields[left_out].split(":")[0]
        for value in ("null", "{}", "[]", "1", "-1", "0.5", '"x"', "true", '{"F32":null}', '["F32"]', '"F33"', '"f32"', '""', '"F32 "', '"F\\u00332"', "[1,null]",
                      "[1,[1]]", '["1"]', "[true]", "[0]", "[0,4,4]", "[0,4,null]", "[-0]", "[-0,4]", "[0.0,4]", "[0,4.0]", "[0,4e0]", "[1e0]", "[1E0]", "[01]", "[+1]", "[1.]",
                      "[-1]", "[0x1]", "[4,0]", "[0,18446744073709551616]"):
            case(f"{key} is {value}", obj('"t":' + obj(*rest, f"{key}:{value}")), FOUR)
    for extra in ('"x":1', '"x":null', '"x":[1,{"y":[]}]', '"strides":[1]', '"x":"\\ud83d"', '"x":1e999', '"x":-1e999', '"x":1e-999', '"x":' + "9" * 400, '"x":NaN', '"x":01',
                  '"x":1,"x":2', '"":0', '"x":"' + "y" * 5000 + '"', '"Shape":[2]'):
        case(f"beside them {extra[:40]}", obj('"t":' + obj(*fields, extra)), FOUR)
        case(f"before them {extra[:40]}", obj('"t":' + obj(extra, *fields)), FOUR)
    for value in ("null", "1", '"x"', "[]", "{}", "true", '["F32",[1],[0,4]]', '["F32",[1],[0,4],1]', '["F32",[1]]', "[[]]"):
        case(f"a tensor that is {value}", obj(f'"t":{value}'), FOUR if "4" in value else b"")


def types_and_shapes():
    for dtype, bits in DTYPES.items():
        for shape in ((), (1,), (2,), (3,), (4,), (8,), (2, 3), (3, 3), (1, 0), (5, 8)):
            elements = 1
            for extent in shape:
                elements *= extent
            exact, text = elements * bits / 8, ",".join(map(str, shape))
            for size in sorted({int(exact), int(exact) + 1, max(0, int(exact) - 1)}):
                case(f"{dtype} [{text}] in {size}", obj(entry("t", dtype, text, f"0,{size}")), b"\1" * size)
    for dtype in ("F33", "F32 ", "f32", "C128", "I4", "U4", "F4_E2M1", "F8_E5M3", "Q4_0", "U128", "float32", "torch.float32", "", "\\u0046\\u0033\\u0032"):
        case(f"type {dtype!r}", obj(entry("t", dtype)), FOUR)
    for shape in ("0", "0,0", "0,7", "7,0", "0,0,0,0", "1,1,1,1", "1,1,1,1,1,1,1,1", "1,1,1,1,1,1,1,1,1", ",".join("1" * 40), "4294967296,4294967296", "6700417,641,4294967297",
                  "0,4294967296,4294967296", "4294967296,4294967296,0", "9223372036854775807,0", "9223372036854775808,0", "0,18446744073709551615", "0,18446744073709551616",
                  "2305843009213693952", "2305843009213693951,0", "0,2305843009213693952", "4611686018427387904,0", "-1", "-1,0", "1,-1,-1", "0,-0"):
        for dtype, size in (("F32", 0), ("F32", 4), ("U8", 0), ("U8", 1), ("F4", 0)):
            case(f"{dtype} [{shape[:50]}] in {size}", obj(entry("t", dtype, shape, f"0,{size}")), b"\1" * size)


def places():
    def two(a, b, size):
        for first, second in ((a, b), (b, a)):
            members = [entry(name, "U8", str(max(0, end - begin)), f"{begin},{end}") for name, (begin, end) in zip("ab", (first, second))]
            case(f"bytes {first} and {second} of {size}", obj(*members), bytes(range(size)))

    for a in itertools.product(range(4), repeat=2):
        for b in itertools.product(range(4), repeat=2):
            two(a, b, 3)
    for offsets in ("-4,0", "0,-4", "4,8", "1,5", "9223372036854775808,9223372036854775808", "9223372036854775804,9223372036854775808", "18446744073709551612,18446744073709551615",
                    "18446744073709551615,3", "0,9223372036854775807"):
        case(f"offsets {offsets}", obj(entry("t", "F32", "1", offsets)), FOUR)
        case(f"offsets {offsets} of none", obj(entry("t", "F32", "0", offsets)), FOUR)
    for order in itertools.permutations(range(4)):
        members = [entry(f"t{i}", "U8", "2", f"{2 * i},{2 * i + 2}") for i in order] + [entry(f"e{i}", "F64", "0", f"{2 * i},{2 * i}") for i in range(5)]
        case(f"four tensors in the order {order}, empty ones between", obj(*members), bytes(range(8)))
    case("many tensors", obj(*(entry(f"t{i}", "U8", "1", f"{i},{i + 1}") for i in random.Random(1).sample(range(2000), 2000))), bytes(i % 251 for i in range(2000)))


def drawn(count, seed):
    """Headers of a grammar: mostly sound, each part odd now and then."""
    draw = random.Random(seed)

    def odd(chance, sound, *others):
        return draw.choice(others) if draw.random() < chance else sound

    for index in range(count):
        chance, at, tensors = draw.choice((0.0, 0.02, 0.1)), 0, []
        for number in range(draw.randrange(5)):
            dtype = draw.choice(list(DTYPES))
            shape = [draw.choice((0, 1, 2, 4, 8)) for _ in range(draw.randrange(4))]
            bits = DTYPES[dtype]
            for extent in shape:
                bits *= extent
            size = bits // 8
            begin, end = odd(chance, at, at + 1, max(0, at - 1)), odd(chance, at + size, at + size + 1, at)
            name = odd(chance, f"t{number}", "t0", "\\u0074" + str(number), "\\n", "__metadata__")
            fields = [f'"dtype":"{odd(chance, dtype, "F33", "U8")}"', f'"shape":{json.dumps(shape)}' if draw.random() >= chance else '"shape":[1.0]',
                      f'"data_offsets":[{begin},{end}{odd(chance, "", ",0")}]']
            draw.shuffle(fields)
            fields += [f'"x{number}":{odd(chance, "0", "[]", "null", "{}")}'] if draw.random() < 0.1 else []
            tensors.append(f'"{name}":' + obj(*fields))
            at += size
        draw.shuffle(tensors)
        if draw.random() < 0.5:
            tensors.insert(draw.randrange(len(tensors) + 1), '"__metadata__":' + draw.choice(("null", "{}", '{"format":"pt"}', odd(chance, '{"a":"b"}', '{"a":1}', "[]"))))
        space = [draw.choice(("", "", " ", "\n")) for _ in range(4)]
        text = space[0] + "{" + space[1] + ("," + space[2]).join(tensors) + space[2] + "}" + space[3] + " " * draw.choice((0, 0, 3, 8))
        case(f"drawn {index}", text, bytes(draw.randrange(256) for _ in range(odd(chance, at, at + 1, max(0, at - 1)))))


def theirs(file):
    """What the reference says: {name: (type, shape, bytes)} and the metadata; nothing where it refuses."""
    try:
        tensors = {name: (value["dtype"], list(value["shape"]), bytes(value["data"])) for name, value in safetensors.deserialize(file)}
    except safetensors.SafetensorError:
        return None
    path = f"{work}/case.safetensors"
    with open(path, "wb") as out:
        out.write(file)
    with safetensors.safe_open(path, "np") as opened:
        return tensors, opened.metadata() or {}


for generate in (lengths_and_ends, spaces_and_json, metadata, names, members, types_and_shapes, places):
    generate()
drawn(1500, seed=20261125)
with open(f"{work}/cases", "wb") as out:
    for _, file in cases:
        out.write(struct.pack("<Q", len(file)) + file)
done = subprocess.run([program, f"{work}/cases"], capture_output=True)
ours = [json.loads(line) for line in done.stdout.split(b"\n") if line]
expect(done.returncode == 0 and len(ours) == len(cases), f"llmq answered for each of {len(cases)} files")

read, zeros, excepted, wrong = 0, 0, dict.fromkeys(EXCEPTIONS, 0), []
for (what, file), mine in zip(cases, ours):
    reference = theirs(file)
    if reference is None:
        if "error" not in mine and re.search(rb"[\[,:]-0[],}]", file):
            zeros += 1
        elif "error" not in mine:
            wrong.append(f"{what}: llmq reads it, the reference does not")
    elif "error" in mine:
        reasons = [part for part in EXCEPTIONS if part in mine["error"]]
        if not reasons:
            wrong.append(f"{what}: the reference reads it, and llmq says: {mine['error']}")
        for part in reasons:
            excepted[part] += 1
    else:
        read += 1
        found = {name: (dtype, shape, file[begin:end]) for name, dtype, shape, begin, end in mine["tensors"]}
        if found != reference[0] or mine["metadata"] != reference[1]:
            wrong.append(f"{what}: llmq has {found} and {mine['metadata']}, the reference {reference}")
for sentence in wrong[:40]:
    print("  " + sentence[:400])
refused = len(cases) - read - zeros - sum(excepted.values())
expect(not wrong, f"safetensors {safetensors.__version__} and llmq agree on {len(cases)} files: {read} read alike, {refused} refused by both, "
                  f"{sum(excepted.values())} exceptions; {len(wrong)} in dispute")
expect(zeros > 0, f"the integer -0 is 0 here, as JSON has it, and no integer to the reference's parser: {zeros} files")
expect(read > 300 and refused > 300, "the files are of both kinds")
for part, count in excepted.items():
    expect(count > 0, f"exception '{part}' is met by {count} files: {EXCEPTIONS[part]}")
finish()
