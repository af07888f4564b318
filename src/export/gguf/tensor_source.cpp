#include "export/gguf/tensor_source.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "export/gguf/family_limits.h"
#include "export/gguf/gguf_rope.h"
#include "io/gguf.h"
#include "io/gguf_rows.h"
#include "model/gguf/gguf_names.h"
#include "model/linear_source.h"
#include "tensor/ggml_quantize.h"
#include "tensor/mxfp4.h"

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
    places_.back().shift = spec.final_norm.offset;
    if (!family.tied_and_scaled && checkpoint.find("lm_head.weight") != nullptr &&
        spec.embedding.tensor != "lm_head.weight")
      add("output.weight", spec.head, {spec.vocab_size, spec.hidden_size});
    for (const BlockSpec& block : spec.blocks) add_block(block, family);
    for (RopeFactors& factors : gguf_rope_factors(gguf_rope(spec))) {
      const Shape shape{static_cast<std::int64_t>(factors.values.size())};
      places_.push_back({std::move(factors.name), shape, {}, 0, std::move(factors.values)});
    }
    std::sort(places_.begin(), places_.end(),
              [](const Place& a, const Place& b) { return gguf_tensor_before(a.name, b.name); });
    for (const Place& place : places_) {
      const bool codes = std::all_of(place.matrices.begin(), place.matrices.end(), [&](const Matrix& matrix) {
        const StoredTensor* const tensor = checkpoint.find(matrix.source);
        return tensor != nullptr && tensor->exponents.has_value();
      });
      const bool kept = codes && !place.matrices.empty();
      tensors_.push_back({place.name, kept ? DType::kMXFP4 : DType::kF32, place.shape, kept});
    }
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

  std::vector<std::byte> mxfp4_rows(std::size_t index, std::int64_t first, std::int64_t count) override {
    const Place& place = places_[index];
    const std::int64_t each = place.shape.elements() / place.shape.back() / std::ssize(place.matrices);
    std::vector<std::byte> rows;
    for (const std::int64_t end = first + count; first < end;) {
      const std::int64_t in_matrix = first % each, many = std::min(each - in_matrix, end - first);
      const std::string& source = place.matrices[static_cast<std::size_t>(first / each)].source;
      std::vector<std::uint8_t> blocks = checkpoint_.read_mxfp4(checkpoint_.at(source), in_matrix, many);
      for (std::size_t at = 0; at < blocks.size(); at += 17) {
        std::array<std::uint8_t, 16> ordered;
        ggml_mxfp4_order(blocks.data() + at + 1, ordered.data());
        std::copy(ordered.begin(), ordered.end(), blocks.begin() + static_cast<std::ptrdiff_t>(at + 1));
      }
      const auto bytes = std::as_bytes(std::span(blocks));
      rows.insert(rows.end(), bytes.begin(), bytes.end());
      first += many;
    }
    return rows;
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
    bool apart = false;                  // a vector whose values lie apart
  };
  struct Place {
    std::string name;
    Shape shape;
    std::vector<Matrix>
        matrices;  // equally many rows of each, one behind another; none: its values are `made`
    int permuted_heads = 0;
    std::vector<float> made = {};
    float shift = 0;  // is added
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
    if (matrix.apart) return checkpoint_.read_float32(checkpoint_.at(matrix.source));
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
      for (float& value : values) value += place.shift;
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

  // A vector, of which those of one name become rows.
  void add_bias(std::string name, const std::string& source, std::int64_t elements, int heads,
                std::size_t first_of_block) {
    const bool apart = !checkpoint_.at(source).in_order();
    const auto stack = std::find_if(places_.begin() + static_cast<std::ptrdiff_t>(first_of_block),
                                    places_.end(), [&](const Place& place) { return place.name == name; });
    if (stack == places_.end()) {
      add(std::move(name), source, Shape{elements}, heads);
      places_.back().matrices.back().apart = apart;
      return;
    }
    stack->matrices.push_back({source, nullptr, apart});
    stack->shape = {std::ssize(stack->matrices), elements};
  }

  void add_linear(const LinearSpec& linear, const GgufFamily& family, std::size_t first_of_block) {
    const int heads = family.turns_neighbours ? linear.rope_heads : 0;
    const std::string &weight = linear.weight.tensor, &bias = linear.bias.tensor;
    const LinearSpec* const packed =
        linears_.is_packed(linear.module) || !checkpoint_.at(weight).in_order() ? &linear : nullptr;
    if (linear.has_bias())
      add_bias(gguf_name(family, bias), bias, linear.out_features, heads, first_of_block);
    std::string name = gguf_name(family, weight);
    const auto stack = std::find_if(places_.begin() + static_cast<std::ptrdiff_t>(first_of_block),
                                    places_.end(), [&](const Place& place) { return place.name == name; });
    if (stack != places_.end()) {
      stack->matrices.push_back({weight, packed});
      stack->shape = {std::ssize(stack->matrices), linear.out_features, linear.in_features};
      return;
    }
    add(std::move(name), weight, {linear.out_features, linear.in_features}, heads, packed);
  }

  void add_block(const BlockSpec& block, const GgufFamily& family) {
    const std::size_t first = places_.size();
    for (const NormSpec& norm : block.norms) {
      add(gguf_name(family, norm.gain.tensor), norm.gain.tensor, Shape{norm.width});
      places_.back().shift = norm.offset;
    }
    for (const MixerTensor& tensor : block.tensors)
      add(gguf_name(family, tensor.place.tensor), tensor.place.tensor, tensor.shape);
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
  std::vector<std::byte> mxfp4_rows(std::size_t index, std::int64_t first, std::int64_t count) override {
    const GgufTensor& tensor = *order_[index];
    const std::uint64_t row_bytes = ggml_row_bytes(DType::kMXFP4, tensor.shape.back()),
                        from = tensor.offset + static_cast<std::uint64_t>(first) * row_bytes,
                        bytes = static_cast<std::uint64_t>(count) * row_bytes;
    const Lease lease = file_.mapping->lease(from, bytes);
    const auto stored = file_.mapping->bytes().subspan(from, bytes);
    return {stored.begin(), stored.end()};
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

}  // namespace

std::uint64_t GgufTensorSource::parameters() const {
  std::uint64_t count = 0;
  for (const GgufMixTensor& tensor : tensors_) count += static_cast<std::uint64_t>(tensor.shape.elements());
  return count;
}

std::unique_ptr<GgufTensorSource> open_gguf_tensors(Io& io, const Checkpoint& checkpoint,
                                                    const ModelSpec& spec) {
  if (checkpoint.is_gguf()) return std::make_unique<GgufSource>(open_gguf(io, checkpoint.path()));
  return std::make_unique<HuggingFaceSource>(checkpoint, spec);
}

}  // namespace llmq
