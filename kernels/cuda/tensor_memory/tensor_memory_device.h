// Tensor memory on the device: every step is the plain instruction (tensor_memory.h beside this).
#pragma once

namespace llmq::cuda {

template <int kThreads, int kColumns>
class TensorMemory {
 public:
  static_assert(kThreads == 4 * kWarp && kColumns >= 32 && (kColumns & (kColumns - 1)) == 0);
  struct Shared {
    uint64_t arrived;  // an mbarrier
    uint32_t base;
  };

  LLMQ_BLOCK void allocate(const Block<kThreads>& block, Shared& shared) {
    arrival_ = static_cast<uint32_t>(__cvta_generic_to_shared(&shared.arrived));
    if (threadIdx.x < kWarp) {
      const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(&shared.base));
      asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(base),
                   "n"(kColumns)
                   : "memory");
      asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
    }
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(arrival_) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    synchronize(block);
    base_ = *const_cast<const volatile uint32_t*>(&shared.base);
  }
  LLMQ_BLOCK void release(const Block<kThreads>& block) const {
    synchronize(block);
    if (threadIdx.x < kWarp)
      asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(base_), "n"(kColumns)
                   : "memory");
  }

  template <class Word>
  LLMQ_BLOCK void store(int column, const Word& word) const {
    const uint32_t own = word(static_cast<int>(threadIdx.x));
    __syncwarp();
    asm volatile("tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};" ::"r"(own_lanes(column)), "r"(own)
                 : "memory");
  }
  template <class To>
  LLMQ_BLOCK void load8(int column, const To& to) const {
    uint32_t v[8];
    __syncwarp();
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8];\n"
        "tcgen05.wait::ld.sync.aligned;"
        : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7])
        : "r"(own_lanes(column))
        : "memory");
    float* const numbers = to(static_cast<int>(threadIdx.x));
    LLMQ_UNROLL
    for (int i = 0; i < 8; ++i) numbers[i] = float_from_bits(v[i]);
  }

  LLMQ_BLOCK void publish(const Block<kThreads>& block) const {
    __syncwarp();
    asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    synchronize(block);
  }

  template <bool kExponents, int kCount>
  LLMQ_BLOCK void multiply(const Array<uint32_t, kCount>&, const TensorProduct& p) const {
    if (threadIdx.x != 0) return;
    const uint32_t add = p.add;
    if constexpr (kExponents)
      asm volatile(
          "{.reg .pred add; setp.ne.b32 add, %6, 0;\n"
          "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block32 "
          "[%0], %1, %2, %3, [%4], [%5], add;}" ::"r"(base_ + p.sums),
          "l"(p.a), "l"(p.b), "r"(p.instruction), "r"(base_ + p.a_scales), "r"(base_ + p.b_scales), "r"(add)
          : "memory");
    else
      asm volatile(
          "{.reg .pred add; setp.ne.b32 add, %6, 0;\n"
          "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 "
          "[%0], %1, %2, %3, [%4], [%5], add;}" ::"r"(base_ + p.sums),
          "l"(p.a), "l"(p.b), "r"(p.instruction), "r"(base_ + p.a_scales), "r"(base_ + p.b_scales), "r"(add)
          : "memory");
  }
  LLMQ_BLOCK void finish(const Block<kThreads>& block) {
    if (threadIdx.x == 0)
      asm volatile(
          "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(arrival_)
          : "memory");
    uint32_t done = 0;
    for (int tries = 0; arrived_ && done == 0 && tries < kTries; ++tries)
      asm volatile(
          "{.reg .pred done; mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
          "selp.u32 %0, 1, 0, done;}"
          : "=r"(done)
          : "r"(arrival_), "r"(phase_)
          : "memory");
    arrived_ = arrived_ && done != 0;
    phase_ ^= 1;
    block.converge();
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  }
  LLMQ_BLOCK bool arrived(int) const { return arrived_; }

 private:
  static constexpr int kTries = 1 << 22;  // once; of a length that no device has told

  LLMQ_BLOCK uint32_t own_lanes(int column) const {
    return base_ + (threadIdx.x / kWarp * kWarp << 16) + static_cast<uint32_t>(column);
  }
  LLMQ_BLOCK static void synchronize(const Block<kThreads>& block) {
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    block.barrier();
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  }

  uint32_t arrival_ = 0, base_ = 0, phase_ = 0;
  bool arrived_ = true;
};

}  // namespace llmq::cuda
