// The values of the GGUF types that nobody writes here: points of a grid (IQ1, IQ2, IQ3), ternary numbers
// (TQ) and NVFP4. In FP32, in ggml's order of operations:
//
//   IQ2_*, IQ3_*  w = ((d (1/2 + s)) c g) sigma      g of a grid of 8 (IQ3: 4) numbers, c = 1/4 (IQ3: 1/2)
//   IQ3_S         w = ((d (1 + 2 s)) g) sigma
//   IQ1_*         w = (d (2 s + 1)) (g +- 1/8)       g of -1, 0, 1
//   TQ*           w = d (q - 1)
//   NVFP4         w = e4m3(s) e2m1(q)                without the scale of the tensor, which a GGUF has apart
//
// s: integers of 3 or 4 bits of 16 or 32 numbers; sigma: signs, of which every eighth is the parity of seven
// where a type stores seven. Source: gguf-py/gguf/quants.py, ggml-quants.c; the grids are ggml's (NOTICE).
#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "tensor/tensor_view.h"

namespace llmq {

// Points as they are stored: 2 bits a number, or 3 (kGrid3Xxs, kGrid3S), the first lowest.
extern const std::array<std::uint16_t, 256> kGrid2Xxs, kGrid3Xxs;
extern const std::array<std::uint16_t, 512> kGrid2Xs, kGrid3S;
extern const std::array<std::uint16_t, 1024> kGrid2S;
extern const std::array<std::uint16_t, 2048> kGrid1S;

// One block of such a type; false where it is none of them.
bool grid_block_values(DType dtype, const std::uint8_t* block, float* into);

// Numbers of any type that are multiplied by `scale`; of NVFP4 its scales are, first, as modelopt has it:
// w = (e4m3(s) scale) e2m1(q).
void scaled_values(const TensorView& view, float scale, std::span<float> into);

}  // namespace llmq
