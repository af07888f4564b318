#include "model/tensor_reading.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"

namespace llmq {
namespace {

// Whether no word has an exponent of all ones. Bytes of a file need not be aligned for their type.
template <typename Word>
bool no_exponent_of_ones(const void* bytes, std::size_t count, Word ones) {
  Word bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Word bits;
    std::memcpy(&bits, static_cast<const std::byte*>(bytes) + i * sizeof(Word), sizeof(Word));
    bad = static_cast<Word>(bad | ((bits & ones) == ones ? 1 : 0));
  }
  return bad == 0;
}

}  // namespace

bool all_finite(std::span<const float> values) {
  return no_exponent_of_ones<std::uint32_t>(values.data(), values.size(), 0x7f800000u);
}

void bad_tensor(const Checkpoint& checkpoint, const std::string& name, std::string message,
                std::string hint) {
  fail(ErrorKind::kBadInput, {std::move(message), checkpoint.path().string(), name, std::move(hint)});
}
void unsupported_tensor(const Checkpoint& checkpoint, const std::string& name, std::string message,
                        std::string hint) {
  fail(ErrorKind::kUnsupported, {std::move(message), checkpoint.path().string(), name, std::move(hint)});
}

const StoredTensor& find_tensor(const Checkpoint& checkpoint, const std::string& name) {
  const StoredTensor* tensor = checkpoint.find(name);
  if (tensor == nullptr) bad_tensor(checkpoint, name, "is missing");
  return *tensor;
}

const StoredTensor& expect(const Checkpoint& checkpoint, const std::string& name, DType dtype,
                           const Shape& shape) {
  const StoredTensor& tensor = find_tensor(checkpoint, name);
  if (tensor.view.dtype != dtype)
    unsupported_tensor(checkpoint, name,
                       fmt::format("is stored as {}, expected {}", dtype_row(tensor.view.dtype).name,
                                   dtype_row(dtype).name));
  if (!(tensor.view.shape == shape))
    bad_tensor(checkpoint, name,
               fmt::format("has shape {}, expected {}", tensor.view.shape.text(), shape.text()));
  return tensor;
}

const StoredTensor& expect_scales(const Checkpoint& checkpoint, const std::string& name,
                                  std::initializer_list<Shape> shapes) {
  const StoredTensor& tensor = find_tensor(checkpoint, name);
  const DType dtype = tensor.view.dtype;
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16)
    unsupported_tensor(checkpoint, name,
                       fmt::format("scales stored as {} are not known here", dtype_row(dtype).name),
                       "F32, F16 and BF16 are");
  if (std::none_of(shapes.begin(), shapes.end(),
                   [&](const Shape& shape) { return shape == tensor.view.shape; }))
    bad_tensor(checkpoint, name,
               fmt::format("has shape {}, expected {}", tensor.view.shape.text(), shapes.begin()->text()));
  return tensor;
}

std::string first_nonfinite(std::span<const float> values, std::int64_t columns, std::int64_t first_row) {
  const auto first = std::find_if(values.begin(), values.end(), [](float v) { return !all_finite({&v, 1}); });
  const std::int64_t at = first - values.begin();
  return fmt::format("holds {} at row {}, column {}", *first != *first ? "NaN" : "an infinity",
                     first_row + at / columns, at % columns);
}

void expect_reciprocal(const Checkpoint& checkpoint, const StoredTensor& tensor, float scale) {
  if (const float inverse = 1 / scale; !all_finite({&inverse, 1}))
    bad_tensor(checkpoint, tensor.name, fmt::format("is {}, and 1 / it is no number", scale));
}

namespace {

// `values` are rows of the tensor from `first_row` on.
void refuse_nonfinite(const Checkpoint& checkpoint, const StoredTensor& tensor, std::span<const float> values,
                      std::int64_t first_row = 0) {
  if (all_finite(values)) return;
  bad_tensor(checkpoint, tensor.name,
             first_nonfinite(values, std::max<std::int64_t>(tensor.view.cols(), 1), first_row),
             "get the checkpoint again, or quantize it with --allow-nonfinite");
}

// Without a copy of the values; false, too, for a type that is not a plain float.
bool plain_and_finite(const TensorView& view) {
  const auto count = static_cast<std::size_t>(view.shape.elements());
  switch (view.dtype) {
    case DType::kF32:
      return no_exponent_of_ones<std::uint32_t>(view.pointer, count, 0x7f800000u);
    case DType::kBF16:
      return no_exponent_of_ones<std::uint16_t>(view.pointer, count, 0x7f80);
    case DType::kF16:
      return no_exponent_of_ones<std::uint16_t>(view.pointer, count, 0x7c00);
    default:
      return false;
  }
}

}  // namespace

void scan_finite(const Checkpoint& checkpoint, const StoredTensor& tensor, const Checkpoint::EachBand& see) {
  if (!tensor.in_order()) {  // rows are told by their place in the model
    refuse_nonfinite(checkpoint, tensor, checkpoint.read_float32(tensor));
    return;
  }
  std::vector<float> values;
  checkpoint.each_band(tensor, [&](std::int64_t first, const TensorView& band) {
    if (!plain_and_finite(band)) {
      values.resize(static_cast<std::size_t>(band.shape.elements()));
      to_float32(band, values);
      refuse_nonfinite(checkpoint, tensor, values, first);
    }
    if (see) see(first, band);
  });
}

std::vector<float> read_finite(const Checkpoint& checkpoint, const StoredTensor& tensor,
                               bool allow_nonfinite) {
  std::vector<float> values = checkpoint.read_float32(tensor);
  if (!allow_nonfinite) refuse_nonfinite(checkpoint, tensor, values);
  return values;
}

ZeroedNumbers<float> read_finite(const Checkpoint& checkpoint, const StoredTensor& tensor,
                                 bool allow_nonfinite, ThreadPool& pool) {
  ZeroedNumbers<float> values(static_cast<std::size_t>(tensor.view.shape.elements()));
  checkpoint.read_float32(tensor, values, pool);
  if (allow_nonfinite) return values;
  constexpr std::size_t kItem = 1 << 16;
  std::atomic<bool> finite = true;
  pool.parallel_for((values.size() + kItem - 1) / kItem, [&](std::size_t item, int) {
    const std::size_t first = item * kItem;
    if (!all_finite(std::span(std::as_const(values)).subspan(first, std::min(kItem, values.size() - first))))
      finite = false;
  });
  if (!finite) refuse_nonfinite(checkpoint, tensor, values);
  return values;
}

}  // namespace llmq
