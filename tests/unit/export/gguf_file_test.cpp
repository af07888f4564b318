// A model written as GGUF and read back: the same config, weights, ids; and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "export/gguf/family_limits.h"
#include "export/gguf/gguf_file.h"
#include "export/gguf/gguf_rope.h"
#include "io/gguf_rows.h"
#include "model/gguf/gguf_fields.h"
#include "model/gguf/gguf_names.h"
#include "model/linear_source.h"
#include "model/rope.h"
#include "tests/unit/export/gguf_fixture.h"
#include "tests/unit/io/hostile_bytes.h"
#include "tokenizer/tokenizer.h"

namespace llmq {
namespace {

using testing::expect_refusal;
using testing::golden_model;
using testing::kTinystories;
using testing::TemporaryDirectory;
using testing::to_gguf;

std::vector<float> values(const Checkpoint& checkpoint, const std::string& name) {
  return checkpoint.read_float32(checkpoint.at(name));
}

std::vector<float> in_float32(const std::vector<double>& values) { return {values.begin(), values.end()}; }

void expect_equal_ropes(const RopeSpec& read, const RopeSpec& written) {
  EXPECT_EQ(read.kind, written.kind);
  EXPECT_EQ(read.dims, written.dims);
  EXPECT_EQ(read.theta, written.theta);
  EXPECT_EQ(read.factor, written.factor);
  EXPECT_EQ(read.beta_fast, written.beta_fast);
  EXPECT_EQ(read.beta_slow, written.beta_slow);
  EXPECT_EQ(in_float32(read.short_factors), in_float32(written.short_factors));
  EXPECT_EQ(in_float32(read.long_factors), in_float32(written.long_factors));
  if (written.kind == RopeKind::kLongRope) {
    EXPECT_EQ(read.original_max_position, written.original_max_position);
    EXPECT_EQ(static_cast<float>(longrope_attention_factor(read)),
              static_cast<float>(longrope_attention_factor(written)));
  }
}

class GgufRoundTrip : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufRoundTrip, GivesBackStructureAndWeights) {
  TemporaryDirectory directory;
  const std::string source = golden_model(directory, GetParam());
  to_gguf(system_io(), source, directory / "m.gguf", "f32");
  const Checkpoint before = open_checkpoint(system_io(), source);
  const Checkpoint after = open_checkpoint(system_io(), (directory / "m.gguf").string());
  const ModelSpec spec = ModelSpec::read(before), read = ModelSpec::read(after);
  if (spec.family != "mistral" || spec.blocks.front().pages.window != 0) {
    EXPECT_EQ(read.family, spec.family);  // without a window a Mistral is a Llama
  }
  EXPECT_EQ(read.blocks.front().attention()->heads, spec.blocks.front().attention()->heads);
  EXPECT_EQ(read.blocks.front().pages.kv_heads, spec.blocks.front().pages.kv_heads);
  EXPECT_EQ(read.blocks.front().pages.head_dim, spec.blocks.front().pages.head_dim);
  EXPECT_EQ(read.final_norm.eps, spec.final_norm.eps);
  EXPECT_FLOAT_EQ(static_cast<float>(read.final_norm.scale), static_cast<float>(spec.final_norm.scale));
  EXPECT_EQ(read.embedding.scale, spec.embedding.scale);
  EXPECT_EQ(read.blocks.front().attention()->scale, spec.blocks.front().attention()->scale);
  EXPECT_EQ(read.blocks.back().sublayers.back().residual_scale,
            spec.blocks.back().sublayers.back().residual_scale);
  expect_equal_ropes(gguf_rope(read), gguf_rope(spec));
  EXPECT_EQ(read.blocks.front().pages.window, spec.blocks.front().pages.window);
  EXPECT_EQ(read.tied_head, spec.tied_head);
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears) {
      EXPECT_EQ(values(after, linear.module + ".weight"), values(before, linear.module + ".weight"))
          << linear.module;
      if (linear.has_bias()) {
        EXPECT_EQ(values(after, linear.module + ".bias"), values(before, linear.module + ".bias"))
            << linear.module;
      }
    }
  for (const BlockSpec& block : spec.blocks) {
    for (const NormSpec& norm : block.norms)
      EXPECT_EQ(values(after, norm.gain.tensor), values(before, norm.gain.tensor)) << norm.gain.tensor;
    for (const MixerTensor& tensor : block.tensors)
      EXPECT_EQ(values(after, tensor.place.tensor), values(before, tensor.place.tensor));
  }
  EXPECT_EQ(values(after, spec.final_norm.gain.tensor), values(before, spec.final_norm.gain.tensor));
  EXPECT_EQ(values(after, "model.embed_tokens.weight"), values(before, spec.embedding.tensor));
  EXPECT_EQ(values(after, read.head), values(before, spec.head));
}

INSTANTIATE_TEST_SUITE_P(Families, GgufRoundTrip,
                         ::testing::Values("llama-default", "llama-linear-biases", "llama-yarn",
                                           "llama-tied-head-only", "mistral-window", "mistral-head-dim",
                                           "qwen2-yarn", "qwen3", "phi3-longrope", "phi3-window", "olmo2",
                                           "granite", "granite-biases", "seed_oss", "qwen3_moe", "qwen2_moe",
                                           "mixtral", "olmoe", "granitemoe", "granitemoe-biases", "gpt_oss",
                                           "gpt_oss-transformers4", "gpt_oss-mxfp4", "minimax_m2",
                                           "minimax_m2-published"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(GgufFile, RefusesWhatTheArchitectureDoesNotCompute) {
  TemporaryDirectory directory;
  for (const auto& [name, part] : {std::pair{"llama-dynamic-mqa", "dynamic"},
                                   {"llama-llama3-gelu", "gelu"},
                                   {"qwen2-window", "sliding"},
                                   {"olmo2-biases", "llama.cpp's olmo2 has no place for this bias"},
                                   {"seed_oss-biases", "llama.cpp's seed_oss has no place for this bias"},
                                   {"ernie4_5-biases", "llama.cpp's ernie4_5 has no place for this bias"},
                                   {"qwen3_moe-dense-block", "qwen3moe always divides the weights"},
                                   {"qwen2_moe-step", "qwen2moe models have experts in every block"},
                                   {"olmoe-biases", "olmoe never divides the weights"},
                                   {"mixtral-window", "llama models have no sliding windows"},
                                   {"opt", "family opt are not written as GGUF"}})
    expect_refusal(ErrorKind::kUnsupported, part, [&, model = name] {
      to_gguf(system_io(), golden_model(directory, model), directory / "m.gguf", "f32");
    });
  EXPECT_FALSE(system_io().exists(directory / "m.gguf"));
}

// The config of a golden model, with another member.
ModelSpec golden_spec(const std::string& name, const std::string& key, const char* value) {
  TemporaryDirectory directory;
  const Path model = golden_model(directory, name), file = model / "config.json";
  Json config = Json::parse(read_text(system_io(), file), file.string());
  config.erase("rope_parameters");
  config[key] = Json::parse(value, "value");
  write_text_atomically(system_io(), file, config.dump());
  return ModelSpec::read(open_checkpoint(system_io(), model.string()));
}

TEST(GgufFile, RefusesARopeThatTheArchitectureDoesNotTurn) {
  const auto refused = [](const ModelSpec& spec, const char* part) {
    expect_refusal(ErrorKind::kUnsupported, part, [&] { check_gguf_family(spec, "m"); });
  };
  const char* const longrope = R"({"type": "longrope", "short_factor": [1, 1, 1, 1], )"
                               R"("long_factor": [2, 2, 2, 2]})";
  const char* const linear = R"({"type": "linear", "factor": 2})";
  EXPECT_NO_THROW(check_gguf_family(golden_spec("llama-default", "rope_scaling", linear), "m"));
  EXPECT_NO_THROW(check_gguf_family(golden_spec("phi3-longrope", "rope_scaling", longrope), "m"));
  refused(golden_spec("llama-default", "rope_scaling", longrope),
          "llama models have no place for the factors of longrope");
  refused(golden_spec("phi3-longrope", "rope_scaling", linear), "phi3 models scale rope by longrope only");
  ModelSpec wider = golden_spec("phi3-longrope", "rope_scaling", longrope);
  wider.hidden_size *= 2;
  refused(wider, "phi3 models have heads that make up the hidden size");
}

// Those that begin with `prefix`, without it, in the order of the file.
std::string keys_of(const GgufHeader& header, const std::string& prefix) {
  std::vector<std::pair<const std::byte*, std::string>> keys;
  for (const auto& [key, value] : header.metadata)
    if (key.starts_with(prefix)) keys.emplace_back(value.bytes.data(), key.substr(prefix.size()));
  std::sort(keys.begin(), keys.end());
  std::string order;
  for (const auto& [place, key] : keys) order += key + " ";
  return order;
}

// As llama.cpp's conversion/phi.py, in its order.
TEST(GgufFile, SaysWhatPhi3Is) {
  TemporaryDirectory directory;
  to_gguf(system_io(), golden_model(directory, "phi3-longrope"), directory / "m.gguf", "f32");
  const GgufFile file = open_gguf(system_io(), directory / "m.gguf");
  const GgufHeader& header = file.header;
  EXPECT_EQ(keys_of(header, "phi3."),
            "rope.scaling.attn_factor context_length rope.scaling.original_context_length embedding_length "
            "feed_forward_length block_count attention.head_count attention.head_count_kv "
            "attention.layer_norm_rms_epsilon rope.dimension_count rope.freq_base attention.sliding_window ");
  EXPECT_EQ(header.number("phi3.rope.scaling.attn_factor"),
            static_cast<double>(static_cast<float>(std::sqrt(1 + std::log(4.0) / std::log(16.0)))));
  EXPECT_EQ(header.integer("phi3.rope.scaling.original_context_length"), 16);
  EXPECT_EQ(header.integer("phi3.rope.dimension_count"), 4);
  EXPECT_EQ(header.integer("phi3.attention.sliding_window"), 0);
  const auto numbers = [&](const std::string& name) {
    for (const GgufTensor& tensor : header.tensors)
      if (tensor.name == name) {
        EXPECT_EQ(tensor.dtype, DType::kF32);
        std::vector<float> values(static_cast<std::size_t>(tensor.shape.elements()));
        std::memcpy(values.data(), tensor.data, tensor.bytes);
        return values;
      }
    return std::vector<float>();
  };
  EXPECT_EQ(numbers("rope_factors_long.weight"), (std::vector<float>{1.5f, 3.0f}));
  EXPECT_EQ(numbers("rope_factors_short.weight"), (std::vector<float>{1.1f, 1.3f}));
  const Checkpoint before = open_checkpoint(system_io(), (directory / "phi3-longrope").string());
  EXPECT_EQ(numbers("blk.1.attn_qkv.weight"), values(before, "model.layers.1.self_attn.qkv_proj.weight"));
  EXPECT_EQ(numbers("blk.1.ffn_up.weight"), values(before, "model.layers.1.mlp.gate_up_proj.weight"));
}

// As llama.cpp's conversion/olmo.py, in its order, and with the names of src/models/olmo2.cpp.
TEST(GgufFile, SaysWhatOlmo2Is) {
  TemporaryDirectory directory;
  to_gguf(system_io(), golden_model(directory, "olmo2"), directory / "m.gguf", "f32");
  const GgufFile file = open_gguf(system_io(), directory / "m.gguf");
  EXPECT_EQ(keys_of(file.header, "olmo2."),
            "block_count context_length embedding_length feed_forward_length attention.head_count "
            "attention.head_count_kv rope.freq_base attention.layer_norm_rms_epsilon ");
  std::vector<std::string> norms;
  for (const GgufTensor& tensor : file.header.tensors)
    if (tensor.name.starts_with("blk.0.") && tensor.shape.rank() == 1) norms.push_back(tensor.name.substr(6));
  EXPECT_THAT(norms, ::testing::ElementsAre("attn_k_norm.weight", "attn_q_norm.weight",
                                            "post_attention_norm.weight", "post_ffw_norm.weight"));
  const Checkpoint before = open_checkpoint(system_io(), (directory / "olmo2").string()),
                   after = open_checkpoint(system_io(), (directory / "m.gguf").string());
  for (const char* norm :
       {"post_attention_layernorm", "post_feedforward_layernorm", "self_attn.q_norm", "self_attn.k_norm"}) {
    const std::string name = fmt::format("model.layers.1.{}.weight", norm);
    EXPECT_EQ(values(after, name), values(before, name)) << name;
  }
}

// As llama.cpp's conversion/granite.py, in its order.
TEST(GgufFile, SaysWhatGraniteIs) {
  TemporaryDirectory directory;
  to_gguf(system_io(), golden_model(directory, "granite"), directory / "m.gguf", "f32");
  const GgufFile file = open_gguf(system_io(), directory / "m.gguf");
  EXPECT_EQ(keys_of(file.header, "granite."),
            "block_count context_length embedding_length feed_forward_length attention.head_count "
            "attention.head_count_kv rope.freq_base attention.layer_norm_rms_epsilon vocab_size "
            "rope.dimension_count attention.scale embedding_scale residual_scale logit_scale ");
  EXPECT_EQ(file.header.number("granite.logit_scale"), static_cast<double>(2.9f))
      << "what divides, not its inverse";
  EXPECT_EQ(file.header.number("granite.attention.scale"), static_cast<double>(0.23f));
}

// As llama.cpp's conversion/qwen.py, in its order; a stack for each kind of an expert's linears.
TEST(GgufFile, SaysWhatAMixtureIs) {
  TemporaryDirectory directory;
  to_gguf(system_io(), golden_model(directory, "qwen2_moe"), directory / "m.gguf", "f16");
  const GgufFile file = open_gguf(system_io(), directory / "m.gguf");
  EXPECT_EQ(keys_of(file.header, "qwen2moe."),
            "block_count context_length embedding_length feed_forward_length attention.head_count "
            "attention.head_count_kv rope.freq_base attention.layer_norm_rms_epsilon expert_count "
            "expert_used_count expert_feed_forward_length expert_shared_feed_forward_length ");
  EXPECT_EQ(file.header.integer("qwen2moe.feed_forward_length"), 40);  // which no block has
  EXPECT_EQ(file.header.integer("qwen2moe.expert_feed_forward_length"), 24);
  EXPECT_EQ(file.header.integer("qwen2moe.expert_shared_feed_forward_length"), 40);
  const GgufTensor& up = *find_gguf_tensor(file.header, "blk.1.ffn_up_exps.weight");
  EXPECT_EQ(up.shape, (Shape{6, 24, 32}));
  EXPECT_EQ(up.dtype, DType::kF16);
  EXPECT_EQ(find_gguf_tensor(file.header, "blk.1.ffn_down_exps.weight")->shape, (Shape{6, 32, 24}));
  for (const char* const router : {"blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_inp_shexp.weight"})
    EXPECT_EQ(find_gguf_tensor(file.header, router)->dtype, DType::kF32) << router;
}

// Stacks of experts in Q4_0; `odd`: an expert whose importance is not that of the others.
std::string weighted_stack(int odd) {
  const TemporaryDirectory directory;
  const Checkpoint checkpoint = open_checkpoint(system_io(), golden_model(directory, "qwen3_moe"));
  const ModelSpec spec = ModelSpec::read(checkpoint);
  GgufRequest request;
  request.target = {directory / "m.gguf", true};
  request.file_type = find_gguf_file_type("q4_0");
  request.weighted = true;
  Imatrix imatrix;
  ImatrixEntry& entry = imatrix.entries["blk.0.ffn_up_exps.weight"];
  entry = {std::vector<float>(6 * 32, 1.0f), std::vector<float>(6, 1.0f)};
  if (odd >= 0)
    for (std::size_t c = 0; c < 32; ++c)
      entry.sums[static_cast<std::size_t>(odd) * 32 + c] = c < 3 ? 500 : 1e-3f;
  GgufOutput output(system_io(), checkpoint, spec, request);
  ThreadPool pool(2);
  output.publish(output.write(&imatrix, pool));
  const GgufFile file = open_gguf(system_io(), directory / "m.gguf");
  const GgufTensor& up = *find_gguf_tensor(file.header, "blk.0.ffn_up_exps.weight");
  return directory.read("m.gguf").substr(up.offset, up.bytes);
}

TEST(GgufFile, EachExpertHasItsOwnImportance) {
  const std::string all = weighted_stack(-1), odd = weighted_stack(4);
  ASSERT_EQ(all.size(), 6u * 24 * 18);
  const std::size_t each = all.size() / 6;
  for (std::size_t expert = 0; expert < 6; ++expert)
    EXPECT_EQ(all.substr(expert * each, each) != odd.substr(expert * each, each), expert == 4) << expert;
}

// By the name that the file has for it, and which expert it is.
TEST(GgufFile, NotANumberIsRefusedWithItsPlace) {
  const TemporaryDirectory directory;
  const Path model = golden_model(directory, "qwen3_moe");
  for (const auto& [tensor, said] :
       {std::pair{"model.layers.1.mlp.experts.4.down_proj.weight",
                  "blk.1.ffn_down_exps.weight: holds NaN at row 1, column 2 of matrix 4; get the"},
        {"model.layers.0.mlp.gate.weight",
         "blk.0.ffn_gate_inp.weight: holds NaN at row 0, column 26; get"}}) {
    const Path file = model / "model.safetensors";
    const std::string before = read_text(system_io(), file);
    const Checkpoint checkpoint = open_checkpoint(system_io(), model.string());
    const std::uint64_t place = checkpoint.at(tensor).offset + 26 * sizeof(float);
    std::string bytes = before;
    std::memcpy(bytes.data() + place, "\0\0\xc0\x7f", 4);
    write_text_atomically(system_io(), file, bytes);
    for (const char* const dtype : {"f32", "f16", "q8_0"})
      expect_refusal(ErrorKind::kBadInput, said,
                     [&] { to_gguf(system_io(), model.string(), directory / "m.gguf", dtype); });
    EXPECT_FALSE(std::filesystem::exists(directory / "m.gguf"));
    write_text_atomically(system_io(), file, before);
  }
}

TEST(GgufFile, RefusesASecondRope) {
  TemporaryDirectory directory;
  ModelSpec spec = ModelSpec::read(open_checkpoint(system_io(), golden_model(directory, "llama-default")));
  EXPECT_NO_THROW(check_gguf_family(spec, "model"));
  spec.ropes.push_back(spec.ropes.front());
  expect_refusal(ErrorKind::kUnsupported, "one rope", [&] { check_gguf_family(spec, "model"); });
}

TEST(GgufFile, TokenizersAndWindowsSurvive) {
  TemporaryDirectory directory;
  to_gguf(system_io(), kTinystories.string(), directory / "m.gguf", "f32");
  const Tokenizer before = Tokenizer::open(system_io(), kTinystories),
                  after = Tokenizer::open(system_io(), directory / "m.gguf");
  const std::string text = "Once upon a time, there was a little girl.  She said: \"No!\"\n the end";
  EXPECT_EQ(after.encode(text), before.encode(text));
  EXPECT_EQ(after.decode(after.encode(text)), before.decode(before.encode(text)));
}

// Of this family the converter says it behind all else.
TEST(GgufFile, ErniesPrefixIsSaidLastAsItIsTold) {
  TemporaryDirectory directory;
  const Path model = golden_model(directory, "ernie4_5");
  write_text_atomically(system_io(), model / "tokenizer_config.json",
                        R"({"add_prefix_space": false, "chat_template": "{{ messages }}"})");
  to_gguf(system_io(), model.string(), directory / "m.gguf", "f32");
  const GgufFile file = open_gguf(system_io(), directory / "m.gguf");
  EXPECT_FALSE(file.header.boolean("tokenizer.ggml.add_space_prefix"));
  const std::string text = read_text(system_io(), directory / "m.gguf");
  EXPECT_GT(text.find("tokenizer.ggml.add_space_prefix"), text.find("tokenizer.chat_template"));
}

// What the converter leaves to llama.cpp's defaults, which would add BOS and a space here.
TEST(GgufFile, SaysWhereTheTokenizerDiffersFromLlamaCppsDefaults) {
  TemporaryDirectory directory;
  to_gguf(system_io(), golden_model(directory, "llama-default"), directory / "m.gguf", "f32");
  const GgufFile file = open_gguf(system_io(), directory / "m.gguf");
  EXPECT_FALSE(file.header.boolean("tokenizer.ggml.add_bos_token"));
  EXPECT_FALSE(file.header.boolean("tokenizer.ggml.add_space_prefix"));
  EXPECT_EQ(file.header.strings("tokenizer.ggml.tokens").size(), 97u);
  EXPECT_EQ(file.header.strings("tokenizer.ggml.tokens")[9], "[PAD9]");
  EXPECT_EQ(file.header.numbers("tokenizer.ggml.scores")[6], 0);   // "b a" is the first merge
  EXPECT_EQ(file.header.numbers("tokenizer.ggml.scores")[8], -3);  // "b ab" the fourth
  EXPECT_EQ(file.header.integers("tokenizer.ggml.token_type")[0], 3);
  EXPECT_EQ(file.header.integers("tokenizer.ggml.token_type")[1], 6);
}

TEST(GgufFile, HalfTypesRoundAndKeepNormsWhole) {
  TemporaryDirectory directory;
  const ConvertReport report = to_gguf(system_io(), kTinystories.string(), directory / "m.gguf", "F16");
  EXPECT_EQ(report.dtype, "f16");
  const GgufFile file = open_gguf(system_io(), directory / "m.gguf");
  EXPECT_EQ(report.bytes_out, file.mappings.front()->bytes().size());
  for (const GgufTensor& tensor : file.header.tensors)
    EXPECT_EQ(tensor.dtype, tensor.shape.rank() == 1 ? DType::kF32 : DType::kF16) << tensor.name;
  EXPECT_EQ(file.header.integer("general.file_type"), 1);
}

// Row 1 of a head of 4 is the second half's first in Hugging Face's order.
TEST(GgufNames, TranslateBothWaysAndRowsToo) {
  const GgufFamily &llama = *gguf_family("llama"), &phi3 = *gguf_family("phi3");
  EXPECT_EQ(gguf_name(llama, "model.layers.12.self_attn.q_proj.weight"), "blk.12.attn_q.weight");
  EXPECT_EQ(gguf_name(llama, "model.layers.12.mlp.down_proj"), "blk.12.ffn_down");
  EXPECT_EQ(gguf_name(llama, "lm_head.weight"), "output.weight");
  EXPECT_EQ(gguf_name(llama, "model.layers.12.mlp.router.weight"), "");
  EXPECT_EQ(gguf_name(llama, "model.layers.12"), "");
  EXPECT_EQ(gguf_name(phi3, "model.layers.12.self_attn.qkv_proj.weight"), "blk.12.attn_qkv.weight");
  EXPECT_EQ(gguf_name(phi3, "model.layers.12.mlp.gate_up_proj.weight"), "blk.12.ffn_up.weight");
  EXPECT_EQ(gguf_name(phi3, "model.layers.12.mlp.up_proj.weight"), "");
  EXPECT_EQ(hugging_face_name(llama, "blk.3.attn_output.bias").name, "model.layers.3.self_attn.o_proj.bias");
  EXPECT_EQ(hugging_face_name(llama, "blk.03.attn_output.bias").name, "");
  EXPECT_EQ(hugging_face_name(phi3, "blk.3.ffn_up.weight").name, "model.layers.3.mlp.gate_up_proj.weight");
  const GgufFamily& mixtral = *gguf_family("mixtral");
  EXPECT_EQ(gguf_name(mixtral, "model.layers.2.block_sparse_moe.experts.11.w3.weight"),
            "blk.2.ffn_up_exps.weight");
  EXPECT_EQ(gguf_name(mixtral, "model.layers.2.block_sparse_moe.experts.w3.weight"), "");
  EXPECT_EQ(gguf_name(mixtral, "model.layers.2.block_sparse_moe.experts.1a.w3.weight"), "");
  EXPECT_EQ(hugging_face_name(mixtral, "blk.2.ffn_up_exps.weight").name,
            "model.layers.2.block_sparse_moe.experts.*.w3.weight");
  EXPECT_EQ(permuted_row(1, 8, 2), 2);
  for (std::int64_t row = 0; row < 48; ++row) EXPECT_EQ(permuted_row(source_row(row, 48, 3), 48, 3), row);
}

TEST(GgufRopeFactors, AreLlama3sAndReadBack) {
  RopeSpec rope;
  rope.kind = RopeKind::kLlama3;
  rope.dims = 128;
  rope.theta = 500000;
  rope.factor = 8;
  rope.original_max_position = 8192;
  const std::vector<RopeFactors> tensors = gguf_rope_factors(rope);
  ASSERT_EQ(tensors.size(), 1u);
  EXPECT_EQ(tensors[0].name, "rope_freqs.weight");
  const std::vector<float>& factors = tensors[0].values;
  ASSERT_EQ(factors.size(), 64u);
  EXPECT_EQ(factors.front(), 1);
  EXPECT_EQ(factors.back(), 8);
  EXPECT_TRUE(std::is_sorted(factors.begin(), factors.end()));
  EXPECT_EQ(std::count(factors.begin(), factors.end(), 1.0f),
            29);  // torch.tensor(rope_factors) of convert_hf_to_gguf.py
  rope.kind = RopeKind::kDefault;
  EXPECT_TRUE(gguf_rope_factors(rope).empty());
}

}  // namespace
}  // namespace llmq
