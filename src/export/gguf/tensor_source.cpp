#include "export/gguf/tensor_source.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "export/gguf/gguf_rope.h"
#include "io/gguf.h"
#include "io/gguf_rows.h"
#include "model/gguf/gguf_names.h"
#include "model/linear_source.h"

namespace llmq {
namespace {

// Rows [first, first + count) of a contiguous tensor that lies in memory; one dimension is one row.
void read_rows(const TensorView& view, std::int64_t first, std::int64_t count, std::span<float> into) {
  const DTypeRow& type = dtype_row(view.dtype);
  const std::int64_t row_bytes = view.cols() / type.block_elements * type.block_bytes;
  const auto* from = static_cast<const std::byte*>(view.pointer) + first * row_bytes;
  to_float32(TensorView(static_cast<const void*>(from), view.dtype, {count, view.cols()}), into);
}

class HuggingFaceSource final : public GgufTensorSource {
 public:
  HuggingFaceSource(const Checkpoint& checkpoint, const ModelSpec& spec)
      : checkpoint_(checkpoint), linears_(LinearSource::open(checkpoint)) {
    const std::string file = checkpoint.path().string();
    const GgufFamily& family = check_gguf_family(spec, file);
    add("token_embd.weight", spec.embedding.tensor, {spec.vocab_size, spec.hidden_size});
    add("output_norm.weight", spec.final_norm.gain.tensor, {spec.hidden_size});
    if (checkpoint.find("lm_head.weight") != nullptr && spec.embedding.tensor != "lm_head.weight")
      add("output.weight", spec.head, {spec.vocab_size, spec.hidden_size});
    for (const BlockSpec& block : spec.blocks) add_block(block, family);
    for (RopeFactors& factors : gguf_rope_factors(gguf_rope(spec))) {
      const Shape shape{static_cast<std::int64_t>(factors.values.size())};
      places_.push_back({std::move(factors.name), shape, {}, 0, std::move(factors.values)});
    }
    std::sort(places_.begin(), places_.end(),
              [](const Place& a, const Place& b) { return gguf_tensor_before(a.name, b.name); });
    for (const Place& place : places_) tensors_.push_back({place.name, DType::kF32, place.shape});
  }

  std::vector<float> rows(std::size_t index, std::int64_t first, std::int64_t count) override {
    const Place& place = places_[index];
    if (place.matrices.empty()) return place.made;
    const std::int64_t columns = place.shape.back(),
                       each = place.shape.elements() / columns / std::ssize(place.matrices);
    std::vector<float> values;
    for (const std::int64_t end = first + count; first < end;) {
      const std::int64_t in_matrix = first % each, rows = std::min(each - in_matrix, end - first);
      const std::vector<float> part =
          matrix_rows(place, place.matrices[static_cast<std::size_t>(first / each)], in_matrix, rows);
      if (rows == count) return part;
      values.insert(values.end(), part.begin(), part.end());
      first += rows;
    }
    return values;
  }

  void read_ahead(std::size_t index) override {
    for (const Matrix& matrix : places_[index].matrices)
      if (matrix.packed != nullptr)
        linears_.read_ahead(*matrix.packed);
      else if (!Checkpoint::is_kept(checkpoint_.at(matrix.source)))
        checkpoint_.read_ahead(checkpoint_.at(matrix.source));
  }

  void release(std::size_t) override {
    lease_ = {};
    held_ = nullptr;
    unpacked_ = {};
    loaded_ = nullptr;
  }

  std::uint64_t bytes_to_read(std::size_t index) const override {
    std::uint64_t bytes = 0;
    for (const Matrix& matrix : places_[index].matrices)
      bytes += matrix.packed != nullptr ? linears_.bytes_to_read(*matrix.packed).all
                                        : Checkpoint::bytes_to_read(checkpoint_.at(matrix.source));
    return bytes;
  }

 private:
  struct Matrix {
    std::string source;
    const LinearSpec* packed = nullptr;  // its values come from LinearSource
  };
  struct Place {
    std::string name;
    Shape shape;
    std::vector<Matrix>
        matrices;  // equally many rows of each, one behind another; none: its values are `made`
    int permuted_heads = 0;
    std::vector<float> made = {};
  };

  std::vector<float> matrix_rows(const Place& place, const Matrix& matrix, std::int64_t first,
                                 std::int64_t count) {
    const std::int64_t columns = place.shape.back(),
                       all = place.shape.elements() / columns / std::ssize(place.matrices);
    Lease band;
    if (matrix.packed == nullptr && place.permuted_heads == 0)
      band = checkpoint_.hold_band(checkpoint_.at(matrix.source), first, count);
    if (matrix.packed == nullptr && place.permuted_heads != 0 && held_ != &matrix) {
      lease_ =
          checkpoint_.hold(checkpoint_.at(matrix.source));  // until release(): rows come in another order
      held_ = &matrix;
    }
    if (matrix.packed != nullptr && loaded_ != &matrix) {
      ThreadPool here(1);
      unpacked_ = linears_.weight(*matrix.packed, here);
      loaded_ = &matrix;
    }
    std::vector<float> values(static_cast<std::size_t>(count * columns));
    const auto read = [&](std::int64_t row, std::int64_t rows, std::span<float> into) {
      if (matrix.packed != nullptr)
        std::memcpy(into.data(), unpacked_.data() + row * columns,
                    static_cast<std::size_t>(rows * columns) * sizeof(float));
      else
        read_rows(checkpoint_.at(matrix.source).view, row, rows, into);
    };
    if (place.permuted_heads == 0) {
      read(first, count, values);
      return values;
    }
    // A bias is one row of `columns` values here, and its values are what the weight's rows are.
    if (place.shape.rank() == 1) {
      std::vector<float> stored(values.size());
      read(0, 1, stored);
      for (std::int64_t i = 0; i < columns; ++i)
        values[static_cast<std::size_t>(i)] =
            stored[static_cast<std::size_t>(permuted_row(i, columns, place.permuted_heads))];
      return values;
    }
    for (std::int64_t i = 0; i < count; ++i)
      read(permuted_row(first + i, all, place.permuted_heads), 1,
           std::span(values).subspan(static_cast<std::size_t>(i * columns),
                                     static_cast<std::size_t>(columns)));
    return values;
  }

  void add(std::string name, const std::string& source, const Shape& shape, int heads = 0,
           const LinearSpec* packed = nullptr) {
    places_.push_back({std::move(name), shape, {{source, packed}}, heads, {}});
  }

  void add_linear(const LinearSpec& linear, const GgufFamily& family, std::size_t first_of_block) {
    const int heads = family.turns_neighbours ? linear.rope_heads : 0;
    const std::string &weight = linear.weight.tensor, &bias = linear.bias.tensor;
    const LinearSpec* const packed =
        linears_.is_packed(linear.module) || !checkpoint_.at(weight).in_order() ? &linear : nullptr;
    std::string name = gguf_name(family, weight);
    const auto stack = std::find_if(places_.begin() + static_cast<std::ptrdiff_t>(first_of_block),
                                    places_.end(), [&](const Place& place) { return place.name == name; });
    if (stack != places_.end()) {
      stack->matrices.push_back({weight, packed});
      stack->shape = {std::ssize(stack->matrices), linear.out_features, linear.in_features};
      return;
    }
    add(std::move(name), weight, {linear.out_features, linear.in_features}, heads, packed);
    if (linear.has_bias()) add(gguf_name(family, bias), bias, Shape{linear.out_features}, heads);
  }

  void add_block(const BlockSpec& block, const GgufFamily& family) {
    const std::size_t first = places_.size();
    for (const NormSpec& norm : block.norms)
      add(gguf_name(family, norm.gain.tensor), norm.gain.tensor, Shape{norm.width});
    for (const LinearSpec& linear : block.linears) add_linear(linear, family, first);
  }

  const Checkpoint& checkpoint_;
  LinearSource linears_;
  std::vector<Place> places_;
  ZeroedNumbers<float> unpacked_;
  const Matrix *loaded_ = nullptr, *held_ = nullptr;  // whose values are `unpacked_`, whose bytes are leased
  Lease lease_;
};

class GgufSource final : public GgufTensorSource {
 public:
  explicit GgufSource(GgufFile file) : file_(std::move(file)) {
    for (const GgufTensor& tensor : file_.header.tensors) order_.push_back(&tensor);
    std::sort(order_.begin(), order_.end(),
              [](const GgufTensor* a, const GgufTensor* b) { return gguf_tensor_before(a->name, b->name); });
    for (const GgufTensor* tensor : order_) tensors_.push_back({tensor->name, tensor->dtype, tensor->shape});
  }
  std::vector<float> rows(std::size_t index, std::int64_t first, std::int64_t count) override {
    const GgufTensor& tensor = *order_[index];
    std::vector<float> values(static_cast<std::size_t>(count * tensor.shape.back()));
    const std::uint64_t row_bytes = tensor.bytes / static_cast<std::uint64_t>(std::max<std::int64_t>(
                                                       1, tensor.shape.elements() / tensor.shape.back()));
    const Lease lease = file_.mapping->lease(tensor.offset + static_cast<std::uint64_t>(first) * row_bytes,
                                             static_cast<std::uint64_t>(count) * row_bytes);
    read_rows(TensorView(static_cast<const void*>(file_.mapping->bytes().data() + tensor.offset),
                         tensor.dtype, tensor.shape),
              first, count, values);
    return values;
  }
  void release(std::size_t index) override {
    file_.mapping->release(order_[index]->offset, order_[index]->bytes);
  }
  std::uint64_t bytes_to_read(std::size_t index) const override {
    const GgufTensor& tensor = *order_[index];
    StoredTensor stored;
    stored.view = TensorView(static_cast<const void*>(nullptr), tensor.dtype, tensor.shape);
    stored.offset = tensor.offset;
    return Checkpoint::bytes_to_read(stored);
  }

 private:
  GgufFile file_;
  std::vector<const GgufTensor*> order_;
};

[[noreturn]] void refuse(const std::string& file, std::string where, std::string message) {
  fail(ErrorKind::kUnsupported,
       {std::move(message), file, std::move(where), "keep the model in safetensors"});
}

bool computes_silu(const ModelSpec& spec) {
  return std::all_of(spec.blocks.begin(), spec.blocks.end(), [](const BlockSpec& block) {
    const MlpSpec* const mlp = block.mlp();
    const MixtureSpec* const mixture = block.mixture();
    return (mlp == nullptr || mlp->activation == Activation::kSilu) &&
           (mixture == nullptr || mixture->activation == Activation::kSilu);
  });
}

// Sizes of heads that the file does not tell are taken from the hidden size.
void check_heads(const ModelSpec& spec, const GgufFamily& family, const std::string& file) {
  const AttentionSpec* const attention = spec.blocks.front().attention();
  const bool told = family.has(GgufKey::kKeyLength) || family.has(GgufKey::kUnusualKeyLength);
  if (attention != nullptr && !told && attention->inner_width() != spec.hidden_size)
    refuse(file, "head_dim",
           fmt::format("GGUF's {} models have heads that make up the hidden size {}, not {}",
                       family.architecture, spec.hidden_size, attention->inner_width()));
}

// llama.cpp knows by the architecture which blocks have experts, and what their weights sum to.
void check_experts(const ModelSpec& spec, const GgufFamily& family, const std::string& file) {
  for (const BlockSpec& block : spec.blocks) {
    const MixtureSpec* const mixture = block.mixture();
    const std::string_view name = family.architecture;
    if ((mixture != nullptr) != (family.experts != GgufExperts::kNone))
      refuse(file, block.prefix, fmt::format("GGUF's {} models have experts in every block", name));
    if (mixture == nullptr) continue;
    if (const bool sums = family.experts == GgufExperts::kSumToOne; mixture->normalized != sums)
      refuse(file, "norm_topk_prob",
             fmt::format("llama.cpp's {} {} the weights of a row's experts by their sum", name,
                         sums ? "always divides" : "never divides"));
  }
}

}  // namespace

std::uint64_t GgufTensorSource::parameters() const {
  std::uint64_t count = 0;
  for (const GgufMixTensor& tensor : tensors_) count += static_cast<std::uint64_t>(tensor.shape.elements());
  return count;
}

const GgufFamily& check_gguf_family(const ModelSpec& spec, const std::string& file) {
  const GgufFamily* const family = gguf_family(spec.family);
  if (family == nullptr)
    refuse(file, "model_type", fmt::format("models of family {} are not written as GGUF", spec.family));
  const std::string_view name = family->architecture;
  if (!computes_silu(spec))
    refuse(file, "hidden_act", fmt::format("GGUF's {} models compute silu, not gelu", name));
  if (spec.ropes.size() != 1)
    refuse(file, "rope_parameters",
           fmt::format("GGUF has a place for one rope of a model, which has {}", spec.ropes.size()));
  if (auto [where, why] = refused_gguf_rope(gguf_rope(spec), *family); !why.empty())
    refuse(file, std::move(where), std::move(why));
  check_heads(spec, *family, file);
  check_experts(spec, *family, file);
  for (const BlockSpec& block : spec.blocks) {
    if (block.pages.window != 0 && family->window == GgufWindow::kNone)
      refuse(file, "sliding_window", fmt::format("GGUF's {} models have no sliding windows", name));
    const AttentionSpec* const attention = block.attention();
    for (const LinearSpec& linear : block.linears) {
      const bool reader = attention != nullptr && linear.site == attention->input;
      if (linear.has_bias() && !reader && !family->output_biases)
        refuse(file, linear.bias.tensor, fmt::format("llama.cpp's {} has no place for this bias", name));
    }
  }
  return *family;
}

std::unique_ptr<GgufTensorSource> open_gguf_tensors(Io& io, const Checkpoint& checkpoint,
                                                    const ModelSpec& spec) {
  if (checkpoint.is_gguf()) return std::make_unique<GgufSource>(open_gguf(io, checkpoint.path()));
  return std::make_unique<HuggingFaceSource>(checkpoint, spec);
}

}  // namespace llmq
