// AMX's tile products on tiles that stay in registers: two tiles of A, two of B, four of sums.
#include "kernels/cpu/amx/peak.h"

#include <immintrin.h>
#include <stdint.h>

namespace llmq {
namespace {

// Static, because g++ 12 takes LDTILECFG for a read of eight bytes and drops stores to the rest.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
const TileConfiguration kSixteenRows;

template <class Products>
double run(int64_t steps, double operations_each, const Products& products) {
  _tile_loadconfig(&kSixteenRows);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t s = 0; s < steps; ++s) products();
  _tile_release();
  return 4 * operations_each * static_cast<double>(steps);
}

}  // namespace

double amx_peak_bf16(int64_t steps) {
  return run(steps, 2.0 * 16 * 16 * 32, [] {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  });
}

double amx_peak_int8(int64_t steps) {
  return run(steps, 2.0 * 16 * 16 * 64, [] {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  });
}

}  // namespace llmq
