// The table of one level from its vectors V, its BF16 and INT8 products and how it makes BF16 numbers of
// codes. A level of the same vectors with other products takes another level's table and gives it its own.
#pragma once
#include "kernels/cpu/ops/attention.h"
#include "kernels/cpu/ops/codes.h"
#include "kernels/cpu/ops/narrow.h"
#include "kernels/cpu/ops/nibbles.h"
#include "kernels/cpu/ops/peak.h"
#include "kernels/cpu/ops/recurrence.h"
#include "kernels/cpu/ops/score.h"
#include "kernels/cpu/ops/tile.h"

namespace llmq {

// `table`, all of whose other entries may be of any level of these vectors, with what the products compute.
template <class V, class Bf16Product, class Int8Product, class Codes>
constexpr CpuKernels with_products(CpuKernels table, const char* name) noexcept {
  constexpr int kBf16 = static_cast<int>(CpuFormat::kBF16);
  table.name = name;
  table.gemm[kBf16] = gemm<V, Bf16Product>;
  table.gemm_groups[kBf16] = gemm_groups<V, Bf16Product>;
  table.attention[kBf16] = attention<V, Bf16Product, BFloat16>;
  table.gemm_int8 = gemm<Int32Sums<V>, Int8Product>;
  table.peak[kBf16] = peak_of<V, Bf16Product>();
  table.peak_int8 = peak_of<Int32Sums<V>, Int8Product>();
  table.narrow_rows = NarrowTile<V, Bf16Product>::kRows;
  table.narrow_gemm = narrow_gemm<V, Bf16Product, Codes>;
  table.narrow_unpack[kBf16] = narrow_unpack_bf16<V, Codes>;
  table.nibble_gemm = nibble_gemm<V, Int8Product>;
  return table;
}

template <class V, class Bf16Product, class Int8Product, class Codes>
constexpr CpuKernels kernel_table(const char* name) {
  constexpr CpuKernels kOfVectors{"",
                                  V::kPanelVectors * V::kLanes,
                                  V::kRowTile,
                                  {gemm<V, ProductF32<V>>, nullptr},
                                  {gemm_groups<V, ProductF32<V>>, nullptr},
                                  {pack_panel<V, float>, pack_panel<V, BFloat16>},
                                  {pack_panel_straight<V, float>, pack_panel_straight<V, BFloat16>},
                                  attention_scratch<V>,
                                  {attention<V, ProductF32<V>, float>, nullptr},
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
                                  add_exactly<V>,
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
                                  nullptr,
                                  pack_panel<V, uint8_t>,
                                  {row_scale<V, float>, row_scale<V, BFloat16>},
                                  {round_int8<V, float>, round_int8<V, BFloat16>},
                                  {round_float8<V, float>, round_float8<V, BFloat16>},
                                  add_int8_sums<V>,
                                  add_float8_sums<V>,
                                  {peak_of<V, ProductF32<V>>(), nullptr},
                                  nullptr,
                                  read_memory<V>,
                                  0,
                                  nullptr,
                                  {narrow_unpack_f32<V>, nullptr},
                                  group_sums<V>,
                                  nullptr};
  return with_products<V, Bf16Product, Int8Product, Codes>(kOfVectors, name);
}

}  // namespace llmq
