// What rounding with error feedback does most, in host memory by the processor's widest vectors, whatever
// backend runs. Tiles of rows and TileColumns: kernels/common/row_tile.h. The bits are the same at every
// level.
#pragma once
#include <cstdint>

#include "kernels/common/row_tile.h"

namespace llmq {

inline constexpr std::int64_t kMostTileRows = 64;
std::int64_t host_tile_rows();

void host_tile_round(const TileColumns& columns);
void host_tile_descend(const TileColumns& columns);
void host_tile_solve(const TileColumns& columns);
void host_tile_try(const TileColumns& columns);
// sum[j][r] = sum over u < depth of a[u * a_row + j] b[u][r] for j < columns, added to what is there where
// `accumulate`.
void host_tile_product(float* sum, const float* a, std::int64_t a_row, std::int64_t columns, const float* b,
                       std::int64_t depth, bool accumulate);
// loss[r] = sum_k importance[k] (w[k][r] - value of its code)^2; the code by a product with 1 / scale.
void host_tile_scale_loss(float* loss, const float* w, const float* importance, std::int64_t columns,
                          const float* scale, const float* zero, float top);
void host_tile_dot(float* sum, const float* a, const float* b, std::int64_t columns);
// to[k][r] = start[k][r] - factor[r] x[k][r], the product rounded; `to` may be `start`.
void host_tile_subtract(float* to, const float* start, const float* factor, const float* x,
                        std::int64_t columns);

// c[i][j] (+)= sum_u a[i][u] b[u][j] in FP64 for j < host_panel_f64(), a fused chain over u; b
// [depth][panel].
std::int64_t host_panel_f64();  // divides 64
void host_product_f64(double* c, std::int64_t c_row, const double* a, std::int64_t a_row, const double* b,
                      std::int64_t rows, std::int64_t depth, bool accumulate);

}  // namespace llmq
