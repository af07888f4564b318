// Inputs as floats in groups on the device: the host's bits, of either type, with groups that the columns cut
// short, and one factor for each row.
#include "kernels/cuda/round_inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "emulation_fixture.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch_emulated.h"

namespace llmq::cuda {
namespace {

using llmq::testing::Numbers;

TEST(CudaRoundInputs, FloatsInGroupsHaveTheHostsBits) {
  for (const InputGroups how :
       {InputGroups{16, false, true, false, 900.0f}, InputGroups{16, false, true, true, 0x1p-9f},
        InputGroups{32, false, false, false, 1}, InputGroups{32, true, false, false, 1}})
    for (const int64_t columns : {int64_t{96}, int64_t{75}}) {
      const int64_t rows = 5, stride = columns + 3, groups = (columns + how.size - 1) / how.size;
      Numbers numbers(static_cast<std::uint64_t>(columns + how.size));
      std::vector<float> x = numbers.values(rows * stride, 3);
      x[static_cast<std::size_t>(2 * stride + 70)] = HUGE_VALF;
      std::fill_n(x.begin() + 3 * stride, how.size, 0.0f);
      std::vector<BFloat16> halves(x.size()), found(static_cast<std::size_t>(rows * columns));
      for (std::size_t i = 0; i < x.size(); ++i) halves[i] = to_bfloat16(x[i]);
      for (const bool narrow : {false, true}) {
        std::vector<float> scales(static_cast<std::size_t>(rows));
        RoundInputGroups a;
        a.elements = rows * groups, a.groups = groups, a.columns = columns;
        a.x = narrow ? Rows{halves.data(), stride, Element::kBF16} : Rows{x.data(), stride, Element::kF32};
        a.how = how, a.factor = 0.25f, a.to = found.data(), a.scales = scales.data();
        emulate<Each<RoundInputGroups>>(a);
        EXPECT_EQ(scales, std::vector<float>(static_cast<std::size_t>(rows), 0.25f));
        for (int64_t m = 0; m < rows; ++m)
          for (int64_t first = 0; first < columns; first += how.size) {
            const auto count = static_cast<int>(std::min<int64_t>(how.size, columns - first));
            std::vector<float> group;
            for (int k = 0; k < count; ++k) {
              const auto at = static_cast<std::size_t>(m * stride + first + k);
              group.push_back(narrow ? to_float(halves[at]) : x[at]);
            }
            round_input_group(how, group.data(), count);
            const bool lost = m == 2 && first <= 70 && 70 < first + count;
            for (int k = 0; k < count; ++k) {
              const float value = to_float(found[static_cast<std::size_t>(m * columns + first + k)]);
              EXPECT_EQ(std::isnan(value), lost);
              EXPECT_TRUE(lost || value == group[static_cast<std::size_t>(k)]) << m << ", " << first + k;
            }
          }
      }
    }
}

}  // namespace
}  // namespace llmq::cuda
