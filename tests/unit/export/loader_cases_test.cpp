// The table of loaders against vLLM's own answers: loader_cases.json, which
// tests/interop/make_loader_cases.py derives from the Python files of its wheel.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/io.h"
#include "export/formats/compressed_codes.h"
#include "export/formats/loader_constraints.h"
#include "tensor/quant_scheme.h"
#include "tests/unit/export/named_scheme.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

Json loader_cases() {
  const Path path = Path(LLMQ_SOURCE_DIR) / "tests/unit/export/loader_cases.json";
  return Json::parse(read_text(system_io(), path), path.string());
}

std::set<std::string> texts_of(const Json& list) {
  std::set<std::string> texts;
  for (const Json& item : list.items()) texts.insert(item.as_string());
  return texts;
}

// [in, out] is o_proj; [in, out, out, out] are q, k and v.
std::vector<PlannedModule> modules_of(const Json& one, const Json& shape) {
  const QuantScheme scheme = scheme_named(one.at("scheme").as_string());
  const bool reordered = one.at("reordered").as_bool();
  const std::int64_t in = shape.items()[0].as_integer();
  if (shape.items().size() == 2)
    return {{"model.layers.0.self_attn.o_proj", scheme, shape.items()[1].as_integer(), in, reordered}};
  std::vector<PlannedModule> modules;
  for (const auto& [name, index] : {std::pair{"q", 1u}, std::pair{"k", 2u}, std::pair{"v", 3u}})
    modules.push_back({fmt::format("model.layers.0.self_attn.{}_proj", name), scheme,
                       shape.items()[index].as_integer(), in, reordered});
  return modules;
}

LoaderVerdict vllm_verdict(const std::string& format, std::span<const PlannedModule> modules) {
  std::vector<LoaderVerdict> found;
  for (LoaderVerdict& one : loader_verdicts(format, modules, "out/x"))
    if (one.loader.starts_with("vLLM")) found.push_back(std::move(one));
  EXPECT_EQ(found.size(), 1u);
  return found.empty() ? LoaderVerdict() : found.front();
}

// How verdicts name what vLLM calls a kernel or a scheme.
std::string word_for(std::string_view kernel) {
  if (kernel.starts_with("Marlin")) return "Marlin kernels; on Hopper";
  if (kernel == "HummingLinearKernel" || kernel == "TritonW4A16LinearKernel") return "Humming, Triton";
  if (kernel == "CompressedTensorsW8A8Int8") return "INT8 kernels";
  if (kernel == "CompressedTensorsW8A16Fp8") return "FP8 kernels";
  return "no word for " + std::string(kernel);
}

TEST(LoaderCases, VerdictsSayWhatVllmSays) {
  const Json cases = loader_cases();
  const std::string version = cases.at("vllm").as_string();
  int loaded = 0, refused = 0, padded = 0;
  for (const Json& one : cases.at("cases").items())
    for (const Json& answer : one.at("answers").items())
      for (const Json& shape : answer.at("shapes").items()) {
        const std::string on_ampere = answer.at("8.0").as_string(), on_hopper = answer.at("9.0").as_string();
        SCOPED_TRACE(fmt::format("{} {} {}{}: {} | {}", one.at("format").as_string(),
                                 one.at("scheme").as_string(), shape.dump(),
                                 one.at("reordered").as_bool() ? " reordered" : "", on_ampere, on_hopper));
        const std::vector<PlannedModule> modules = modules_of(one, shape);
        const LoaderVerdict verdict = vllm_verdict(one.at("format").as_string(), modules);
        EXPECT_THAT(verdict.loader, HasSubstr(version.substr(0, version.rfind('.'))));
        // A kernel of its own, whose compiled part wants more than the Python files say.
        if (on_ampere == "AutoAWQLinearMethod") {
          const std::int64_t out = modules[0].out_features, group = modules[0].scheme.group_size;
          EXPECT_EQ(verdict.fits, group % 32 == 0 && out % 64 == 0 && out % group == 0) << verdict.reason;
          EXPECT_THAT(verdict.loader, HasSubstr("its AWQ kernel"));
          continue;
        }
        const bool loads = !on_ampere.starts_with("refuses") && !on_hopper.starts_with("refuses");
        ASSERT_EQ(verdict.fits, loads) << verdict.reason;
        ++(loads ? loaded : refused);
        if (!loads) continue;
        EXPECT_THAT(verdict.loader, HasSubstr(word_for(on_ampere)));
        EXPECT_EQ(!verdict.note.empty(), on_ampere.ends_with(", padded")) << verdict.note;
        padded += verdict.note.empty() ? 0 : 1;
      }
  EXPECT_GT(loaded, 500);
  EXPECT_GT(refused, 500);
  EXPECT_GT(padded, 50);
}

// compressed-tensors refuses keys that it does not know, and vLLM pins a version that is older than ours.
TEST(LoaderCases, ConfigsHaveNoKeyThatVllmsLibraryDoesNotKnow) {
  const Json cases = loader_cases();
  const std::set<std::string> known = texts_of(cases.at("quantization_arguments"));
  EXPECT_THAT(known, ::testing::Contains("actorder"));
  const Json written = QuantizationArguments().to_json();
  for (const Json::Member& member : written.members()) EXPECT_THAT(known, ::testing::Contains(member.first));
}

// GGUF and bitsandbytes are plug-ins; what llmq writes otherwise is not.
TEST(LoaderCases, VllmKnowsTheMethodsThatConfigsName) {
  const std::set<std::string> methods = texts_of(loader_cases().at("quantization_methods"));
  EXPECT_THAT(methods, IsSupersetOf({"awq", "compressed-tensors", "gptq"}));
  for (const char* plug_in : {"gguf", "bitsandbytes"})
    EXPECT_THAT(methods, Not(::testing::Contains(plug_in)));
  EXPECT_TRUE(loader_verdicts("gguf", {}, "x").empty());
}

}  // namespace
}  // namespace llmq::testing
