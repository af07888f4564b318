// The structure of one model, read from config.json and checked against the tensors' shapes: built once, then
// constant.
//
// For every linear it names the input it shares; for every foldable producer, all readers of its output. One
// file per family (model/family_*.cpp) fills it; an unknown family, or a known one with an unknown field that
// changes the mathematics, is refused by name.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint.h"

namespace llmq {

// The distinct inputs of a block's linears, in the order in which they arise.
enum class InputSite : std::uint8_t {
  kAttention,
  kOutput,
  kMlp,
  kDown
};  // x_attn -> q,k,v; x_o -> o; x_mlp -> gate,up; x_down -> down
inline constexpr std::array<InputSite, 4> kInputSites = {InputSite::kAttention, InputSite::kOutput,
                                                         InputSite::kMlp, InputSite::kDown};
const char* site_name(InputSite site);  // "x_attn", "x_o", "x_mlp", "x_down"

enum class LinearRole : std::uint8_t { kQuery, kKey, kValue, kOutput, kGate, kUp, kDown };
inline constexpr int kLinearRoles = 7;

struct LinearSpec {
  LinearRole role;
  InputSite site;
  std::string module;  // "model.layers.3.self_attn.q_proj"; tensors are module + ".weight" and ".bias"
  std::int64_t out_features = 0, in_features = 0;
  bool has_bias = false;
};

// A channel scale s on input `site` moves into its producer: producer output / s, readers' columns * s.
struct FoldSpec {
  enum class Producer : std::uint8_t {
    kNormGain,
    kLinearRows,
    kGroupedValueRows
  };  // kGroupedValueRows: v -> o, s shared by a query group
  InputSite site;
  Producer producer;
  std::string producer_module;      // "model.layers.3.input_layernorm" or "...v_proj", "...up_proj"
  std::vector<LinearRole> readers;  // every reader of the producer's output
  std::int64_t repeat = 1;          // query heads per KV head for kGroupedValueRows
};

struct BlockSpec {
  std::string prefix;                            // "model.layers.3"
  std::array<LinearSpec, kLinearRoles> linears;  // indexed by LinearRole
  std::string input_norm, post_attention_norm;   // tensor names
  std::string query_norm, key_norm;              // empty without q/k norm
  std::vector<FoldSpec> folds;
  std::int64_t sliding_window = 0;  // 0: full attention
  const LinearSpec& linear(LinearRole role) const { return linears[static_cast<std::size_t>(role)]; }
};

enum class RopeKind : std::uint8_t { kDefault, kLinear, kDynamic, kYarn, kLlama3 };
struct RopeSpec {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  double beta_fast = 32, beta_slow = 1, attention_factor = 0, mscale = 0, mscale_all_dim = 0;  // 0: not given
  bool truncate = true;
  std::int64_t original_max_position = 0;
};

struct ModelSpec {
  std::string family;        // "llama", "mistral", "qwen2", "qwen3"
  std::string architecture;  // "LlamaForCausalLM"
  std::int64_t hidden_size = 0, intermediate_size = 0, vocab_size = 0, max_position = 0;
  int heads = 0, kv_heads = 0, head_dim = 0;
  float rms_norm_eps = 1e-6f;
  bool silu = true;  // else gelu (tanh)
  bool tied_head = false;
  RopeSpec rope;
  std::vector<BlockSpec> blocks;
  std::string embedding, final_norm,
      head;  // tensor names; head is the embedding's when tied (or the one stored)
  std::vector<std::int32_t> eos_ids;
  std::optional<std::int32_t> bos_id;

  // Reads config.json and checks every shape against it; packed linears (quantization_config) are checked by
  // their packed shapes. Errors: kUnsupported (family, field), kBadInput (config disagrees with tensor
  // shapes: both named).
  static ModelSpec read(const Checkpoint& checkpoint);
  std::int64_t parameters() const;
};

// cos and sin of position * frequency, F32 [positions, head_dim/2], computed in FP64 or as Transformers does
// where that differs in FP32; dynamic and yarn follow Transformers' modeling_rope_utils.
struct RopeTable {
  std::vector<float> cosines, sines;
  std::int64_t positions = 0;
};
RopeTable make_rope_table(const ModelSpec& spec, std::int64_t positions);

}  // namespace llmq
