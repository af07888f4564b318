#include "model/packed/packed_bytes.h"

#include <fmt/format.h>

#include "model/packed/packed_sizes.h"

namespace llmq {

bool holds_codes(const StoredTensor* weight, PackedFormat format) {
  if (weight == nullptr) return false;
  const DType dtype = weight->view.dtype;
  return dtype == DType::kF8E4M3 || (format == PackedFormat::kCompressedTensors && dtype == DType::kI8) ||
         (format == PackedFormat::kModelopt && dtype == DType::kU8);
}

PackedTensors open_packed_bytes(const Checkpoint& checkpoint, const std::string& module,
                                const QuantScheme& scheme, PackedFormat format) {
  PackedTensors packed;
  packed.scheme = scheme;
  packed.bytes = true;
  const std::string name = module + kDenseSuffix;
  const StoredTensor& codes = find_tensor(checkpoint, name);
  if (codes.view.shape.rank() != 2)
    bad_tensor(checkpoint, name, fmt::format("has shape {}, expected [out, in]", codes.view.shape.text()));
  const std::int64_t out = packed.out_features = codes.view.shape[0],
                     in = packed.in_features = codes.view.shape[1];
  check_packed_size(checkpoint, name, out, in);
  packed.codes = &expect(checkpoint, name,
                         scheme.weight_type == WeightType::kFloat8 ? DType::kF8E4M3 : DType::kI8, {out, in});
  const bool blocks = scheme.granularity == Granularity::kBlock;
  const auto blocks_of = [](std::int64_t n) { return (n + kFloat8Block - 1) / kFloat8Block; };
  packed.groups = blocks ? blocks_of(in) : groups_of_packed(checkpoint, name, scheme, in);
  const std::string scale_name = module + ".weight_scale";
  const bool exponents = scheme.scale_form() == ScaleForm::kExponent;
  if (exponents) {
    packed.scales = &expect(checkpoint, scale_name, DType::kU8, {out, packed.groups});
  } else if (scheme.granularity == Granularity::kTensor) {
    packed.scales = &expect_scales(checkpoint, scale_name, {Shape{1}, Shape{1, 1}, Shape{}});
  } else {
    const Shape plain{blocks ? blocks_of(out) : out, packed.groups};
    const bool modelopt = format == PackedFormat::kModelopt, one = plain.elements() == 1;
    const Shape modelopts = blocks ? Shape{plain[0], 1, plain[1], 1} : Shape{out};
    packed.scales = &expect_scales(checkpoint, scale_name,
                                   {plain, modelopt ? modelopts : plain, modelopt && one ? Shape{} : plain});
  }
  const std::string zero_name = module + ".weight_zero_point";
  if (!scheme.symmetric) packed.zeros = &expect(checkpoint, zero_name, DType::kI8, {out, packed.groups});
  if (scheme.symmetric && checkpoint.find(zero_name) != nullptr)
    bad_tensor(checkpoint, zero_name, "is stored, although quantization_config says symmetric");
  if (!exponents) packed.scheme.scale_dtype = packed.scales->view.dtype;
  return packed;
}

}  // namespace llmq
