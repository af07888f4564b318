// Checkpoints whose linears are packed already, quantized: the bytes are those of the job over the numbers
// that the codes stand for, the plan says what was lost before, and nothing of the source's packing stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/half.h"
#include "export/convert.h"
#include "export/gguf/tensor_source.h"
#include "model/linear_source.h"
#include "model/open_checkpoint.h"
#include "model/packed/unpacked.h"
#include "quant/plan/disk_reads.h"
#include "quant/plan/gguf_plan.h"
#include "small_job.h"

namespace llmq {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const Path kStories = Path(LLMQ_SOURCE_DIR) / "tests/models/tinystories-656k";

class PackedSource : public ::testing::Test {
 protected:
  Checkpoint open(const std::string& name) { return open_checkpoint(system_io(), (disk_ / name).string()); }

  std::string quantize(const Checkpoint& checkpoint, const std::string& recipe, const std::string& to) {
    return testing::SmallJob{recipe, {disk_ / to, true}}.run(system_io(), checkpoint).digest;
  }
  // The packed directory, with so much of the recipe.
  Checkpoint packed(const std::string& recipe) {
    quantize(open_checkpoint(system_io(), kStories.string()), "method: rtn\n" + recipe, "packed");
    return open("packed");
  }
  Checkpoint converted(const std::string& from, const std::string& to) {
    ConvertRequest request;
    request.source = (disk_ / from).string();
    request.target = {disk_ / to, true};
    request.to = "safetensors";
    request.dtype = "f32";
    convert(system_io(), open(from), request);
    return open(to);
  }
  static Plan plan_of(const std::string& recipe, const Checkpoint& checkpoint, const ModelSpec& spec) {
    return make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, spec, Compute::kFloat32, 1, 0);
  }

  testing::TemporaryDirectory disk_;
};

class EveryPackedSource : public PackedSource, public ::testing::WithParamInterface<const char*> {};

TEST_P(EveryPackedSource, GivesTheBytesOfItsNumbers) {
  const Checkpoint source = unpacked(packed(GetParam())), dense = converted("packed", "dense");
  for (const std::string recipe : {"method: rtn\nscheme: w4a16_g64_asym\n",
                                   "method: [awq, gptq]\nscheme: w3a16_g32_asym\nawq: {grid: 4}\n"}) {
    const std::string digest = quantize(source, recipe, "again");
    EXPECT_EQ(digest, quantize(dense, recipe, "of-numbers")) << recipe;
    EXPECT_NE(open("again").config().find("quantization_config"), nullptr);
  }
  EXPECT_TRUE(is_unpacked(source));
  EXPECT_FALSE(is_unpacked(dense));
}

INSTANTIATE_TEST_SUITE_P(Formats, EveryPackedSource,
                         ::testing::Values("scheme: w4a16_g32_asym\n",
                                           "format: awq\nscheme: w4a16_g32_asym\n",
                                           "format: gptq\nscheme: w4a16_g32_sym\n", "scheme: fp8_block\n",
                                           "scheme: w8a8_channel_sym\n", "scheme: nvfp4a16\n",
                                           "scheme: mxfp4\n", "format: modelopt\nscheme: nvfp4a16\n"));

TEST_F(PackedSource, IsTheDenseModelOfItsNumbers) {
  const Checkpoint codes = packed("scheme: fp8_static\nkv_cache: {dtype: fp8}\n"), source = unpacked(codes),
                   dense = converted("packed", "dense");
  EXPECT_EQ(source.config().find("quantization_config"), nullptr);
  EXPECT_EQ(source.tensors().size(), dense.tensors().size());
  for (const StoredTensor& tensor : dense.tensors())
    EXPECT_EQ(source.read_float32(source.at(tensor.name)), dense.read_float32(tensor)) << tensor.name;
  EXPECT_EQ(source.tensor_bytes(), codes.tensor_bytes());
  const Checkpoint same = unpacked(dense);
  EXPECT_EQ(same.tensors().data(), dense.tensors().data()) << "it is returned as it is";
}

TEST_F(PackedSource, IsSaidToHaveLostBefore) {
  const Checkpoint source = unpacked(packed("scheme: fp8_static\nkv_cache: {dtype: fp8}\n"));
  const ModelSpec spec = ModelSpec::read(source);
  const auto told =
      AllOf(Contains(HasSubstr(
                "14 linears are stored as compressed-tensors fp8_static, and those that are quantized "
                "are rounded a second time")),
            Contains(HasSubstr("14 of these round their inputs (fp8_static), which is left out")),
            Contains(HasSubstr("the stored scales of a KV cache are left out")));
  EXPECT_THAT(plan_of("method: rtn\n", source, spec).warnings, told);
  EXPECT_THAT(make_gguf_plan(system_io(), Recipe::parse("format: gguf\nmethod: rtn\n", "r.yaml"), source,
                             spec, Compute::kFloat32, 0)
                  .warnings,
              told);
  const Checkpoint weights = unpacked(packed("format: gptq\nscheme: w4a16_g32_sym\n"));
  EXPECT_THAT(plan_of("method: rtn\nignore: [lm_head]\n", weights, spec).warnings,
              ElementsAre(HasSubstr("stored as gptq w4a16_g32_sym")));
}

// Linears that stay dense are numbers in the output, whatever they were before.
TEST_F(PackedSource, LeavesLinearsDenseAsNumbers) {
  const Checkpoint source = unpacked(packed("format: gptq\nscheme: w4a16_g32_sym\n"));
  quantize(source, "method: awq\nawq: {grid: 4}\nscheme: w4a16_g64_asym\nignore: ['re:.*layers.0.*']\n",
           "again");
  const Checkpoint output = open("again");
  const std::string left = "model.layers.0.mlp.up_proj.weight";
  std::vector<float> numbers = source.read_float32(source.at(left));
  for (float& number : numbers) number = to_float(to_bfloat16(number));
  EXPECT_EQ(output.at(left).view.dtype, DType::kBF16);
  EXPECT_EQ(output.read_float32(output.at(left)), numbers);
  for (const StoredTensor& tensor : output.tensors())
    EXPECT_THAT(tensor.name, Not(::testing::EndsWith("qweight")));
  EXPECT_EQ(ModelSpec::read(output).blocks.size(), 2u);
}

// The numbers, and what is read for them, are those of the codes.
TEST_F(PackedSource, IsReadForAGguf) {
  const Checkpoint codes = packed("format: awq\nscheme: w4a16_g32_asym\n"), source = unpacked(codes);
  const ModelSpec spec = ModelSpec::read(source);
  const auto of_codes = open_gguf_tensors(system_io(), codes, spec, false),
             of_numbers = open_gguf_tensors(system_io(), source, spec, false);
  ASSERT_EQ(of_codes->tensors().size(), of_numbers->tensors().size());
  for (std::size_t i = 0; i < of_codes->tensors().size(); ++i) {
    const std::int64_t rows = of_codes->tensors()[i].shape.elements() / of_codes->tensors()[i].shape.back();
    EXPECT_EQ(of_codes->rows(i, 0, rows), of_numbers->rows(i, 0, rows)) << of_codes->tensors()[i].name;
    EXPECT_EQ(of_codes->bytes_to_read(i), of_numbers->bytes_to_read(i));
  }
}

TEST_F(PackedSource, IsPlannedByItsPackedBytes) {
  const std::string recipe = "method: rtn\n";
  const Checkpoint codes = packed("format: gptq\nscheme: w4a16_g32_sym\n"), source = unpacked(codes);
  const ModelSpec spec = ModelSpec::read(source);
  const Plan plan = plan_of(recipe, source, spec);
  std::uint64_t read = 0;
  for (const ReadPass& pass : read_passes(plan, source, spec)) read += pass.bytes;
  EXPECT_GE(read, codes.tensor_bytes());
  EXPECT_LE(read, codes.tensor_bytes() + codes.tensors().size() * 2 * kIoBlock);
}

TEST_F(PackedSource, IsNoPlanBeforeItIsUnpacked) {
  const Checkpoint codes = packed("format: gptq\nscheme: w4a16_g32_sym\n");
  EXPECT_THAT([&] { plan_of("method: rtn\n", codes, ModelSpec::read(codes)); },
              ::testing::ThrowsMessage<Error>(HasSubstr("are rounded again as numbers alone")));
}

}  // namespace
}  // namespace llmq
