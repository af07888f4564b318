// The products of linear.h and gram_bf16.h as the host emulates them.
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/launch_emulated.h"
#include "kernels/cuda/start_linear.h"

namespace llmq::cuda {

int emulate_linear(WeightForm form, const LinearArguments& arguments, void*) {
  return start_linear(form, arguments, kEmulatedShared, [&]<class Kernel>(const LinearArguments& whole) {
    emulate<Kernel>(whole);
    return 0;
  });
}

int emulate_gram(const GramArguments& arguments, void*) {
  return start_gram(arguments, kEmulatedShared, [&]<class Kernel>(const GramArguments& a) {
    emulate<Kernel>(a);
    return 0;
  });
}

}  // namespace llmq::cuda
