// Shapes, views, buffers and the table of element types.
#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "tensor/buffer.h"

// Sanitizers end the process at an impossible allocation; here it should fail as it does without them.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace llmq {
namespace {

TEST(DType, NamesLeadBack) {
  for (int i = 0; i <= static_cast<int>(DType::kNVFP4); ++i) {
    const DTypeRow& row = dtype_row(static_cast<DType>(i));
    EXPECT_EQ(static_cast<int>(row.dtype), i);
    if (!row.safetensors_name.empty()) {
      EXPECT_EQ(dtype_from_safetensors(row.safetensors_name), row.dtype);
    }
    if (row.ggml_type >= 0) {
      EXPECT_EQ(dtype_from_ggml(static_cast<std::uint32_t>(row.ggml_type)), row.dtype);
    }
  }
  EXPECT_FALSE(dtype_from_safetensors(""));
  EXPECT_FALSE(dtype_from_safetensors("F33"));
  EXPECT_FALSE(dtype_from_ggml(41));
  EXPECT_FALSE(dtype_from_ggml(0xffffffffu));
}

TEST(DType, BytesOfElementsThatSafetensorsStores) {
  EXPECT_EQ(stored_bytes(DType::kF32, 3), 12u);
  EXPECT_EQ(stored_bytes(DType::kF4, 6), 3u);
  EXPECT_EQ(stored_bytes(DType::kF6E2M3, 4), 3u);
  EXPECT_FALSE(stored_bytes(DType::kF4, 3));
  EXPECT_FALSE(stored_bytes(DType::kF6E3M2, 2));
  EXPECT_FALSE(stored_bytes(DType::kF64, std::uint64_t{1} << 61));
  EXPECT_EQ(alignment(DType::kF6E2M3), 1);
  EXPECT_EQ(alignment(DType::kC64), 8);
}

// A type that is listed and copied is never taken for numbers.
TEST(ToFloat32, RefusesTypesWhoseValuesNobodyReadsHere) {
  const std::vector<std::byte> bytes(16);
  std::vector<float> values(2);
  for (const DType dtype : {DType::kC64, DType::kF8E8M0, DType::kF8E4M3Fnuz, DType::kF4, DType::kF6E3M2}) {
    EXPECT_FALSE(has_values(dtype));
    EXPECT_FALSE(is_float(dtype));
    EXPECT_FALSE(is_block_type(dtype));
    EXPECT_THROW(to_float32(TensorView(static_cast<const void*>(bytes.data()), dtype, {2}), values), Error);
  }
}

TEST(Shape, RefusesNegativeAndTooMany) {
  EXPECT_EQ((Shape{576, 1536}.text()), "[576, 1536]");
  EXPECT_EQ((Shape{2, 3, 4}.elements()), 24);
  EXPECT_EQ(Shape().elements(), 1);
  EXPECT_EQ((Shape{0, 5}.elements()), 0);
  EXPECT_THROW((Shape{-1}), Error);
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), Error);
}

TEST(TensorView, BytesRowsAndSlices) {
  std::vector<float> values(12);
  const TensorView view(values.data(), DType::kF32, Shape{4, 3});
  EXPECT_EQ(view.bytes(), 48u);
  EXPECT_EQ(view.row_slice(1, 2).as<float>(), values.data() + 3);
  EXPECT_EQ(view.row_slice(1, 2).shape, (Shape{2, 3}));
  EXPECT_EQ(view.row_slice(4, 0).rows(), 0);
  EXPECT_THROW(view.row_slice(3, 2), Error);
  EXPECT_THROW(view.row_slice(-1, 1), Error);
  EXPECT_EQ(TensorView(values.data(), DType::kQ4_K, Shape{2, 512}).bytes(), 4u * 144);
  EXPECT_EQ(TensorView(values.data(), DType::kBF16, Shape()).bytes(), 2u);
}

TEST(Buffer, OwnsAlignedMemoryAndMoves) {
  Buffer buffer(host_memory(), 100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.get()) % 64, 0u);
  void* const pointer = buffer.get();
  Buffer moved(std::move(buffer));
  EXPECT_EQ(moved.get(), pointer);
  EXPECT_EQ(buffer.get(), nullptr);  // NOLINT(bugprone-use-after-move): a moved-from buffer is empty
  EXPECT_EQ(moved.view(DType::kF32, Shape{5, 5}).bytes(), 100u);
  EXPECT_THROW(moved.view(DType::kF32, Shape{26}), Error);
}

// A resource that counts, and has no room beyond a limit.
class CountingMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes) override {
    if (live_ + bytes > 1000) fail(ErrorKind::kResource, "no memory for {} more bytes", bytes);
    live_ += bytes;
    return host_memory()->allocate(bytes);
  }
  void deallocate(void* pointer, std::size_t bytes) noexcept override {
    live_ -= bytes;
    host_memory()->deallocate(pointer, bytes);
  }
  Device device() const override { return {DeviceKind::kFake, 3}; }
  std::size_t live_ = 0;
};

TEST(Buffer, GivesBackWhatItTook) {
  const auto memory = std::make_shared<CountingMemory>();
  {
    Buffer a(memory, 600);
    EXPECT_EQ(a.device(), (Device{DeviceKind::kFake, 3}));
    EXPECT_THROW(Buffer(memory, 600), Error);
    a = Buffer(memory, 300);
    EXPECT_EQ(memory->live_, 300u);
  }
  EXPECT_EQ(memory->live_, 0u);
}

TEST(HostMemory, SaysHowMuchThereWasNoRoomFor) {
  try {
    Buffer buffer(host_memory(), std::size_t{1} << 62);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    EXPECT_NE(std::string(error.what()).find("4611686018427387904"), std::string::npos);
  }
}

}  // namespace
}  // namespace llmq
