// What a recipe for GGUF means, what is refused, and that importance is the diagonal of the Gram matrix over
// the tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/backend.h"
#include "export/convert.h"
#include "model/open_checkpoint.h"
#include "quant/pipeline/activation_stream.h"
#include "quant/pipeline/imatrix_collection.h"
#include "quant/plan/gguf_plan.h"
#include "tests/support/named_parts.h"
#include "tests/support/temporary_directory.h"

namespace llmq {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const Path kModel = Path(LLMQ_SOURCE_DIR) / "tests/models/tinystories-656k";

GgufPlan gguf_plan_of(const std::string& text, std::uint64_t memory_limit = 0) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), kModel.string());
  return make_gguf_plan(system_io(), Recipe::parse("format: gguf\n" + text, "r.yaml"), checkpoint,
                        ModelSpec::read(checkpoint), Compute::kFloat32, memory_limit);
}

std::uint64_t gguf_peak_of(const GgufPlan& plan) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), kModel.string());
  return estimate_costs(plan, checkpoint, ModelSpec::read(checkpoint)).peak_bytes;
}

std::string gguf_plan_error(const std::string& text) {
  try {
    gguf_plan_of(text);
    return {};
  } catch (const Error& error) {
    return error.detail().where + ": " + error.detail().message + "; " + error.detail().hint;
  }
}

TEST(GgufPlan, MethodsChooseImportanceAndSearch) {
  const GgufPlan plain = gguf_plan_of("method: rtn\nscheme: Q4_0\n");
  EXPECT_EQ(plain.importance, "none");
  EXPECT_EQ(plain.search, BlockSearch::kGgml);
  EXPECT_FALSE(plain.needs_calibration());
  EXPECT_EQ(plain.file_type->name, "Q4_0");
  const GgufPlan weighted = gguf_plan_of("method: imatrix\n");
  EXPECT_EQ(weighted.importance, "calibration");
  EXPECT_EQ(weighted.search, BlockSearch::kBest);
  EXPECT_EQ(weighted.file_type->name, "Q4_K_M");
  const GgufPlan filed =
      gguf_plan_of("method: imatrix\nscheme: q5_1\ngguf: {importance: i.dat, search: ggml}\n");
  EXPECT_EQ(filed.importance, "i.dat");
  EXPECT_EQ(filed.search, BlockSearch::kGgml);
  EXPECT_FALSE(filed.needs_calibration());
}

TEST(GgufPlan, CountsBytes) {
  const GgufPlan plan = gguf_plan_of("method: rtn\nscheme: f32\n");
  std::uint64_t elements = 0;
  for (const GgufPlan::Tensor& tensor : plan.tensors)
    elements += static_cast<std::uint64_t>(tensor.shape.elements());
  EXPECT_EQ(plan.bytes_out(), 4 * elements);
  EXPECT_EQ(plan.bits_per_weight(), 32);
  EXPECT_EQ(plan.tensors.size(), 20u);
}

TEST(GgufPlan, SaysWhatItCannotDo) {
  EXPECT_THAT(gguf_plan_error("method: awq\n"), HasSubstr("method rtn or imatrix"));
  EXPECT_THAT(gguf_plan_error("method: awq\nawq: {salient_fp16: 0.01}\n"),
              HasSubstr("write format: safetensors"));
  EXPECT_THAT(gguf_plan_error("method: [imatrix, gptq]\n"), HasSubstr("method rtn or imatrix"));
  EXPECT_THAT(gguf_plan_error("method: rtn\nscheme: w4a16_g64_sym\n"), HasSubstr("q4_k_m"));
  EXPECT_THAT(gguf_plan_error("method: rtn\nscheme: q4_k_x\n"), HasSubstr("q4_k_x"));
  EXPECT_THAT(gguf_plan_error("method: rtn\nignore: [lm_head, q_proj]\n"),
              HasSubstr("ignore: the types inside"));
  EXPECT_THAT(gguf_plan_error("method: imatrix\nkv_cache: {dtype: fp8}\n"),
              HasSubstr("kv_cache.dtype: a GGUF"));
  EXPECT_THAT(gguf_plan_error("method: rtn\nmixed: {bits: [3, 4]}\n"), HasSubstr("mixed.bits: "));
  EXPECT_THAT(gguf_plan_error("method: rtn\nmixed: {schemes: [w4a16_g64_asym, fp8]}\n"),
              HasSubstr("mixed.schemes: "));
  EXPECT_THAT(gguf_plan_error("method: rtn\ngguf: {importance: calibration}\n"),
              HasSubstr("without importance"));
  EXPECT_THAT(gguf_plan_error("method: imatrix\ngguf: {importance: none}\n"), HasSubstr("with importance"));
  EXPECT_THAT(gguf_plan_error("method: imatrix\nscheme: f16\n"), HasSubstr("changes nothing"));
  EXPECT_THAT(gguf_plan_error("method: imatrix\ngguf: {importance: f.dat, imatrix_out: o.dat}\n"),
              HasSubstr("imatrix_out"));
  EXPECT_THAT(gguf_plan_error("method: imatrix\ncalibration: {sequence_length: 4096}\n"),
              HasSubstr("512 positions"));
}

TEST(GgufPlan, GivesUpKeptInputsBeforeRefusingALimit) {
  const GgufPlan plan = gguf_plan_of("method: imatrix\ncalibration: {samples: 1024}\n");
  EXPECT_TRUE(plan.keep_inputs);
  const GgufPlan tight =
      gguf_plan_of("method: imatrix\ncalibration: {samples: 1024}\n", gguf_peak_of(plan) - 1);
  EXPECT_FALSE(tight.keep_inputs);
  EXPECT_LT(gguf_peak_of(tight), gguf_peak_of(plan));
  EXPECT_THROW(gguf_plan_of("method: imatrix\n", 1 << 20), Error);
}

TEST(GgufRecipe, PathsAreTakenAsTypedEachIntoItsOwnPlace) {
  Recipe recipe;
  for (const char* setting :
       {"output=o.gguf", "gguf.importance=a: b.dat", "gguf.imatrix_out=no", "scheme=Q5_K_S"})
    recipe.set(setting);
  EXPECT_EQ(recipe.output, "o.gguf");
  EXPECT_EQ(recipe.gguf.importance, "a: b.dat");
  EXPECT_EQ(recipe.gguf.imatrix_out, "no");
  EXPECT_EQ(recipe.gguf.type, "q5_k_s");
  EXPECT_EQ(recipe.to_json().at("scheme").as_string(), "q5_k_s");
}

std::string packed_plan_error(const std::string& text) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), kModel.string());
  try {
    make_plan(Recipe::parse(text, "r.yaml"), checkpoint, ModelSpec::read(checkpoint), Compute::kFloat32, 1,
              0);
    return {};
  } catch (const Error& error) {
    return error.detail().where + ": " + error.detail().message + "; " + error.detail().hint;
  }
}

TEST(GgufRecipe, OtherFormatsRefuseItsKeys) {
  for (const std::string key : {"importance: none", "search: best", "imatrix_out: m.gguf"})
    EXPECT_THAT(packed_plan_error("method: rtn\ngguf: {" + key + "}\n"),
                AllOf(HasSubstr("gguf." + key.substr(0, key.find(':'))), HasSubstr("format: gguf")));
}

TEST(GgufPlan, OfFloatsOf4BitsTheCodesComeFromADirectory) {
  EXPECT_THAT(gguf_plan_error("method: rtn\nscheme: nvfp4a16\n"), HasSubstr("then convert it --to gguf"));
  EXPECT_THAT(gguf_plan_error("method: rtn\nscheme: w4a16_g64\n"), HasSubstr("write one of f32"));
}

TEST(GgufPlan, SaysWhatARecipeAsksForAndIsNotDone) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), kModel.string());
  Recipe recipe = Recipe::parse("format: gguf\nmethod: rtn\n", "r.yaml");
  recipe.notes = {"a key is not done"};
  const GgufPlan plan =
      make_gguf_plan(system_io(), recipe, checkpoint, ModelSpec::read(checkpoint), Compute::kFloat32, 0);
  EXPECT_THAT(plan.warnings, ElementsAre("a key is not done"));
}

// Whatever is made of it; packed linears have a test of their own (packed_source_test.cpp).
TEST(RoundedTwice, IsSaid) {
  const testing::TemporaryDirectory disk;
  ConvertRequest request;
  request.source = kModel.string();
  request.target.directory = disk / "q.gguf";
  request.to = "gguf";
  request.dtype = "q8_0";
  convert(system_io(), open_checkpoint(system_io(), request.source), request);
  const Checkpoint blocks = open_checkpoint(system_io(), request.target.directory.string());
  const ModelSpec spec = ModelSpec::read(blocks);
  const Recipe to_gguf = Recipe::parse("format: gguf\nmethod: rtn\nscheme: q4_0\n", "r.yaml"),
               to_packed = Recipe::parse("method: rtn\n", "r.yaml");
  EXPECT_THAT(make_gguf_plan(system_io(), to_gguf, blocks, spec, Compute::kFloat32, 0).warnings,
              ElementsAre(HasSubstr("is stored as Q8_0 and is rounded a second time")));
  EXPECT_THAT(make_plan(to_packed, blocks, spec, Compute::kFloat32, 1, 0).warnings,
              Contains(HasSubstr("is stored as Q8_0 and is rounded a second time")));
}

std::string told_of(const Path& model, const std::string& recipe) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), model.string());
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const Recipe asked = Recipe::parse(recipe, "r.yaml");
  const std::vector<std::string> warnings =
      asked.format == "gguf"
          ? make_gguf_plan(system_io(), asked, checkpoint, spec, Compute::kFloat32, 0).warnings
          : make_plan(asked, checkpoint, spec, Compute::kFloat32, 1, 0).warnings;
  std::string told;
  for (const std::string& warning : warnings)
    if (warning.find("a second time") != std::string::npos) told += warning.substr(0, warning.find(':'));
  return told;
}

// Whatever rounded them, where the plan rounds them again.
TEST(RoundedTwice, IsSaidOfEveryStoredForm) {
  const Path models = Path(LLMQ_SOURCE_DIR) / "tests/golden/models", fp8 = models / "deepseek_v3-fp8/model",
             mxfp4 = models / "gpt_oss-mxfp4/model";
  EXPECT_EQ(told_of(fp8, "method: rtn\nscheme: w8a16_channel\n"),
            "model.layers.0.self_attn.q_a_proj is stored as FP8 in blocks of 8 x 16 and is rounded a second "
            "time, and those like it");
  EXPECT_THAT(told_of(fp8, "method: rtn\nscheme: q4_0\nformat: gguf\n"),
              HasSubstr("FP8 in blocks of 8 x 16"));
  const std::string experts = "method: rtn\nscheme: mxfp4\nformat: mxfp4\nignore: ['re:.*self_attn'";
  EXPECT_THAT(told_of(mxfp4, experts + "]\n"),
              HasSubstr("layers.0.mlp.experts.0.gate_proj is stored as MXFP4"));
  EXPECT_THAT(told_of(mxfp4, experts + ", 're:.*layers.0']\n"),
              HasSubstr("layers.1.mlp.experts.0.gate_proj"));
  EXPECT_THAT(told_of(mxfp4, "method: rtn\nscheme: q4_0\nformat: gguf\n"), HasSubstr("is stored as MXFP4"));
  for (const char* copied : {"q8_0", "mxfp4_moe"})
    EXPECT_EQ(told_of(mxfp4, std::string("method: rtn\nformat: gguf\nscheme: ") + copied), "") << copied;
  const testing::TemporaryDirectory disk;
  for (const auto& [to, form] : {std::pair{"bitsandbytes", "q_proj is stored as NF4"},
                                 std::pair{"mlx", "q_proj is stored as MLX codes of 4 bits"}}) {
    ConvertRequest request;
    request.source = kModel.string();
    request.target.directory = disk / to;
    request.to = to;
    convert(system_io(), open_checkpoint(system_io(), request.source), request);
    EXPECT_THAT(told_of(disk / to, "method: rtn\n"), HasSubstr(form));
    EXPECT_THAT(told_of(disk / to, "method: rtn\nscheme: q4_0\nformat: gguf\n"), HasSubstr(form));
  }
}

TEST(GgufRecipe, OtherFormatsRefuseItsTypes) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), kModel.string());
  try {
    make_plan(Recipe::parse("method: rtn\nscheme: q4_k_m\n", "r.yaml"), checkpoint,
              ModelSpec::read(checkpoint), Compute::kFloat32, 1, 0);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.detail().hint, HasSubstr("format: gguf"));
  }
}

TEST(GgufPlan, WarnsWhereTheDevicesLibraryIsMissing) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), kModel.string());
  PlannedDevices devices;
  devices.own_products = "dense products have the own kernels: it is not there";
  const auto warnings = [&](const char* method, Compute compute) {
    const Recipe recipe =
        Recipe::parse(fmt::format("format: gguf\nmethod: {}\nscheme: q4_k_m\n", method), "r.yaml");
    return make_gguf_plan(system_io(), recipe, checkpoint, ModelSpec::read(checkpoint), compute, 0, devices)
        .warnings;
  };
  EXPECT_THAT(warnings("imatrix", Compute::kBFloat16), Contains(devices.own_products));
  EXPECT_THAT(warnings("imatrix", Compute::kFloat32), Not(Contains(devices.own_products)));
  EXPECT_THAT(warnings("rtn", Compute::kBFloat16), Not(Contains(devices.own_products)));
}

TEST(Importance, IsTheDiagonalOfTheGramMatrixOverTheTokens) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), kModel.string());
  const ModelSpec spec = ModelSpec::read(checkpoint);
  CalibrationSet calibration;
  for (int sample = 0; sample < 3; ++sample) {
    calibration.samples.emplace_back();
    for (int i = 0; i < 32; ++i) calibration.samples.back().push_back((sample * 37 + i * 11) % 2000);
  }
  std::vector<Imatrix> found;
  for (const int threads : {1, 3}) {
    const std::shared_ptr<Backend> backend = make_backend({"cpu", threads});
    ImportanceOptions options{Compute::kFloat32, 64, threads == 1, {}};
    found.push_back(collect_importance(checkpoint, spec, calibration, *backend, options));
  }
  ASSERT_EQ(found[0].entries.size(), 14u);
  for (const auto& [name, entry] : found[0].entries) {
    EXPECT_EQ(entry.sums, found[1].entries.at(name).sums) << name;
    EXPECT_EQ(entry.counts, std::vector<float>{96}) << name;
  }
  EXPECT_EQ(found[0].chunk_count, 3u);
  EXPECT_EQ(found[0].chunk_size, 32u);

  const std::shared_ptr<Backend> backend = make_backend({"cpu", 1});
  const ForwardContext context = make_forward_context(spec, *backend, Compute::kFloat32, 32);
  ActivationStream stream(context, calibration, 64, true);
  stream.embed(checkpoint, calibration);
  const LinearSource source = LinearSource::open(checkpoint);
  for (int block = 0; block < 2; ++block) {
    const BlockWeights weights =
        load_block(*backend, Compute::kFloat32, source, spec.blocks[static_cast<std::size_t>(block)]);
    const std::pair<const char*, const char*> sites[] = {
        {"x_attn", "attn_q"}, {"x_o", "attn_output"}, {"x_mlp", "ffn_up"}, {"x_down", "ffn_down"}};
    const BlockSpec& structure = spec.blocks[static_cast<std::size_t>(block)];
    for (const auto& [site_name, name] : sites) {
      const SiteId site = site_named(structure, site_name);
      const InputStats stats = stream.statistics(site, block, weights, Samples::kAll);
      const std::vector<float> means = found[0].importance(fmt::format("blk.{}.{}.weight", block, name));
      ASSERT_EQ(static_cast<std::int64_t>(means.size()), stats.channels());
      // The Gram matrix is summed in FP32 over 64 rows at most: each sum of squares is within 64 units of
      // 2^-24 of the true one.
      for (std::int64_t k = 0; k < stats.channels(); ++k)
        EXPECT_NEAR(means[static_cast<std::size_t>(k)], stats.gram_at(k, k) / 96.0,
                    66 * 0x1p-24 * stats.gram_at(k, k) / 96.0);
      if (const std::size_t part = structure.part_of(site); site == structure.sublayers[part].sites.back())
        stream.finish(part, block, weights);
    }
  }
}

}  // namespace
}  // namespace llmq
