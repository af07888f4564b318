// Cost: one look per tensor; no weight is read, except where a tied model stores its embedding twice.
#include "model/tensor_check.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "model/linear_source.h"

namespace llmq {
namespace {

std::string stored_head(const ModelSpec& spec) { return spec.head_module + ".weight"; }

// Marks what the structure reads, and checks each tensor's shape and type as it does.
class TensorCheck {
 public:
  TensorCheck(const Checkpoint& checkpoint, std::string config_file)
      : checkpoint_(checkpoint), config_file_(std::move(config_file)) {}

  bool stored(const std::string& name) const { return checkpoint_.find(name) != nullptr; }

  void expect(const std::string& name, const Shape& shape, const char* sizes) {
    const StoredTensor* tensor = checkpoint_.find(name);
    if (tensor == nullptr)
      fail(ErrorKind::kBadInput,
           {fmt::format("is missing; {} asks for it with shape {} ({})", config_file_, shape.text(), sizes),
            checkpoint_.path().string(),
            name,
            {}});
    if (!(tensor->view.shape == shape))
      fail(ErrorKind::kBadInput, {fmt::format("has shape {}, but {} says {} ({})", tensor->view.shape.text(),
                                              config_file_, shape.text(), sizes),
                                  checkpoint_.path().string(),
                                  name,
                                  {}});
    check_readable(*tensor);
    read_.insert(name);
  }

  void expect_linear(const LinearSource& source, const LinearSpec& linear) {
    const char* sizes = "out_features x in_features";
    if (source.is_packed(linear.module)) {
      for (const std::string& name : source.check_packed(linear)) read_.insert(name);
    } else {
      source.check_dense(linear);
      expect(linear.weight.tensor, {linear.out_features, linear.in_features}, sizes);
    }
    if (linear.has_bias()) expect(linear.bias.tensor, {linear.out_features}, "out_features");
  }

  // `size` says which key the width is of.
  void expect_norm(const NormSpec& norm, const char* size) {
    if (norm.gain.exists()) expect(norm.gain.tensor, norm.gain_shape(), size);
    if (norm.bias.exists()) expect(norm.bias.tensor, {norm.width}, size);
  }

  // The scales of a quantized KV cache, for pages of FP8.
  void expect_kv_scales(const LinearSource& source, const BlockSpec& block) {
    for (const char* which : {"k_scale", "v_scale"}) {
      const std::string name = kv_scale_name(block, which);
      expect(name, {1}, "one scale");
      const float scale = source.tensor(name).front();
      if (!(scale > 0) || !std::isfinite(scale))
        fail(ErrorKind::kBadInput, {fmt::format("is {}; a scale is above 0 and finite", scale),
                                    checkpoint_.path().string(),
                                    name,
                                    {}});
    }
  }

  void refuse_unread(const ModelSpec& spec) const {
    for (const StoredTensor& tensor : checkpoint_.tensors()) {
      if (read_.count(tensor.name) != 0) continue;
      if (tensor.name.ends_with("rotary_emb.inv_freq"))
        continue;  // old Llama checkpoints store what rope_theta says
      if (spec.tied_head && tensor.name == stored_head(spec))
        continue;  // equal to the embedding, as resolve_head() saw
      if (spec.carried.carries(tensor.name)) continue;
      fail(ErrorKind::kUnsupported,
           {"nothing in this family reads this tensor, so the stored model computes something else",
            checkpoint_.path().string(), tensor.name, "remove it if the model does not depend on it"});
    }
  }

 private:
  void check_readable(const StoredTensor& tensor) const {
    if (tensor.exponents || tensor.is_scaled()) return;
    switch (tensor.view.dtype) {
      case DType::kF64:
      case DType::kF32:
      case DType::kF16:
      case DType::kBF16:
        return;
      default:
        break;
    }
    if (is_block_type(tensor.view.dtype)) return;
    fail(
        ErrorKind::kUnsupported,
        {fmt::format(
             "is stored as {}, which is no weight type without a quantization_config that says what it means",
             dtype_row(tensor.view.dtype).name),
         checkpoint_.path().string(),
         tensor.name,
         {}});
  }

  const Checkpoint& checkpoint_;
  std::string config_file_;
  std::set<std::string, std::less<>> read_;
};

bool same_bytes(const Checkpoint& checkpoint, const StoredTensor& a, const StoredTensor& b) {
  const Lease first = checkpoint.hold(a), second = checkpoint.hold(b);
  return a.view.dtype == b.view.dtype && a.view.shape == b.view.shape &&
         std::equal(a.view.as<const char>(), a.view.as<const char>() + a.view.bytes(),
                    b.view.as<const char>());
}

// Experts that predict further tokens lie beside the model. Loaders that run them take quantization_config's
// word for how they are stored, and crash, or read nothing, where it forgets that they are dense.
void check_carried_experts(const LinearSource& source, const ModelSpec& spec) {
  constexpr std::string_view kExperts = ".experts.", kWeight = ".weight";
  for (const StoredTensor& tensor : source.checkpoint().tensors()) {
    const std::size_t at = tensor.name.find(kExperts);
    if (at == std::string::npos || !spec.carried.carries(tensor.name)) continue;
    LinearSpec linear;
    if (tensor.name.ends_with(kWeight))
      linear.module = tensor.name.substr(0, tensor.name.size() - kWeight.size());
    else if (tensor.view.shape.rank() == 3)  // a stack: its first expert's, as loaders ask
      linear.module = tensor.name.substr(0, at) + ".experts.0." + tensor.name.substr(at + kExperts.size());
    else
      continue;
    if (!source.is_packed(linear.module)) source.check_dense(linear);
  }
}

}  // namespace

void resolve_head(const Checkpoint& checkpoint, bool tied, ModelSpec& spec) {
  spec.head = stored_head(spec);
  spec.tied_head = tied;
  if (!tied) return;
  const StoredTensor* embedding = checkpoint.find(spec.embedding.tensor);
  const StoredTensor* head = checkpoint.find(spec.head);
  if (embedding != nullptr && head != nullptr && !same_bytes(checkpoint, *embedding, *head))
    fail(ErrorKind::kBadInput,
         {fmt::format("differs from {}, although tie_word_embeddings is true", spec.embedding.tensor),
          checkpoint.path().string(), spec.head,
          "set tie_word_embeddings to false, or remove one of the two"});
  if (embedding == nullptr && head != nullptr)
    spec.embedding.tensor = spec.head;
  else
    spec.head = spec.embedding.tensor;
}

void check_tensors(const Checkpoint& checkpoint, const std::string& config_file, const ModelSpec& spec) {
  TensorCheck check(checkpoint, config_file);
  const LinearSource source = LinearSource::open(checkpoint);
  if (source.is_packed(spec.head_module))
    fail(ErrorKind::kUnsupported, {"the head is quantized; only the linears of the blocks may be",
                                   checkpoint.path().string(),
                                   spec.head_module,
                                   {}});
  check.expect(spec.embedding.tensor, {spec.vocab_size, spec.hidden_size}, "vocab_size x hidden_size");
  check.expect(spec.head, {spec.vocab_size, spec.hidden_size}, "vocab_size x hidden_size");
  if (!spec.embedding.positions.empty())
    check.expect(spec.embedding.positions, {spec.max_position + spec.embedding.offset, spec.hidden_size},
                 "max_position_embeddings and the offset x hidden_size");
  check.expect_norm(spec.final_norm, "hidden_size");
  if (spec.block_embedding) {
    const BlockEmbeddingSpec& own = *spec.block_embedding;
    const std::int64_t columns = own.width * static_cast<std::int64_t>(spec.blocks.size());
    check.expect(own.table, {own.rows, columns}, "vocab_size_per_layer_input x blocks of their width");
    check.expect(own.weight(), {columns, spec.hidden_size}, "blocks of their width x hidden_size");
    check.expect_norm(own.norm, "hidden_size_per_layer_input");
  }
  for (const BlockSpec& block : spec.blocks) {
    for (const NormSpec& norm : block.norms)
      check.expect_norm(norm, norm.heads > 0                        ? "heads x head_dim"
                              : norm.width == spec.hidden_size      ? "hidden_size"
                              : block.latent_attention() != nullptr ? "q_lora_rank or kv_lora_rank"
                              : norm.width == block.pages.head_dim  ? "head_dim"
                              : block.delta() != nullptr            ? "linear_value_head_dim"
                                                                    : "all heads of head_dim");
    for (const MixerTensor& tensor : block.tensors)
      check.expect(tensor.place.tensor, tensor.shape,
                   tensor.shape.elements() == 1 ? "one number"
                   : tensor.on_host             ? "one for each expert"
                   : tensor.by_heads            ? "num_attention_heads"
                                                : "sizes of linear attention");
    for (const LinearSpec& linear : block.linears) check.expect_linear(source, linear);
    if (source.kv_cache() && block.pages.kv_heads > 0) check.expect_kv_scales(source, block);
  }
  check_carried_experts(source, spec);
  check.refuse_unread(spec);
}

}  // namespace llmq
