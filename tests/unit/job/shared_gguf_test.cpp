// A GGUF that ranks make together: the bytes of one process, whatever their number, in one run or begun by so
// many and ended by others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>

#include "base/error.h"
#include "export/gguf/gguf_file.h"
#include "job/conversion_job.h"
#include "job/quantize_job.h"
#include "model/gguf/gguf_fields.h"
#include "model/open_checkpoint.h"
#include "ranks/thread_ranks.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/job/job_by_ranks.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;

struct GgufStopped {};

class SharedGguf : public ::testing::Test {
 protected:
  QuantizeRequest request(const std::string& output, const std::vector<std::string>& settings) const {
    std::filesystem::create_directory(scratch_ / output);
    std::vector<std::string> all = settings;
    all.insert(all.begin(), "format=gguf");
    return shared_request((scratch_ / output / "m.gguf").string(), all);  // the digest has the file's name
  }

  static std::string digest(const Json& document) { return document.at("digest").as_string(); }

  testing::TemporaryDirectory scratch_;
};

TEST_F(SharedGguf, RoundingHasTheBytesOfOneProcess) {
  for (const char* type : {"q4_k_m", "q8_0", "bf16"}) {
    const std::vector<std::string> settings = {"method=rtn", "scheme=" + std::string(type)};
    const std::string name = std::string(type) + "-";
    const std::string alone = digest(job_by_ranks(request(name + "1", settings), 1));
    EXPECT_EQ(digest(job_by_ranks(request(name + "2", settings), 2, 2)), alone) << type;
    EXPECT_EQ(digest(job_by_ranks(request(name + "3", settings), 3)), alone) << type;
  }
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "q4_k_m-3/m.gguf.unfinished"));
}

TEST_F(SharedGguf, TypesThatOverridesNameAreInEveryRanksFile) {
  const std::vector<std::string> plain = {"method=rtn", "scheme=q4_0"};
  std::vector<std::string> named = plain;
  named.push_back("overrides=[{match: down_proj, scheme: q8_0}]");
  const Json document = job_by_ranks(request("1", named), 1);
  EXPECT_EQ(digest(job_by_ranks(request("2", named), 2)), digest(document));
  EXPECT_NE(digest(job_by_ranks(request("3", plain), 1)), digest(document));
  const GgufFile file = open_gguf(system_io(), scratch_ / "1/m.gguf");
  EXPECT_EQ(find_gguf_tensor(file.header, "blk.1.ffn_down.weight")->dtype, DType::kQ8_0);
  EXPECT_EQ(find_gguf_tensor(file.header, "blk.1.ffn_up.weight")->dtype, DType::kQ4_0);
}

// Seven rows of most tensors to a slab, so that all ranks have some of each; and stacks are cut by matrices.
TEST_F(SharedGguf, TensorsAreDealtInSlabs) {
  const auto written = [&](const std::string& name, int ranks, std::int64_t values) {
    std::string sha256;
    std::filesystem::create_directory(scratch_ / name);
    run_as_ranks(ranks, [&](Ranks& rank) {
      const Checkpoint checkpoint = open_checkpoint(system_io(), kSharedModel);
      const ModelSpec spec = ModelSpec::read(checkpoint);
      GgufRequest request;
      request.target.directory = scratch_ / name / "m.gguf";
      request.target.ranks = &rank;
      request.name = "m";
      request.file_type = find_gguf_file_type("q8_0");
      request.slab_values = values;
      GgufOutput output(system_io(), checkpoint, spec, std::move(request));
      ThreadPool pool(1);
      const GgufWritten found = output.write(nullptr, pool);
      if (rank.rank() == 0) sha256 = found.sha256;
    });
    return sha256;
  };
  EXPECT_EQ(written("cut", 3, 1000), written("whole", 1, Checkpoint::kBandElements));
  std::vector<std::int64_t> rows;
  for (const GgufSlab& slab : slabs_of(Shape{3, 10, 64}, 0, 256)) rows.push_back(slab.count);
  EXPECT_THAT(rows, ::testing::ElementsAre(4, 4, 2, 4, 4, 2, 4, 4, 2));
}

// 25 samples of 512 tokens are four chunks.
TEST_F(SharedGguf, ImportanceOfDealtSamplesIsThatOfOneProcess) {
  const std::vector<std::string> settings = {"method=imatrix", "scheme=q4_k_m", "calibration.samples=25",
                                             "calibration.sequence_length=512"};
  const std::string alone = digest(job_by_ranks(request("one", settings), 1));
  for (const int ranks : {2, 3, 4}) {
    const std::string output = std::to_string(ranks);
    EXPECT_EQ(digest(job_by_ranks(request(output, settings), ranks, ranks == 2 ? 2 : 1)), alone) << ranks;
  }
}

TEST_F(SharedGguf, TheMatrixThatRankZeroWritesIsThatOfOneProcess) {
  const auto settings = [&](const std::string& matrix) {
    return std::vector<std::string>{"method=imatrix", "scheme=q4_0", "calibration.samples=16",
                                    "gguf.imatrix_out=" + (scratch_ / matrix).string()};
  };
  job_by_ranks(request("one", settings("one.imatrix")), 1);
  job_by_ranks(request("two", settings("two.imatrix")), 2);
  EXPECT_EQ(scratch_.read("two.imatrix"), scratch_.read("one.imatrix"));
  const std::vector<std::string> of_file = {"method=imatrix", "scheme=q4_0",
                                            "gguf.importance=" + (scratch_ / "one.imatrix").string()};
  EXPECT_EQ(digest(job_by_ranks(request("file-3", of_file), 3)),
            digest(job_by_ranks(request("file-1", of_file), 1)));
}

// A file made before has the same bytes, and its importance was not kept.
TEST_F(SharedGguf, AMatrixThatIsNotThereIsMadeByARun) {
  const std::vector<std::string> settings = {"method=imatrix", "scheme=q4_0", "calibration.samples=4"};
  const auto with_matrix = [&] {
    std::vector<std::string> all = settings;
    all.push_back("gguf.imatrix_out=" + (scratch_ / "late.imatrix").string());
    return request("out", all);
  };
  job_by_ranks(request("out", settings), 1);
  EXPECT_EQ(job_by_ranks(request("out", settings), 1).at("status"), Json("unchanged"));
  EXPECT_THROW(job_by_ranks(with_matrix(), 1), Error) << "--overwrite is needed";
  scratch_.write("late.imatrix", "");
  EXPECT_EQ(job_by_ranks(with_matrix(), 1).at("status"), Json("unchanged"));
}

// Begun by three, stopped on one of them; ended by two, or by one, who know what importance was collected.
TEST_F(SharedGguf, OthersGoOnWhereRanksWereStopped) {
  const std::vector<std::string> settings = {"method=imatrix", "scheme=q4_k_m", "calibration.samples=24"};
  const std::string alone = digest(job_by_ranks(request("one", settings), 1));
  for (const int others : {2, 1}) {
    const QuantizeRequest asked = request("stopped-" + std::to_string(others) + "", settings);
    std::atomic<int> steps = 0;
    EXPECT_THROW(job_by_ranks(asked, 3, 1,
                              [&](int rank) {
                                if (rank == 1 && ++steps == 20) throw GgufStopped{};
                              }),
                 GgufStopped);
    const Json document = job_by_ranks(asked, others);
    EXPECT_EQ(digest(document), alone);
    EXPECT_GT(document.at("resumed_blocks").as_integer(), 1) << "the importance, and a block";
  }
}

TEST_F(SharedGguf, AConversionHasTheBytesOfOneProcess) {
  const auto convert = [&](const std::string& name, int ranks, std::uint64_t split) {
    std::string digest;
    std::filesystem::create_directory(scratch_ / name);
    run_as_ranks(ranks, [&](Ranks& rank) {
      ConvertRequest asked;
      asked.source = kSharedModel;
      asked.to = "gguf";
      asked.dtype = "q8_0";
      asked.threads = 1;
      asked.target.directory = scratch_ / name / "m.gguf";
      asked.target.ranks = &rank;
      asked.split_max_size = split;
      const auto end = run_conversion(system_io(), asked, true, kSharingProgram);
      if (rank.rank() == 0) digest = std::get<ConvertReport>(end).digest;
    });
    return digest;
  };
  EXPECT_EQ(convert("three", 3, 0), convert("one", 1, 0));
  EXPECT_EQ(convert("parts", 2, 300000), convert("part", 1, 300000));
}

TEST_F(SharedGguf, ADestinationThatMayNotBeWrittenIsRefusedOnce) {
  std::filesystem::create_directories(scratch_ / "there/m.gguf");
  try {
    job_by_ranks(request("there", {"method=rtn", "scheme=q8_0"}), 2);
    ADD_FAILURE() << "it began";
  } catch (const RanksRefused& refused) {
    EXPECT_THAT(refused.what(), HasSubstr("there/m.gguf"));
  }
}

}  // namespace
}  // namespace llmq
