// What is given to Writing reaches the writer in order, on a thread beside the caller's, one linear at a
// time.
#include "quant/pipeline/background_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <semaphore>
#include <stdexcept>

namespace llmq {
namespace {

using ::testing::ElementsAre;

// Notes what it is given; a linear is taken when the test lets it pass.
struct Notes final : UnpublishedWriter {
  std::counting_semaphore<16> pass{0};
  std::vector<std::string> given;
  std::string fails;  // at this one
  std::atomic<int> taken = 0;

  void add_quantized(const std::string& module, const QuantizedMatrix& matrix) override {
    pass.acquire();
    if (module == fails) throw std::runtime_error(module);
    given.push_back(module + " " + std::to_string(matrix.codes.size()));
    ++taken;
  }
  void add_dense(const std::string& tensor, DType, const Shape&, std::span<const std::byte> bytes) override {
    given.push_back(tensor + " " + std::to_string(bytes.size()));
  }
  void append_dense(const std::string& tensor, DType, const Shape&, std::span<const std::byte>) override {
    given.push_back(tensor);
  }
  std::function<void()> begin_commit(const Json& findings) override {
    given.push_back("commit " + findings.as_string());
    return [this, text = findings.as_string()] {
      if (text == fails) throw std::runtime_error(text);
    };
  }
};

QuantizedMatrix of_codes(std::size_t count) {
  QuantizedMatrix matrix;
  matrix.codes.resize(count);
  return matrix;
}

TEST(BackgroundWriter, EverythingComesInTheOrderInWhichItWasGiven) {
  Notes notes;
  BackgroundWriter writing(notes);
  writing.add_quantized("q", of_codes(1));  // returns though nobody takes it yet
  EXPECT_EQ(notes.taken, 0);
  writing.add_dense("norm", DType::kF32, {1}, std::vector<std::byte>(4));
  writing.commit(Json("first"));
  notes.pass.release(2);
  writing.add_quantized("k", of_codes(2));
  writing.append_dense_now("head", DType::kF32, {1}, {});
  EXPECT_THAT(notes.given, ElementsAre("q 1", "norm 4", "commit first", "k 2", "head"));
  writing.commit(Json("second"));
  writing.finish();
  EXPECT_EQ(notes.given.back(), "commit second");
}

TEST(BackgroundWriter, OneLinearWaitsAtMost) {
  Notes notes;
  BackgroundWriter writing(notes);
  writing.add_quantized("q", of_codes(1));
  notes.pass.release();
  writing.add_quantized("k", of_codes(1));
  EXPECT_EQ(notes.taken, 1);  // the call did not return before
  notes.pass.release();
  writing.finish();
  EXPECT_EQ(notes.taken, 2);
}

TEST(BackgroundWriter, AnErrorComesWithTheNextLinearAndNothingIsWrittenBehindIt) {
  Notes notes;
  notes.fails = "q";
  BackgroundWriter writing(notes);
  writing.add_quantized("q", of_codes(1));
  writing.commit(Json("first"));
  notes.pass.release();
  EXPECT_THROW(writing.add_quantized("k", of_codes(1)), std::runtime_error);
  EXPECT_THAT(notes.given, ElementsAre());
}

TEST(BackgroundWriter, AnErrorOfTheDiskComesAtTheLatestInTheEnd) {
  Notes notes;
  notes.fails = "first";
  BackgroundWriter writing(notes);
  writing.commit(Json("first"));
  EXPECT_THROW(writing.finish(), std::runtime_error);
}

}  // namespace
}  // namespace llmq
