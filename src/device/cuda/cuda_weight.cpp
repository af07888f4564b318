#include "device/cuda/cuda_weight.h"

#include <algorithm>

#include "base/error.h"
#include "base/half.h"
#include "device/cuda/dense/dense_products.h"
#include "tensor/block_scales.h"

namespace llmq {
namespace {

constexpr std::int64_t kNumbersAtOnce = std::int64_t{1} << 21;  // numbers

template <class T>
Buffer copy_of(CudaDevice& device, const std::vector<T>& values) {
  if (values.empty()) return {};
  const std::size_t bytes = values.size() * sizeof(T);
  return device.filled(bytes, [&](const CudaDevice::Put& put) { put(0, values.data(), bytes); });
}

// F32 or F16 to BF16, some rows at a time.
void put_rounded(const CudaDevice::Put& put, const TensorView& weight, ThreadPool& pool) {
  const std::int64_t width = weight.cols(),
                     most = std::max<std::int64_t>(1, kNumbersAtOnce / std::max<std::int64_t>(1, width));
  std::vector<BFloat16> halves;
  for (std::int64_t first = 0; first < weight.rows(); first += most) {
    const std::int64_t count = std::min(most, weight.rows() - first);
    halves.resize(static_cast<std::size_t>(count * width));
    pool.parallel_for(static_cast<std::size_t>(count), [&](std::size_t row, int) {
      thread_local std::vector<float> numbers;
      numbers.resize(static_cast<std::size_t>(width));
      to_float32(weight.row_slice(first + static_cast<std::int64_t>(row), 1), numbers);
      std::transform(numbers.begin(), numbers.end(), halves.begin() + static_cast<std::int64_t>(row) * width,
                     [](float v) { return to_bfloat16(v); });
    });
    put(static_cast<std::size_t>(first * width) * sizeof(BFloat16), halves.data(),
        halves.size() * sizeof(BFloat16));
  }
}

// `from` in device memory, [out, in] of BF16 (wide) or codes, to fragments.
void pack(CudaDevice& device, CudaWeight& weight, const Buffer& from) {
  const FragmentLayout layout = weight.layout();
  weight.fragments =
      Buffer(device.memory(), static_cast<std::size_t>(layout.words()) * sizeof(std::uint32_t));
  cuda::PackFragments::Arguments a;
  a.words = weight.fragments.as<std::uint32_t>();
  a.layout = layout;
  if (layout.bits == 16)
    a.wide = from.as<std::uint16_t>();
  else
    a.narrow = from.as<std::uint8_t>();
  if (weight.form == cuda::WeightForm::kInt8) a.flip = 0x80;
  device.check_launch(device.kernels().pack_fragments(a, device.stream()), "prepare",
                      [&] { return fmt::format("[{}, {}]", weight.out_features, weight.in_features); });
}

// [out, groups] to FP32 [groups][padded features], 0 at the padding.
template <class T>
Buffer by_group(CudaDevice& device, const CudaWeight& weight, const std::vector<T>& values) {
  const std::int64_t padded = weight.layout().padded_features();
  std::vector<float> numbers(static_cast<std::size_t>(weight.groups * padded));
  for (std::int64_t n = 0; n < weight.out_features; ++n)
    for (std::int64_t g = 0; g < weight.groups; ++g)
      numbers[static_cast<std::size_t>(g * padded + n)] =
          static_cast<float>(values[static_cast<std::size_t>(n * weight.groups + g)]);
  return copy_of(device, numbers);
}

// The same of scales as bytes, two features together.
Buffer scale_bytes(CudaDevice& device, const CudaWeight& weight, const QuantizedMatrix& matrix) {
  const std::int64_t pairs = weight.layout().padded_features() / 2;
  std::vector<std::uint16_t> stored(static_cast<std::size_t>(weight.groups * pairs));
  for (std::int64_t n = 0; n < weight.out_features; ++n)
    for (std::int64_t g = 0; g < weight.groups; ++g)
      stored[static_cast<std::size_t>(g * pairs + n / 2)] |= static_cast<std::uint16_t>(
          scale_byte(matrix, static_cast<std::size_t>(n * weight.groups + g)) << n % 2 * 8);
  return copy_of(device, stored);
}

// The same as words of four groups for each feature, as products by codes take them; 0 at the padding.
Buffer scale_words(CudaDevice& device, const CudaWeight& weight, const QuantizedMatrix& matrix) {
  const std::int64_t padded = weight.layout().padded_features();
  std::vector<std::uint32_t> stored(
      static_cast<std::size_t>(cuda::words_of_scales(weight.layout(), weight.has_exponents()) * padded));
  for (std::int64_t n = 0; n < weight.out_features; ++n)
    for (std::int64_t g = 0; g < weight.groups; ++g)
      stored[static_cast<std::size_t>(g / 4 * padded + n)] |=
          std::uint32_t{scale_byte(matrix, static_cast<std::size_t>(n * weight.groups + g))} << g % 4 * 8;
  return copy_of(device, stored);
}

// Of inputs that become floats in groups: code * level as numbers.
void pack_levels(CudaDevice& device, CudaWeight& weight, const QuantizedMatrix& matrix) {
  std::vector<BFloat16> levels(matrix.codes.size());
  for (std::int64_t n = 0; n < matrix.out_features; ++n)
    weight_levels(matrix, n, levels.data() + n * matrix.in_features);
  pack_numbers(device, weight, copy_of(device, levels));
  weight.groups = 1;
  weight.keeps_codes = true;
  weight.kernel = "floats in groups in bf16 fragments";
}

// Beside inputs as floats in groups the weight's number is part of what rows are multiplied by.
ScaleOfByte scale_of_byte(const QuantizedMatrix& matrix) {
  if (matrix.scheme.scale_form() == ScaleForm::kExponent) return scale_of_exponent();
  return scale_of_level(matrix.scheme.rounds_inputs() ? 1.0f : level_factor(matrix));
}

std::optional<cuda::WeightForm> form_of(const QuantizedMatrix& matrix, Compute compute) {
  using cuda::WeightForm;
  const bool float8 = matrix.scheme.weight_type == WeightType::kFloat8;
  if (matrix.in_features == 0) return {};
  if (matrix.scheme.weight_type == WeightType::kFloat4) {
    const bool rounds = matrix.scheme.rounds_inputs();
    if ((!rounds && compute == Compute::kFloat32) || !matrix.column_group.empty() || !has_scale_bytes(matrix))
      return {};
    return WeightForm::kFloat4;
  }
  if (matrix.scheme.activation_scale != ActivationScale::kNone)
    return float8 ? WeightForm::kFloat8 : WeightForm::kInt8;
  if (compute == Compute::kFloat32 || !matrix.minima.empty() || !matrix.column_group.empty()) return {};
  return float8 ? WeightForm::kFloat8 : matrix.scheme.bits <= 4 ? WeightForm::kCodes4 : WeightForm::kCodes8;
}

const char* name_of(cuda::WeightForm form) {
  switch (form) {
    case cuda::WeightForm::kBFloat16:
      return "bf16 fragments";
    case cuda::WeightForm::kCodes4:
      return "4-bit codes in fragments";
    case cuda::WeightForm::kCodes8:
      return "8-bit codes in fragments";
    case cuda::WeightForm::kFloat4:
      return "e2m1 codes in fragments";
    case cuda::WeightForm::kFloat8:
      return "e4m3 codes in fragments";
    case cuda::WeightForm::kInt8:
      break;
  }
  return "int8 codes in fragments";
}

}  // namespace

cuda::Element element_of(DType dtype) {
  if (dtype == DType::kF32) return cuda::Element::kF32;
  if (dtype == DType::kBF16) return cuda::Element::kBF16;
  if (dtype == DType::kF16) return cuda::Element::kF16;
  fail(ErrorKind::kInternal, "the CUDA backend computes with F32, BF16 and F16, not {}",
       dtype_row(dtype).name);
}

cuda::CodeOperand CudaWeight::coded() const {
  return {codes.as<std::uint8_t>(),
          scales.as<float>(),
          zeros.as<std::uint8_t>(),
          minima.as<float>(),
          column_group.as<std::int32_t>(),
          in_features,
          group,
          groups,
          type == WeightType::kFloat8   ? cuda::CodeType::kFloat8
          : type == WeightType::kFloat4 ? cuda::CodeType::kFloat4
                                        : cuda::CodeType::kInteger};
}

void pack_numbers(CudaDevice& device, CudaWeight& weight, const Buffer& numbers) {
  weight.group = weight.in_features;
  weight.form = cuda::WeightForm::kBFloat16;
  weight.kernel = name_of(*weight.form);
  pack(device, weight, numbers);
  weight.bytes = weight.fragments.bytes();
}

std::unique_ptr<CudaWeight> dense_weight(CudaDevice& device, DenseProducts& products,
                                         const TensorView& weight, Compute compute, ThreadPool& pool) {
  auto prepared = std::make_unique<CudaWeight>(device);
  // FP32 products of narrower numbers are exact
  const DType dtype = compute == Compute::kBFloat16 ? DType::kBF16 : weight.dtype;
  prepared->out_features = weight.rows();
  prepared->in_features = weight.cols();
  prepared->compute = compute;
  prepared->element = element_of(dtype);
  prepared->bytes = static_cast<std::size_t>(weight.rows() * weight.cols() * element_bytes(dtype));
  prepared->kernel = fmt::format("{} numbers", dtype_row(dtype).name);
  if (compute == Compute::kBFloat16) prepared->fixed = products.find(weight.rows(), weight.cols());
  prepared->values = device.filled(prepared->bytes, [&](const CudaDevice::Put& put) {
    if (dtype == weight.dtype)
      put(0, weight.pointer, prepared->bytes);
    else
      put_rounded(put, weight, pool);
  });
  if (compute == Compute::kFloat32 || prepared->bytes == 0) return prepared;
  if (prepared->fixed != nullptr) {
    prepared->kernel = prepared->fixed->text();
    return prepared;
  }
  pack_numbers(device, *prepared, prepared->values);
  prepared->values.reset();
  return prepared;
}

std::unique_ptr<CudaWeight> code_weight(CudaDevice& device, const QuantizedMatrix& matrix, Compute compute,
                                        bool by_codes) {
  if (matrix.scheme.activation_scale != ActivationScale::kNone) check_low_precision(matrix);
  if (!matrix.kept_columns.empty())
    fail(ErrorKind::kUnsupported, "a weight with {} columns kept as they are has no codes for the device",
         matrix.kept_columns.size());
  auto prepared = std::make_unique<CudaWeight>(device);
  prepared->out_features = matrix.out_features;
  prepared->in_features = matrix.in_features;
  prepared->compute = compute;
  prepared->keeps_codes = true;
  prepared->kernel = "codes in bytes";
  prepared->group = std::min(matrix.group(), std::max<std::int64_t>(1, matrix.in_features));
  prepared->groups = matrix.groups();
  prepared->type = matrix.scheme.weight_type;
  prepared->activation = matrix.scheme.activation_scale;
  prepared->input_scale = matrix.input_scale;
  prepared->inputs = float_inputs(matrix);
  prepared->form = form_of(matrix, compute);
  if (prepared->inputs.groups.size != 0 && prepared->form != cuda::WeightForm::kFloat4 &&
      !matrix.codes.empty()) {
    pack_levels(device, *prepared, matrix);
    return prepared;
  }
  prepared->codes = copy_of(device, matrix.codes);
  if (prepared->form) {
    prepared->by_codes =
        by_codes && prepared->form == cuda::WeightForm::kFloat4 && prepared->inputs.groups.size != 0;
    prepared->kernel = prepared->by_codes ? "e2m1 codes by e2m1 codes" : name_of(*prepared->form);
    pack(device, *prepared, prepared->codes);
    prepared->codes.reset();
    const bool float4 = prepared->form == cuda::WeightForm::kFloat4,
               float8 = prepared->form == cuda::WeightForm::kFloat8;
    prepared->group_scales = prepared->by_codes ? scale_words(device, *prepared, matrix)
                             : float4           ? scale_bytes(device, *prepared, matrix)
                                                : by_group(device, *prepared, matrix.scales);
    if (float4) prepared->scale_of_byte = scale_of_byte(matrix);
    const bool in_the_middle =
        prepared->form == cuda::WeightForm::kInt8 &&
        std::all_of(matrix.zeros.begin(), matrix.zeros.end(), [](std::uint8_t zero) { return zero == 0x80; });
    if (!float4 && !float8 && !in_the_middle)
      prepared->group_zeros = by_group(device, *prepared, matrix.zeros);
    prepared->bytes =
        prepared->fragments.bytes() + prepared->group_scales.bytes() + prepared->group_zeros.bytes();
    return prepared;
  }
  prepared->scales = copy_of(device, matrix.scales);
  prepared->zeros = copy_of(device, matrix.zeros);
  prepared->minima = copy_of(device, matrix.minima);
  prepared->column_group = copy_of(device, matrix.column_group);
  for (const Buffer* buffer :
       {&prepared->codes, &prepared->scales, &prepared->zeros, &prepared->minima, &prepared->column_group})
    prepared->bytes += buffer->bytes();
  return prepared;
}

}  // namespace llmq
