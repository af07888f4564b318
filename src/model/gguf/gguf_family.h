// What GGUF, as llama.cpp reads and writes it, makes of a family: data that the family declares
// (model/families/), from which a file is written (export/gguf/) and read back (model/gguf/). Nobody else
// asks which architecture there is. Source: llama.cpp's conversion/, gguf-py/gguf/tensor_mapping.py and
// src/models/.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "io/gguf.h"
#include "io/gguf_parts.h"
#include "model/families/family.h"

namespace llmq {

// A linear or a norm: what stands before ".weight" and ".bias" in the names of its tensors.
struct GgufName {
  // Rows of what are heads that rope turns, as many as there are of queries or of keys.
  enum class Heads : std::uint8_t { kNone, kQuery, kKey };
  std::string_view gguf;  // "attn_q", behind "blk.<i>." in a block
  // "self_attn.q_proj", behind "<blocks>.<i>." in a block. With a '*' for a number: GGUF has one tensor of
  // all these matrices, in rising order.
  std::string_view hugging_face;
  Heads heads = Heads::kNone;
  bool whole = false;      // both are names of a tensor, with what stands at its end
  bool unshifted = false;  // a norm to which norm_shift is not added
  // Hugging Face's name where the block has a "<beside>.weight", too; it stands before the name elsewhere.
  std::string_view beside = {};
  // Of a stack: Hugging Face's name of the rows behind these in each of its matrices.
  std::string_view then = {};
};

struct GgufNames {
  std::string_view blocks;  // "model.layers"
  std::span<const GgufName> of_model, of_block;
  // Of blocks behind the last, which predict further tokens: "nextn.eh_proj". In Hugging Face's they are
  // numbered on, or lie below `further` ("mtp.layers") from 0 on, and these names are of the first one.
  std::span<const GgufName> of_further = {};
  std::string_view further = {};
  bool further_are_read_only = false;  // the converter leaves such blocks out
};

// Widths that say in which order rows and columns lie (GgufFamily::part): of a delta net, of attention over
// latents, and of attention of one linear.
struct GgufWidths {
  std::int64_t hidden = 0;
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, taps = 0;
  std::int64_t heads = 0, rank = 0, plain = 0, latent_value_dim = 0;
  std::int64_t groups = 0, group_queries = 0, head_dim = 0;  // KV heads that have q, k and v together
};

// Keys "<architecture>.<...>" that say how large the model is and how its rope turns.
enum class GgufKey : std::uint8_t {
  kBlockCount,
  kContextLength,
  kStatedContextLength,  // the same: model_max_length, where config.json has it
  kEmbeddingLength,
  kFeedForwardLength,
  kFeedForwardLengths,  // the same, of each block where they differ
  kHeadCount,
  kKvHeadCount,
  kKvHeadCounts,     // the same, of each block where full attention has a number of its own
  kRopeScaling,      // linear and yarn: several keys below rope.scaling
  kNoRopeScaling,    // rope.scaling.type: none, whatever the model
  kOriginalContext,  // rope.scaling.original_context_length
  kFrequencyBase,
  kUnusualFrequencyBase,  // the same where it is not 10000
  kNormEpsilon,
  kLayerNormEpsilon,
  kKeyLength,         // attention.key_length and value_length
  kUnusualKeyLength,  // the same where the heads do not add up to the hidden size
  kFileType,          // general.file_type, which stands among them
  kTensorLayout,      // tensor_data_layout: that rows of q, k and v are apart
  kVocabularySize,
  kTurningDimensions,  // rope.dimension_count
  kWindow,             // attention.sliding_window, as GgufFamily::window says
  kAttentionScale,     // attention.scale, of the products of queries and keys
  kEmbeddingScale,
  kResidualScale,
  kLogitScale,       // what the logits are divided by
  kLogitMultiplier,  // what they are multiplied by, under the same name
  kExpertCount,
  kExpertUsedCount,
  kExpertWidth,          // expert_feed_forward_length
  kSharedExpertWidth,    // expert_shared_feed_forward_length
  kGatingFunction,       // expert_gating_func: what scores a router's answers are made to
  kWindowFrequencyBase,  // rope.freq_base_swa: of the table that blocks with a window turn by
  kWindowPattern,        // attention.sliding_window_pattern: which blocks have one
  kFullKeyLength,    // attention.key_length and value_length of full attention beside blocks with a window
  kWindowKeyLength,  // attention.key_length_swa and value_length_swa, of those
  kFullTurningDimensions,    // rope.dimension_count of full attention: all of a head
  kWindowTurningDimensions,  // rope.dimension_count_swa
  kSharedKvBlocks,           // attention.shared_kv_layers: how many read the pages of others
  kEmbeddedWidth,            // embedding_length_per_layer_input; 0: there is no embedding of all blocks
  kAttentionSoftcap,         // attn_logit_softcapping
  kLogitSoftcap,             // final_logit_softcapping; both where there is one
  kFurtherBlocks,            // nextn_predict_layers, where there are any
  kConvolutionTaps,          // ssm.conv_kernel, and what else a delta net is
  kStateKeyWidth,
  kStateKeyHeads,
  kStateValueHeads,
  kStateInnerWidth,
  kRecurrentBlocks,      // attention.recurrent_layers, where layer_types are told
  kAttentionInterval,    // full_attention_interval
  kRopeSections,         // rope.dimension_sections, where they are told
  kDefaultRopeSections,  // and where they are not
  kStatedKeyLength,      // attention.key_length and value_length, where config.json has head_dim
  kExpertGroups,         // expert_group_count and expert_group_used_count, where config.json has them
  kExpertGroupsUsed,
  kStatedGatingFunction,  // expert_gating_func, where config.json says it, and of sigmoids
  kSharedExpertCount,     // expert_shared_count: how many experts the shared one is as wide as
  kDenseBlocks,           // leading_dense_block_count
  kMixtureInterval,       // interleave_moe_layer_step: each so many-th block has experts
  kExpertScale,           // expert_weights_scale
  kExpertsNormalized,     // expert_weights_norm, and only where it is so
  kExpertsNormalizedOrNot,
  kOneKvHead,          // attention.head_count_kv of latents: 1
  kQueryRank,          // attention.q_lora_rank, where queries have latents
  kLatentRank,         // attention.kv_lora_rank
  kLatentLengths,      // attention.key_length and value_length, of latents, then those of heads ("_mla")
  kYarnLogMultiplier,  // rope.scaling.yarn_log_multiplier, of what scores grow by
  kYarnDivisor,        // the same name: of mscale_all_dim, whose mscale is 1
  kQueryGrowth         // attention.temperature_scale: by how much queries grow with their position
};

// The values of kGatingFunction.
inline constexpr std::uint32_t kGgufSoftmax = 1, kGgufSigmoid = 2;

// Of a mixture of experts in every block, or in all but the first (GgufKey::kDenseBlocks): what llama.cpp
// makes of the weights of a row's experts, which no key says but of kAsTold.
enum class GgufExperts : std::uint8_t { kNone, kSumToOne, kAsTheyAre, kAsTold };

enum class GgufWindow : std::uint8_t {
  kNone,     // models with a window cannot be said
  kIfThere,  // a key where there is a window; of families that share an architecture, it tells which
  kOrNone,   // a key where there is a window; files without it are of the family, too
  kAlways    // a key for all models; 0: none
};

// How rope scaling is told.
enum class GgufScaling : std::uint8_t {
  kKeys,         // keys below rope.scaling, and Llama 3's as a tensor of factors
  kLongFactors,  // longrope alone: two tensors of factors, and rope.scaling.attn_factor
  kShare         // of a share of the angles: a tensor that has 1 for those and else 1e30
};

// Which models of 80 layers llama.cpp takes for its 70B, whose attn_v gets more bits.
enum class GgufLarge : std::uint8_t { kNone, kSharedKeys, kAll };

// Chunks of positions in blocks that turn, which no key says.
struct GgufChunks {
  std::int64_t size = 0;
  // By how much queries of the other blocks grow: RopeSpec::growth.
  double growth = 0;
  std::int64_t growth_length = 0, growth_start = 0;
  std::int64_t lengths_but_of = 0;  // blocks with chunks take the length of heads, but with so many experts
};

// By which rules llama-quantize gives tensors their types.
enum class GgufTypes : std::uint8_t { kUsual, kFalcon };

// What llama.cpp's converter makes of the tokenizer of this family alone.
struct GgufVocabulary {
  // That no space is put before a text is said last of all; beside tokenizer.model whatever the other does.
  bool never_prefixes = false;
  bool says_prefix = false;           // tokenizer_config.json's add_prefix_space is said first of all
  bool says_prefix_last = false;      // the same, last of all
  std::int64_t says_bos_at_size = 0;  // with as many tokens, whether BOS is added is said last of all
  bool added_as_told = false;  // beside tokenizer.model, added tokens are what tokenizer.json says of them
  // Keys ("eot") and the added tokens that they name, where nothing else says it; those there are.
  std::span<const std::pair<const char*, const char*>> special = {};
  // Where it is neither "llama" nor "gpt2": pieces without scores, merged by their merges; BOS, no prefix.
  const char* model = nullptr;
  std::span<const char* const> visible = {};  // of it: tokens that no text is read without
};

struct GgufFamily {
  const char* architecture;  // general.architecture, which families may share
  GgufNames names;
  std::span<const GgufKey> keys;    // in the order of the file
  bool turns_neighbours = false;    // its rope there turns neighbours: rows of q and k lie in another order
  bool partial_rope = false;        // not all channels of a head need turn
  bool one_rope_base = false;       // blocks with a window turn by the base of all others
  bool output_biases = false;       // there is a place for biases of other linears than q, k and v
  bool needs_biases = false;        // and there have to be some
  bool one_state_width = false;     // keys and values of a delta net are equally wide
  std::int64_t turning_period = 0;  // above 0: each so many-th block does not turn, which no key says
  const GgufChunks* chunks = nullptr;  // null: there are none
  bool without_tower = false;  // a decoder with a tower around it is written, and the tower is left out
  const GgufFamily* in_tower = nullptr;  // as which such a decoder is written, where it is another
  // What of Hugging Face's tensor this one is, by its name without "blk.<i>."; nullopt: all, as it lies.
  std::optional<GgufPart> (*part)(std::string_view name, const GgufWidths& widths) = nullptr;
  bool writes_carried = false;  // what a block has beside the model and is named here is written, too
  GgufWindow window = GgufWindow::kNone;
  int full_attention_every = 0;  // above 0: there is no window in each so many-th block, which no key says
  Activation activation = Activation::kSilu;  // of MLPs and experts
  // Ends of yarn's ramp are between channels, where llama.cpp rounds them to whole ones; both are always
  // said.
  bool fine_ramp = false;
  GgufScaling scaling = GgufScaling::kKeys;
  float norm_shift = 0;  // is added to what norms store: llama.cpp multiplies by what it finds
  // Above 0: models of so many blocks have norms of the heads of q and k, and no others do.
  int head_norms_from = 0;
  bool tied = false;              // the head is the embedding, which is not said
  bool scaled_embedding = false;  // by the root of its width, which is not said
  // What the root of is divided by in products of queries and keys, which no key says; null: head_dim.
  std::int64_t (*query_scalar)(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                               std::int64_t head_dim) = nullptr;
  GgufLarge large = GgufLarge::kNone;
  GgufTypes types = GgufTypes::kUsual;
  GgufExperts experts = GgufExperts::kNone;
  bool dense_too = false;  // there are models without experts
  RouterScore score = RouterScore::kSoftmax;
  GgufVocabulary vocabulary = {};
  // Adds to config.json the keys that not every family has, from the metadata.
  void (*add_config)(const GgufHeader& header, Json& config) = nullptr;

  bool has(GgufKey key) const;
  std::string key(GgufKey key) const;  // "llama.block_count"
};

// By general.architecture, and whether there are experts and a sliding window; its `gguf` is there.
// Error(kUnsupported) naming the architectures that are read.
const Family& family_of_gguf(const GgufHeader& header);

// Of the family of this name; nullptr: it is neither read from GGUF nor written as such.
const GgufFamily* gguf_family(std::string_view model_type);
// Of what a GGUF has of a model: a decoder alone, without the tower around it.
const GgufFamily* gguf_family(const ModelSpec& spec);
std::string name_in_decoder(const ModelSpec& spec, const std::string& tensor);  // "model.layers.0..."
// GgufFamily::part's widths of a model.
GgufWidths gguf_widths(const ModelSpec& spec);
// Of the first block that has some; all others that do have its sizes. Null: none has.
const AttentionSpec* gguf_attention(const ModelSpec& spec);

}  // namespace llmq
