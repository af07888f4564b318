// Kernels that give each output element a thread of its own: embed, rope, activations, softcap, add, add of
// rows, convert, channel statistics. FP32 arithmetic, one rounding where the CPU has one; device/backend.h
// says what each computes.
#pragma once
#include "kernels/common/activation.h"
#include "kernels/common/exact_addition.h"
#include "kernels/cuda/block.h"

namespace llmq::cuda {

// Types of elements that kernels read and write as FP32.
enum class Element : uint8_t { kF32, kBF16, kF16 };

LLMQ_BLOCK float load(const void* from, int64_t i, Element element) {
  if (element == Element::kF32) return static_cast<const float*>(from)[i];
  if (element == Element::kBF16) return to_float(static_cast<const BFloat16*>(from)[i]);
  return to_float(static_cast<const Float16*>(from)[i]);
}

// F32 or BF16.
LLMQ_BLOCK void store(void* to, int64_t i, Element element, float value) {
  if (element == Element::kF32)
    static_cast<float*>(to)[i] = value;
  else
    static_cast<BFloat16*>(to)[i] = to_bfloat16(value);
}

// one(i) for each of `elements` elements.
template <class Body>
struct Each {
  using Arguments = Body;
  struct Shared {};
  static constexpr int kThreads = 256;
  static Grid grid(const Body& body) { return {blocks_for(body.elements, kThreads)}; }
  static LLMQ_BLOCK void run(Block<kThreads>& block, const Body& body, Shared&) {
    block.each([&](int thread) {
      const int64_t i = int64_t{block.x} * kThreads + thread;
      if (i < body.elements) body.one(i);
    });
  }
};

// What a total lacks, and which: src/tensor/exact_sums.h's.
struct LeftOut {
  uint64_t place;
  double error;
};

// Element (i, j), j >= i, of a square goes to the triangle of FP64 sums, rows from the diagonal on, and is 0
// then. What an addition leaves out goes into a list, in no order; `found` counts. Elements for which the
// list has no room stay where they are: they are drained by another launch, behind which the list is empty.
struct DrainGram {
  int64_t elements = 0, channels = 0;  // channels^2
  float* g = nullptr;
  int64_t stride = 0;
  double* triangle = nullptr;
  LeftOut* list = nullptr;
  uint64_t room = 0;
  unsigned long long* found = nullptr;
  LLMQ_BLOCK void one(int64_t e) const {
    const int64_t i = e / channels, j = e % channels;
    if (j < i) return;
    const int64_t place = i * (channels - 1) - i * (i - 1) / 2 + j;
    double total = triangle[place];
    const double error = add_exactly(total, static_cast<double>(g[i * stride + j]));
    if (error < 0 || error > 0) {
      const uint64_t at = next_number(found);
      if (at >= room) return;
      list[at] = {static_cast<uint64_t>(place), error};
    }
    triangle[place] = total;
    g[i * stride + j] = 0.0f;
  }
};

// A matrix: element (r, c) lies at r * row + c.
struct Rows {
  void* first = nullptr;
  int64_t row = 0;
  Element element = Element::kF32;
  LLMQ_BLOCK float get(int64_t r, int64_t c) const { return load(first, r * row + c, element); }
  LLMQ_BLOCK void put(int64_t r, int64_t c, float value) const { store(first, r * row + c, element, value); }
};

struct Embed {
  int64_t elements = 0, width = 0;
  Rows y, table;
  const int32_t* ids = nullptr;
  LLMQ_BLOCK void one(int64_t i) const { y.put(i / width, i % width, table.get(ids[i / width], i % width)); }
};

// An element is a pair.
struct Rope {
  int64_t elements = 0, heads = 0, half = 0;
  Rows x, cosines, sines;
  const int32_t* positions = nullptr;
  bool neighbours = false;  // channels 2i and 2i + 1 are a pair, else i and i + half
  LLMQ_BLOCK void one(int64_t i) const {
    const int64_t row = i / half, pair = i % half, position = positions[row / heads];
    const int64_t first = neighbours ? 2 * pair : pair, second = neighbours ? first + 1 : pair + half;
    const float c = cosines.get(position, pair), s = sines.get(position, pair);
    const float a = x.get(row, first), b = x.get(row, second);
    x.put(row, first, fmaf(a, c, -(b * s)));
    x.put(row, second, fmaf(b, c, a * s));
  }
};

LLMQ_BLOCK float activated(float x, Activation act) {
  if (act == Activation::kSilu) return x / (1.0f + expf(-x));
  if (act == Activation::kSigmoid) return 1.0f / (1.0f + expf(-x));
  if (act == Activation::kRelu) return x < 0.0f ? 0.0f : x;
  if (act == Activation::kClampedSwiglu) {
    const float gate = x > kSwigluLimit ? kSwigluLimit : x;
    return gate / (1.0f + expf(-kSwigluSlope * gate));
  }
  if (act == Activation::kGelu) return 0.5f * x * erfcf(-0.7071067811865476f * x);
  const float inner = 0.7978845608028654f * fmaf(0.044715f * x * x, x, x);
  return 0.5f * x * (1.0f + tanhf(inner));
}

// What a gate multiplies.
LLMQ_BLOCK float factor_of(float up, Activation act) {
  if (act != Activation::kClampedSwiglu) return up;
  return (up > kSwigluLimit ? kSwigluLimit : up < -kSwigluLimit ? -kSwigluLimit : up) + 1.0f;
}

struct GatedActivation {
  int64_t elements = 0, width = 0;
  Rows y, gate, up;
  Activation act = Activation::kSilu;
  LLMQ_BLOCK void one(int64_t i) const {
    const int64_t r = i / width, c = i % width;
    y.put(r, c, activated(gate.get(r, c), act) * factor_of(up.get(r, c), act));
  }
};

struct Activate {
  int64_t elements = 0, width = 0;
  Rows y, x;
  Activation act = Activation::kSilu;
  LLMQ_BLOCK void one(int64_t i) const {
    const int64_t r = i / width, c = i % width;
    y.put(r, c, activated(x.get(r, c), act));
  }
};

struct Softcap {
  int64_t elements = 0, width = 0;
  Rows x;
  float cap = 0;
  LLMQ_BLOCK void one(int64_t i) const {
    const int64_t r = i / width, c = i % width;
    x.put(r, c, cap * tanhf(x.get(r, c) / cap));
  }
};

struct Add {
  int64_t elements = 0, width = 0;
  Rows into, x;
  float scale = 1;
  LLMQ_BLOCK void one(int64_t i) const {
    const int64_t r = i / width, c = i % width;
    into.put(r, c, into.get(r, c) + scale * x.get(r, c));
  }
};

// Row r of x goes to a row of its own.
struct AddRows {
  int64_t elements = 0, width = 0;
  Rows into, x;
  const int32_t* rows = nullptr;
  const float* scales = nullptr;
  LLMQ_BLOCK void one(int64_t i) const {
    const int64_t r = i / width, c = i % width, to = rows[r];
    into.put(to, c, into.get(to, c) + scales[r] * x.get(r, c));
  }
};

struct Convert {
  int64_t elements = 0, width = 0;
  Rows to, from;
  LLMQ_BLOCK void one(int64_t i) const { to.put(i / width, i % width, from.get(i / width, i % width)); }
};

// An element is a channel: sums in FP64 in the order of the rows. There are few channels, so a thread asks
// for several rows before it adds the first.
struct ChannelStats {
  static constexpr int kAhead = 16;
  int64_t elements = 0, rows = 0;
  Rows x;
  double* absolute_sum = nullptr;  // in: of the rows before
  float* absolute_max = nullptr;
  LLMQ_BLOCK void one(int64_t i) const {
    double sum = absolute_sum[i];
    float greatest = absolute_max[i];
    const auto see = [&](float value) {
      sum += static_cast<double>(fabsf(value));
      greatest = fmaxf(greatest, fabsf(value));
    };
    int64_t r = 0;
    for (; r + kAhead <= rows; r += kAhead) {
      float values[kAhead];
      LLMQ_UNROLL
      for (int j = 0; j < kAhead; ++j) values[j] = x.get(r + j, i);
      LLMQ_UNROLL
      for (int j = 0; j < kAhead; ++j) see(values[j]);
    }
    for (; r < rows; ++r) see(x.get(r, i));
    absolute_sum[i] = sum;
    absolute_max[i] = greatest;
  }
};

}  // namespace llmq::cuda
