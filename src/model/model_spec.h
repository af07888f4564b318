// The structure of one model, read from config.json and checked against the tensors' shapes: built once, then
// constant.
//
// Its blocks are data (model/block_spec.h): for every linear the input it shares, for every foldable producer
// all readers of its output. One file per family (model/families/) fills it; an unknown family, or a known
// one with an unknown field that changes the mathematics, is refused by name.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"
#include "model/block_spec.h"
#include "tensor/kv_type.h"

namespace llmq {

enum class RopeKind : std::uint8_t { kDefault, kLinear, kDynamic, kYarn, kLlama3, kLongRope, kProportional };
struct RopeSpec {
  RopeKind kind = RopeKind::kDefault;
  std::int64_t dims = 0;    // channels of a head that turn, 2 for each angle
  std::int64_t angles = 0;  // of kProportional: the first so many are not 0
  double theta = 10000;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  double beta_fast = 32, beta_slow = 1, attention_factor = 0, mscale = 0, mscale_all_dim = 0;  // 0: not given
  bool truncate = true;
  std::int64_t original_max_position = 0;
  // Row p is multiplied by 1 + growth * ln(1 + floor((p + growth_start) / growth_length)), and so are then
  // queries that turn by it.
  double growth = 0;
  std::int64_t growth_length = 1, growth_start = 0;
  std::vector<double> short_factors, long_factors;  // of kLongRope, one for each angle
};

// h = scale * table[token] + positions[position + offset].
struct EmbeddingSpec {
  std::string tensor;     // [vocab_size, hidden_size]
  std::string positions;  // [max_position + offset, hidden_size]; empty: positions enter by rope
  std::int64_t offset = 0;
  float scale = 1;
  bool scale_in_table_type = false;  // `scale` is rounded to the type of the stored table
};

// Of each row a share for every block, beside the residual stream: e = scale * table[token] + norm(projection
// of h), [blocks, width], where h is the residual stream before the first block. A block multiplies its share
// (EmbeddedSpec).
struct BlockEmbeddingSpec {
  std::string table;       // [rows, blocks * width]
  std::string projection;  // a module: weight [blocks * width, hidden_size], which stays dense
  std::int64_t rows = 0, width = 0;
  NormSpec norm;  // over what a block has of the projection
  float scale = 1;
  float table_factor = 1;  // in `scale` and rounded to the type of the stored table; the rest of it is not
  std::string weight() const { return projection + ".weight"; }
};

// Modules that lie beside a decoder and go into every output as they are stored: a vision tower, blocks that
// predict further tokens. Names are those of the checkpoint.
struct CarriedSpec {
  std::vector<std::string> parts;            // "model.visual", "model.layers.46"
  std::int64_t tensors = 0, parameters = 0;  // of the parts
  std::uint64_t bytes = 0;
  // Whether a tensor, or a module, is of one of the parts.
  bool carries(std::string_view name) const;
};

// Of a vision-language checkpoint: where its decoder's tensors lie (docs/adr/0021-wrappers.md).
struct WrapperSpec {
  std::string decoder;  // its family: "qwen3_vl_text", "llama"
  std::string prefix;   // "model.language_model", where a decoder alone has "model"
};

struct ModelSpec {
  std::string family;        // "llama", "mistral", "qwen2", "qwen3", ...; of a wrapper its own, "qwen3_vl"
  std::string architecture;  // "LlamaForCausalLM"
  std::int64_t hidden_size = 0, vocab_size = 0, max_position = 0;
  std::vector<RopeSpec> ropes;  // that blocks use (AttentionSpec::rope); none where positions are embedded
  std::vector<BlockSpec> blocks;
  EmbeddingSpec embedding;
  std::optional<BlockEmbeddingSpec> block_embedding;
  NormSpec final_norm;
  float logit_softcap = 0;              // 0: none; else logits are softcap * tanh(logits / softcap)
  std::string head_module = "lm_head";  // as the checkpoint names it
  std::string head;                     // tensor name; the embedding's when tied (or the one stored)
  bool tied_head = false;
  std::vector<std::int32_t> eos_ids;
  std::optional<std::int32_t> bos_id;
  // Of the packed formats, the one that loaders of the family read, and why, as a sentence; empty: any.
  std::string only_format, unwritten;
  std::optional<WrapperSpec> wrapper;  // none: the checkpoint is a decoder alone
  CarriedSpec carried;

  // Reads config.json and checks every shape against it; packed linears (quantization_config) are checked by
  // their packed shapes. Errors: kUnsupported (family, field), kBadInput (config disagrees with tensor
  // shapes: both named).
  static ModelSpec read(const Checkpoint& checkpoint);
  std::int64_t parameters() const;  // of the decoder
  // Weights of linears that stay dense whatever a recipe says, by tensor.
  std::set<std::string> never_quantized() const;
  // The most channels that the inner site of any sublayer has, and the widest page of any block.
  std::int64_t widest_inner() const;
  bool shares_pages() const;         // whether a block reads those of another one
  std::int64_t widest_page() const;  // of keys, for one position: kv_heads * head_dim
  // What one position of a sequence takes in the pages of all blocks.
  std::uint64_t kv_bytes(const KvType& type) const;
  // What a sequence of any length takes beside its pages (model/sequence_state.h); 0: there is nothing.
  std::uint64_t state_bytes() const;
};

// Why mlx-lm has no such model, or other tensors of it; empty: its tensors are those of Transformers.
std::string mlx_refusal(const ModelSpec& spec);
// Error(kUnsupported) where no checkpoint of the family is made in this format; `file` asked for it.
void require_written(const ModelSpec& spec, const std::string& format, const std::string& file);

// cos and sin of position * frequency, F32 [positions, dims/2], computed in FP64 or as Transformers does
// where that differs in FP32; dynamic, yarn and longrope follow Transformers' modeling_rope_utils. Dynamic
// asks for the model's max_position. Error(kUsage) for positions out of range.
struct RopeTable {
  std::vector<float> cosines, sines;
  std::int64_t positions = 0;
};
RopeTable make_rope_table(const RopeSpec& rope, std::int64_t max_position, std::int64_t positions);

}  // namespace llmq
