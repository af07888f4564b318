// What a model family says: its config keys, the names of its tensors, and the structure of its blocks.
//
// One entry per family, in model/families/<name>.cpp. Most families are Llama with other defaults
// (llama_like.h); one of another structure fills ModelSpec::blocks by itself (model/block_builder.h).
// Defaults are those of Transformers' configuration classes.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "model/config_fields.h"
#include "model/model_spec.h"

namespace llmq {

struct GgufFamily;

struct Family {
  const char* model_type;
  const char* architecture;  // as "architectures" names it
  bool ties_by_default;      // where "tie_word_embeddings" is absent
  // Reads the family's keys and fills everything of `spec` but the head and the token ids. `layers` is how
  // many blocks a checkpoint can hold at most: more are refused before anything is made of them.
  void (*read)(ConfigFields& config, std::int64_t layers, ModelSpec& spec);
  const GgufFamily* gguf = nullptr;  // model/gguf/gguf_family.h; null: neither read from GGUF nor written so
  FindSlabs find_slabs = nullptr;    // null: it stacks no matrices
};

// All that are known; the first of equals counts.
std::span<const Family* const> families();

// Whether mlx-lm stores such a model's tensors as Transformers does: by these names, with these numbers. Of
// others it stacks experts, turns kernels, or adds 1 to gains (`sanitize` of its mlx_lm/models, 0.32).
bool is_same_in_mlx(std::string_view model_type);

// hidden_size, vocab_size, and as many empty blocks as the config asks for.
void read_common_sizes(ConfigFields& config, std::int64_t layers, ModelSpec& spec);

// Windows per block from layer_types, or from use_sliding_window, sliding_window and max_window_layers as
// Qwen2 and Qwen3 define them; `first` where max_window_layers is absent.
std::vector<std::int64_t> read_qwen_windows(ConfigFields& config, const ModelSpec& spec,
                                            std::int64_t first = 28);
// Windows per block from layer_types, or, where that is absent, of all blocks but each `period`-th;
// sliding_window is 4096 where it is absent, and must not be null where a block has one.
std::vector<std::int64_t> read_periodic_windows(ConfigFields& config, const ModelSpec& spec,
                                                std::int64_t period);
// Per block: whether it turns. no_rope_layers has 1 where it does; where it is absent, or empty if that is
// none, each no_rope_layer_interval-th block does not.
inline constexpr std::int64_t kUsualTurningPeriod = 4;
std::vector<bool> read_turning_blocks(ConfigFields& config, std::size_t blocks, bool empty_is_none = false);
// layer_types as a list of "is this a block of `other`", empty when the key is absent. Kinds but that and
// full_attention are refused by name.
std::vector<bool> read_layer_types(ConfigFields& config, const ModelSpec& spec,
                                   const char* other = "sliding_attention");

// What a family's rope may say, and what it is where the config says nothing.
struct RopeDefaults {
  double theta = 10000;
  bool partial = false;  // partial_rotary_factor beside or inside is read; else another than 1 is refused
  double share = 1;      // of a head that turns, where that says nothing
  bool growth = false;   // llama_4_scaling_beta is read
};
// rope_theta and rope_scaling (Transformers 4) or rope_parameters (Transformers 5), for heads of head_dim
// channels.
RopeSpec read_rope(ConfigFields& config, std::int64_t max_position, std::int64_t head_dim,
                   const RopeDefaults& defaults = {});

// The same of a rope with sections for time, height and width, which turn text alike.
RopeSpec read_sectioned_rope(ConfigFields& config, std::int64_t max_position, std::int64_t head_dim,
                             const RopeDefaults& defaults);

// The window's base, where a family has a key of its own for it.
struct WindowTheta {
  const char* key;
  double absent;
};
// The tables of a family that turns blocks with a window by another one than blocks without: first that of
// full attention, then that of the window. rope_parameters of Transformers 5 has an object for each kind;
// rope_scaling of Transformers 4 is full attention's alone.
std::vector<RopeSpec> read_ropes_by_attention(ConfigFields& config, std::int64_t max_position,
                                              std::int64_t head_dim, double theta,
                                              const std::optional<WindowTheta>& of_window = {});

// Of a family whose kinds of blocks have heads of their own widths: the rope of one kind, and what it is
// where rope_parameters are absent. With a share it is proportional: of that share of all angles.
struct KindOfRope {
  const char* name;  // "full_attention"
  std::int64_t head_dim = 0;
  double theta = 10000;
  std::optional<double> share = {};
};
// One table a kind, in this order.
std::vector<RopeSpec> read_ropes_of_heads(ConfigFields& config, std::int64_t max_position,
                                          const std::array<KindOfRope, 2>& kinds);

}  // namespace llmq
