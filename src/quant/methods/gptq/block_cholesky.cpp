#include "quant/methods/gptq/block_cholesky.h"

#include <algorithm>

#include "device/cholesky.h"

namespace llmq {
namespace {

// R by rows, [width, width], from the lower factor of the reversed square.
std::vector<double> upper_factor(const LowerTriangle& reversed) {
  const std::int64_t width = reversed.size(), last = width - 1;
  std::vector<double> upper(static_cast<std::size_t>(width * width));
  for (std::int64_t i = 0; i < width; ++i)
    for (std::int64_t j = i; j < width; ++j)
      upper[static_cast<std::size_t>(i * width + j)] = reversed.row(last - i)[last - j];
  return upper;
}

// The inverse of an upper triangle, upper too.
std::vector<double> invert(const std::vector<double>& upper, std::int64_t width) {
  std::vector<double> inverse(upper.size());
  const auto at = [width](std::int64_t i, std::int64_t j) { return static_cast<std::size_t>(i * width + j); };
  for (std::int64_t i = width - 1; i >= 0; --i) {
    for (std::int64_t k = i + 1; k < width; ++k)
      for (std::int64_t j = k; j < width; ++j) inverse[at(i, j)] -= upper[at(i, k)] * inverse[at(k, j)];
    inverse[at(i, i)] = 1;
    for (std::int64_t j = i; j < width; ++j) inverse[at(i, j)] /= upper[at(i, i)];
  }
  return inverse;
}

BlockCholesky make_block(const std::vector<double>& upper, std::int64_t width) {
  const auto at = [width](std::int64_t i, std::int64_t j) { return static_cast<std::size_t>(i * width + j); };
  const std::vector<double> inverse = invert(upper, width);
  std::vector<double> product(upper.size());  // G^-1 = R^-T R^-1
  for (std::int64_t k = 0; k < width; ++k)
    for (std::int64_t i = k; i < width; ++i)
      for (std::int64_t j = k; j < width; ++j) product[at(i, j)] += inverse[at(k, i)] * inverse[at(k, j)];
  BlockCholesky square;
  square.exists = true;
  square.inverse.assign(product.begin(), product.end());
  for (std::int64_t i = 0; i < width; ++i) {
    square.cost.push_back(static_cast<float>(upper[at(i, i)] * upper[at(i, i)]));
    for (std::int64_t j = 0; j < width; ++j)
      square.unit_upper.push_back(static_cast<float>(upper[at(i, j)] / upper[at(j, j)]));
  }
  return square;
}

}  // namespace

std::vector<BlockCholesky> factorize_blocks(const std::vector<ColumnBlock>& blocks,
                                            const std::function<double(std::int64_t, std::int64_t)>& element,
                                            ThreadPool& pool) {
  std::vector<BlockCholesky> squares(blocks.size());
  pool.parallel_for(blocks.size(), [&](std::size_t b, int) {
    const ColumnBlock& block = blocks[b];
    const std::int64_t last = block.begin + block.width - 1;
    LowerTriangle reversed(block.width);
    for (std::int64_t i = 0; i < block.width; ++i)
      for (std::int64_t j = 0; j <= i; ++j) reversed.row(i)[j] = element(last - j, last - i);
    if (cholesky_lower(reversed, pool)) squares[b] = make_block(upper_factor(reversed), block.width);
  });
  return squares;
}

}  // namespace llmq
