#include "device/cuda/cuda_work.h"

namespace llmq {

void CudaWork::sum_over_rows(const char* operation, const cuda::TileProductArguments& p,
                             const TensorView& input) const {
  if (cuda::is_aligned(p)) return start(operation, kernels().tile_product, p, input);
  start(operation, kernels().product,
        {p.rows,
         p.columns,
         p.depth,
         p.c,
         p.c_row,
         {p.a, 1, p.a_row},
         {p.b, 1, p.b_row},
         nullptr,
         p.accumulate,
         p.upper},
        input);
}

void CudaWork::copy_down(void* to_host, const TensorView& from) const {
  char* const to = static_cast<char*>(to_host);
  if (from.contiguous()) return device_->copy_out(to, from.pointer, from.bytes());
  for_each_row(from, [&](std::size_t offset, std::size_t bytes, const char* row) {
    device_->copy_out(to + offset, row, bytes);
  });
}

}  // namespace llmq
