// Which kernel of linear.h multiplies: one per form of weights, and per height of a block: 16 rows to decode, 64 for more, with the same
// bits. start.operator()<Kernel>(arguments) starts one, on a device or in the emulation.
#pragma once
#include "kernels/cuda/linear.h"

namespace llmq::cuda {

template <WeightForm kForm, class Start>
int start_form(const LinearArguments& a, const Start& start) {
  const LinearArguments whole = with_layout(a, kForm);
  return a.rows <= 16 ? start.template operator()<MmaLinear<kForm, 1>>(whole) : start.template operator()<MmaLinear<kForm, 4>>(whole);
}

template <class Start>
int start_linear(WeightForm form, const LinearArguments& a, const Start& start) {
  switch (form) {
    case WeightForm::kBFloat16:
      return start_form<WeightForm::kBFloat16>(a, start);
    case WeightForm::kCodes4:
      return start_form<WeightForm::kCodes4>(a, start);
    case WeightForm::kCodes8:
      return start_form<WeightForm::kCodes8>(a, start);
    case WeightForm::kFloat8:
      return start_form<WeightForm::kFloat8>(a, start);
    case WeightForm::kInt8:
      break;
  }
  return start_form<WeightForm::kInt8>(a, start);
}

}  // namespace llmq::cuda
