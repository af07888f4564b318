// What the CUDA backend does on the host: the ring of pinned slots, and how many blocks a kernel is launched
// with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <numeric>

#include "device/cuda/cusolver.h"
#include "device/cuda/dense/cublaslt.h"
#include "device/cuda/recent_lists.h"
#include "device/cuda/staging_ring.h"
#include "device/exchange.h"
#include "device/named_range.h"
#include "kernels/cuda/kernel_table.h"
#include "support/recording_device.h"

namespace llmq {
namespace {

// A device whose copies read their slot as late as they may: when somebody waits for them.
class LateCopies {
 public:
  LateCopies(std::size_t slots, std::size_t slot_bytes, std::size_t device_bytes)
      : memory_(slots * slot_bytes),
        device_(device_bytes, '\0'),
        ring_(slots_of(slots, slot_bytes), slot_bytes) {}

  void copy_in(std::size_t to, const std::string& from) {
    ring_.pass(
        from.data(), from.size(), [&](std::size_t slot) { finish(slot); },
        [&](std::size_t slot, const char* memory, std::size_t offset, std::size_t bytes) {
          EXPECT_EQ(under_way_.count(slot), 0u) << "a slot was filled under a copy";
          under_way_[slot] = {memory, to + offset, bytes};
        });
  }
  // A copy down, which reads the device as late, too.
  std::string copy_out(std::size_t from, std::size_t bytes) {
    std::string to(bytes, '\0');
    ring_.fetch(
        to.data(), bytes,
        [&](std::size_t slot) {
          finished();  // in the order of the queue
          if (fetched_.count(slot) == 0) return;
          const Fetch fetch = fetched_.at(slot);
          std::copy_n(device_.data() + fetch.from, fetch.bytes, fetch.to);
          fetched_.erase(slot);
        },
        [&](std::size_t slot, char* memory, std::size_t offset, std::size_t part) {
          EXPECT_EQ(under_way_.count(slot) + fetched_.count(slot), 0u) << "a slot was taken under a copy";
          fetched_[slot] = {from + offset, memory, part};
          most_fetched_ = std::max(most_fetched_, fetched_.size());
        });
    return to;
  }
  std::size_t most_fetched() const { return most_fetched_; }
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
  struct Fetch {
    std::size_t from;
    char* to;
    std::size_t bytes;
  };
  std::vector<char*> slots_of(std::size_t slots, std::size_t bytes) {
    std::vector<char*> all;
    for (std::size_t i = 0; i < slots; ++i) all.push_back(memory_.data() + i * bytes);
    return all;
  }
  void finish(std::size_t slot) {
    if (under_way_.count(slot) == 0) return;  // a wait for what has ended
    const Copy copy = under_way_.at(slot);
    device_.replace(copy.to, copy.bytes, copy.from, copy.bytes);
    under_way_.erase(slot);
    ++waits_;
  }
  std::vector<char> memory_;
  std::string device_;
  std::map<std::size_t, Copy> under_way_;
  std::map<std::size_t, Fetch> fetched_;
  std::size_t waits_ = 0, most_fetched_ = 0;
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

TEST(StagingRing, WhatComesDownIsWhatWentUp) {
  for (const std::size_t slots : {1, 2, 3})
    for (const std::size_t bytes : {1, 7, 64}) {
      std::string sent(400, '\0');
      std::iota(sent.begin(), sent.end(), '\0');
      LateCopies device(slots, bytes, 400);
      device.copy_in(0, sent.substr(0, 250));
      device.copy_in(250, sent.substr(250));
      for (const std::size_t part : {0, 1, 6, 7, 8, 63, 64, 65, 150, 390})
        EXPECT_EQ(device.copy_out(5, part), sent.substr(5, part)) << slots << " slots of " << bytes;
      EXPECT_EQ(device.most_fetched(), std::min<std::size_t>(slots, (390 + bytes - 1) / bytes));
    }
}

TEST(LaunchGeometry, BlocksCoverTheOutputsAndNoMore) {
  const auto blocks = [](const cuda::Grid& grid) {
    return std::vector<std::int64_t>{grid.x, grid.y, grid.z};
  };
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

struct OnDevice {
  Buffer buffer;
  TensorView view;
};

OnDevice put(Backend& backend, const std::vector<float>& values, const Shape& shape) {
  OnDevice there{backend.allocate(values.size() * sizeof(float)), {}};
  there.view = there.buffer.view(DType::kF32, shape);
  backend.upload(there.view, values.data());
  return there;
}

std::vector<float> rising(std::int64_t count, float first) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST(RecentLists, AListThatIsThereIsNotCopiedAgain) {
  testing::DeviceNotes notes;
  const auto backend = testing::recording_backend(notes);
  const OnDevice k = put(*backend, rising(2 * 4, 1), {2, 1, 4}),
                 keys = put(*backend, std::vector<float>(16 * 4), {4, 4, 1, 4}),
                 values = put(*backend, std::vector<float>(16 * 4), {4, 4, 1, 4});
  const KvPages pages{keys.view, values.view, 4};
  const auto store = [&](std::int64_t first) {
    const std::size_t before = notes.lists;
    backend->store_kv(pages, k.view, k.view, std::vector<std::int64_t>{first, first + 1});
    return notes.lists - before;
  };
  EXPECT_EQ(store(0), 1u);
  EXPECT_EQ(store(0), 0u);
  EXPECT_EQ(store(6), 1u);
  EXPECT_EQ(store(0), 0u);
  std::vector<float> held(16 * 4);
  backend->download(held.data(), keys.view);
  for (std::int64_t i = 0; i < 16 * 4; ++i)
    EXPECT_EQ(held[static_cast<std::size_t>(i)], i < 8               ? static_cast<float>(i + 1)
                                                 : i >= 24 && i < 32 ? static_cast<float>(i - 23)
                                                                     : 0.0f)
        << i;
  for (std::int64_t other = 0; other < static_cast<std::int64_t>(RecentLists::kLists); ++other)
    backend->store_kv(pages, k.view, k.view,
                      std::vector<std::int64_t>{other % 16, (other + 2 + other / 16) % 16});
  EXPECT_EQ(store(0), 1u) << "the oldest list was to go";
}

TEST(RecentLists, WhatIsHeldOutlivesItsPlace) {
  RecentLists lists;
  const auto put_host = [](std::span<const std::byte> bytes) {
    Buffer buffer(host_memory(), bytes.size());
    std::memcpy(buffer.get(), bytes.data(), bytes.size());
    return buffer;
  };
  const std::vector<int> wanted = {3, 1, 4};
  const auto held = lists.find(std::as_bytes(std::span(wanted)), put_host);
  for (int i = 0; i < 40; ++i) lists.find(std::as_bytes(std::span(&i, 1)), put_host);
  EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), held->as<int>()));
}

TEST(CudaBackend, WeightsAreCopiedBesideTheWork) {
  testing::DeviceNotes notes;
  const auto backend = testing::recording_backend(notes);
  const std::vector<float> weight = rising(8 * 16, 0);
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    backend->prepare(TensorView(weight.data(), DType::kF32, {8, 16}), compute);
  EXPECT_EQ(notes.filled, 2u);
  EXPECT_EQ(notes.lists, 0u);
}

TEST(CudaBackend, RangesNest) {
  testing::DeviceNotes notes;
  const auto backend = testing::recording_backend(notes);
  {
    const NamedRange outer(*backend, "block 3");
    { const NamedRange inner(*backend, "statistics"); }
    const NamedRange inner(*backend, "rounding");
  }
  EXPECT_EQ(notes.ranges, (std::vector<std::string>{"block 3", " statistics", " rounding"}));
  EXPECT_EQ(notes.open, 0);
}

// Three columns, one and two of them from the devices 0 and 1, put together on both.
TEST(Exchange, DevicesThatReachOneAnotherCopyByThemselves) {
  for (const bool reaches : {true, false}) {
    testing::DeviceNotes notes[2];
    const std::shared_ptr<Backend> devices[] = {testing::recording_backend(notes[0], 0, reaches),
                                                testing::recording_backend(notes[1], 1, reaches)};
    Backend* const backends[] = {devices[0].get(), devices[1].get()};
    const OnDevice parts[] = {put(*devices[0], {1, 4, 7}, {3, 1}),
                              put(*devices[1], {2, 3, 5, 6, 8, 9}, {3, 2})},
                   wholes[] = {put(*devices[0], std::vector<float>(9), {3, 3}),
                               put(*devices[1], std::vector<float>(9), {3, 3})};
    const TensorView from[] = {parts[0].view, parts[1].view}, to[] = {wholes[0].view, wholes[1].view};
    Exchange exchange;
    exchange.gather(backends, from, to);
    for (int i = 0; i < 2; ++i) {
      std::vector<float> whole(9);
      devices[i]->download(whole.data(), to[i]);
      EXPECT_EQ(whole, rising(9, 1)) << "device " << i;
      EXPECT_EQ(notes[i].across, reaches ? 2u : 0u);
    }
    const OnDevice copy = put(*devices[1], std::vector<float>(9), {3, 3});
    exchange.copy(*devices[0], to[0], *devices[1], copy.view);
    std::vector<float> copied(9);
    devices[1]->download(copied.data(), copy.view);
    EXPECT_EQ(copied, rising(9, 1));
  }
}

// A library of the toolkit that llmq was built with has all that is asked of it; only one whose file is
// nowhere may be missing.
template <class Found>
void expect_whole(const Found& (*find)(), const std::string& name, const std::string& file,
                  const std::string& header) {
  const std::filesystem::path toolkit = LLMQ_CUDA_TOOLKIT;        // empty: none
  if (!toolkit.empty()) setenv("CUDA_PATH", toolkit.c_str(), 0);  // the loader need not know it
  const Found& found = find();
  std::printf("%s: %s%s\n", name.c_str(), found.version.c_str(), found.missing.c_str());
  EXPECT_NE(found.version.empty(), found.missing.empty());
  if (found.missing.empty()) {
    EXPECT_THAT(found.version, ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
    return;
  }
  EXPECT_THAT(found.missing, ::testing::AnyOf(::testing::StartsWith(name + " cannot be opened: "),
                                              "this llmq was built without " + name));
  if (toolkit.empty() || !std::filesystem::exists(toolkit / "include" / header)) return;
  for (const char* folder : {"lib64", "lib"})
    EXPECT_FALSE(std::filesystem::exists(toolkit / folder / file)) << toolkit << ": " << found.missing;
}
TEST(Cusolver, IsWholeWhereTheToolkitHasIt) {
  expect_whole(find_cusolver, "cuSOLVER", "libcusolver.so", "cusolverDn.h");
}
TEST(Cublaslt, IsWholeWhereTheToolkitHasIt) {
  expect_whole(find_cublaslt, "cuBLASLt", "libcublasLt.so", "cublasLt.h");
}

}  // namespace
}  // namespace llmq
