// A recipe's `adapter`: the bytes are those of a merge that is quantized then, over every kind of base; the
// job, its documents and its evaluation are those of the model with its adapter; what cannot be folded is
// refused in one sentence that names the adapter's file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "base/error.h"
#include "export/convert.h"
#include "job/quantize_job.h"
#include "job/rebuild.h"
#include "model/open_checkpoint.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_adapter.h"
#include "tests/unit/job/story_job.h"

namespace llmq {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::kStories;
using ::testing::SizeIs;

class AdapterJobTest : public testing::StoryJobTest {
 protected:
  static ModelSpec spec() { return ModelSpec::read(open_checkpoint(system_io(), kStories)); }
  // In the same place, with other numbers.
  std::string adapter(std::uint64_t seed, float size = 0.1f) const {
    return testing::write_tiny_adapter(spec(), scratch_ / "adapter", seed, size);
  }
  std::string merged(const std::string& base) const {
    return converted(base, "merged", [&](ConvertRequest& request) { request.adapter = adapter_; });
  }
  QuantizeRequest with_adapter(QuantizeRequest request) const {
    request.recipe.set("adapter=" + adapter_);
    return request;
  }
  std::string refusal(const std::vector<std::string>& more = {}, const std::string& model = kStories) const {
    return StoryJobTest::refusal(with_adapter(request(model, "refused", more)));
  }

  const std::string adapter_ = adapter(1);
};

// What is written of dense linears, and the scales of formats that follow the model, show its type.
class AdapterOnBase : public AdapterJobTest, public ::testing::WithParamInterface<const char*> {
 protected:
  std::string base() const {
    const std::string kind = GetParam();
    if (kind == "bf16" || kind == "f16" || kind == "f32") return of_type(kStories, "base", GetParam());
    if (kind == "gguf") {
      converted(kStories, "base", [&](ConvertRequest& request) {
        request.to = "gguf";
        request.dtype = "f16";
        request.target = {scratch_ / "base/tiny.gguf", true};
        request.target.single_file = true;
      });
      return (scratch_ / "base/tiny.gguf").string();
    }
    return converted(of_type(kStories, "of", kind == "nf4_of_f16" ? "f16" : "bf16"), "base",
                     [&](ConvertRequest& request) {
                       request.to = "bitsandbytes";
                       request.double_quant = true;
                     });
  }
};

TEST_P(AdapterOnBase, GivesTheBytesOfAMerge) {
  const std::string from = base(), to = merged(from);
  std::vector<std::vector<std::string>> recipes = {
      {"method=awq", "ignore=['re:.*layers.0.*', lm_head]"},
      {"method=[awq, gptq]", "format=gptq", "scheme=w4a16_g32_sym"},
      {"method=awq", "format=safetensors", "awq.salient_fp16=0.1"}};
  if (std::string(GetParam()) != "gguf") {
    recipes.push_back({"method=imatrix", "format=gguf", "scheme=q4_k_m"});
    recipes.push_back({"method=rtn", "format=gguf", "scheme=q8_0"});
  }
  std::set<std::string> digests;
  for (const std::vector<std::string>& recipe : recipes) {
    const std::string folder = std::to_string(digests.size()),
                      name = recipe[1] == "format=gguf" ? "/q.gguf" : "/q";  // the digest has a file's name
    for (const char* way : {"one", "two"}) std::filesystem::create_directories(scratch_ / (way + folder));
    const std::string digest = digest_of(run(with_adapter(request(from, "one" + folder + name, recipe))));
    EXPECT_EQ(digest, digest_of(run(request(to, "two" + folder + name, recipe)))) << recipe[0] << recipe[1];
    digests.insert(digest);
  }
  EXPECT_EQ(digests.size(), recipes.size());
  EXPECT_EQ(digests.count(digest_of(run(request(from, "bare", recipes[0])))), 0u) << "it changes nothing";
}

INSTANTIATE_TEST_SUITE_P(Kinds, AdapterOnBase,
                         ::testing::Values("f32", "bf16", "f16", "nf4", "nf4_of_f16", "gguf"),
                         [](const auto& kind) { return std::string(kind.param); });

// Codes are numbers before: what `merge` makes of those.
TEST_F(AdapterJobTest, OnPackedLinearsGivesTheBytesOfTheirNumbers) {
  for (const char* format : {"compressed-tensors", "awq"}) {
    run(request(kStories, "packed", {std::string("format=") + format}));
    const std::string packed = (scratch_ / "packed").string();
    const std::string numbers = of_type(packed, "numbers", "f32");
    for (const char* method : {"method=awq", "method=gptq"}) {
      const JobEnd end = run(with_adapter(request(packed, "one", {method})));
      EXPECT_EQ(digest_of(end), digest_of(run(request(merged(numbers), "two", {method})))) << format;
      EXPECT_THAT(end.outcome.warnings, Contains(HasSubstr("are rounded a second time")));
      std::filesystem::remove_all(scratch_ / "one");
      std::filesystem::remove_all(scratch_ / "two");
    }
    std::filesystem::remove_all(scratch_ / "packed");
  }
}

TEST_F(AdapterJobTest, MixedPrecisionMeasuresTheModelWithIt) {
  const std::vector<std::string> budget = {"target_bits=5.5", "mixed.samples=2"};
  EXPECT_EQ(digest_of(run(with_adapter(request(kStories, "one", budget)))),
            digest_of(run(request(merged(kStories), "two", budget))));
}

TEST_F(AdapterJobTest, AnotherAdapterIsAnotherJob) {
  const QuantizeRequest asked = with_adapter(request(kStories, "q"));
  const JobEnd first = run(asked);
  EXPECT_TRUE(run(asked).unchanged);
  RebuildRequest rebuild;
  rebuild.output = scratch_ / "q";
  rebuild.program = settings().program;
  const Rebuild same = rebuild_output(system_io(), rebuild);
  EXPECT_TRUE(same.ok()) << same.to_json().dump(1);
  adapter(2);
  EXPECT_THROW(run(asked), Error) << "it is not replaced unasked";
  const Rebuild other = rebuild_output(system_io(), rebuild);
  ASSERT_THAT(other.inputs, SizeIs(1));
  EXPECT_EQ(other.inputs.front().path, "adapter/adapter_model.safetensors");
  EXPECT_NE(digest_of(run(with_adapter(request(kStories, "other")))), digest_of(first));
}

// What an interrupted run left is of the adapter that it began with.
TEST_F(AdapterJobTest, AChangedAdapterDoesNotGoOn) {
  const QuantizeRequest asked = with_adapter(request(kStories, "q", {"method=gptq"}));
  interrupt(asked);
  EXPECT_GT(run(asked).outcome.resumed_blocks, 0);
  std::filesystem::remove_all(scratch_ / "q");
  interrupt(asked);
  adapter(2);
  EXPECT_THROW(run(asked), Error);
  QuantizeRequest again = asked;
  again.restart = true;
  EXPECT_EQ(run(again).outcome.resumed_blocks, 0);
}

TEST_F(AdapterJobTest, DocumentsNameIt) {
  QuantizeRequest asked = with_adapter(request(kStories, "q"));
  QuantizeJob job(system_io(), asked, settings());
  const std::uint64_t matrices = 4 * std::uint64_t{128 + 128} * sizeof(float);
  EXPECT_THAT(job.form().costs().memory, Contains(::testing::Truly([&](const MemoryItem& item) {
                return item.what.find("adapter's matrices") != std::string::npos && item.bytes >= matrices;
              })));
  job.run();
  const Json found = report("q/report.json");
  EXPECT_EQ(found.at("adapter"), Json::object({{"directory", adapter_}, {"rank", 4}, {"linears", 14}}));
  EXPECT_THAT(found.at("job").at("adapter").dump(),
              AllOf(HasSubstr("adapter_config.json"), HasSubstr("adapter_model.safetensors")));
  EXPECT_THAT(scratch_.read("q/README.md"),
              AllOf(HasSubstr("tinystories-656k with " + adapter_ + " quantized with rtn"),
                    HasSubstr("| adapter | " + adapter_ + ": rank 4, 14 linears |")));
  EXPECT_THAT(scratch_.read("q/manifest.json"), AllOf(HasSubstr("adapter/adapter_config.json"),
                                                      HasSubstr("adapter/adapter_model.safetensors")));
  const QuantizeRequest bare = request(kStories, "bare");
  run(bare);
  EXPECT_EQ(report("bare/report.json").find("adapter"), nullptr);
  EXPECT_EQ(report("bare/report.json").at("job").find("adapter"), nullptr) << "the job is as it was";
}

// What is read is what was announced, of the adapter, too.
TEST_F(AdapterJobTest, ReadsWhatItPlans) {
  const auto read = [&](bool direct) {
    QuantizeRequest asked = with_adapter(request(kStories, direct ? "direct" : "cached", {"method=awq"}));
    asked.direct_io = direct;
    const JobEnd end = run(asked);
    const DiskTraffic& disk = end.outcome.disk;
    const std::uint64_t planned =
        std::accumulate(disk.reads.begin(), disk.reads.end(), std::uint64_t{0},
                        [](std::uint64_t sum, const ReadPass& pass) { return sum + pass.bytes; });
    EXPECT_LE(disk.bytes_read, planned);
    EXPECT_GE(disk.bytes_read, planned / 5 * 4) << "rows of the embedding are announced as if all differed";
    return digest_of(end);
  };
  EXPECT_EQ(read(false), read(true));
}

// Weights of 8 bits are near the model with its adapter, and far from the one without.
TEST_F(AdapterJobTest, GatesHoldTheOutputAgainstTheModelWithIt) {
  adapter(1, 0.3f);
  for (const char* method : {"method=rtn", "method=awq"})
    for (const bool direct : {false, true}) {
      QuantizeRequest asked = with_adapter(request(kStories, "q",
                                                   {method, "scheme=w8a16", "evaluate.text=" + text_,
                                                    "evaluate.max_windows=1", "evaluate.max_kl=0.02"}));
      asked.direct_io = direct;
      asked.overwrite = asked.restart = true;
      const JobEnd end = run(asked);
      EXPECT_EQ(job_exit_code(end.document, false), 0) << end.document.at("evaluation").dump(1);
      EXPECT_THAT(end.document.at("evaluation").at("against").dump(), HasSubstr(" with " + adapter_));
    }
  EvaluationRequest bare;
  bare.text = text_;
  bare.max_windows = 1;
  const LoadedModel output = open_model(system_io(), (scratch_ / "q").string()),
                    without = open_model(system_io(), kStories);
  EXPECT_GT(evaluate(output, &without, make_cpu_backend(2), bare).result.against->kl_mean, 0.1);
}

TEST_F(AdapterJobTest, WhatCannotBeFoldedIsOneSentence) {
  const auto bent = [&](const std::function<void(testing::TinyAdapter&)>& bend) {
    testing::TinyAdapter tiny;
    tiny.make(spec());
    bend(tiny);
    tiny.write(scratch_ / "adapter");
    return refusal();
  };
  EXPECT_THAT(bent([](testing::TinyAdapter& a) { a.config["use_dora"] = true; }),
              AllOf(HasSubstr("adapter_config.json"), HasSubstr("use_dora")));
  EXPECT_THAT(bent([](testing::TinyAdapter& a) { a.config["modules_to_save"] = Json::array({"lm_head"}); }),
              AllOf(HasSubstr("adapter_config.json"), HasSubstr("modules_to_save")));
  EXPECT_THAT(bent([](testing::TinyAdapter& a) { a.values[3][1] = std::numeric_limits<float>::quiet_NaN(); }),
              AllOf(HasSubstr("adapter_model.safetensors"), HasSubstr("holds nan at element 1")));
  EXPECT_THAT(bent([](testing::TinyAdapter& a) { a.config["r"] = 8; }),
              AllOf(HasSubstr("adapter_model.safetensors"), HasSubstr("has shape [4, 128]")));
  EXPECT_THAT(bent([](testing::TinyAdapter& a) {
                a.tensors.clear();
                a.values.clear();
                a.config["target_modules"] = "all-linear";
              }),
              AllOf(HasSubstr("adapter_model.safetensors"), HasSubstr("holds no matrix")));
  EXPECT_THAT(bent([](testing::TinyAdapter& a) {
                for (auto& values : a.values)
                  for (float& value : values) value *= 1e20f;
              }),
              AllOf(HasSubstr("adapter_model.safetensors"), HasSubstr("leaves the range of FP32")));
  adapter(1);
  const std::string whole = scratch_.read("adapter/adapter_model.safetensors");
  scratch_.write("adapter/adapter_model.safetensors", whole.substr(0, whole.size() - 100));
  EXPECT_THAT(refusal(), HasSubstr("adapter_model.safetensors"));
  std::filesystem::remove_all(scratch_ / "adapter");
  EXPECT_THAT(refusal(), HasSubstr("no such directory"));
}

// F16 has no room for what FP32 and BF16 hold.
TEST_F(AdapterJobTest, WhatF16CannotHoldIsRefused) {
  adapter(1, 300.0f);
  const std::string base = of_type(kStories, "base", "f16");
  EXPECT_THAT(refusal({}, base),
              AllOf(HasSubstr("adapter_model.safetensors"), HasSubstr("leaves the range of F16")));
}

TEST_F(AdapterJobTest, AGgufOfAGgufHasNoPlaceForOne) {
  converted(kStories, "base", [&](ConvertRequest& request) {
    request.to = "gguf";
    request.dtype = "f16";
    request.target = {scratch_ / "base/tiny.gguf", true};
    request.target.single_file = true;
  });
  EXPECT_THAT(refusal({"format=gguf", "scheme=q4_0"}, (scratch_ / "base/tiny.gguf").string()),
              HasSubstr("without a place for an adapter"));
}

}  // namespace
}  // namespace llmq
