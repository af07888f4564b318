// The products of linear.h and gram_bf16.h as a device runs them.
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/launch_device.h"
#include "kernels/cuda/start_linear.h"

namespace llmq::cuda {

int launch_linear(WeightForm form, const LinearArguments& arguments, void* stream) {
  return start_linear(form, arguments, most_shared(), [&]<class Kernel>(const LinearArguments& whole) {
    return static_cast<int>(launch<Kernel>(whole, static_cast<cudaStream_t>(stream)));
  });
}

int launch_gram(const GramArguments& arguments, void* stream) {
  return start_gram(arguments, most_shared(), [&]<class Kernel>(const GramArguments& a) {
    return static_cast<int>(launch<Kernel>(a, static_cast<cudaStream_t>(stream)));
  });
}

}  // namespace llmq::cuda
