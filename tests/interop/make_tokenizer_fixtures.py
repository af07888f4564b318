"""Makes tests/fixtures/tokenizers: small tokenizers, one per family, trained on a few sentences, and what Hugging Face `tokenizers` does with them.

    python make_tokenizer_fixtures.py TINYSTORIES_TOKENIZER_JSON OUT

golden.json holds texts, and per tokenizer the ids of each text and what they decode to. Needs tokenizers 0.23.3.
"""
import base64, json, os, random, sys
from tokenizers import Regex, Tokenizer, AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# DeepSeek V3's, one split behind another: numbers, the scripts that write no spaces, and the rest.
DEEPSEEK3 = (r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
             r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
# Kimi-K2's: Han alone, words that end where an upper case letter follows a lower case one, numbers of three.
KIMI = "|".join([r"[\p{Han}]+",
                 r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                 r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                 r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
# gpt-oss's (o200k): as Kimi-K2's, with Han among the letters that have no case, and a slash may end signs.
ANY_CASE, ENDINGS = r"\p{Lm}\p{Lo}\p{M}", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = "|".join([rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{ANY_CASE}]*[\p{{Ll}}{ANY_CASE}]+{ENDINGS}",
                  rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{ANY_CASE}]+[\p{{Ll}}{ANY_CASE}]*{ENDINGS}",
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
CORPUS = ["The quick brown fox jumps over the lazy dog.", "It's 1234 o'clock; they'll say they've seen 42 dogs!", "  def main():\n\treturn x == 10\n\n",
          "Führer, naïve café, Ελλάδα, Привет мир, 你好世界, こんにちは, नमस्ते", "I'M HERE AND YOU'RE NOT. We'd go... --- ###"] * 20
byte = lambda **k: pre_tokenizers.ByteLevel(add_prefix_space=False, **k)

def split(*regexes):
    return pre_tokenizers.Sequence([*(pre_tokenizers.Split(Regex(regex), "isolated") for regex in regexes), byte(use_regex=False)])

def byte_level(pre, normalizer=None, post=None):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer, tok.decoder = pre, decoders.ByteLevel()
    if normalizer: tok.normalizer = normalizer
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>", "<|im_start|>"],
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    if post: tok.post_processor = post
    return tok

def sentencepiece(normalizer, pre, decoder):
    fallback = {f"<0x{b:02X}>": b + 3 for b in range(256)}
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    if normalizer: trained.normalizer = normalizer
    trained.pre_tokenizer = pre or pre_tokenizers.Metaspace(split=True)
    trained.train_from_iterator(CORPUS[:60], trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False))
    old = json.loads(trained.to_str())["model"]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **fallback}
    for token in sorted(old["vocab"], key=old["vocab"].get): vocab.setdefault(token, len(vocab))
    tok = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m) for m in old["merges"]], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer: tok.normalizer = normalizer
    if pre: tok.pre_tokenizer = pre
    tok.decoder = decoder
    tok.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ["<unk>", "<s>", "</s>"]])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return tok

def tiktoken(pattern, out):
    """Ranks as tiktoken.model has them, and the tokenizer that Transformers' converter makes of the file, with some of Kimi's added tokens."""
    from transformers.convert_slow_tokenizer import TikTokenConverter, bytes_to_unicode
    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    trained = json.loads(byte_level(split(pattern)).to_str())["model"]["vocab"]
    tokens = [bytes(letters[c] for c in token) for token in sorted(trained, key=trained.get) if not token.startswith("<|")]
    # Tokens that no merges lead to: a word that is one is not taken apart.
    tokens += [" jumping".encode(), "ÄÖ".encode(), "犬猫".encode()]
    folder = os.path.join(out, "kimi")
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/tiktoken.model", "wb") as f:
        for rank, token in enumerate(tokens): f.write(base64.b64encode(token) + b" %d\n" % rank)
    named = ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>"]
    added = {str(len(tokens) + i): {"content": token, "special": i < 3} for i, token in enumerate(named)}
    with open(f"{folder}/tokenizer_config.json", "w") as f:
        json.dump({"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]", "added_tokens_decoder": added}, f, indent=1)
    TikTokenConverter.load_tiktoken_bpe = staticmethod(lambda name: {base64.b64decode(a): int(b) for a, b in map(bytes.split, open(name, "rb"))})
    tok = TikTokenConverter(vocab_file=f"{folder}/tiktoken.model", pattern=pattern).converted()
    reserved = [added.get(str(i), {"content": f"<|reserved_token_{i}|>", "special": True}) for i in range(len(tokens), len(tokens) + 256)]
    tok.add_tokens([AddedToken(t["content"], normalized=False, special=t["special"]) for t in reserved])
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return tok

spm_decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
legacy = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
made = {
    "gpt2": byte_level(byte(), post=processors.ByteLevel(trim_offsets=False)),
    "smollm": byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte()])),
    "llama3": byte_level(split(LLAMA3), post=processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])])),
    "qwen2": byte_level(split(QWEN2), normalizers.NFC()),
    "llama2": sentencepiece(legacy, None, spm_decoder),
    # Merges pass over spaces: the normalizer has taken all of them before the pre-tokenizer looks for one.
    "gemma": sentencepiece(normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"), decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])),
    "metaspace": sentencepiece(normalizers.NFKC(), pre_tokenizers.Metaspace(prepend_scheme="first"), decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])),
}
made["gpt2"].add_tokens([AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True), AddedToken("word", single_word=True),
                         AddedToken("<a>"), AddedToken("<a><b>")])
made["qwen2"].add_tokens([AddedToken("é!", normalized=True), AddedToken("<é>", normalized=False)])
spaced = json.loads(made["llama3"].to_str())
spaced["model"]["ignore_merges"] = True
spaced["model"]["merges"] = spaced["model"]["merges"][:150]  # words of the vocabulary that merges no longer reach
made["ignore_merges"] = Tokenizer.from_str(json.dumps(spaced))
custom = byte_level(split(r"\w+|[^\w\s]+|\s+"))              # an expression that no matcher is written for
made["custom"] = custom
made["glm4"] = byte_level(split(LLAMA3), post=processors.ByteLevel(trim_offsets=False))
made["kimi"] = tiktoken(KIMI, sys.argv[2])
made["deepseek3"] = byte_level(split(*DEEPSEEK3), normalizers.Sequence([]))
made["o200k"] = byte_level(split(O200K), post=processors.ByteLevel(trim_offsets=False))
made["tinystories"] = Tokenizer.from_file(sys.argv[1])

rng = random.Random(1)
texts = ["", " ", "  ", "\n", "Hello world", " Hello  world \n", "They'll SAY 'It'S 12345 o'clock'\r\n\r\n  x", "a\tb\u00a0c\u2003d \u3000e", "cafe\u0301 café \u1e9b\u0323 ﬁ Å \u2126",
         "<|im_start|>user<|endoftext|>", "x <left> y <right>  z word sword word, <a><b><a>", "é! e\u0301! <é> <e\u0301>", "<s>a</s> <s>b", "Привет, 你好 こんにちは 🦙🦙 नमस्ते",
         "0x1F 3.14159 ١٢٣ ½ Ⅷ \U00011de0", "'ſ 'S 'Ll 'rE", "▁▁ a▁b", "\x00\x01<0x41>", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "=" * 100 + " " * 70 + "x" + "\n" * 30,
         "a\u0316\u0301\u0316\u0300", "\u0958 \ufb1d \uac00\u11a8 \u1100\u1161\u11a8", "\U000e0100\u0378\uffff\U0010ffff", " " * 300 + "the end" + "the " * 80]
alphabet = [" ", "  ", "\n", "\r\n", "\t", "'s", "'RE", "the", "The", "fox", "1", "42", "١", "é", "e\u0301", "你", "🦙", "-", "##", "\u00a0", "▁", "<s>", "<a>", "<left>", "\u0301", "ſ"]
texts += ["".join(rng.choices(alphabet, k=rng.randrange(1, 30))) for _ in range(150)]
golden = {"texts": texts, "tokenizers": {}}
for name, tok in made.items():
    with open(f"{sys.argv[2]}/{name}.json", "w") as f: f.write(tok.to_str() if name != "tinystories" else open(sys.argv[1]).read())
    ids = [tok.encode(t).ids for t in texts]
    golden["tokenizers"][name] = {"ids": ids, "plain": [tok.encode(t, add_special_tokens=False).ids for t in texts[:12]], "text": [tok.decode(i, skip_special_tokens=False) for i in ids]}
json.dump(golden, open(f"{sys.argv[2]}/golden.json", "w"), separators=(",", ":"))
