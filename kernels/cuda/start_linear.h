// Which kernel of linear.h multiplies: one per form of weights and per shape of a block, all with the same
// bits. start.operator()<Kernel>(arguments) starts one, on a device or in the emulation.
#pragma once
#include "kernels/cuda/linear.h"

namespace llmq::cuda {

// most_shared: bytes that a block may have on this device.
template <WeightForm kForm, class Start>
int start_form(const LinearArguments& a, int64_t most_shared, const Start& start) {
  using Narrow = MmaLinear<kForm, kNarrow>;
  using Tall = MmaLinear<kForm, tall_shape(kForm)>;
  const LinearArguments whole = with_layout(a, kForm);
  if constexpr (kForm != WeightForm::kInt8)
    if (!whole.x_aligned) return start.template operator()<MmaLinear<kForm, kGathered>>(whole);
  if (a.rows <= kFewRows) {
    if (a.features <= kNarrowFeatures && Narrow::kSharedBytes <= most_shared)
      return start.template operator()<Narrow>(whole);
    return start.template operator()<MmaLinear<kForm, kLow>>(whole);
  }
  const bool tall = a.rows > kSomeRows && a.features >= kTallFeatures &&
                    (whole.groups == 1 || !tall_shape(kForm).one_group);
  if (tall && Tall::kSharedBytes <= most_shared) return start.template operator()<Tall>(whole);
  return start.template operator()<MmaLinear<kForm, kMiddle>>(whole);
}

template <class Start>
int start_linear(WeightForm form, const LinearArguments& a, int64_t most_shared, const Start& start) {
  switch (form) {
    case WeightForm::kBFloat16:
      return start_form<WeightForm::kBFloat16>(a, most_shared, start);
    case WeightForm::kCodes4:
      return start_form<WeightForm::kCodes4>(a, most_shared, start);
    case WeightForm::kCodes8:
      return start_form<WeightForm::kCodes8>(a, most_shared, start);
    case WeightForm::kFloat4:
      return start_form<WeightForm::kFloat4>(a, most_shared, start);
    case WeightForm::kFloat8:
      return start_form<WeightForm::kFloat8>(a, most_shared, start);
    case WeightForm::kInt8:
      break;
  }
  return start_form<WeightForm::kInt8>(a, most_shared, start);
}

}  // namespace llmq::cuda
