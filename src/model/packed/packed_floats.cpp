#include "model/packed/packed_floats.h"

#include <fmt/format.h>

#include "model/packed/packed_sizes.h"
#include "tensor/block_scales.h"
#include "tensor/mxfp4.h"

namespace llmq {
PackedTensors open_packed_float4(const Checkpoint& checkpoint, const std::string& module,
                                 const QuantScheme& scheme, PackedFormat format) {
  PackedTensors packed;
  packed.scheme = scheme;
  const bool modelopt = format == PackedFormat::kModelopt;
  const std::string name = module + packed_suffix(format);
  const StoredTensor& codes = find_tensor(checkpoint, name);
  const Shape& shape = codes.view.shape;
  if (shape.rank() != 2 || shape[1] >= (std::int64_t{1} << 30))
    bad_tensor(checkpoint, name, fmt::format("has shape {}, expected [out, in/2]", shape.text()));
  packed.out_features = shape[0], packed.in_features = shape[1] * 2;
  check_packed_size(checkpoint, name, packed.out_features, packed.in_features);
  packed.groups = groups_of_packed(checkpoint, name, scheme, packed.in_features);
  packed.codes = &expect(checkpoint, name, DType::kU8, shape);
  const bool two_levels = scheme.scale_form() == ScaleForm::kTwoLevel;
  packed.scales = &expect(checkpoint, module + ".weight_scale", two_levels ? DType::kF8E4M3 : DType::kU8,
                          {packed.out_features, packed.groups});
  if (two_levels && modelopt)
    packed.global_scale = &expect_scales(checkpoint, module + kFactorSuffix, {Shape{}, Shape{1}});
  else if (two_levels)
    packed.global_scale = &expect(checkpoint, module + kGlobalSuffix, DType::kF32, {1});
  return packed;
}

GlobalForm global_form(const PackedTensors& packed) {
  return packed.format == PackedFormat::kModelopt ? GlobalForm::kFactor : GlobalForm::kDivisor;
}

float read_global_scale(const Checkpoint& checkpoint, const PackedTensors& packed) {
  if (packed.global_scale == nullptr) return 0;
  const float global = checkpoint.read_float32(*packed.global_scale).at(0);
  if (!(global > 0 && all_finite({&global, 1})))
    bad_tensor(checkpoint, packed.global_scale->name,
               fmt::format("is {}; scales are {} by it, and it is above 0", global,
                           packed.format == PackedFormat::kModelopt ? "multiplied" : "divided"),
               "was the download cut or changed?");
  if (global_form(packed) == GlobalForm::kDivisor)
    expect_reciprocal(checkpoint, *packed.global_scale, global);
  return global;
}

std::vector<float> read_group_scales(const Checkpoint& checkpoint, const PackedTensors& packed,
                                     float global) {
  const auto bytes = copy_elements<std::uint8_t>(checkpoint, *packed.scales);
  const bool two_levels = packed.scheme.scale_form() == ScaleForm::kTwoLevel;
  std::vector<float> scales(bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    scales[i] = two_levels ? nvfp4_scale(bytes[i], global, global_form(packed)) : mxfp4_scale(bytes[i]);
    const bool means_nothing = two_levels ? !(scales[i] >= 0) : bytes[i] == kMxfp4NoNumber;
    if (!means_nothing && all_finite({&scales[i], 1})) continue;
    const auto at = static_cast<std::int64_t>(i);
    bad_tensor(checkpoint, packed.scales->name,
               fmt::format("has the byte {} at row {}, group {}, which is no scale", bytes[i],
                           at / packed.groups, at % packed.groups),
               "was the download cut or changed?");
  }
  return scales;
}

std::vector<std::uint8_t> read_code_pairs(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  const Lease lease = checkpoint.hold(tensor);
  const std::span<const std::uint8_t> pairs(tensor.view.as<const std::uint8_t>(), tensor.view.bytes());
  std::vector<std::uint8_t> codes(2 * pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i)
    codes[2 * i] = pairs[i] & 15, codes[2 * i + 1] = pairs[i] >> 4;
  return codes;
}

}  // namespace llmq
