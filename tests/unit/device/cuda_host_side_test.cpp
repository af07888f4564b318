// What the CUDA backend does on the host: the ring of pinned slots, and how many blocks a kernel is launched with.
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "device/cuda/staging_ring.h"
#include "kernels/cuda/kernel_table.h"

namespace llmq {
namespace {

// A device whose copies read their slot as late as they may: when somebody waits for them.
class LateCopies {
 public:
  LateCopies(std::size_t slots, std::size_t slot_bytes, std::size_t device_bytes)
      : memory_(slots * slot_bytes), device_(device_bytes, '\0'), ring_(slots_of(slots, slot_bytes), slot_bytes) {}

  void copy_in(std::size_t to, const std::string& from) {
    ring_.pass(
        from.data(), from.size(), [&](std::size_t slot) { finish(slot); },
        [&](std::size_t slot, const char* memory, std::size_t offset, std::size_t bytes) {
          EXPECT_EQ(under_way_.count(slot), 0u) << "a slot was filled under a copy";
          under_way_[slot] = {memory, to + offset, bytes};
        });
  }
  std::string finished() {
    while (!under_way_.empty()) finish(under_way_.begin()->first);
    return device_;
  }
  std::size_t waits() const { return waits_; }

 private:
  struct Copy {
    const char* from;
    std::size_t to, bytes;
  };
  std::vector<char*> slots_of(std::size_t slots, std::size_t bytes) {
    std::vector<char*> all;
    for (std::size_t i = 0; i < slots; ++i) all.push_back(memory_.data() + i * bytes);
    return all;
  }
  void finish(std::size_t slot) {
    const Copy copy = under_way_.at(slot);
    device_.replace(copy.to, copy.bytes, copy.from, copy.bytes);
    under_way_.erase(slot);
    ++waits_;
  }
  std::vector<char> memory_;
  std::string device_;
  std::map<std::size_t, Copy> under_way_;
  std::size_t waits_ = 0;
  StagingRing ring_;
};

TEST(StagingRing, NoSlotIsFilledUnderACopy) {
  for (const std::size_t slots : {1, 2, 3})
    for (const std::size_t bytes : {1, 7, 64}) {
      std::string sent;
      LateCopies device(slots, bytes, 400);
      for (const std::size_t part : {0, 1, 6, 7, 8, 63, 64, 65, 150}) {
        std::string text(part, '\0');
        std::iota(text.begin(), text.end(), static_cast<char>(part));
        device.copy_in(sent.size(), text);
        sent += text;
      }
      EXPECT_EQ(device.finished().substr(0, sent.size()), sent) << slots << " slots of " << bytes;
    }
}

TEST(StagingRing, WaitsForASlotOnlyWhenItComesRoundAgain) {
  LateCopies device(4, 8, 64);
  device.copy_in(0, std::string(32, 'a'));
  EXPECT_EQ(device.waits(), 0u);
  device.copy_in(32, std::string(8, 'b'));
  EXPECT_EQ(device.waits(), 1u);
}

TEST(LaunchGeometry, BlocksCoverTheOutputsAndNoMore) {
  const auto blocks = [](const cuda::Grid& grid) { return std::vector<std::int64_t>{grid.x, grid.y, grid.z}; };
  using Dense = cuda::Product<cuda::DenseOperand>;
  const auto product = [&](std::int64_t rows, std::int64_t columns) {
    Dense::Arguments a;
    a.rows = rows, a.columns = columns;
    return blocks(Dense::grid(a));
  };
  EXPECT_EQ(product(1, 1), (std::vector<std::int64_t>{1, 1, 1}));
  EXPECT_EQ(product(64, 65), (std::vector<std::int64_t>{2, 1, 1}));
  EXPECT_EQ(product(4096, 248320), (std::vector<std::int64_t>{3880, 64, 1}));
  EXPECT_EQ(product(0, 64), (std::vector<std::int64_t>{1, 0, 1}));  // nothing is launched

  cuda::Add add;
  const auto elements = [&](std::int64_t count) {
    add.elements = count;
    return cuda::Each<cuda::Add>::grid(add).x;
  };
  EXPECT_EQ(elements(0), 0);
  EXPECT_EQ(elements(256), 1);
  EXPECT_EQ(elements(257), 2);
  EXPECT_EQ(elements(std::int64_t{1} << 36), std::int64_t{1} << 28);  // beyond 32 bits

  cuda::RoundInputs::Arguments round;
  round.rows = 3, round.columns = 257, round.group = 128;
  EXPECT_EQ(blocks(cuda::RoundInputs::grid(round)), (std::vector<std::int64_t>{3, 3, 1}));
}

}  // namespace
}  // namespace llmq
