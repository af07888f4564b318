// oneDNN's matmul of one fixed shape per weight, in the calling thread.
//
// oneDNN may bring an OpenMP runtime of its own; our pool already has a thread per core, so every thread that
// comes here asks that runtime, if there is one, for a team of one. Scratch is the caller's: oneDNN's own
// would belong to the thread that made the primitive.
#include "kernels/cpu/weight_tiles.h"

#include <dlfcn.h>

#include <dnnl.hpp>

#include "base/error.h"

namespace llmq {
namespace {

using dnnl::memory;

void use_one_thread() {
  thread_local const bool done = [] {
    if (void* const found = dlsym(RTLD_DEFAULT, "omp_set_num_threads"))
      reinterpret_cast<void (*)(int)>(found)(1);
    return true;
  }();
  static_cast<void>(done);
}

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

class OneDnnTiles final : public WeightTiles {
 public:
  OneDnnTiles(const void* weight, int64_t columns, int64_t depth)
      : input_({kRows, depth}, memory::data_type::bf16, memory::dims{depth, 1}),
        output_({kRows, columns}, memory::data_type::f32, memory::dims{columns, 1}) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const memory::desc any({depth, columns}, memory::data_type::bf16, memory::format_tag::any);
    const dnnl::matmul::primitive_desc chosen(dnnl::matmul::desc(input_, any, output_), attributes, engine());
    product_ = dnnl::matmul(chosen);
    scratch_ = chosen.scratchpad_desc();
    const memory::desc given({depth, columns}, memory::data_type::bf16, memory::dims{1, depth});
    memory from(given, engine(), const_cast<void*>(weight));
    weight_ = memory(chosen.weights_desc(), engine());
    dnnl::stream stream(engine());
    dnnl::reorder(from, weight_).execute(stream, from, weight_);
    stream.wait();
  }

  size_t bytes() const override { return weight_.get_desc().get_size(); }
  size_t scratch_bytes() const override { return scratch_.get_size(); }

  void multiply(const void* a, float* c, unsigned char* scratch) const override {
    use_one_thread();
    try {
      dnnl::stream stream(engine());
      product_.execute(stream, {{DNNL_ARG_SRC, memory(input_, engine(), const_cast<void*>(a))},
                                {DNNL_ARG_WEIGHTS, weight_},
                                {DNNL_ARG_DST, memory(output_, engine(), c)},
                                {DNNL_ARG_SCRATCHPAD, memory(scratch_, engine(), scratch)}});
      stream.wait();
    } catch (const dnnl::error& error) {
      fail(ErrorKind::kInternal, "oneDNN could not multiply: {}", error.what());
    }
  }

 private:
  memory::desc input_, output_, scratch_;
  dnnl::matmul product_;
  memory weight_;
};

}  // namespace

bool weight_tiles_built() { return true; }

std::unique_ptr<WeightTiles> make_weight_tiles(const void* weight, int64_t columns, int64_t depth) {
  use_one_thread();
  try {
    return std::make_unique<OneDnnTiles>(weight, columns, depth);
  } catch (const dnnl::error& error) {
    fail(ErrorKind::kUnsupported, "oneDNN cannot prepare a weight of {} columns and depth {}: {}", columns,
         depth, error.what());
  }
}

}  // namespace llmq
