// A recipe's `rotate`: the bytes are those of a model that was rotated and stored, then quantized;
// config.json tells of it, the job is another, a rebuild goes the same way, and what is written is held
// against the model as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "job/conversion_job.h"
#include "job/evaluation.h"
#include "job/rebuild.h"
#include "job/recorded_job.h"
#include "job/run_adapter.h"
#include "model/linear_source.h"
#include "quant/rotation/value_rotation.h"
#include "tests/support/stored_copy.h"
#include "tests/support/tiny_adapter.h"
#include "tests/unit/job/story_job.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;
using testing::kStories;

class RotatedJobTest : public testing::StoryJobTest {
 protected:
  QuantizeRequest rotated(const std::string& model, const std::string& output,
                          std::vector<std::string> more = {}) const {
    more.emplace_back("rotate.value=hadamard");
    return request(model, output, more);
  }

  // A directory with the tensors of a rotated checkpoint, in the types that they have there.
  std::string stored_rotated(const std::string& from) const {
    const Checkpoint checkpoint = open_checkpoint(system_io(), from);
    const Path into = scratch_ / "rotated" / Path(from).filename();
    std::filesystem::create_directories(into.parent_path());
    testing::store_copy(with_rotated_values(checkpoint, ModelSpec::read(checkpoint), "r.yaml"), into);
    return into.string();
  }
  std::string adapter() const {
    return testing::write_tiny_adapter(ModelSpec::read(open_checkpoint(system_io(), kStories)),
                                       scratch_ / "adapter", 1, 0.1f);
  }
  std::string tensors_of(const std::string& output) const {
    return scratch_.read(output + "/model.safetensors");
  }
};

TEST_F(RotatedJobTest, GivesTheBytesOfARotatedModel) {
  for (const char* dtype : {"bf16", "f16", "f32"}) {
    const std::string base = of_type(kStories, std::string("base-") + dtype, dtype),
                      copy = stored_rotated(base);
    for (const char* method : {"method=rtn", "method=[awq,gptq]"}) {
      run(rotated(base, "one", {method}));
      run(request(copy, "two", {method}));
      EXPECT_EQ(tensors_of("one"), tensors_of("two")) << dtype << ", " << method;
      run(request(base, "plain", {method}));
      EXPECT_NE(tensors_of("one"), tensors_of("plain"));
      for (const char* each : {"one", "two", "plain"}) std::filesystem::remove_all(scratch_ / each);
    }
    std::filesystem::remove_all(scratch_ / "rotated");
  }
}

TEST_F(RotatedJobTest, TheConfigTellsOfItAndTheModelRuns) {
  run(rotated(kStories, "q"));
  const Json transforms = report("q/config.json").at("quantization_config").at("transform_config");
  const Json& r2 = transforms.at("config_groups").at("R2");
  EXPECT_EQ(r2.at("head_dim"), Json(16));
  EXPECT_EQ(r2.at("apply").items()[0].at("location"), Json("weight_output"));
  EXPECT_EQ(r2.at("apply").items()[1].at("targets").items()[1], Json("model.layers.1.self_attn.o_proj"));
  EXPECT_NO_THROW(LinearSource::open(open_checkpoint(system_io(), (scratch_ / "q").string())));
  EXPECT_THAT(scratch_.read("q/README.md"), HasSubstr("| rotation | values of each head, by Hadamard"));
  for (const char* format : {"awq", "gptq_v2"})
    EXPECT_NO_THROW(run(rotated(kStories, format, {std::string("format=") + format})));
}

TEST_F(RotatedJobTest, IsAnotherJobAndIsRebuilt) {
  EXPECT_FALSE(run(rotated(kStories, "q")).unchanged);
  EXPECT_TRUE(run(rotated(kStories, "q")).unchanged);
  EXPECT_THROW(run(request(kStories, "q")), Error) << "it is not replaced unasked";
  RebuildRequest rebuild;
  rebuild.output = scratch_ / "q";
  rebuild.program = settings().program;
  const Rebuild same = rebuild_output(system_io(), rebuild);
  EXPECT_TRUE(same.ok()) << same.to_json().dump(1);
}

TEST_F(RotatedJobTest, AnAdapterGoesIntoTheModelFirst) {
  const std::string base = adapter();
  const std::string merged =
      converted(kStories, "merged", [&](ConvertRequest& request) { request.adapter = base; });
  run(rotated(merged, "two"));
  run(rotated(kStories, "one", {"adapter=" + base}));
  EXPECT_EQ(tensors_of("one"), tensors_of("two"));
}

TEST_F(RotatedJobTest, NumbersOfPackedLinearsAreRotatedAsTheyAre) {
  run(request(kStories, "packed"));
  const std::string packed = (scratch_ / "packed").string();
  run(rotated(packed, "one", {"method=gptq"}));
  run(request(stored_rotated(of_type(packed, "numbers", "f32")), "two", {"method=gptq"}));
  EXPECT_EQ(tensors_of("one"), tensors_of("two"));
}

TEST_F(RotatedJobTest, AnInterruptedRunGoesOn) {
  const QuantizeRequest asked = rotated(kStories, "q", {"method=gptq"});
  interrupt(asked);
  const JobEnd end = run(asked);
  EXPECT_GT(end.outcome.resumed_blocks, 0);
  EXPECT_EQ(digest_of(end), digest_of(run(rotated(kStories, "whole", {"method=gptq"}))));
}

// With an adapter in it, or without one.
TEST_F(RotatedJobTest, IsHeldAgainstTheModelAsItWas) {
  for (const std::string& folded : {std::string(), adapter()}) {
    std::vector<std::string> more = {"scheme=w8a16_g32_asym", "evaluate.text=" + text_};
    if (!folded.empty()) more.push_back("adapter=" + folded);
    const JobEnd end = run(rotated(kStories, folded.empty() ? "q" : "q-adapted", more));
    ASSERT_TRUE(end.outcome.evaluation.has_value());
    EvaluationRequest request;
    request.text = text_;
    request.compute = settings().evaluation_compute;
    const LoadedModel written = open_model(system_io(), end.outcome.output);
    LoadedModel original = open_model(system_io(), kStories);
    fold_adapter(system_io(), folded, original);
    const double kl = end.outcome.evaluation->evaluation.result.against->kl_mean;
    EXPECT_EQ(kl, evaluate(written, &original, make_cpu_backend(2), request).result.against->kl_mean);
    EXPECT_LT(kl, 0.001);
  }
}

// By config.json alone, as other programs write it; by the manifest alone, where the format has no words for
// it; behind a conversion and behind a job that rotates nothing.
TEST_F(RotatedJobTest, IsRefusedWhereTheModelTellsOfOne) {
  const auto again = [&](const std::string& model) {
    return refusal(rotated((scratch_ / model).string(), "refused"));
  };
  const auto convert_to = [&](const char* format, const std::string& from, const std::string& to) {
    ConvertRequest asked;
    asked.source = (scratch_ / from).string();
    asked.to = format;
    asked.target = {scratch_ / to};
    run_conversion(system_io(), asked, true, settings().program);
  };
  run(rotated(kStories, "first"));
  run(rotated(kStories, "awq", {"format=awq"}));
  run(request((scratch_ / "first").string(), "second", {"method=rtn", "format=gptq_v2"}));
  convert_to("awq", "second", "third");
  convert_to("safetensors", "awq", "dense");
  std::filesystem::copy(scratch_ / "first", scratch_ / "theirs");
  std::filesystem::remove(scratch_ / "theirs" / "manifest.json");
  convert_to("compressed-tensors", "theirs", "of-theirs");
  std::filesystem::remove(scratch_ / "of-theirs" / "manifest.json");
  for (const char* model : {"first", "awq", "second", "third", "dense", "theirs", "of-theirs"})
    EXPECT_THAT(again(model), HasSubstr("rotate.value: the model's weights are rotated already")) << model;
  scratch_.write("theirs/manifest.json", "{");
  EXPECT_THAT(again("theirs"), HasSubstr("theirs/manifest.json"));
  std::filesystem::remove(scratch_ / "theirs" / "manifest.json");
  run(request((scratch_ / "theirs").string(), "plain", {"method=rtn"}));
  EXPECT_THAT(changes_of_linears(open_checkpoint(system_io(), (scratch_ / "plain").string())),
              ::testing::ElementsAre(kByRotation));
}

TEST_F(RotatedJobTest, RefusesWhatItCannotRotate) {
  QuantizeRequest nonfinite = rotated(kStories, "refused");
  nonfinite.allow_nonfinite = true;
  EXPECT_THAT(refusal(nonfinite), HasSubstr("rotate.value: one number that is not finite would become"));
  QuantizeRequest gguf = rotated(kStories, "refused.gguf", {"format=gguf"});
  gguf.recipe.scheme.reset();
  EXPECT_THAT(refusal(gguf), HasSubstr("rotate.value: what rotated values do to the types of a GGUF"));
}

}  // namespace
}  // namespace llmq
