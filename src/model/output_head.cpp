#include "model/output_head.h"

#include <algorithm>
#include <cmath>

#include "model/block_weights.h"

namespace llmq {
namespace {

constexpr int kTop = 127, kMiddle = 128;

// One group of a row: its scale, and its codes to the nearest, ties to even.
float round_group(const float* values, std::int64_t count, std::uint8_t* codes) {
  float greatest = 0;
  for (std::int64_t k = 0; k < count; ++k) greatest = std::max(greatest, std::fabs(values[k]));
  const float scale = stored_scale(greatest == 0 ? 1.0f : greatest / kTop, DType::kBF16);
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it leaves no fraction bits
  for (std::int64_t k = 0; k < count; ++k) {
    const float steps = (values[k] / scale + kMagic) - kMagic;
    codes[k] = static_cast<std::uint8_t>(
        static_cast<int>(std::min(std::max(steps, -static_cast<float>(kTop)), static_cast<float>(kTop))) +
        kMiddle);
  }
  return scale;
}

QuantizedMatrix round_to_int8(const TensorView& weight) {
  QuantizedMatrix matrix;
  matrix.out_features = weight.rows();
  matrix.in_features = weight.cols();
  matrix.scheme.bits = 8;
  matrix.scheme.symmetric = true;
  matrix.scheme.granularity = Granularity::kChannel;
  for (const int group : {128, 64, 32})
    if (matrix.scheme.granularity == Granularity::kChannel && matrix.in_features % group == 0) {
      matrix.scheme.granularity = Granularity::kGroup;
      matrix.scheme.group_size = group;
    }
  const std::int64_t group = matrix.group(), columns = matrix.in_features;
  matrix.codes.resize(static_cast<std::size_t>(matrix.out_features * columns));
  matrix.zeros.assign(static_cast<std::size_t>(matrix.out_features * matrix.groups()), kMiddle);
  matrix.scales.reserve(matrix.zeros.size());
  std::vector<float> row(static_cast<std::size_t>(columns));
  for (std::int64_t n = 0; n < matrix.out_features; ++n) {
    to_float32(weight.row_slice(n, 1), row);
    for (std::int64_t k = 0; k < columns; k += group)
      matrix.scales.push_back(round_group(row.data() + k, group, matrix.codes.data() + n * columns + k));
  }
  return matrix;
}

}  // namespace

std::unique_ptr<PreparedWeight> prepare_head(Backend& backend, Compute compute, const LinearSource& source,
                                             const ModelSpec& spec, HeadWeight as) {
  constexpr std::string_view kSuffix = ".weight";
  LinearSpec head;
  head.module = spec.head;
  if (head.module.ends_with(kSuffix)) head.module.resize(head.module.size() - kSuffix.size());
  if (source.is_packed(head.module)) {
    head.weight = {spec.head};
    head.out_features = spec.vocab_size;
    head.in_features = spec.hidden_size;
    head.parts = {spec.vocab_size};
    BlockLinear whole = prepare_linear(backend, compute, source, head, false, PackedWeights::kCodes);
    return std::move(whole.parts.front().weight);
  }
  const Checkpoint& checkpoint = source.checkpoint();
  const bool tied = spec.head == spec.embedding.tensor;
  const StoredTensor& tensor = tied ? checkpoint.at(spec.head) : source.finite(spec.head);
  const DType dtype = tensor.view.dtype;
  const Lease lease = checkpoint.hold(tensor);
  if (tensor.in_order() && (dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16)) {
    auto prepared = as == HeadWeight::kInt8 ? prepare_codes(backend, compute, round_to_int8(tensor.view))
                                            : backend.prepare(tensor.view, compute);
    return prepared;
  }
  if (as == HeadWeight::kStored)
    if (const std::optional<QuantizedMatrix> codes = source.block_codes(spec.head))
      return prepare_codes(backend, compute, *codes);
  const std::vector<float> values = checkpoint.read_float32(tensor);
  const TensorView view(values.data(), DType::kF32, tensor.view.shape);
  return as == HeadWeight::kInt8 ? prepare_codes(backend, compute, round_to_int8(view))
                                 : backend.prepare(view, compute);
}

}  // namespace llmq
