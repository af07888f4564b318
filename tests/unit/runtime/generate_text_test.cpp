// The text layer: what a stream of tokens becomes, with a model that says exactly what it is told, and with
// the carried one against Transformers.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "model/open_checkpoint.h"
#include "runtime/generate.h"
#include "support/temporary_directory.h"

namespace llmq::testing {
namespace {

constexpr std::int64_t kUnitHidden = 32;  // = vocabulary: an embedding is a unit vector

// Token 0 is followed by 1, 1 by 2, ...: blocks that add nothing, and a head whose row i + 1 is the embedding
// of i. The words are the vocabulary, those that begin with "<|" special
// tokens.
class ScriptedModel {
 public:
  ScriptedModel(const std::vector<std::string>& words, const std::string& decoder) {
    std::vector<float> embedding(kUnitHidden * kUnitHidden), head(kUnitHidden * kUnitHidden);
    for (std::int64_t i = 0; i < kUnitHidden; ++i) {
      embedding[static_cast<std::size_t>(i * kUnitHidden + i)] = 1;
      head[static_cast<std::size_t>((i + 1) % kUnitHidden * kUnitHidden + i)] = 1;
    }
    add("model.embed_tokens.weight", {kUnitHidden, kUnitHidden}, embedding);
    add("lm_head.weight", {kUnitHidden, kUnitHidden}, head);
    const std::vector<float> ones(kUnitHidden, 1.0f), zeros(kUnitHidden * kUnitHidden);
    add("model.norm.weight", {kUnitHidden}, ones);
    for (const char* name : {"input_layernorm", "post_attention_layernorm"})
      add("model.layers.0." + std::string(name) + ".weight", {kUnitHidden}, ones);
    for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
      add("model.layers.0." + std::string(name) + ".weight", {kUnitHidden, kUnitHidden}, zeros);
    SafetensorsWriter writer(system_io(), directory_ / "model.safetensors", declarations_,
                             {{"format", "pt"}});
    for (std::size_t i = 0; i < values_.size(); ++i)
      writer.add(declarations_[i].name, std::as_bytes(std::span(values_[i])));
    writer.finish();
    directory_.write(
        "config.json",
        R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 32,
      "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 1, "vocab_size": 32, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
      "hidden_act": "silu", "tie_word_embeddings": false, "rope_theta": 10000.0, "eos_token_id": 31, "torch_dtype": "float32"})");
    Json vocabulary = Json::object({});
    for (std::size_t i = 0; i < words.size(); ++i) vocabulary[words[i]] = static_cast<std::int64_t>(i);
    Json added = Json::array();
    for (std::size_t i = 0; i < words.size(); ++i)
      if (words[i].starts_with("<|"))
        added.push_back(Json::object({{"id", static_cast<std::int64_t>(i)},
                                      {"content", words[i]},
                                      {"special", true},
                                      {"normalized", false}}));
    const Json tokenizer = Json::object(
        {{"added_tokens", added},
         {"normalizer", nullptr},
         {"pre_tokenizer", nullptr},
         {"post_processor", nullptr},
         {"decoder", Json::parse(decoder, "decoder")},
         {"model", Json::object({{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}})}});
    directory_.write("tokenizer.json", tokenizer.dump());
  }

  Tokenizer tokenizer() const { return Tokenizer::open(system_io(), directory_.path()); }
  Engine engine() const {
    Engine::Options options;
    options.compute = Compute::kFloat32;
    options.max_context = options.kv_tokens = 64;
    return Engine::load(open_checkpoint(system_io(), directory_.path().string()), make_reference_backend(),
                        options);
  }

 private:
  void add(const std::string& name, const Shape& shape, const std::vector<float>& values) {
    declarations_.push_back({name, DType::kF32, shape});
    values_.push_back(values);
  }
  TemporaryDirectory directory_;
  std::vector<TensorDeclaration> declarations_;
  std::vector<std::vector<float>> values_;
};

constexpr const char* kSentencePiece =
    R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
  {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})";
constexpr const char* kByteLevel =
    R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})";

struct Heard {
  GeneratedText result;
  std::vector<std::string> pieces;
};

Heard say(const ScriptedModel& model, std::int64_t tokens, std::vector<std::string> stop = {}) {
  GenerateOptions options;
  options.max_tokens = tokens;
  options.stop = std::move(stop);
  Engine engine = model.engine();
  Heard heard;
  const std::int32_t prompt[] = {0};
  heard.result = generate(engine, model.tokenizer(), prompt, options,
                          [&](std::string_view piece) { heard.pieces.emplace_back(piece); });
  return heard;
}

const std::vector<std::string> kByteWords = {"▁A",     "▁b",     "<0xF0>", "<0x9F>", "<0xA6>",
                                             "<0x99>", "<0xC3>", "<0xA9>", "▁c"};

TEST(GenerateText, CharactersOfSeveralTokensComeWhole) {
  const Heard heard = say(ScriptedModel(kByteWords, kSentencePiece), 8);
  EXPECT_EQ(heard.result.text, " b🦙é c");
  EXPECT_EQ(heard.pieces, (std::vector<std::string>{" b", "🦙", "é", " c"}));
  EXPECT_EQ(heard.result.generated.tokens.size(), 8u);
  EXPECT_EQ(heard.result.generated.finish_reason, "length");
}

// As `tokenizers` decodes all of the ids: without special tokens, and with the spaces of what stands around
// them.
TEST(GenerateText, SpecialTokensLeaveTheSpacesAroundThem) {
  const ScriptedModel model({"▁A", "▁b", "<|x|>", "▁c", "<|y|>", "<|z|>", "▁d", "e"}, kSentencePiece);
  const Heard heard = say(model, 7);
  EXPECT_EQ(heard.result.text, " b c de");
  const std::vector<std::int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(model.tokenizer().decode(all, true), "A" + heard.result.text);
  EXPECT_EQ(say(ScriptedModel({"<|x|>", "▁b", "▁c"}, kSentencePiece), 2).result.text, "b c")
      << "a text begins";
}

TEST(GenerateText, ByteLevelCharactersComeWholeToo) {
  // "🦙" is F0 9F A6 99: ð Ł ¦ Ļ in GPT-2's alphabet of bytes; "é" is C3 A9: Ã ©.
  const Heard heard = say(ScriptedModel({"A", "Ġb", "ð", "ŁĤ¦", "Ļ", "Ã", "©Ġ"}, kByteLevel), 1);
  EXPECT_EQ(heard.result.text, " b");
  const Heard whole = say(ScriptedModel({"A", "Ġb", "ð", "Ł¦", "Ļ", "Ã", "©Ġ"}, kByteLevel), 6);
  EXPECT_EQ(whole.pieces, (std::vector<std::string>{" b", "🦙", "é "}));
}

TEST(GenerateText, ACharacterThatNeverEndsIsReplaced) {
  const Heard heard = say(ScriptedModel(kByteWords, kSentencePiece), 3);  // " b", F0, 9F
  EXPECT_EQ(heard.result.text, " b\uFFFD");
}

TEST(GenerateText, StopStringsMayRunAcrossTokens) {
  const ScriptedModel model({"▁A", "▁one", "▁tw", "o▁", "three", "▁four"}, kSentencePiece);
  EXPECT_EQ(say(model, 5).result.text, " one two three four");
  const Heard heard = say(model, 5, {"wo th"});
  EXPECT_EQ(heard.result.text, " one t");
  EXPECT_EQ(heard.result.generated.finish_reason, "stop");
  EXPECT_EQ(heard.result.generated.tokens.size(), 4u);
  EXPECT_EQ(say(model, 5, {"wo thx"}).result.text, " one two three four")
      << "what was held back comes when nothing follows";
  EXPECT_EQ(say(model, 4, {"e four"}).result.text, " one two three");
  EXPECT_EQ(say(model, 5, {"three", " tw"}).result.text, " one")
      << "the first in the text, not the first in the list";
  EXPECT_EQ(say(ScriptedModel(kByteWords, kSentencePiece), 8, {"🦙"}).result.text, " b")
      << "across the bytes of a character";
}

TEST(GenerateText, AnEndTokenIsATokenWithoutText) {
  std::vector<std::string> words(32, "▁w");
  for (std::size_t i = 0; i < words.size(); ++i) words[i] += std::to_string(i);
  words[31] = "▁end";  // the model's own end, and text of its vocabulary
  const ScriptedModel model(words, kSentencePiece);
  Engine engine = model.engine();
  const std::int32_t prompt[] = {28};
  GenerateOptions options;
  const auto said = [&] { return generate(engine, model.tokenizer(), prompt, options, [](auto) {}); };
  const GeneratedText ended = said();
  EXPECT_EQ(ended.text, " w29 w30");
  EXPECT_EQ(ended.generated.tokens, (std::vector<std::int32_t>{29, 30, 31}));
  EXPECT_EQ(ended.generated.finish_reason, "stop");
  options.ignore_eos = true;
  options.max_tokens = 4;
  EXPECT_EQ(said().text, " w29 w30 end w0");
  options.stop = {" w30"};
  EXPECT_EQ(said().text, " w29");
  options.min_tokens = 2;
  EXPECT_EQ(said().text, " w29 w30 end w0") << "the stop string ends in the second token";
}

TEST(GenerateText, TheCarriedModelSaysWhatTransformersSays) {
  const std::string model = LLMQ_SOURCE_DIR "/tests/models/tinystories-656k";
  const std::string file = LLMQ_SOURCE_DIR "/tests/unit/runtime/greedy_tinystories.json";
  const Json cases = Json::parse(read_text(system_io(), file), file);
  const Tokenizer tokenizer = Tokenizer::open(system_io(), model);
  Engine::Options load;
  load.compute = Compute::kFloat32;
  load.max_context = load.kv_tokens = 128;
  BackendRequest request;
  request.threads = 1;
  Engine engine = Engine::load(open_checkpoint(system_io(), model), make_backend(request), load);
  ASSERT_EQ(cases.items().size(), 3u);
  for (const Json& expected : cases.items()) {
    const std::vector<std::int32_t> prompt = tokenizer.encode(expected.at("prompt").as_string());
    GenerateOptions options;
    options.max_tokens = static_cast<std::int64_t>(expected.at("ids").items().size());
    options.ignore_eos = true;
    std::string streamed;
    const GeneratedText got =
        generate(engine, tokenizer, prompt, options, [&](std::string_view piece) { streamed += piece; });
    std::vector<std::int32_t> all = prompt;
    for (const Json& id : expected.at("ids").items())
      all.push_back(static_cast<std::int32_t>(id.as_integer()));
    const auto tail = std::span(all).subspan(prompt.size());
    EXPECT_EQ(got.generated.tokens, std::vector<std::int32_t>(tail.begin(), tail.end()))
        << expected.at("prompt").as_string();
    EXPECT_EQ(got.text, streamed);
    EXPECT_EQ(tokenizer.decode(prompt, true) + got.text, tokenizer.decode(all, true));
  }
}

}  // namespace
}  // namespace llmq::testing
