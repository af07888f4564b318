#include "memory/synthetic_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "base/half.h"
#include "base/json.h"
#include "export/output/model_directory.h"
#include "io/safetensors.h"

namespace llmq::testing {
namespace {

constexpr std::int64_t kRank = 8;
constexpr std::size_t kBandBytes = std::size_t{1} << 20;

enum class Kind : std::uint8_t { kLinear, kEmbedding, kGain, kBias };

struct Tensor {
  TensorDeclaration declaration;
  Kind kind;
  double scale = 1;
};

std::uint64_t mixed(std::uint64_t x) {  // splitmix64 (Steele, Lea, Flood 2014)
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Of mean 0 and variance 1: four uniform 16-bit values.
float normal(std::uint64_t seed, std::uint64_t place) {
  const std::uint64_t bits = mixed(seed ^ mixed(place));
  const auto sum = static_cast<std::int64_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) +
                                             (bits >> 48));
  return static_cast<float>(sum - 131070) * 2.6429e-5f;  // sqrt(3) / 65536
}

std::uint64_t seed_of(const std::string& name, std::uint64_t seed) {
  for (const char c : name) seed = mixed(seed ^ static_cast<unsigned char>(c));
  return seed;
}

// Values of a tensor, rows at a time.
class Values {
 public:
  Values(const Tensor& tensor, std::uint64_t seed)
      : kind_(tensor.kind),
        seed_(seed_of(tensor.declaration.name, seed)),
        columns_(tensor.declaration.shape.back()),
        scale_(static_cast<float>(tensor.scale)) {
    if (kind_ != Kind::kLinear) return;
    const auto n = static_cast<double>(tensor.declaration.shape[0]), k = static_cast<double>(columns_);
    scale_ *= static_cast<float>(0.7 / std::sqrt(k));
    for (std::int64_t r = 0; r < kRank; ++r) {
      const double strength =
          4 * (1 / std::sqrt(n) + 1 / std::sqrt(k)) * std::pow(static_cast<double>(r + 1), -0.7);
      for (std::int64_t c = 0; c < columns_; ++c)
        right_.push_back(static_cast<float>(strength) *
                         normal(seed_ + 1 + static_cast<std::uint64_t>(r), static_cast<std::uint64_t>(c)));
    }
  }

  void row(std::int64_t row, std::vector<float>& values) const {
    values.resize(static_cast<std::size_t>(columns_));
    const auto first = static_cast<std::uint64_t>(row * columns_);
    for (std::size_t c = 0; c < values.size(); ++c) values[c] = normal(seed_, first + c);
    if (kind_ == Kind::kGain) {
      for (std::size_t c = 0; c < values.size(); ++c)
        values[c] = std::exp(0.3f * values[c]) * (mixed(seed_ + c) % 128 == 0 ? 8.0f : 1.0f);
      return;
    }
    for (std::int64_t r = 0; kind_ == Kind::kLinear && r < kRank; ++r) {
      const float left = normal(seed_ + 100 + static_cast<std::uint64_t>(r), static_cast<std::uint64_t>(row));
      const float* const right = right_.data() + r * columns_;
      for (std::size_t c = 0; c < values.size(); ++c) values[c] += left * right[c];
    }
    for (float& v : values) v *= scale_;
  }

 private:
  Kind kind_;
  std::uint64_t seed_;
  std::int64_t columns_;
  float scale_;
  std::vector<float> right_;  // a_r v_r, [kRank, columns]
};

std::vector<Tensor> tensors_of(const SyntheticShape& s) {
  std::vector<Tensor> tensors;
  const auto add = [&](std::string name, Shape shape, Kind kind, double scale = 1) {
    tensors.push_back({{std::move(name), DType::kBF16, shape}, kind, scale});
  };
  const double into_residual = 1 / std::sqrt(2.0 * static_cast<double>(s.layers));
  const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  add("model.embed_tokens.weight", {s.vocabulary, s.hidden}, Kind::kEmbedding, 0.02);
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string block = fmt::format("model.layers.{}.", i);
    const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in, double scale = 1) {
      add(block + name + ".weight", {out, in}, Kind::kLinear, scale);
    };
    add(block + "input_layernorm.weight", {s.hidden}, Kind::kGain);
    linear("self_attn.q_proj", q, s.hidden);
    linear("self_attn.k_proj", kv, s.hidden);
    linear("self_attn.v_proj", kv, s.hidden);
    if (s.family == "qwen2")
      for (const char* name : {"q", "k", "v"})
        add(fmt::format("{}self_attn.{}_proj.bias", block, name), {*name == 'q' ? q : kv}, Kind::kBias, 0.1);
    if (s.family.starts_with("qwen3"))
      for (const char* name : {"q", "k"})
        add(fmt::format("{}self_attn.{}_norm.weight", block, name), {s.head_dim}, Kind::kGain);
    linear("self_attn.o_proj", s.hidden, q, into_residual);
    add(block + "post_attention_layernorm.weight", {s.hidden}, Kind::kGain);
    const auto mlp = [&](const std::string& name) {
      linear(name + "gate_proj", s.intermediate, s.hidden);
      linear(name + "up_proj", s.intermediate, s.hidden);
      linear(name + "down_proj", s.hidden, s.intermediate, into_residual);
    };
    if (s.experts == 0) mlp("mlp.");
    if (s.experts > 0) linear("mlp.gate", s.experts, s.hidden);
    for (std::int64_t e = 0; e < s.experts; ++e) mlp(fmt::format("mlp.experts.{}.", e));
  }
  add("model.norm.weight", {s.hidden}, Kind::kGain);
  if (!s.tied_head) add("lm_head.weight", {s.vocabulary, s.hidden}, Kind::kEmbedding, 0.02);
  return tensors;
}

void write_tensor(SafetensorsWriter& writer, const Tensor& tensor, std::uint64_t seed) {
  const Values values(tensor, seed);
  const std::int64_t columns = tensor.declaration.shape.back(),
                     rows = tensor.declaration.shape.elements() / columns;
  std::vector<float> row;
  std::vector<std::uint16_t> band;
  for (std::int64_t r = 0; r < rows; ++r) {
    values.row(r, row);
    for (const float v : row) band.push_back(to_bfloat16(v).bits);
    if (band.size() * 2 < kBandBytes && r + 1 < rows) continue;
    writer.append(tensor.declaration.name, std::as_bytes(std::span(band)));
    band.clear();
  }
}

Json config_of(const SyntheticShape& s) {
  constexpr std::array<std::array<const char*, 2>, 5> kArchitectures = {
      {{"llama", "LlamaForCausalLM"},
       {"mistral", "MistralForCausalLM"},
       {"qwen2", "Qwen2ForCausalLM"},
       {"qwen3", "Qwen3ForCausalLM"},
       {"qwen3_moe", "Qwen3MoeForCausalLM"}}};
  std::string architecture;
  for (const auto& [family, name] : kArchitectures)
    if (s.family == family) architecture = name;
  Json config = Json::object({{"architectures", Json::array({Json(architecture)})},
                              {"model_type", s.family},
                              {"hidden_size", s.hidden},
                              {"intermediate_size", s.intermediate},
                              {"num_hidden_layers", s.layers},
                              {"num_attention_heads", s.heads},
                              {"num_key_value_heads", s.kv_heads},
                              {"vocab_size", s.vocabulary},
                              {"max_position_embeddings", std::int64_t{32768}},
                              {"hidden_act", "silu"},
                              {"rms_norm_eps", 1e-6},
                              {"rope_theta", 1e6},
                              {"tie_word_embeddings", s.tied_head},
                              {"torch_dtype", "bfloat16"},
                              {"eos_token_id", s.vocabulary - 1}});
  if (s.family != "qwen2") config["head_dim"] = s.head_dim;
  if (s.experts == 0) return config;
  config["moe_intermediate_size"] = s.intermediate;
  config["num_experts"] = s.experts;
  config["num_experts_per_tok"] = s.experts_of_a_token;
  config["norm_topk_prob"] = true;
  return config;
}

std::string utf8(unsigned code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

// What a byte is called in byte-level BPE (GPT-2): printable ones are themselves, the others follow U+0100.
std::vector<std::string> byte_names() {
  std::vector<std::string> names;
  unsigned next = 0x100;
  for (unsigned b = 0; b < 256; ++b) {
    const bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    names.push_back(utf8(itself ? b : next++));
  }
  return names;
}

// Every byte, then strings over a-z and space by length: each is a shorter one and a letter.
Json tokenizer_of(std::int64_t vocabulary) {
  const std::vector<std::string> bytes = byte_names();
  std::vector<std::string> letters = {bytes[' ']};
  for (unsigned c = 'a'; c <= 'z'; ++c) letters.push_back(bytes[c]);
  Json tokens = Json::object(), merges = Json::array();
  std::int64_t count = 0;
  const auto add = [&](const std::string& token) { tokens.members().emplace_back(token, Json(count++)); };
  for (const std::string& name : bytes) add(name);
  std::vector<std::string> shorter = letters, longer;
  while (count < vocabulary - 1) {
    for (const std::string& head : shorter)
      for (const std::string& letter : letters) {
        if (count == vocabulary - 1) break;
        merges.push_back(Json::array({Json(head), Json(letter)}));
        add(head + letter);
        longer.push_back(head + letter);
      }
    shorter = std::move(longer);
    longer.clear();
  }
  const std::string end = "<|endoftext|>";
  Json special = Json::object({{"id", vocabulary - 1},
                               {"content", end},
                               {"single_word", false},
                               {"lstrip", false},
                               {"rstrip", false},
                               {"normalized", false},
                               {"special", true}});
  const auto byte_level = [](bool use_regex) {
    return Json::object({{"type", "ByteLevel"},
                         {"add_prefix_space", false},
                         {"trim_offsets", true},
                         {"use_regex", use_regex}});
  };
  return Json::object({{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", Json::array({special})},
                       {"normalizer", nullptr},
                       {"pre_tokenizer", byte_level(true)},
                       {"post_processor", nullptr},
                       {"decoder", byte_level(true)},
                       {"model", Json::object({{"type", "BPE"},
                                               {"dropout", nullptr},
                                               {"unk_token", nullptr},
                                               {"continuing_subword_prefix", nullptr},
                                               {"end_of_word_suffix", nullptr},
                                               {"fuse_unk", false},
                                               {"byte_fallback", false},
                                               {"vocab", std::move(tokens)},
                                               {"merges", std::move(merges)}})}});
}

}  // namespace

const std::vector<SyntheticShape>& synthetic_shapes() {
  static const std::vector<SyntheticShape> kShapes = {
      {"qwen3-32b", "qwen3", 5120, 25600, 64, 64, 8, 128, 151936, false},
      {"llama-3-8b", "llama", 4096, 14336, 32, 32, 8, 128, 128256, false},
      {"qwen3-8b", "qwen3", 4096, 12288, 36, 32, 8, 128, 151936, false},
      {"qwen2-1.5b", "qwen2", 1536, 8960, 28, 12, 2, 128, 151936, true},
      {"llama-3.2-1b", "llama", 2048, 8192, 16, 32, 8, 64, 128256, true},
      {"mistral-7b", "mistral", 4096, 14336, 32, 32, 8, 128, 32768, false},
      {"qwen3-30b-a3b", "qwen3_moe", 2048, 768, 48, 32, 4, 128, 151936, false, 128, 8},
      {"256-experts", "qwen3_moe", 2048, 512, 40, 16, 2, 256, 248320, false, 256, 8},
      {"medium-qwen3", "qwen3", 768, 2304, 2, 6, 3, 128, 8192, false},
      {"small-llama", "llama", 256, 768, 2, 8, 4, 32, 2048, true},
      {"small-qwen2", "qwen2", 256, 1024, 2, 4, 2, 64, 4096, true},
      {"small-qwen3", "qwen3", 256, 1536, 3, 4, 2, 64, 4096, false},
      {"small-qwen3-moe", "qwen3_moe", 256, 128, 2, 4, 2, 64, 4096, false, 16, 4},
      {"small-mistral", "mistral", 256, 896, 2, 8, 2, 32, 2048, false},
      {"wide-llama", "llama", 1536, 6144, 2, 12, 2, 128, 8192, true},
  };
  return kShapes;
}

SyntheticShape synthetic_shape(const std::string& name) {
  std::string known;
  for (const SyntheticShape& shape : synthetic_shapes()) {
    if (shape.name == name) return shape;
    known += " " + shape.name;
  }
  throw std::runtime_error("no shape is called " + name + "; there are" + known);
}

void write_synthetic_checkpoint(Io& io, const Path& directory, const SyntheticShape& shape,
                                std::uint64_t seed, std::uint64_t shard_bytes) {
  io.make_directory(directory);
  const std::vector<Tensor> tensors = tensors_of(shape);
  std::vector<TensorDeclaration> declared;
  for (const Tensor& tensor : tensors) declared.push_back(tensor.declaration);
  const std::vector<ShardRange> shards = split_shards(declared, shard_bytes);
  Json names = Json::object();
  std::uint64_t total = 0;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const auto first = static_cast<std::ptrdiff_t>(shards[s].first),
               count = static_cast<std::ptrdiff_t>(shards[s].count);
    const std::string name = shard_name(s, shards.size());
    SafetensorsWriter writer(io, directory / name,
                             {declared.begin() + first, declared.begin() + first + count},
                             {{"format", "pt"}});
    for (std::ptrdiff_t i = first; i < first + count; ++i) {
      const Tensor& tensor = tensors[static_cast<std::size_t>(i)];
      write_tensor(writer, tensor, seed);
      names[tensor.declaration.name] = name;
      total += static_cast<std::uint64_t>(tensor.declaration.shape.elements()) * 2;
    }
    writer.finish();
  }
  if (shards.size() > 1)
    write_text_atomically(
        io, directory / "model.safetensors.index.json",
        Json::object({{"metadata", Json::object({{"total_size", total}})}, {"weight_map", names}}).dump(1));
  write_text_atomically(io, directory / "config.json", config_of(shape).dump(1));
  write_text_atomically(io, directory / "tokenizer.json", tokenizer_of(shape.vocabulary).dump());
  write_text_atomically(
      io, directory / "tokenizer_config.json",
      Json::object({{"tokenizer_class", "PreTrainedTokenizerFast"}, {"eos_token", "<|endoftext|>"}}).dump(1));
}

}  // namespace llmq::testing
