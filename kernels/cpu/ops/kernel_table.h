// The table of one level from its vectors V, its BF16 and INT8 products and how it makes BF16 numbers of
// codes.
#pragma once
#include "kernels/cpu/ops/attention.h"
#include "kernels/cpu/ops/codes.h"
#include "kernels/cpu/ops/narrow.h"
#include "kernels/cpu/ops/peak.h"
#include "kernels/cpu/ops/recurrence.h"
#include "kernels/cpu/ops/score.h"
#include "kernels/cpu/ops/tile.h"

namespace llmq {

template <class V, class Bf16Product, class Int8Product, class Codes>
constexpr CpuKernels kernel_table(const char* name) {
  return CpuKernels{name,
                    V::kPanelVectors * V::kLanes,
                    V::kRowTile,
                    {gemm<V, ProductF32<V>>, gemm<V, Bf16Product>},
                    {gemm_groups<V, ProductF32<V>, float>, gemm_groups<V, Bf16Product, BFloat16>},
                    {pack_panel<V, float>, pack_panel<V, BFloat16>},
                    {pack_panel_straight<V, float>, pack_panel_straight<V, BFloat16>},
                    attention_scratch<V>,
                    {attention<V, ProductF32<V>, float>, attention<V, Bf16Product, BFloat16>},
                    convert<V, BFloat16, float>,
                    convert<V, float, BFloat16>,
                    half_to_f32<V>,
                    add<V>,
                    {rms_norm<V, float>, rms_norm<V, BFloat16>},
                    {layer_norm<V, float>, layer_norm<V, BFloat16>},
                    rope<V>,
                    rope_neighbours<V>,
                    {{gated<V, Silu, float>, gated<V, Silu, BFloat16>},
                     {gated<V, GeluTanh, float>, gated<V, GeluTanh, BFloat16>},
                     {gated<V, Gelu, float>, gated<V, Gelu, BFloat16>},
                     {gated<V, Relu, float>, gated<V, Relu, BFloat16>},
                     {gated<V, Sigmoid, float>, gated<V, Sigmoid, BFloat16>},
                     {gated<V, ClampedSwiglu, float>, gated<V, ClampedSwiglu, BFloat16>}},
                    {{activate<V, Silu, float>, activate<V, Silu, BFloat16>},
                     {activate<V, GeluTanh, float>, activate<V, GeluTanh, BFloat16>},
                     {activate<V, Gelu, float>, activate<V, Gelu, BFloat16>},
                     {activate<V, Relu, float>, activate<V, Relu, BFloat16>},
                     {activate<V, Sigmoid, float>, activate<V, Sigmoid, BFloat16>},
                     {activate<V, ClampedSwiglu, float>, activate<V, ClampedSwiglu, BFloat16>}},
                    causal_conv<V>,
                    delta_rule<V>,
                    softcap<V>,
                    exponential<V>,
                    exponential2<V>,
                    softmax_sum<V>,
                    divergence<V>,
                    {channel_stats<V, float>, channel_stats<V, BFloat16>},
                    least_most<V>,
                    scale_channels<V>,
                    round_difference<V>,
                    scaled_difference<V>,
                    half_form<V>,
                    tile_chain<V, RoundStep<V>>,
                    tile_chain<V, DescendStep<V>>,
                    tile_chain<V, SolveStep<V>>,
                    tile_chain<V, TryStep<V>>,
                    tile_scale_loss<V>,
                    tile_dot<V>,
                    tile_subtract<V>,
                    4 * V::kDoubles,
                    gemm_f64<V>,
                    gemm<Int32Sums<V>, Int8Product>,
                    pack_panel<V, uint8_t>,
                    {row_scale<V, float>, row_scale<V, BFloat16>},
                    {round_int8<V, float>, round_int8<V, BFloat16>},
                    {round_float8<V, float>, round_float8<V, BFloat16>},
                    add_int8_sums<V>,
                    add_float8_sums<V>,
                    {peak_of<V, ProductF32<V>>(), peak_of<V, Bf16Product>()},
                    peak_of<Int32Sums<V>, Int8Product>(),
                    read_memory<V>,
                    NarrowTile<V, Bf16Product>::kRows,
                    narrow_gemm<V, Bf16Product, Codes>,
                    {narrow_unpack_f32<V>, narrow_unpack_bf16<V, Codes>},
                    group_sums<V>};
}

}  // namespace llmq
