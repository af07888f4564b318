// A GGUF as a model: config, names, rope scaling, and what is refused because no config could say it.
#include "model/gguf/gguf_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "io/gguf_rows.h"
#include "tests/unit/io/small_gguf.h"

namespace llmq {
namespace {

using testing::as_bytes;
using testing::expect_refusal;
using testing::GgufBytes;
using testing::small_gguf;

GgufReading read(const std::string& file) {
  return read_gguf_model(parse_gguf(as_bytes(file), "x.gguf"), as_bytes(file));
}
GgufReading read(const GgufBytes& bytes) { return read(bytes.bytes()); }

TEST(GgufModel, LlamaConfigAndNames) {
  GgufBytes bytes = small_gguf("llama");
  bytes.u32("tokenizer.ggml.bos_token_id", 1)
      .u32("tokenizer.ggml.eos_token_id", 2)
      .f32("llama.rope.freq_base", 50000.0f);
  const GgufReading model = read(bytes);
  const Json expected = Json::parse(
      R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":5,"hidden_size":8,"intermediate_size":12,"num_hidden_layers":1,)"
      R"("num_attention_heads":2,"num_key_value_heads":1,"head_dim":4,"hidden_act":"silu","max_position_embeddings":64,"rms_norm_eps":0.5,)"
      R"("rope_theta":50000.0,"rope_scaling":null,"tie_word_embeddings":true,"attention_bias":false,"mlp_bias":false,"attention_dropout":0.0,)"
      R"("bos_token_id":1,"eos_token_id":2,"torch_dtype":"float32","use_cache":true})",
      "expected");
  EXPECT_EQ(model.config.dump(1), expected.dump(1));
  std::map<std::string, int> names;
  for (const NamedGgufTensor& tensor : model.tensors) names[tensor.name] = tensor.permuted_heads;
  const std::string block = "model.layers.0.";
  const std::map<std::string, int> wanted{
      {"model.embed_tokens.weight", 0},       {"model.norm.weight", 0},
      {block + "input_layernorm.weight", 0},  {block + "post_attention_layernorm.weight", 0},
      {block + "self_attn.q_proj.weight", 2}, {block + "self_attn.k_proj.weight", 1},
      {block + "self_attn.v_proj.weight", 0}, {block + "self_attn.o_proj.weight", 0},
      {block + "mlp.gate_proj.weight", 0},    {block + "mlp.up_proj.weight", 0},
      {block + "mlp.down_proj.weight", 0}};
  EXPECT_EQ(names, wanted);
}

TEST(GgufModel, QwenIsNotPermutedAndHasItsClass) {
  for (const std::string arch : {"qwen2", "qwen3"}) {
    GgufBytes bytes = small_gguf(arch);
    bytes.tensor("output.weight", {8, 5}, std::vector<float>(40, 1.0f));
    const GgufReading model = read(bytes);
    EXPECT_EQ(model.config.at("architectures").items()[0].as_string(),
              arch == "qwen2" ? "Qwen2ForCausalLM" : "Qwen3ForCausalLM");
    EXPECT_EQ(model.config.at("model_type").as_string(), arch);
    EXPECT_FALSE(model.config.at("tie_word_embeddings").as_bool());
    for (const NamedGgufTensor& tensor : model.tensors) EXPECT_EQ(tensor.permuted_heads, 0) << tensor.name;
    EXPECT_EQ(model.tensors.back().name, "lm_head.weight");
  }
}

TEST(GgufModel, ASlidingWindowMakesItMistral) {
  GgufBytes bytes = small_gguf("llama");
  bytes.u32("llama.attention.sliding_window", 32);
  const Json config = read(bytes).config;
  EXPECT_EQ(config.at("model_type").as_string(), "mistral");
  EXPECT_EQ(config.at("sliding_window").as_integer(), 32);
}

// The converter's permutation, w.reshape(heads, 2, half, in).swapaxes(1, 2), is undone.
TEST(GgufModel, SourceRowUndoesTheConverter) {
  const int heads = 3;
  const std::int64_t half = 4, rows = heads * 2 * half;
  std::vector<std::int64_t> converted(static_cast<std::size_t>(rows));
  for (std::int64_t head = 0, at = 0; head < heads; ++head)
    for (std::int64_t i = 0; i < half; ++i)
      for (std::int64_t j = 0; j < 2; ++j)
        converted[static_cast<std::size_t>(at++)] = (head * 2 + j) * half + i;
  for (std::int64_t row = 0; row < rows; ++row)
    EXPECT_EQ(converted[static_cast<std::size_t>(source_row(row, rows, heads))], row);
}

TEST(GgufModel, RopeScalingFromMetadata) {
  GgufBytes linear = small_gguf("llama");
  linear.text("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4.0f);
  EXPECT_EQ(read(linear).config.at("rope_scaling").dump(), R"({"rope_type":"linear","factor":4.0})");
  GgufBytes yarn = small_gguf("qwen3");
  yarn.text("qwen3.rope.scaling.type", "yarn")
      .f32("qwen3.rope.scaling.factor", 4.0f)
      .u32("qwen3.rope.scaling.original_context_length", 16);
  EXPECT_EQ(read(yarn).config.at("rope_scaling").dump(),
            R"({"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":16})");
  GgufBytes none = small_gguf("llama");
  none.text("llama.rope.scaling.type", "none");
  EXPECT_TRUE(read(none).config.at("rope_scaling").is_null());
}

// Frequency factors as convert_hf_to_gguf.py computes them for a Llama 3.1 configuration, in binary32.
std::vector<float> llama3_factors(std::int64_t head_dim, float theta, float factor, float original) {
  std::vector<float> factors;
  for (std::int64_t i = 0; i < head_dim; i += 2) {
    const float frequency = 1.0f / std::pow(theta, static_cast<float>(i) / static_cast<float>(head_dim));
    const float wavelength = 2.0f * std::numbers::pi_v<float> / frequency;
    const float smooth = (original / wavelength - 1.0f) / (4.0f - 1.0f);
    factors.push_back(wavelength < original / 4 ? 1.0f
                      : wavelength > original   ? factor
                                                : 1.0f / ((1 - smooth) / factor + smooth));
  }
  return factors;
}

TEST(GgufModel, Llama3FrequencyFactorsBecomeRopeScaling) {
  const auto scaled = [](const std::vector<float>& factors) {
    GgufBytes bytes = small_gguf("llama", 128);
    bytes.f32("llama.rope.freq_base", 500000.0f).tensor("rope_freqs.weight", {64}, factors);
    return read(bytes).config.at("rope_scaling");
  };
  for (const float factor : {8.0f, 32.0f}) {
    const Json scaling = scaled(llama3_factors(128, 500000.0f, factor, 8192.0f));
    EXPECT_EQ(scaling.at("rope_type").as_string(), "llama3");
    EXPECT_EQ(scaling.at("factor").as_double(), factor);
    EXPECT_EQ(scaling.at("low_freq_factor").as_double(), 1.0);
    EXPECT_EQ(scaling.at("high_freq_factor").as_double(), 4.0);
    EXPECT_EQ(scaling.at("original_max_position_embeddings").as_integer(), 8192);
  }
  EXPECT_TRUE(scaled(std::vector<float>(64, 1.0f)).is_null());
  std::vector<float> other = llama3_factors(128, 500000.0f, 8.0f, 8192.0f);
  other[30] *= 1.001f;
  expect_refusal(ErrorKind::kUnsupported, "rope_freqs.weight", [&] { scaled(other); });
  expect_refusal(ErrorKind::kUnsupported, "rope_freqs.weight",
                 [&] { scaled(llama3_factors(128, 500000.0f, 8.0f, 4096.0f)); });
  other[30] = std::nanf("");
  expect_refusal(ErrorKind::kUnsupported, "rope_freqs.weight", [&] { scaled(other); });
}

TEST(GgufModel, RefusesWhatAConfigCannotSay) {
  const auto refused = [](ErrorKind kind, const char* part, auto change) {
    SCOPED_TRACE(part);
    GgufBytes bytes = small_gguf("llama");
    change(bytes);
    expect_refusal(kind, part, [&] { read(bytes); });
  };
  refused(ErrorKind::kUnsupported, "expert_count", [](GgufBytes& b) { b.u32("llama.expert_count", 8); });
  refused(ErrorKind::kUnsupported, "dimension_count",
          [](GgufBytes& b) { b.u32("llama.rope.dimension_count", 2); });
  refused(ErrorKind::kUnsupported, "value_length",
          [](GgufBytes& b) { b.u32("llama.attention.value_length", 8); });
  refused(ErrorKind::kUnsupported, "longrope",
          [](GgufBytes& b) { b.text("llama.rope.scaling.type", "longrope"); });
  refused(ErrorKind::kUnsupported, "llama.rope.scaling.magic",
          [](GgufBytes& b) { b.u32("llama.rope.scaling.magic", 2); });
  refused(ErrorKind::kUnsupported, "logit_scale", [](GgufBytes& b) { b.f32("llama.logit_scale", 0.25f); });
  refused(ErrorKind::kUnsupported, "split.count", [](GgufBytes& b) {
    b.key("split.count", GgufType::kU16, testing::little_endian<std::uint16_t>(2));
  });
  refused(ErrorKind::kBadInput, "imatrix", [](GgufBytes& b) { b.text("general.type", "imatrix"); });
  refused(ErrorKind::kUnsupported, "blk.1.attn_q.weight", [](GgufBytes& b) {
    b.tensor("blk.1.attn_q.weight", {8, 8}, std::vector<float>(64));
  });
  refused(ErrorKind::kUnsupported, "blk.00.attn_q.weight", [](GgufBytes& b) {
    b.tensor("blk.00.attn_q.weight", {8, 8}, std::vector<float>(64));
  });
  refused(ErrorKind::kUnsupported, "blk.0.ssm_a.weight",
          [](GgufBytes& b) { b.tensor("blk.0.ssm_a.weight", {1}, {1}); });
  refused(ErrorKind::kUnsupported, "have a bias and some have none",
          [](GgufBytes& b) { b.tensor("blk.0.attn_q.bias", {8}, std::vector<float>(8)); });
  GgufBytes unknown;
  unknown.text("general.architecture", "mamba");
  expect_refusal(ErrorKind::kUnsupported, "mamba", [&] { read(unknown); });
  expect_refusal(ErrorKind::kUnsupported, "llama, qwen2 and qwen3 are", [&] { read(unknown); });
  GgufBytes windowed = small_gguf("qwen2");
  windowed.u32("qwen2.attention.sliding_window", 32);
  expect_refusal(ErrorKind::kUnsupported, "read for llama only", [&] { read(windowed); });
  GgufBytes nothing;
  expect_refusal(ErrorKind::kBadInput, "general.architecture", [&] { read(nothing); });
}

TEST(GgufModel, RefusesSizesThatDisagree) {
  const auto refused = [](const char* part, auto change) {
    SCOPED_TRACE(part);
    GgufBytes bytes;
    bytes.text("general.architecture", "llama");
    change(bytes);
    expect_refusal(ErrorKind::kBadInput, part, [&] { read(bytes); });
  };
  refused("llama.block_count", [](GgufBytes&) {});
  refused("llama.block_count", [](GgufBytes& b) { b.u32("llama.block_count", 0); });
  refused("llama.block_count", [](GgufBytes& b) { b.text("llama.block_count", "1"); });
  refused("llama.block_count", [](GgufBytes& b) {
    b.key("llama.block_count", GgufType::kU64, testing::little_endian(1ull << 62));
  });
  refused("llama.block_count",
          [](GgufBytes& b) { b.key("llama.block_count", GgufType::kI32, testing::little_endian(-1)); });
}

TEST(GgufModel, CompanionTexts) {
  GgufBytes bytes = small_gguf("llama");
  bytes.u32("tokenizer.ggml.eos_token_id", 2).text("tokenizer.chat_template", "{{ x }}");
  const std::string file = bytes.bytes();
  const auto texts = gguf_companion_texts(parse_gguf(as_bytes(file), "x.gguf"));
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts[0].first, "generation_config.json");
  EXPECT_EQ(Json::parse(texts[0].second, "g").at("eos_token_id").as_integer(), 2);
  EXPECT_EQ(texts[1], (std::pair<std::string, std::string>("chat_template.jinja", "{{ x }}")));
}

}  // namespace
}  // namespace llmq
