#include "export/gguf/tensor_source.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "export/gguf/float_places.h"
#include "export/gguf/gguf_places.h"
#include "io/codes/first_rounding.h"
#include "io/gguf.h"
#include "io/gguf_rows.h"
#include "model/linear_source.h"
#include "tensor/ggml_codes.h"
#include "tensor/ggml_quantize.h"
#include "tensor/mxfp4.h"

namespace llmq {
namespace {

// Rows [first, first + count), of so many columns, of a contiguous tensor that lies in memory.
void read_rows(const TensorView& view, std::int64_t columns, std::int64_t first, std::int64_t count,
               std::span<float> into) {
  const DTypeRow& type = dtype_row(view.dtype);
  const std::int64_t row_bytes = columns / type.block_elements * type.block_bytes;
  const auto* from = static_cast<const std::byte*>(view.pointer) + first * row_bytes;
  to_float32(TensorView(static_cast<const void*>(from), view.dtype, {count, columns}), into);
}

class HuggingFaceSource final : public GgufTensorSource {
 public:
  HuggingFaceSource(const Checkpoint& checkpoint, const ModelSpec& spec, bool keeps_codes)
      : checkpoint_(checkpoint),
        linears_(LinearSource::open(checkpoint)),
        places_(gguf_places(checkpoint, linears_, spec)) {
    if (keeps_codes) keep_codes();
    for (const GgufPlace& place : places_) {
      if (const auto found = kept_codes_.find(place.name); found != kept_codes_.end()) {
        tensors_.push_back({place.name, found->second, place.shape, true});
        continue;
      }
      const bool codes =
          std::all_of(place.matrices.begin(), place.matrices.end(), [&](const GgufPlace::Matrix& matrix) {
            const StoredTensor* const tensor = checkpoint.find(matrix.source);
            return tensor != nullptr && tensor->exponents.has_value();
          });
      const bool kept = codes && !place.matrices.empty() && !place.part;
      tensors_.push_back({place.name, kept ? DType::kMXFP4 : DType::kF32, place.shape, kept});
    }
  }

  std::vector<float> rows(std::size_t index, std::int64_t first, std::int64_t count) override {
    const GgufPlace& place = places_[index];
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

  std::vector<std::byte> stored_rows(std::size_t index, std::int64_t first, std::int64_t count) override {
    const GgufPlace& place = places_[index];
    if (kept_codes_.count(place.name) != 0) return rows_of_codes(place, tensors_[index].stored, first, count);
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

  std::string first_rounding(std::size_t index) const override {
    const GgufPlace& place = places_[index];
    if (place.matrices.empty()) return {};
    const GgufPlace::Matrix& matrix = place.matrices.front();
    if (matrix.packed != nullptr && linears_.is_packed(matrix.packed->module))
      return linears_.packed_shape(matrix.packed->module).scheme.text();
    return llmq::first_rounding(checkpoint_.at(matrix.source));
  }

  void read_ahead(std::size_t index) override {
    for (const GgufPlace::Matrix& matrix : places_[index].matrices)
      if (matrix.packed != nullptr)
        linears_.read_ahead(*matrix.packed);
      else if (!Checkpoint::is_kept(checkpoint_.at(matrix.source)))
        checkpoint_.read_ahead(checkpoint_.at(matrix.source));
  }

  void release(std::size_t) override {
    lease_ = {};
    held_ = nullptr;
    unpacked_ = {};
    codes_ = {};
    apart_ = {};
    loaded_ = nullptr;
  }

  std::uint64_t bytes_to_read(std::size_t index) const override {
    std::uint64_t bytes = 0;
    for (const GgufPlace::Matrix& matrix : places_[index].matrices)
      bytes += matrix.packed != nullptr ? linears_.bytes_to_read(*matrix.packed).all
                                        : Checkpoint::bytes_to_read(checkpoint_.at(matrix.source));
    return bytes;
  }

 private:
  // The numbers beside packed linears that keep their codes are places from then on.
  void keep_codes() {
    const std::vector<DType> kept = keep_float_codes(checkpoint_, linears_, places_);
    for (std::size_t i = 0; i < places_.size(); ++i)
      if (kept[i] != DType::kF32) kept_codes_.emplace(places_[i].name, kept[i]);
    std::sort(places_.begin(), places_.end(),
              [](const GgufPlace& a, const GgufPlace& b) { return gguf_tensor_before(a.name, b.name); });
  }

  std::vector<std::byte> rows_of_codes(const GgufPlace& place, DType type, std::int64_t first,
                                       std::int64_t count) {
    const std::int64_t each = place.shape.elements() / place.shape.back() / std::ssize(place.matrices);
    std::vector<std::byte> rows;
    for (std::int64_t row = first; row < first + count; ++row) {
      const GgufPlace::Matrix& matrix = place.matrices[static_cast<std::size_t>(row / each)];
      if (loaded_ != &matrix) {
        codes_ = {};  // not two of them at once
        codes_ = linears_.quantized(matrix.packed->module);
      }
      loaded_ = &matrix;
      const std::int64_t own =
          place.permuted_heads == 0 ? row % each : permuted_row(row % each, each, place.permuted_heads);
      append_float_row(type, codes_, matrix.first_row + own, rows);
    }
    return rows;
  }

  // Has the values of `matrix` at hand, rows [first, first + count) of them where they lie in order.
  Lease open(const GgufPlace& place, const GgufPlace::Matrix& matrix, std::int64_t first,
             std::int64_t count) {
    if (matrix.packed != nullptr) {
      if (loaded_ != &matrix) {
        ThreadPool here(1);
        unpacked_ = {};
        unpacked_ = linears_.weight(*matrix.packed, here);
        loaded_ = &matrix;
      }
      return {};
    }
    const StoredTensor& tensor = checkpoint_.at(matrix.source);
    if (matrix.apart) {
      if (loaded_ != &matrix) apart_ = checkpoint_.read_float32(tensor);
      loaded_ = &matrix;
      return {};
    }
    if (place.in_order()) return checkpoint_.hold_band(tensor, first, count);
    if (held_ != &matrix) lease_ = checkpoint_.hold(tensor);  // until release()
    held_ = &matrix;
    return {};
  }

  // Rows of the matrix as it is stored; of a vector, as many values.
  void read_stored(const GgufPlace::Matrix& matrix, std::int64_t columns, std::int64_t row, std::int64_t rows,
                   std::span<float> into) const {
    const std::size_t from = static_cast<std::size_t>((matrix.first_row + row) * columns);
    if (matrix.packed != nullptr)
      std::memcpy(into.data(), unpacked_.data() + from,
                  static_cast<std::size_t>(rows * columns) * sizeof(float));
    else if (matrix.apart)
      std::copy_n(apart_.begin() + static_cast<std::ptrdiff_t>(from), rows * columns, into.begin());
    else
      read_rows(checkpoint_.at(matrix.source).view, columns, matrix.first_row + row, rows, into);
  }

  std::vector<float> matrix_rows(const GgufPlace& place, const GgufPlace::Matrix& matrix, std::int64_t first,
                                 std::int64_t count) {
    const std::int64_t columns = place.shape.back(),
                       all = place.shape.elements() / columns / std::ssize(place.matrices);
    const Lease band = open(place, matrix, matrix.first_row + first, count);
    if (place.part) {
      const std::int64_t of_whole = GgufPart::width_of(place.part->whole);
      const bool vector = place.part->shape.rank() < 2;  // whose values are its rows, and the file's one row
      return gather_part(*place.part, first, vector ? columns : count,
                         [&](std::int64_t row, std::int64_t rows, std::span<float> into) {
                           read_stored(matrix, of_whole, row, rows, into);
                         });
    }
    std::vector<float> values(static_cast<std::size_t>(count * columns));
    if (place.permuted_heads == 0) {
      read_stored(matrix, columns, first, count, values);
      if (place.shift != 0)  // -0 + 0 is 0, and no weight changes its sign
        for (float& value : values) value += place.shift;
      return values;
    }
    // A bias is one row of `columns` values here, and its values are what the weight's rows are.
    if (place.shape.rank() == 1) {
      std::vector<float> stored(values.size());
      read_stored(matrix, columns, 0, 1, stored);
      for (std::int64_t i = 0; i < columns; ++i)
        values[static_cast<std::size_t>(i)] =
            stored[static_cast<std::size_t>(permuted_row(i, columns, place.permuted_heads))];
      return values;
    }
    for (std::int64_t i = 0; i < count; ++i)
      read_stored(matrix, columns, permuted_row(first + i, all, place.permuted_heads), 1,
                  std::span(values).subspan(static_cast<std::size_t>(i * columns),
                                            static_cast<std::size_t>(columns)));
    return values;
  }

  const Checkpoint& checkpoint_;
  LinearSource linears_;
  std::vector<GgufPlace> places_;
  std::map<std::string, DType> kept_codes_;  // of packed linears by their names in the file
  ZeroedNumbers<float> unpacked_;
  QuantizedMatrix codes_;
  std::vector<float> apart_;
  // Whose values are `unpacked_`, `codes_` or `apart_`, whose bytes are leased.
  const GgufPlace::Matrix *loaded_ = nullptr, *held_ = nullptr;
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
    const std::uint64_t row_bytes = row_bytes_of(tensor);
    const Lease lease =
        file_.mapping(tensor).lease(tensor.offset + static_cast<std::uint64_t>(first) * row_bytes,
                                    static_cast<std::uint64_t>(count) * row_bytes);
    read_rows(TensorView(static_cast<const void*>(tensor.data), tensor.dtype, tensor.shape),
              tensor.shape.back(), first, count, values);
    return values;
  }
  std::vector<std::byte> stored_rows(std::size_t index, std::int64_t first, std::int64_t count) override {
    const GgufTensor& tensor = *order_[index];
    const std::uint64_t row_bytes = row_bytes_of(tensor),
                        from = tensor.offset + static_cast<std::uint64_t>(first) * row_bytes,
                        bytes = static_cast<std::uint64_t>(count) * row_bytes;
    const Lease lease = file_.mapping(tensor).lease(from, bytes);
    const auto stored = file_.mapping(tensor).bytes().subspan(from, bytes);
    return {stored.begin(), stored.end()};
  }
  std::string first_rounding(std::size_t index) const override {
    const DType stored = order_[index]->dtype;
    return is_block_type(stored) ? std::string(dtype_row(stored).name) : std::string();
  }
  void release(std::size_t index) override {
    file_.mapping(*order_[index]).release(order_[index]->offset, order_[index]->bytes);
  }
  std::uint64_t bytes_to_read(std::size_t index) const override {
    const GgufTensor& tensor = *order_[index];
    StoredTensor stored;
    stored.view = TensorView(static_cast<const void*>(nullptr), tensor.dtype, tensor.shape);
    stored.offset = tensor.offset;
    return Checkpoint::bytes_to_read(stored);
  }

 private:
  static std::uint64_t row_bytes_of(const GgufTensor& tensor) {
    return tensor.bytes / static_cast<std::uint64_t>(
                              std::max<std::int64_t>(1, tensor.shape.elements() / tensor.shape.back()));
  }

  GgufFile file_;
  std::vector<const GgufTensor*> order_;
};

}  // namespace

std::unique_ptr<GgufTensorSource> open_gguf_tensors(Io& io, const Checkpoint& checkpoint,
                                                    const ModelSpec& spec, bool keeps_codes) {
  if (checkpoint.is_gguf()) return std::make_unique<GgufSource>(open_gguf(io, checkpoint.path()));
  return std::make_unique<HuggingFaceSource>(checkpoint, spec, keeps_codes);
}

}  // namespace llmq
