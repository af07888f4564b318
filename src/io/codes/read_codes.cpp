// Codes of 4 bits out of a checkpoint's own tensors, for who multiplies them as they are.
#include <algorithm>
#include <cmath>
#include <limits>

#include "io/checkpoint_state.h"
#include "tensor/mxfp4.h"
#include "tensor/stored_float.h"

namespace llmq {
namespace {

// Codes of `group` each with a scale, all of them in order.
QuantizedMatrix matrix_of(const TensorView& view, std::int64_t group, std::vector<float> scales) {
  QuantizedMatrix matrix;
  matrix.scheme.bits = 4;
  matrix.scheme.granularity = Granularity::kGroup;
  matrix.scheme.group_size = static_cast<int>(group);
  matrix.scheme.symmetric = true;
  matrix.scheme.scale_dtype = DType::kF32;
  matrix.out_features = view.rows();
  matrix.in_features = view.cols();
  matrix.scales = std::move(scales);
  matrix.zeros.assign(matrix.scales.size(), 0);
  matrix.codes.resize(static_cast<std::size_t>(view.shape.elements()));
  return matrix;
}

}  // namespace

std::optional<QuantizedMatrix> Checkpoint::read_codes(const StoredTensor& tensor) const {
  if (tensor.exponents) return codes_of_mxfp4(tensor);
  if (tensor.bits_and_bytes && tensor.view.dtype == DType::kF4) return codes_of_bits_and_bytes(tensor);
  return std::nullopt;
}

QuantizedMatrix Checkpoint::codes_of_mxfp4(const StoredTensor& tensor) const {
  const TensorView& view = tensor.view;
  const Lease held = hold(tensor), of_exponents = hold_exponents(tensor, 0, view.rows());
  const std::int64_t blocks = view.cols() / kMxfp4Block;
  QuantizedMatrix matrix =
      matrix_of(view, kMxfp4Block, std::vector<float>(static_cast<std::size_t>(view.rows() * blocks)));
  matrix.scheme.weight_type = WeightType::kFloat4;
  for (std::int64_t row = 0; row < view.rows(); ++row) {
    const std::int64_t stored = row * tensor.side_by_side + tensor.place;
    const std::uint8_t* const pairs = view.as<const std::uint8_t>() + stored * view.cols() / 2;
    std::uint8_t* const codes = matrix.codes.data() + row * view.cols();
    for (std::int64_t i = 0; i < view.cols(); ++i)
      codes[i] = static_cast<std::uint8_t>(i % 2 == 0 ? pairs[i / 2] & 15 : pairs[i / 2] >> 4);
    for (std::int64_t block = 0; block < blocks; ++block)
      matrix.scales[static_cast<std::size_t>(row * blocks + block)] =
          mxfp4_scale(tensor.exponents->pointer[stored * blocks + block]);
  }
  return matrix;
}

std::optional<QuantizedMatrix> Checkpoint::codes_of_bits_and_bytes(const StoredTensor& tensor) const {
  const TensorView& view = tensor.view;
  const StoredTensor::BitsAndBytes& stored = *tensor.bits_and_bytes;
  if (view.cols() % stored.block != 0) return std::nullopt;
  std::vector<float> scales = scales_of_bits_and_bytes(tensor);
  float largest = 0, top = 0;
  for (const float scale : scales) largest = std::fmax(largest, std::fabs(scale));
  for (const float value : stored.map) top = std::fmax(top, std::fabs(value));
  const auto finite = [](float number) { return std::isfinite(number); };
  if (!std::all_of(stored.map.begin(), stored.map.end(), finite) ||
      !std::isfinite(stored_float(largest * top, stored.dtype)))
    return std::nullopt;
  QuantizedMatrix matrix = matrix_of(view, stored.block, std::move(scales));
  matrix.code_values = {stored.map, stored.dtype};
  const Lease held = hold(tensor);
  const auto* const pairs = view.as<const std::uint8_t>();
  for (std::size_t i = 0; i < matrix.codes.size(); ++i)
    matrix.codes[i] = static_cast<std::uint8_t>(i % 2 == 0 ? pairs[i / 2] >> 4 : pairs[i / 2] & 15);
  return matrix;
}

}  // namespace llmq
