// A GGUF as a model: config, names, rope scaling, and what is refused because no config could say it.
#include "model/gguf/gguf_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <sstream>

#include "base/io.h"
#include "io/gguf_rows.h"
#include "model/gguf/gguf_family.h"
#include "tests/unit/io/small_gguf.h"

namespace llmq {
namespace {

using testing::as_bytes;
using testing::expect_refusal;
using testing::GgufBytes;
using testing::small_gguf;

GgufReading read(const std::string& file) { return read_gguf_model(parse_gguf(as_bytes(file), "x.gguf")); }
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

// A few bytes of a header would otherwise become any number of tensors.
TEST(GgufModel, ExpertsAreAsManyAsModelsHave) {
  const auto of_experts = [](std::uint32_t count, const std::vector<std::uint64_t>& stack) {
    GgufBytes bytes = small_gguf("qwen3moe", 4, false);
    bytes.u32("qwen3moe.expert_count", count).u32("qwen3moe.expert_used_count", 2);
    bytes.u32("qwen3moe.expert_feed_forward_length", 4).tensor("blk.0.ffn_up_exps.weight", stack, {});
    return bytes;
  };
  expect_refusal(ErrorKind::kBadInput,
                 "qwen3moe.expert_count: is 2147483648, and no model has more than 4096", [&] {
                   read(of_experts(1u << 31, {2, 0, 1u << 31}));
                 });
  expect_refusal(ErrorKind::kBadInput, "its shape [3, 0, 8] is not that of a matrix for each of 3 experts",
                 [&] {
                   read(of_experts(3, {8, 0, 3}));
                 });
}

TEST(GgufModel, AScaleStandsBesideAMatrix) {
  GgufBytes bytes = small_gguf("llama");
  bytes.tensor("blk.0.attn_norm.scale", {1}, {2});
  expect_refusal(ErrorKind::kBadInput, "stands beside blk.0.attn_norm.weight, which is no matrix",
                 [&] { read(bytes); });
}

// small_gguf() of this architecture with three experts in the place of its MLP.
GgufBytes small_mixture(const std::string& arch, const std::vector<std::uint64_t>& stack = {8, 4, 3}) {
  GgufBytes bytes = small_gguf(arch, 4, false);
  bytes.u32(arch + ".expert_count", 3)
      .u32(arch + ".expert_used_count", 2)
      .u32(arch + ".expert_feed_forward_length", 4);
  bytes.tensor("blk.0.ffn_gate_inp.weight", {8, 3}, std::vector<float>(24));
  std::size_t elements = 1;
  for (const std::uint64_t extent : stack) elements *= extent;
  bytes.tensor("blk.0.ffn_up_exps.weight", stack, std::vector<float>(elements));
  return bytes;
}

TEST(GgufModel, AStackOfExpertsIsAMatrixOfEach) {
  const GgufReading model = read(small_mixture("llama"));
  EXPECT_EQ(model.config.at("model_type").as_string(), "mixtral");
  EXPECT_EQ(model.config.at("num_local_experts").as_integer(), 3);
  EXPECT_EQ(model.config.at("num_experts_per_tok").as_integer(), 2);
  std::vector<std::uint64_t> offsets;
  for (const NamedGgufTensor& tensor : model.tensors)
    if (tensor.name.ends_with(".w3.weight")) {
      EXPECT_EQ(tensor.name,
                fmt::format("model.layers.0.block_sparse_moe.experts.{}.w3.weight", offsets.size()));
      EXPECT_EQ(tensor.shape, (Shape{4, 8}));
      offsets.push_back(tensor.offset);
    }
  EXPECT_EQ(offsets, (std::vector<std::uint64_t>{0, 4 * 4 * 8, 2 * 4 * 4 * 8}));
  expect_refusal(ErrorKind::kBadInput, "its shape [2, 4, 8] is not that of a matrix for each of 3 experts",
                 [] {
                   read(small_mixture("llama", {8, 4, 2}));
                 });
  expect_refusal(ErrorKind::kBadInput, "a matrix for each of 3 experts", [] {
    read(small_mixture("llama", {8, 12}));
  });
}

TEST(GgufModel, MixturesOfOtherKindsAreRefusedByName) {
  expect_refusal(ErrorKind::kUnsupported, "qwen2.expert_count", [] { read(small_mixture("qwen2")); });
  expect_refusal(ErrorKind::kUnsupported, "qwen3moe.expert_count", [] { read(small_gguf("qwen3moe")); });
  GgufBytes sigmoid = small_mixture("qwen3moe");
  sigmoid.u32("qwen3moe.expert_gating_func", 2);
  expect_refusal(ErrorKind::kUnsupported, "expert_gating_func: is 2", [&] { read(sigmoid); });
}

// Older files have the gate of a shared expert as a vector.
TEST(GgufModel, TheGateOfASharedExpertIsAMatrix) {
  GgufBytes bytes = small_mixture("qwen2moe");
  bytes.u32("qwen2moe.expert_shared_feed_forward_length", 6);
  bytes.tensor("blk.0.ffn_gate_inp_shexp.weight", {8}, std::vector<float>(8));
  const GgufReading model = read(bytes);
  EXPECT_EQ(model.tensors.back().name, "model.layers.0.mlp.shared_expert_gate.weight");
  EXPECT_EQ(model.tensors.back().shape, (Shape{1, 8}));
  EXPECT_EQ(model.config.at("shared_expert_intermediate_size").as_integer(), 6);
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
  refused(ErrorKind::kBadInput, "llama.expert_used_count",
          [](GgufBytes& b) { b.u32("llama.expert_count", 8); });
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
  expect_refusal(ErrorKind::kUnsupported, "\"mamba\" is not read from GGUF; llama, ", [&] { read(unknown); });
  GgufBytes later;
  later.text("general.architecture", "qwen9moe");
  expect_refusal(ErrorKind::kUnsupported,
                 "\"qwen9moe\" is not read from GGUF; nearest is qwen3moe by its name; ",
                 [&] { read(later); });
  expect_refusal(
      ErrorKind::kUnsupported,
      "llama, qwen2, qwen3, phi3, olmo2, smollm3, seed_oss, starcoder2, qwen3moe, qwen2moe, olmoe, granite, "
      "granitemoe, mistral3, glm4, command-r, cohere2, falcon, gemma3, qwen3next, qwen35, qwen35moe, gemma2, "
      "gpt-oss, glm4moe, minimax-m2, gemma4, deepseek2, llama4 and ernie4_5 are",
      [&] { read(unknown); });
  GgufBytes windowed = small_gguf("qwen2");
  windowed.u32("qwen2.attention.sliding_window", 32);
  expect_refusal(ErrorKind::kUnsupported,
                 "read for llama, phi3, olmo2, starcoder2, cohere2, gemma3, gemma2, gpt-oss and gemma4 only",
                 [&] { read(windowed); });
  GgufBytes nothing;
  expect_refusal(ErrorKind::kBadInput, "general.architecture", [&] { read(nothing); });
}

TEST(GgufModel, ErniesHaveNoBiasesThere) {
  GgufBytes bytes = small_gguf("ernie4_5");
  EXPECT_FALSE(read(bytes).config.at("use_bias").as_bool());
  for (const char* name : {"blk.0.attn_q.bias", "blk.0.attn_output.bias"})
    bytes.tensor(name, {8}, std::vector<float>(8));
  for (const char* name : {"blk.0.attn_k.bias", "blk.0.attn_v.bias"})
    bytes.tensor(name, {4}, std::vector<float>(4));
  expect_refusal(ErrorKind::kUnsupported, "a dense ERNIE 4.5 model with biases", [&] { read(bytes); });
}

TEST(GgufModel, TheReferenceListsEveryArchitecture) {
  std::set<std::string> there, listed;
  for (const Family* family : families())
    if (family->gguf != nullptr) there.insert(family->gguf->architecture);
  const std::string page = read_text(system_io(), Path(LLMQ_SOURCE_DIR) / "docs/reference/formats.md");
  const std::string before = "versions 2 and 3, architectures";
  const std::size_t begin = page.find(before) + before.size();
  std::string list = page.substr(begin, page.find(';', begin) - begin);
  std::replace(list.begin(), list.end(), ',', ' ');
  std::istringstream words(list);
  for (std::string word; words >> word;)
    if (word != "and") listed.insert(word);
  EXPECT_EQ(listed, there);
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
  refused("llama.block_count: is 2147483647; the most blocks",
          [](GgufBytes& b) { b.u32("llama.block_count", 0x7fffffff).u32("llama.embedding_length", 8); });
}

// Heads of 8, of which `turning` channels turn.
GgufBytes small_phi3(std::uint32_t turning) {
  constexpr std::uint32_t kHidden = 16, kWidth = 12;
  GgufBytes file;
  file.text("general.architecture", "phi3").u32("phi3.context_length", 64);
  file.u32("phi3.rope.scaling.original_context_length", 16).u32("phi3.embedding_length", kHidden);
  file.u32("phi3.feed_forward_length", kWidth).u32("phi3.block_count", 1);
  file.u32("phi3.attention.head_count", 2).u32("phi3.attention.head_count_kv", 1);
  file.f32("phi3.attention.layer_norm_rms_epsilon", 0.5f).u32("phi3.rope.dimension_count", turning);
  file.f32("phi3.rope.freq_base", 10000.0f).u32("phi3.attention.sliding_window", 0);
  const auto add = [&](const std::string& name, std::uint64_t rows, std::uint64_t cols) {
    file.tensor(name, {cols, rows}, std::vector<float>(rows * cols, 1.0f));
  };
  const auto norm = [&](const std::string& name) {
    file.tensor(name, {kHidden}, std::vector<float>(kHidden, 1.0f));
  };
  add("token_embd.weight", 5, kHidden), norm("output_norm.weight"), add("output.weight", 5, kHidden);
  norm("blk.0.attn_norm.weight"), add("blk.0.attn_qkv.weight", kHidden + 8 + 8, kHidden);
  add("blk.0.attn_output.weight", kHidden, kHidden), norm("blk.0.ffn_norm.weight");
  add("blk.0.ffn_up.weight", std::uint64_t{2} * kWidth, kHidden),
      add("blk.0.ffn_down.weight", kHidden, kWidth);
  return file;
}

// The factor that follows from 64 positions where 16 were trained first.
float phi3_attention_factor() { return static_cast<float>(std::sqrt(1 + std::log(4.0) / std::log(16.0))); }

GgufBytes small_longrope() {
  GgufBytes file = small_phi3(4);
  file.f32("phi3.rope.scaling.attn_factor", phi3_attention_factor())
      .tensor("rope_factors_long.weight", {2}, {1.5f, 3.0f})
      .tensor("rope_factors_short.weight", {2}, {1.25f, 1.5f});
  return file;
}

TEST(GgufModel, Phi3IsFusedAndScaledByLongRope) {
  const GgufReading model = read(small_longrope());
  EXPECT_EQ(model.config.at("architectures").items()[0].as_string(), "Phi3ForCausalLM");
  EXPECT_EQ(model.config.at("rope_scaling").dump(),
            R"({"type":"longrope","short_factor":[1.25,1.5],"long_factor":[1.5,3.0]})");
  EXPECT_EQ(model.config.at("original_max_position_embeddings").as_integer(), 16);
  EXPECT_EQ(model.config.at("partial_rotary_factor").as_double(), 0.5);
  EXPECT_TRUE(model.config.at("sliding_window").is_null());
  std::string names;
  for (const NamedGgufTensor& tensor : model.tensors) {
    EXPECT_EQ(tensor.permuted_heads, 0) << tensor.name;
    names += tensor.name + " ";
  }
  EXPECT_EQ(names,
            "model.embed_tokens.weight model.norm.weight lm_head.weight "
            "model.layers.0.input_layernorm.weight model.layers.0.self_attn.qkv_proj.weight "
            "model.layers.0.self_attn.o_proj.weight model.layers.0.post_attention_layernorm.weight "
            "model.layers.0.mlp.gate_up_proj.weight model.layers.0.mlp.down_proj.weight ");
}

TEST(GgufModel, Phi3WithoutFactorsIsNotScaled) {
  const Json config = read(small_phi3(8)).config;
  EXPECT_TRUE(config.at("rope_scaling").is_null());
  EXPECT_EQ(config.find("partial_rotary_factor"), nullptr);
}

// llama.cpp multiplies by attn_factor, whatever the lengths of the context are; without one, by 1.
TEST(GgufModel, Phi3sAttentionFactorIsToldWhereItIsAnother) {
  GgufBytes file = small_phi3(4);
  file.tensor("rope_factors_long.weight", {2}, {1.5f, 3.0f});
  expect_refusal(ErrorKind::kBadInput, "rope_factors_short.weight", [&] { read(file); });
  file.tensor("rope_factors_short.weight", {2}, {1.25f, 1.5f});
  EXPECT_EQ(read(file).config.at("rope_scaling").at("attention_factor").as_double(), 1.0);
  file.f32("phi3.rope.scaling.attn_factor", 1.25f);
  EXPECT_EQ(read(file).config.at("rope_scaling").at("attention_factor").as_double(), 1.25);
}

TEST(GgufModel, RefusesWhatNoPhi3Is) {
  const auto refused = [](ErrorKind kind, const char* part, GgufBytes file, auto change) {
    SCOPED_TRACE(part);
    change(file);
    expect_refusal(kind, part, [&] { read(file); });
  };
  refused(ErrorKind::kUnsupported, "longrope only", small_phi3(8), [](GgufBytes& b) {
    b.text("phi3.rope.scaling.type", "linear").f32("phi3.rope.scaling.factor", 2.0f);
  });
  refused(ErrorKind::kUnsupported, "attn_factor", small_phi3(8),
          [](GgufBytes& b) { b.f32("phi3.rope.scaling.attn_factor", 1.5f); });
  refused(ErrorKind::kUnsupported, "rope_freqs.weight", small_phi3(8), [](GgufBytes& b) {
    b.tensor("rope_freqs.weight", {4}, {1, 1, 1, 1});
  });
  refused(ErrorKind::kUnsupported, "blk.0.attn_q.weight", small_phi3(8), [](GgufBytes& b) {
    b.tensor("blk.0.attn_q.weight", {16, 16}, std::vector<float>(256));
  });
  refused(ErrorKind::kBadInput, "rope.dimension_count", small_phi3(10), [](GgufBytes&) {});
  refused(ErrorKind::kBadInput, "rope.dimension_count", small_phi3(3), [](GgufBytes&) {});
  refused(ErrorKind::kBadInput, "not F32 [4]", small_phi3(8), [](GgufBytes& b) {
    b.tensor("rope_factors_long.weight", {2}, {1.5f, 3.0f})
        .tensor("rope_factors_short.weight", {2}, {1.25f, 1.5f});
  });
}

// What int(head_dim * share) cuts off does not cost a pair: 44 * (30 / 44) is below 30.
TEST(GgufModel, ShareOfAHeadThatTurnsIsNotCutShort) {
  GgufBytes file;
  file.text("general.architecture", "phi3").u32("phi3.context_length", 64).u32("phi3.embedding_length", 44);
  file.u32("phi3.feed_forward_length", 4).u32("phi3.block_count", 1).u32("phi3.attention.head_count", 1);
  file.f32("phi3.attention.layer_norm_rms_epsilon", 0.5f).u32("phi3.rope.dimension_count", 30);
  file.tensor("token_embd.weight", {44, 1}, std::vector<float>(44));
  const double share = read(file).config.at("partial_rotary_factor").as_double();
  EXPECT_EQ(static_cast<int>(44 * share), 30);
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
