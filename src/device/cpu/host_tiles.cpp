#include "device/host_tiles.h"

#include "device/cpu/host_level.h"

namespace llmq {

std::int64_t host_tile_rows() { return host_level().panel; }

void host_tile_round(const TileColumns& columns) { host_level().tile_round(columns); }
void host_tile_descend(const TileColumns& columns) { host_level().tile_descend(columns); }
void host_tile_solve(const TileColumns& columns) { host_level().tile_solve(columns); }
void host_tile_try(const TileColumns& columns) { host_level().tile_try(columns); }

void host_tile_product(float* sum, const float* a, std::int64_t a_row, std::int64_t columns, const float* b,
                       std::int64_t depth, bool accumulate) {
  const CpuKernels& level = host_level();
  GemmPanel product;
  product.a = a;
  product.a_row = a_row * static_cast<std::int64_t>(sizeof(float));
  product.transposed = true;
  product.b = b;
  product.c = sum;
  product.c_row = level.panel;
  product.rows = columns;
  product.depth = depth;
  product.columns = level.panel;
  product.accumulate = accumulate;
  level.gemm[static_cast<int>(CpuFormat::kF32)](product);
}

void host_tile_scale_loss(float* loss, const float* w, const float* importance, std::int64_t columns,
                          const float* scale, const float* zero, float top) {
  host_level().tile_scale_loss(loss, w, importance, columns, scale, zero, top);
}

void host_tile_dot(float* sum, const float* a, const float* b, std::int64_t columns) {
  host_level().tile_dot(sum, a, b, columns);
}

void host_tile_subtract(float* to, const float* start, const float* factor, const float* x,
                        std::int64_t columns) {
  host_level().tile_subtract(to, start, factor, x, columns);
}

std::int64_t host_panel_f64() { return host_level().panel_f64; }

void host_product_f64(double* c, std::int64_t c_row, const double* a, std::int64_t a_row, const double* b,
                      std::int64_t rows, std::int64_t depth, bool accumulate) {
  host_level().gemm_f64(c, c_row, a, a_row, b, rows, depth, accumulate);
}

}  // namespace llmq
