// The main job as the tool runs it, over a real model, in both forms: what it writes, what it says, what it
// does when it is stopped, and that it can be run again beside its output.
#include "job/quantize_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/error.h"
#include "io/gguf.h"
#include "job/rebuild.h"
#include "model/open_checkpoint.h"
#include "tests/support/stand_in_library.h"
#include "tests/support/temporary_directory.h"

namespace llmq {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

struct Stopped {};  // what an interrupted step throws

class QuantizeJobTest : public ::testing::Test {
 protected:
  QuantizeJobTest() {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "Once upon a time there was a little girl who had a big red ball. ";
    text_ = scratch_.write("text.utf8", text).string();
  }

  // A recipe of AWQ over a few samples; `more` overrides and adds keys.
  QuantizeRequest request(const std::string& output, std::vector<std::string> more = {}) const {
    QuantizeRequest request;
    request.paranoid = true;  // no digests of this machine's other runs
    request.recipe.source = "command line";
    request.recipe.model = LLMQ_SOURCE_DIR "/tests/models/tinystories-656k";
    request.recipe.output = (scratch_ / output).string();
    for (const char* usual :
         {"method=awq", "scheme=w4a16_g32_asym", "calibration.samples=4", "calibration.sequence_length=32"})
      request.recipe.set(usual);
    request.recipe.set("calibration.text=[" + text_ + "]");
    for (const std::string& assignment : more) request.recipe.set(assignment);
    return request;
  }
  QuantizeRequest gguf_request(const std::string& output) const {
    return request(output, {"format=gguf", "method=imatrix", "scheme=q4_k_m"});
  }

  JobSettings settings(std::function<void()> on_step = [] {}) const {
    JobSettings settings;
    settings.devices = {make_cpu_backend(2)};
    settings.program = {"0.0.1", "abc1234", "llmq quantize"};
    settings.on_step = std::move(on_step);
    return settings;
  }
  JobEnd run(const QuantizeRequest& asked) const { return QuantizeJob(system_io(), asked, settings()).run(); }
  // Stops at a step; false where the job had fewer.
  bool stopped_at(const QuantizeRequest& asked, int step) const {
    QuantizeJob job(system_io(), asked, settings([&step] {
                      if (step-- == 0) throw Stopped();
                    }));
    try {
      job.run();
    } catch (const Stopped&) {
      return true;
    }
    return false;
  }

  bool exists(const std::string& name) const { return std::filesystem::exists(scratch_ / name); }

  testing::TemporaryDirectory scratch_;
  std::string text_;
};

std::set<std::string> keys_of(const Json& document) {
  std::set<std::string> keys;
  for (const auto& [key, value] : document.members()) keys.insert(key);
  return keys;
}

std::string digest_of(const JobEnd& end) { return end.document.at("digest").as_string(); }

TEST_F(QuantizeJobTest, PublishesWholeOutputWithItsDocuments) {
  const JobEnd end = run(request("q"));
  EXPECT_FALSE(end.unchanged);
  EXPECT_EQ(end.document.at("status"), Json("done"));
  EXPECT_EQ(end.document.at("digest").as_string(), output_digest(system_io(), scratch_ / "q"));
  for (const char* file : {"model.safetensors", "config.json", "tokenizer.json", "report.json", "report.html",
                           "README.md", "manifest.json"})
    EXPECT_TRUE(exists(std::string("q/") + file)) << file;
  EXPECT_FALSE(exists("q.unfinished"));
  const Json report = Json::parse(scratch_.read("q/report.json"), "report.json");
  EXPECT_EQ(report.at("digest"), end.document.at("digest"));
  EXPECT_GT(report.at("memory").at("planned_peak_bytes").as_integer(), 0);
  EXPECT_EQ(job_exit_code(end.document, true), 0);
}

// The contract of llmq.quantize/1 does not depend on the form.
TEST_F(QuantizeJobTest, BothFormsSayTheSameKeys) {
  const JobEnd packed = run(request("q")), file = run(gguf_request("q.gguf"));
  EXPECT_EQ(keys_of(packed.document), keys_of(file.document));
  for (const char* key :
       {"schema", "status", "output", "version", "method", "scheme", "format", "seconds", "peak_rss_bytes",
        "peak_device_bytes", "bytes_in", "bytes_out", "bits_per_weight", "bits_per_weight_total", "modules",
        "calibration", "fallbacks", "warnings", "digest"})
    EXPECT_NE(file.document.find(key), nullptr) << key;
  EXPECT_EQ(file.document.at("scheme"), Json("q4_k_m"));
  EXPECT_TRUE(exists("q.gguf.report.json"));
  EXPECT_TRUE(exists("q.gguf.manifest.json"));
}

TEST_F(QuantizeJobTest, SameJobAgainIsUnchanged) {
  for (const QuantizeRequest& asked : {request("q"), gguf_request("q.gguf")}) {
    const JobEnd first = run(asked), again = run(asked);
    ASSERT_TRUE(again.unchanged);
    EXPECT_EQ(again.document.at("status"), Json("unchanged"));
    EXPECT_EQ(digest_of(again), digest_of(first));
    EXPECT_EQ(again.document.at("modules"), first.document.at("modules"));
    QuantizeRequest other = asked;
    other.recipe.set("calibration.samples=3");
    EXPECT_THROW(run(other), Error) << "another job does not replace it";
    other.overwrite = true;
    EXPECT_NE(digest_of(run(other)), digest_of(first));
  }
}

// In files of so many bytes of tensors: the report stands beside the first, which loaders are given.
TEST_F(QuantizeJobTest, AGgufInSeveralFilesIsOneOutput) {
  QuantizeRequest asked =
      request("m.gguf", {"format=gguf", "method=rtn", "scheme=q8_0", "shard_bytes=200000"});
  const JobEnd end = run(asked);
  const int parts = 1 + static_cast<int>(further_gguf_parts(end.document.at("output").as_string()).size());
  ASSERT_GT(parts, 2);
  const auto name = [&](int number) { return gguf_part_name("m", number, parts); };
  EXPECT_EQ(end.document.at("output"), Json((scratch_ / name(1)).string()));
  for (int i = 1; i <= parts; ++i) EXPECT_TRUE(exists(name(i))) << i;
  EXPECT_TRUE(exists(name(1) + ".report.json"));
  EXPECT_TRUE(exists(name(1) + ".manifest.json"));
  EXPECT_FALSE(exists("m.gguf"));
  std::filesystem::create_directory(scratch_ / "one");
  run(request("one/m.gguf", {"format=gguf", "method=rtn", "scheme=q8_0"}));
  const Checkpoint several = open_checkpoint(system_io(), (scratch_ / name(1)).string()),
                   one = open_checkpoint(system_io(), (scratch_ / "one/m.gguf").string());
  for (const StoredTensor& tensor : one.tensors())
    EXPECT_EQ(several.read_float32(several.at(tensor.name)), one.read_float32(tensor)) << tensor.name;

  const JobEnd again = run(asked);
  ASSERT_TRUE(again.unchanged);
  EXPECT_EQ(digest_of(again), digest_of(end));
  EXPECT_EQ(again.document.at("output"), end.document.at("output"));
  RebuildRequest rebuild;
  rebuild.output = scratch_ / name(1);
  rebuild.program = settings().program;
  const Rebuild same = rebuild_output(system_io(), rebuild);
  EXPECT_TRUE(same.ok()) << same.to_json().dump(1);
  EXPECT_EQ(same.files.compared, static_cast<std::size_t>(parts));

  std::fstream(scratch_ / name(2), std::ios::in | std::ios::out | std::ios::binary)
      .seekp(-1, std::ios::end)
      .put('\x7f');
  EXPECT_THROW(run(asked), Error) << "changed, and not to be replaced unasked";
  asked.overwrite = true;
  EXPECT_EQ(digest_of(run(asked)), digest_of(end));
}

TEST_F(QuantizeJobTest, PreviewWritesNothing) {
  for (const QuantizeRequest& asked : {request("q"), gguf_request("q.gguf")}) {
    QuantizeJob job(system_io(), asked, settings());
    const JobPreview preview = job.preview();
    EXPECT_THAT(preview.time.unknown, IsEmpty());
    EXPECT_GT(preview.time.seconds, 0);
    EXPECT_GT(preview.costs.reads.size(), job.form().costs().reads.size()) << "with files beside the tensors";
    EXPECT_FALSE(std::filesystem::exists(asked.recipe.output));
    EXPECT_FALSE(std::filesystem::exists(asked.recipe.output + ".unfinished"));
  }
}

// Wherever it is stopped: nothing has the name, and the next run ends with the same bytes.
TEST_F(QuantizeJobTest, StoppedJobGoesOnToTheSameBytes) {
  const std::string digest = digest_of(run(request("whole")));
  bool resumed = false;
  int step = 0;
  for (; stopped_at(request("q"), step); step += 7) {
    EXPECT_FALSE(exists("q"));
    const JobEnd end = run(request("q"));
    EXPECT_EQ(digest_of(end), digest) << "stopped at step " << step;
    resumed = resumed || end.outcome.resumed_blocks > 0;
    std::filesystem::remove_all(scratch_ / "q");
  }
  EXPECT_GT(step, 7);
  EXPECT_TRUE(resumed);
}

TEST_F(QuantizeJobTest, BudgetOfBitsIsMeasuredOnceAndKept) {
  const QuantizeRequest asked = request("q", {"method=rtn", "target_bits=5.5"});
  const JobEnd end = run(asked);
  EXPECT_LE(end.document.at("bits_per_weight").as_double(), 5.5);
  EXPECT_EQ(end.document.at("mixed").at("measured_before"), Json(false));
  EXPECT_EQ(end.document.at("scheme"), Json("mixed"));
  QuantizeRequest infinite = request("i", {"method=rtn", "target_bits=5.5"});
  infinite.allow_nonfinite = true;
  EXPECT_THROW(run(infinite), Error);
}

TEST_F(QuantizeJobTest, MissedGateIsPublishedButNotTheLatest) {
  QuantizeRequest asked = request("v", {"output.versioned=true", "evaluate.text=" + text_,
                                        "evaluate.max_windows=1", "evaluate.max_ppl=1000000"});
  const JobEnd good = run(asked);
  EXPECT_EQ(job_exit_code(good.document, false), 0);
  EXPECT_EQ(latest_version(system_io(), scratch_ / "v"), good.document.at("version").as_string());
  asked.recipe.set("evaluate.max_ppl=1");
  asked.recipe.set("calibration.samples=3");
  const JobEnd missed = run(asked);
  EXPECT_EQ(job_exit_code(missed.document, false), 3);
  EXPECT_NE(missed.document.at("version"), good.document.at("version"));
  EXPECT_EQ(latest_version(system_io(), scratch_ / "v"), good.document.at("version").as_string());
}

TEST(JobExitCode, FallbacksCountWhereStrict) {
  Json document = Json::object({{"fallbacks", Json::array()}});
  EXPECT_EQ(job_exit_code(document, true), 0);
  document["fallbacks"].push_back(Json::object({{"module", "a"}, {"reason", "b"}}));
  EXPECT_EQ(job_exit_code(document, false), 0);
  EXPECT_EQ(job_exit_code(document, true), 3);
}

TEST_F(QuantizeJobTest, OutputIsRebuiltToTheSameBytes) {
  run(request("q"));
  run(gguf_request("q.gguf"));
  for (const char* name : {"q", "q.gguf"}) {
    RebuildRequest asked;
    asked.output = scratch_ / name;
    asked.program = settings().program;
    const Rebuild same = rebuild_output(system_io(), asked);
    EXPECT_TRUE(same.ok()) << same.to_json().dump(1);
    EXPECT_THAT(same.otherwise, IsEmpty());
    EXPECT_GT(same.files.compared, 0u);
    asked.program.version = "0.0.2";
    EXPECT_EQ(rebuild_output(system_io(), asked).otherwise.size(), 1u);
  }
}

TEST_F(QuantizeJobTest, RebuildNamesTheTensorThatDiffers) {
  run(request("q"));
  const Path weights = scratch_ / "q" / "model.safetensors";
  const std::string was = file_sha256(system_io(), weights);
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x7f');
  file.close();
  std::string manifest = scratch_.read("q/manifest.json");
  manifest.replace(manifest.find(was), was.size(), file_sha256(system_io(), weights));
  scratch_.write("q/manifest.json", manifest);
  RebuildRequest asked;
  asked.output = scratch_ / "q";
  const Rebuild rebuilt = rebuild_output(system_io(), asked);
  ASSERT_EQ(rebuilt.files.outputs.size(), 1u);
  EXPECT_EQ(rebuilt.files.outputs.front().path, "model.safetensors");
  EXPECT_THAT(rebuilt.files.first_tensor, Not(IsEmpty()));
  EXPECT_FALSE(exists("q.rebuild.unfinished"));
}

TEST_F(QuantizeJobTest, RebuildReadsAPackedSourceAsNumbers) {
  run(request("packed", {"method=rtn", "format=awq"}));
  QuantizeRequest asked = request("q", {"method=rtn", "scheme=w8a16"});
  asked.recipe.model = (scratch_ / "packed").string();
  run(asked);
  RebuildRequest rebuild;
  rebuild.output = scratch_ / "q";
  rebuild.program = settings().program;
  const Rebuild same = rebuild_output(system_io(), rebuild);
  EXPECT_TRUE(same.ok()) << same.to_json().dump(1);
}

// Each of these keys was once read and dropped.
TEST_F(QuantizeJobTest, KeysOfAnLlmCompressorRecipeChangeTheBytes) {
  std::map<std::string, std::string> digests;
  for (const char* keys :
       {"{}", "{dampening_frac: 0.9}", "{actorder: static}", "{actorder: group}", "{actorder: null}"}) {
    QuantizeRequest asked = request("q" + std::to_string(digests.size()));
    const Recipe read = Recipe::parse(
        "quant_stage:\n  quant_modifiers:\n    QuantizationModifier: {config_groups: {g: {targets: [Linear], "
        "weights: "
        "{num_bits: 4, strategy: group, group_size: 32}}}}\n    GPTQModifier: " +
            std::string(keys) + "\n",
        "r.yaml");
    asked.recipe.methods = read.methods;
    asked.recipe.scheme = read.scheme;
    asked.recipe.gptq = read.gptq;
    const JobEnd end = run(asked);
    EXPECT_TRUE(digests.emplace(digest_of(end), keys).second)
        << keys << " gives the bytes of " << digests.at(digest_of(end));
  }
}

TEST_F(QuantizeJobTest, ChatsCalibrateThroughTheModelsTemplate) {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines +=
        R"({"messages":[{"role":"user","content":"Once upon a time"},{"role":"assistant","content":"there was a ball."}]})"
        "\n";
  const std::string chats = scratch_.write("chats.jsonl", lines).string();
  const std::vector<std::string> chat = {"calibration.text=[" + chats + "]",
                                         "calibration.chat_template=true"};
  try {
    run(request("none", chat));
    ADD_FAILURE() << "the model has no template";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("the model has no chat template"));
  }
  std::filesystem::copy(LLMQ_SOURCE_DIR "/tests/models/tinystories-656k", scratch_ / "m");
  scratch_.write("m/chat_template.jinja",
                 "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
  std::set<std::string> calibrations, digests;
  for (const bool is_chat : {false, true}) {
    QuantizeRequest asked = request(is_chat ? "chat" : "plain", {chat[0]});
    asked.recipe.calibration.chat_template = is_chat;
    asked.recipe.model = (scratch_ / "m").string();
    const JobEnd end = run(asked);
    const Json& calibration = end.document.at("calibration");
    EXPECT_EQ(calibration.find("chat_template") != nullptr, is_chat);
    calibrations.insert(calibration.at("sha256").as_string());
    digests.insert(digest_of(end));
  }
  EXPECT_EQ(calibrations.size(), 2u);
  EXPECT_EQ(digests.size(), 2u);
}

TEST_F(QuantizeJobTest, TheCardSaysWhatTheModelAndTheRecipeSay) {
  const std::string model = LLMQ_SOURCE_DIR "/tests/models/tinystories-656k",
                    place = "hub/models--org--tiny/snapshots/abc";
  std::filesystem::create_directories(scratch_ / "hub/models--org--tiny/snapshots");
  std::filesystem::copy(model, scratch_ / place);
  scratch_.write(place + "/README.md",
                 "---\nlicense: other\nlicense_name: tiny-licence\nlicense_link: LICENSE\n---\n");
  QuantizeRequest asked = request("q", {"method=rtn"});
  asked.recipe.model = (scratch_ / place).string();
  run(asked);
  const std::string card = scratch_.read("q/README.md");
  EXPECT_THAT(card, ::testing::HasSubstr(
                        "base_model: \"org/tiny\"\nbase_model_relation: quantized\nlicense: \"other\"\n"
                        "license_name: \"tiny-licence\"\nlicense_link: \"LICENSE\"\ntags:"));
  asked = request("r", {"base_model=org/large", "license=mit", "datasets=[a/b]", "quantized_by=somebody"});
  asked.recipe.model = (scratch_ / place).string();
  run(asked);
  EXPECT_THAT(
      scratch_.read("r/README.md"),
      ::testing::HasSubstr("base_model: \"org/large\"\nbase_model_relation: quantized\nlicense: \"mit\"\n"
                           "datasets:\n- \"a/b\"\nquantized_by: \"somebody\"\ntags:"));
  run(request("s", {"calibration.text=[builtin:c4]"}));
  const std::string local = scratch_.read("s/README.md");
  EXPECT_THAT(local, ::testing::HasSubstr("text-generation\ndatasets:\n- \"allenai/c4\"\ntags:"));
}

TEST_F(QuantizeJobTest, AGgufSaysItsLicenceAndWhoMadeIt) {
  run(request("q.gguf",
              {"format=gguf", "method=rtn", "scheme=q8_0", "license=mit", "quantized_by=somebody"}));
  const GgufFile file = open_gguf(system_io(), scratch_ / "q.gguf");
  EXPECT_EQ(file.header.find_string("general.license"), "mit");
  EXPECT_EQ(file.header.find_string("general.quantized_by"), "somebody");
}

TEST_F(QuantizeJobTest, AGgufsReportSaysWhatMultipliedForItsImportance) {
  const auto report_on = [&](const std::string& name, const std::shared_ptr<Backend>& device) {
    JobSettings on_device = settings();
    on_device.devices = {device};
    QuantizeJob(system_io(),
                request(name, {"format=gguf", "method=imatrix", "scheme=q4_k_m", "calibration.samples=1",
                               "calibration.sequence_length=16"}),
                on_device)
        .run();
    return Json::parse(scratch_.read(name + ".report.json"), name);
  };
  const Json report = report_on("a.gguf", testing::stand_in_backend());
  const std::vector<Json>& kernels = report.at("kernels").items();
  ASSERT_FALSE(kernels.empty());
  for (const Json& one : kernels) EXPECT_EQ(one.at("kernel").as_string(), "stand-in 1.2.3: algorithm 0");
  const Json without = report_on("b.gguf", make_backend_on(std::make_unique<testing::DeviceWithoutLibrary>(),
                                                           1, DeviceUse::kCalibration));
  EXPECT_EQ(without.at("kernels").items().front().at("what").as_string(), "dense products");
  EXPECT_THAT(without.at("warnings").dump(), ::testing::HasSubstr("dense products have the own kernels"));
}

}  // namespace
}  // namespace llmq
