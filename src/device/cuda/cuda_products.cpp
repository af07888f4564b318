// The kernels for products with a weight, in the order in which they are asked:
//
//   fixed            BF16 inputs and numbers: a library's, in calibration (dense_products.h)
//   by codes         inputs of 4 bits and the weight as codes of E2M1 (kernels/cuda/float4_linear.h), where a
//                    device has that
//   floats in groups inputs as code * level in BF16, the weight alike or in fragments of E2M1: matrix units
//                    (device/low_precision.h)
//   rounded inputs   inputs of 8 bits, fragments of codes: matrix units (device/low_precision.h)
//   fragments        BF16 inputs, fragments of BF16 numbers or codes: matrix units (kernels/cuda/linear.h)
//   codes            codes of one byte, dequantized one by one in FP32 (kernels/cuda/product.h)
//   numbers          FP32 products
#include "device/cuda/cuda_products.h"

#include <algorithm>

#include <fmt/format.h>

#include "device/cuda/dense/dense_products.h"
#include "device/low_precision.h"
#include "device/product_list.h"

namespace llmq {
namespace {

struct Product {
  const TensorView& y;
  const TensorView& x;
  const CudaWeight& w;
  const float* bias;
};

std::string product_text(const Product& p) {
  return fmt::format("of {} {} and a weight [{}, {}] of {}", dtype_row(p.x.dtype).name, p.x.shape.text(),
                     p.w.out_features, p.w.in_features, p.w.kernel);
}

template <class Kernel, class Operand>
void multiply_each(CudaWork& work, Kernel kernel, const Product& p, const Operand& operand) {
  work.start("linear", kernel,
             {p.x.rows(),
              p.w.out_features,
              p.w.in_features,
              p.y.as<float>(),
              p.y.row_stride,
              {p.x.pointer, p.x.row_stride, 1, element_of(p.x.dtype)},
              operand,
              p.bias,
              false,
              false},
             p.x);
}

cuda::LinearArguments on_fragments(const Product& p) {
  cuda::LinearArguments a;
  a.y = p.y.as<float>();
  a.y_stride = p.y.row_stride;
  a.x = p.x.pointer;
  a.x_stride = p.x.row_stride;
  a.weight = p.w.fragments.as<std::uint32_t>();
  if (p.w.form == cuda::WeightForm::kFloat4)
    a.scale_bytes = p.w.group_scales.as<std::uint16_t>();
  else
    a.scale = p.w.group_scales.as<float>();
  a.scale_of_byte = p.w.scale_of_byte;
  a.zero = p.w.group_zeros.as<float>();
  a.bias = p.bias;
  a.rows = p.x.rows();
  a.features = p.w.out_features;
  a.columns = p.w.in_features;
  a.group = p.w.group;
  return a;
}

void multiply_fragments(CudaWork& work, const Product& p, const cuda::LinearArguments& a) {
  if (a.rows == 0 || a.features == 0) return;
  work.device().check_launch(work.kernels().linear(*p.w.form, a, work.device().stream()), "linear",
                             [&] { return fmt::format("{} by {}", p.x.shape.text(), p.y.shape.text()); });
}

// Inputs as floats in groups.
void multiply_groups(CudaWork& work, const Product& p) {
  const InputGroups& how = p.w.inputs.groups;
  const std::int64_t rows = p.x.rows(), groups = (p.w.in_features + how.size - 1) / how.size;
  const Buffer rounded = work.scratch(static_cast<std::size_t>(rows * p.w.in_features) * sizeof(BFloat16)),
               factors = work.scratch(static_cast<std::size_t>(rows) * sizeof(float));
  work.start("linear (rounding of inputs)", work.kernels().round_input_groups,
             {rows * groups, groups, p.w.in_features, rows_of(p.x), how, p.w.inputs.factor,
              rounded.as<BFloat16>(), factors.as<float>()},
             p.x);
  cuda::LinearArguments a = on_fragments(p);
  a.x = rounded.get();
  a.x_stride = p.w.in_features;
  a.row_scale = factors.as<float>();
  a.row_scales = 1;
  multiply_fragments(work, p, a);
}

// Inputs as codes of E2M1, beside codes.
void multiply_codes(CudaWork& work, const Product& p) {
  const InputGroups& how = p.w.inputs.groups;
  const FragmentLayout layout = p.w.layout();
  const std::int64_t rows = p.x.rows(), groups = layout.positions() / how.size,
                     words = cuda::words_of_scales(layout, p.w.has_exponents()),
                     padded_rows = cuda::padded_scales(rows);
  if (rows == 0 || p.w.out_features == 0) return;
  const Buffer codes = work.scratch(static_cast<std::size_t>(rows * layout.positions() / 2)),
               scales = work.scratch(static_cast<std::size_t>(words * padded_rows) * sizeof(std::uint32_t));
  work.start("linear (rounding of inputs)", work.kernels().round_input_codes,
             {rows * groups, groups, p.w.in_features, padded_rows, rows_of(p.x), how,
              codes.as<std::uint32_t>(), scales.as<std::uint8_t>()},
             p.x);
  cuda::Float4Arguments a;
  a.y = p.y.as<float>();
  a.y_stride = p.y.row_stride;
  a.x = codes.as<std::uint32_t>();
  a.x_scales = scales.as<std::uint32_t>();
  a.weight = p.w.fragments.as<std::uint32_t>();
  a.weight_scales = p.w.group_scales.as<std::uint32_t>();
  a.bias = p.bias;
  a.factor = p.w.inputs.factor;
  a.rows = rows;
  a.features = p.w.out_features;
  a.positions = layout.positions();
  a.exponents = p.w.has_exponents();
  work.start("linear", work.device().float4_linear(), a, p.x);
}

// Inputs of 8 bits (device/low_precision.h).
void multiply_rounded(CudaWork& work, const Product& p) {
  const CudaWeight& w = p.w;
  const bool in_groups = w.activation == ActivationScale::kTokenGroup,
             integer = w.type == WeightType::kInteger;
  const FragmentLayout layout = w.layout();
  const std::int64_t rows = p.x.rows(), width = integer ? layout.positions() : w.in_features,
                     scales = in_groups ? w.groups : 1;
  const Buffer rounded =
                   work.scratch(static_cast<std::size_t>(rows * width) * (integer ? 1 : sizeof(BFloat16))),
               row_scales = work.scratch(static_cast<std::size_t>(rows * scales) * sizeof(float)),
               row_sums =
                   work.scratch(w.group_zeros.bytes() == 0
                                    ? 0
                                    : static_cast<std::size_t>(rows * w.groups) * sizeof(std::int32_t));
  if (integer) work.device().zero(rounded.get(), rounded.bytes());
  cuda::RoundInputs::Arguments round;
  round.rows = rows;
  round.columns = w.in_features;
  round.group = in_groups ? w.group : w.in_features;
  round.x = rows_of(p.x);
  round.scales = row_scales.as<float>();
  round.top = input_top(w.type);
  round.least = kLeastInputScale;
  round.fixed = w.activation == ActivationScale::kTensor ? w.input_scale : 0.0f;
  round.e4m3 = integer ? nullptr : rounded.as<BFloat16>();
  round.codes = integer ? rounded.as<std::int8_t>() : nullptr;
  round.positions = width;
  round.weight_group = layout.group;
  round.padded_group = layout.padded_group();
  work.start("linear (rounding of inputs)", work.kernels().round_inputs, round, p.x);
  const bool has_zeros = integer && w.group_zeros.bytes() > 0;
  if (has_zeros)
    work.start("linear (sums of inputs)", work.kernels().sum_codes,
               {rows * w.groups, w.groups, width, layout.padded_group(), rounded.as<std::int8_t>(),
                row_sums.as<std::int32_t>()},
               p.x);
  cuda::LinearArguments a = on_fragments(p);
  a.x = rounded.get();
  a.x_stride = width;
  a.row_scale = row_scales.as<float>();
  a.row_scales = scales;
  a.row_sum = has_zeros ? row_sums.as<std::int32_t>() : nullptr;
  multiply_fragments(work, p, a);
}

struct CudaProduct {
  bool (*supports)(const Product&);
  void (*run)(CudaWork&, const Product&);
};

constexpr CudaProduct kCudaProducts[] = {
    {[](const Product& p) { return p.w.fixed != nullptr; },
     [](CudaWork&, const Product& p) { p.w.fixed->multiply(p.y, p.x, p.w.values, p.bias); }},
    {[](const Product& p) { return p.w.by_codes; }, multiply_codes},
    {[](const Product& p) { return p.w.form && p.w.inputs.groups.size != 0; }, multiply_groups},
    {[](const Product& p) { return p.w.form && p.w.activation != ActivationScale::kNone; }, multiply_rounded},
    {[](const Product& p) { return p.w.form.has_value(); },
     [](CudaWork& work, const Product& p) { multiply_fragments(work, p, on_fragments(p)); }},
    {[](const Product& p) { return p.w.keeps_codes; },
     [](CudaWork& work, const Product& p) {
       multiply_each(work, work.kernels().code_product, p, p.w.coded());
     }},
    {[](const Product& p) { return p.w.values.bytes() > 0 || p.w.bytes == 0; },
     [](CudaWork& work, const Product& p) { multiply_each(work, work.kernels().product, p, p.w.dense()); }},
};

}  // namespace

void multiply(CudaWork& work, const TensorView& y, const TensorView& x, const CudaWeight& w,
              const float* bias) {
  const Product product{y, x, w, bias};
  first_supporting(kCudaProducts, product, product_text).run(work, product);
}

void evaluate_form(CudaWork& work, std::span<double> loss, const TensorView& d, const CudaWeight& g) {
  const Shape shape{d.rows(), d.cols()};
  const auto count = static_cast<std::size_t>(shape.elements());
  const Buffer products = work.scratch(count * sizeof(float)), losses = work.scratch(loss.size_bytes());
  const TensorView t = products.view(DType::kF32, shape);
  if (g.form ||
      g.fixed != nullptr) {  // the matrix units take BF16: d is rounded once, in one of its two places
    const Buffer rounded = work.scratch(count * sizeof(BFloat16));
    const TensorView narrow = rounded.view(DType::kBF16, shape);
    work.start("convert", work.kernels().convert,
               {d.rows() * d.cols(), d.cols(), rows_of(narrow), rows_of(d)}, d);
    multiply(work, t, narrow, g, nullptr);
  } else {
    multiply(work, t, d, g, nullptr);
  }
  work.start("quadratic_form", work.kernels().row_dots,
             {d.rows(), d.cols(), rows_of(d), rows_of(t), losses.as<double>()}, d);
  work.device().copy_out(loss.data(), losses.get(), loss.size_bytes());
}

}  // namespace llmq
