// What loaders that run several linears as one make of a checkpoint: parts that the model does not have,
// parts that are dense, and numbers that each part has for itself.
#include "export/formats/fused_linears.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "export/formats/fused_scales.h"
#include "export/formats/packed_modules.h"
#include "export/inspect.h"
#include "tests/unit/export/convert_fixture.h"
#include "tests/unit/export/named_scheme.h"
#include "tests/unit/export/stored_matrix.h"
#include "tests/unit/model/scratch_gemma4.h"

namespace llmq::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

LoaderVerdict verdict_of(const std::string& path, const std::string& loader) {
  for (LoaderVerdict& one : inspect(system_io(), path, false).loaders)
    if (one.loader.starts_with(loader)) return std::move(one);
  ADD_FAILURE() << "no verdict of " << loader;
  return {};
}

// The linears of a model in 8 bits, those of its second block by `second`; `left` stays dense.
std::string packed_of(const ScratchModel& model, const TemporaryDirectory& disk, const std::string& format,
                      const QuantScheme& first, const QuantScheme& second, const std::string& left = "") {
  const Checkpoint checkpoint = model.open();
  std::vector<PlannedModule> modules = every_linear(ModelSpec::read(checkpoint), first);
  std::vector<std::string> dense = {"lm_head"};
  if (std::erase_if(modules, [&](const PlannedModule& m) { return m.module == left; }) != 0)
    dense.push_back(left);
  for (PlannedModule& m : modules)
    if (m.module.starts_with("model.layers.1.")) m.scheme = second;
  write_packed(system_io(), format, {disk / "packed", true}, checkpoint, modules, dense);
  return (disk / "packed").string();
}

std::vector<std::string> targets_of(const std::string& path, const char* group) {
  const Json config = open_checkpoint(system_io(), path).config();
  std::vector<std::string> targets;
  const Json& groups = config.at("quantization_config").at("config_groups");
  for (const Json& target : groups.at(group).at("targets").items()) targets.push_back(target.as_string());
  return targets;
}

const QuantScheme kEightBits = scheme_of(8, 0, true), kFourBits = scheme_of(4, 0, true);

// Gemma 4: v_proj is missing where a block's keys are its values, and vLLM loads k_proj as both.
TEST(FusedLinears, KeysThatAreValuesAreNoMissingPart) {
  const ScratchGemma4 model;
  const TemporaryDirectory disk;
  const LoaderVerdict found =
      verdict_of(packed_of(model, disk, "compressed-tensors", kEightBits, kEightBits), "vLLM");
  EXPECT_TRUE(found.fits) << found.reason;
  EXPECT_THAT(found.note, HasSubstr("padded"));
  const std::string keys = "model.layers.1.self_attn.k_proj";
  EXPECT_EQ(
      verdict_of(packed_of(model, disk, "compressed-tensors", kEightBits, kEightBits, keys), "vLLM").reason,
      "model.layers.1.self_attn.q_proj becomes part of model.layers.1.self_attn.qkv_proj there, and "
      "model.layers.1.self_attn.k_proj is not quantized");
}

// vLLM asks of q_proj, k_proj and v_proj by name where there are several groups of targets.
TEST(FusedLinears, ValuesThatAreKeysAreTargetsOfMixedOutputs) {
  const ScratchGemma4 model;
  const TemporaryDirectory disk;
  const std::string path = packed_of(model, disk, "compressed-tensors", kEightBits, kFourBits);
  const std::string attention = "model.layers.1.self_attn.";
  EXPECT_THAT(targets_of(path, "group_1"),
              IsSupersetOf({attention + "q_proj", attention + "k_proj", attention + "v_proj"}));
  EXPECT_THAT(targets_of(path, "group_0"), Not(Contains(attention + "v_proj")));
  EXPECT_TRUE(verdict_of(path, "vLLM").fits) << verdict_of(path, "vLLM").reason;
  ModelSpec::read(open_checkpoint(system_io(), path));
}

// Blocks that read other blocks' pages have queries alone, whether or not keys are stored that nobody reads.
TEST(FusedLinears, QueriesAloneAreNoPart) {
  for (const bool stored : {false, true}) {
    ScratchSharedGemma4 model;
    if (stored)
      for (const char* unread : {"k_proj.weight", "k_norm.weight"})
        model.tensors[std::string("model.layers.1.self_attn.") + unread] =
            model.tensors.at(std::string("model.layers.0.self_attn.") + unread);
    const TemporaryDirectory disk;
    const LoaderVerdict found =
        verdict_of(packed_of(model, disk, "compressed-tensors", kEightBits, kFourBits), "vLLM");
    EXPECT_TRUE(found.fits) << found.reason;
  }
}

class FusedScalesTest : public ConvertTest {
 protected:
  // Every linear by one scheme; one has another global scale, and perhaps another of its inputs.
  std::string write(const std::string& format, const char* scheme, const std::string& other, float its_global,
                    float its_inputs = 0) {
    std::filesystem::remove_all(disk_ / "packed");
    const Checkpoint checkpoint = open_checkpoint(system_io(), source_);
    const ModelSpec spec = ModelSpec::read(checkpoint);
    const std::vector<PlannedModule> modules = every_linear(spec, scheme_named(scheme));
    const auto writer =
        open_writer(system_io(), format, {disk_ / "packed", true}, checkpoint, spec, modules, {});
    add_dense_tensors(*writer, checkpoint, modules);
    for (std::size_t i = 0; i < modules.size(); ++i) {
      const bool is_other = modules[i].module == other;
      QuantizedMatrix matrix = stored_matrix(modules[i], i + 1, is_other ? its_global : 8);
      if (matrix.input_scale != 0 && matrix.scheme.scale_form() == ScaleForm::kTwoLevel)
        matrix.input_scale = is_other && its_inputs != 0 ? its_inputs : 32;
      writer->add_quantized(modules[i].module, matrix);
    }
    writer->finish({});
    return (disk_ / "packed").string();
  }
  std::string said_of_converting(const std::string& to) {
    std::filesystem::remove_all(disk_ / "there");
    ::testing::internal::CaptureStderr();
    run(disk_ / "packed", disk_ / "there", to);
    return ::testing::internal::GetCapturedStderr();
  }
};

constexpr const char* kOddKeys = "model.layers.1.self_attn.k_proj";

// compressed-tensors has what scales are divided by, modelopt what they are multiplied by.
TEST_F(FusedScalesTest, UnlikeScalesOfWeightsAreNamedWithTheirSet) {
  for (const auto& [format, to, numbers] :
       {std::tuple{"compressed-tensors", "modelopt", "(16 and 8)"},
        std::tuple{"modelopt", "compressed-tensors", "(0.0625 and 0.125)"}}) {
    SCOPED_TRACE(format);
    const std::string two = kOddKeys + std::string(" and model.layers.1.self_attn.q_proj");
    LoaderVerdict found = verdict_of(write(format, "nvfp4a16", kOddKeys, 16), "vLLM");
    EXPECT_FALSE(found.fits);
    EXPECT_EQ(found.reason, fmt::format("{} become one linear there and have different global scales {}, of "
                                        "which one would decode both: the weights would be wrong",
                                        two, numbers));
    EXPECT_THAT(said_of_converting(to), HasSubstr(fmt::format("packed: {} have different global scales {}; "
                                                              "--to {} keeps them, and vLLM",
                                                              two, numbers, to)));
    EXPECT_FALSE(verdict_of((disk_ / "there").string(), "vLLM").fits);
    EXPECT_EQ(said_of_converting("safetensors"), "") << "where each is decoded by its own";
    found = verdict_of(write(format, "nvfp4a16", kOddKeys, 8), "vLLM");
    EXPECT_TRUE(found.fits) << found.reason;
    EXPECT_EQ(said_of_converting(to), "");
    // Of a linear that stays alone there is nothing to be like.
    EXPECT_TRUE(verdict_of(write(format, "nvfp4a16", "model.layers.1.self_attn.o_proj", 16), "vLLM").fits);
  }
  EXPECT_TRUE(verdict_of(write("compressed-tensors", "nvfp4a16", kOddKeys, 16), "Transformers").fits);
}

TEST_F(FusedScalesTest, UnlikeScalesOfInputsAreANote) {
  for (const auto& [format, numbers] :
       {std::pair{"compressed-tensors", "64 and 32"}, std::pair{"modelopt", "0.015625 and 0.03125"}}) {
    SCOPED_TRACE(format);
    const LoaderVerdict found = verdict_of(write(format, "nvfp4", kOddKeys, 8, 64), "vLLM");
    EXPECT_TRUE(found.fits) << found.reason;
    EXPECT_THAT(found.note, HasSubstr(fmt::format("{} and model.layers.1.self_attn.q_proj become one linear "
                                                  "there, whose inputs are rounded by one of their scales "
                                                  "({})",
                                                  kOddKeys, numbers)));
    EXPECT_THAT(verdict_of(write(format, "nvfp4", kOddKeys, 8, 32), "vLLM").note, Not(HasSubstr("inputs")));
  }
}

TEST_F(FusedScalesTest, EverySetIsCounted) {
  write("modelopt", "nvfp4a16", kOddKeys, 16);
  const PackedModules packed = read_packed_modules(open("packed"));
  ASSERT_TRUE(read_fused_scales(open("packed"), packed.modules).weights);
  EXPECT_EQ(read_fused_scales(open("packed"), packed.modules).weights->sets, 1);
  UnlikeScales three = *read_fused_scales(open("packed"), packed.modules).weights;
  three.sets = 3;
  EXPECT_THAT(said_of_keeping(three, "modelopt"), HasSubstr(", and so have linears of 2 further sets; --to"));
}

}  // namespace
}  // namespace llmq::testing
