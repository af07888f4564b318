#include "device/low_precision.h"

#include "base/error.h"

namespace llmq {
namespace {

constexpr std::int64_t kMostSummed = 0x7fffffff / (128 * 255);  // products whose sum INT32 holds

}  // namespace

void check_low_precision(const QuantizedMatrix& matrix) {
  const QuantScheme& scheme = matrix.scheme;
  const bool float8 = scheme.weight_type == WeightType::kFloat8;
  if (scheme.activation_bits != 8 || scheme.activation_scale == ActivationScale::kNone)
    fail(ErrorKind::kUnsupported, "a weight of scheme {} has no 8-bit inputs to be multiplied with",
         scheme.text());
  if (!matrix.column_group.empty())
    fail(ErrorKind::kUnsupported,
         "columns in another order than the weight's cannot be multiplied with 8-bit inputs");
  if (scheme.activation_scale == ActivationScale::kTokenGroup &&
      !(float8 && scheme.granularity == Granularity::kBlock))
    fail(ErrorKind::kUnsupported, "inputs rounded in groups need a weight of float8 blocks, not {}",
         scheme.text());
  if (!float8 && scheme.granularity == Granularity::kBlock)
    fail(ErrorKind::kUnsupported, "integer weights in blocks cannot be multiplied with 8-bit inputs");
  if (!float8 && matrix.group() > kMostSummed)
    fail(ErrorKind::kUnsupported, "INT32 cannot hold the sum of {} products of 8-bit codes; {} are the most",
         matrix.group(), kMostSummed);
  if (scheme.activation_scale == ActivationScale::kTensor &&
      !(matrix.input_scale > 0 && matrix.input_scale < 0x1p127f))
    fail(ErrorKind::kUnsupported, "the calibrated scale of the inputs is {}; a number above 0 would do",
         matrix.input_scale);
}

}  // namespace llmq
