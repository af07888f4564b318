// Types that are named for single tensors of a GGUF, by a recipe and by convert: the file has them, KL falls
// with their bits, and the same words make the same file again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.h"
#include "model/gguf/gguf_fields.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;

Words typed_job(const std::string& output, const Words& more = {}) {
  Words words = {"quantize", "--method", "rtn",         "--model", tinystories(), "--output",
                 output,     "--set",    "format=gguf", "--set",   "scheme=q4_0"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const std::string kMoreBits =
    "overrides=[{match: 're:.*mlp', scheme: q8_0}, {match: model.embed_tokens, scheme: q8_0}]";

std::string type_in(const std::string& file, const std::string& tensor) {
  return std::string(dtype_row(find_gguf_tensor(open_gguf(system_io(), file).header, tensor)->dtype).name);
}

double divergence_of(const std::string& file) {
  const Outcome outcome = run_llmq(
      {"eval-ppl", file, "--against", tinystories(), "--max-windows", "2", "--context", "256", "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.json().at("against").at("kl_mean").as_double();
}

TEST(GgufTypesByName, AreInTheFileAndLoseLess) {
  const Scratch scratch;
  const std::string plain = scratch / "plain.gguf", more = scratch / "more.gguf";
  ASSERT_EQ(run_llmq(typed_job(plain)).exit_code, 0);
  const Outcome made = run_llmq(typed_job(more, {"--set", kMoreBits, "--json"}));
  ASSERT_EQ(made.exit_code, 0) << made.err;
  for (const char* tensor : {"blk.0.ffn_down.weight", "blk.1.ffn_up.weight", "token_embd.weight"})
    EXPECT_EQ(type_in(more, tensor), "Q8_0") << tensor;
  EXPECT_EQ(type_in(more, "blk.1.attn_q.weight"), "Q4_0");
  EXPECT_EQ(open_gguf(system_io(), more).header.integer("general.file_type"), 2) << "the scheme's";
  EXPECT_LT(divergence_of(more), 0.8 * divergence_of(plain));
  const Json report = Json::parse(read_file(more + ".report.json"), "report");
  EXPECT_EQ(report.at("recipe").at("overrides").items()[0].at("scheme"), Json("q8_0"));
}

TEST(GgufTypesByName, AreOfTheJob) {
  const Scratch scratch;
  const std::string file = scratch / "m.gguf";
  const Words job = typed_job(file, {"--set", kMoreBits, "--json"});
  ASSERT_EQ(run_llmq(job).exit_code, 0);
  EXPECT_EQ(run_llmq(job).json().at("status").as_string(), "unchanged");
  const Outcome other = run_llmq(typed_job(file));
  EXPECT_EQ(other.exit_code, 2) << "another job does not take its place unasked";
  const Outcome again = run_llmq({"verify", file, "--rebuild", "--json", "--threads", "1"});
  ASSERT_EQ(again.exit_code, 0) << again.out << again.err;
  EXPECT_TRUE(again.json().at("rebuild").at("ok").as_bool());
}

TEST(GgufTypesByName, AreCountedByADryRun) {
  const Scratch scratch;
  const Words more = {"--set", kMoreBits, "--dry-run"};
  Words json = more;
  json.push_back("--json");
  const Outcome planned = run_llmq(typed_job(scratch / "m.gguf", json));
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  ASSERT_EQ(run_llmq(typed_job(scratch / "m.gguf", {"--set", kMoreBits})).exit_code, 0);
  std::uint64_t bytes = 0;
  const GgufFile file = open_gguf(system_io(), scratch / "m.gguf");
  for (const GgufTensor& tensor : file.header.tensors) bytes += tensor.bytes;
  EXPECT_EQ(static_cast<std::uint64_t>(planned.json().at("bytes_out").as_integer()), bytes);
  const Outcome told = run_llmq(typed_job(
      scratch / "n.gguf",
      {"--set", "overrides=[{match: k_proj, scheme: q6_k}, {match: x, scheme: f16}]", "--dry-run"}));
  EXPECT_THAT(told.out, HasSubstr("types that overrides name: Q8_0 of 2 tensors"));
  EXPECT_THAT(told.out, HasSubstr("warning: overrides: 'x' matches no linear of this model"));
  EXPECT_THAT(told.out, HasSubstr("becomes Q8_0, for blocks of Q6_K do not divide its rows of 128"));
}

TEST(GgufTypesByName, ConvertMakesTheFileOfQuantize) {
  const Scratch scratch;
  const std::string by_recipe = scratch / "a.gguf", by_words = scratch / "b.gguf";
  ASSERT_EQ(run_llmq(typed_job(by_recipe, {"--set", kMoreBits})).exit_code, 0);
  const Words words = {"convert",
                       tinystories(),
                       by_words,
                       "--to",
                       "gguf",
                       "--dtype",
                       "q4_0",
                       "--tensor-type",
                       "re:.*mlp=q8_0",
                       "--tensor-type",
                       "model.embed_tokens=q8_0",
                       "--json"};
  const Outcome made = run_llmq(words);
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_TRUE(read_file(by_recipe) == read_file(by_words));
  EXPECT_EQ(run_llmq(words).json().at("status").as_string(), "unchanged");
  const Outcome again = run_llmq({"verify", by_words, "--rebuild", "--json"});
  EXPECT_EQ(again.exit_code, 0) << again.out << again.err;

  // Of a GGUF all else is copied.
  const std::string copied = scratch / "c.gguf";
  ASSERT_EQ(run_llmq({"convert", by_recipe, copied, "--to", "gguf", "--tensor-type", "q_proj=f16"}).exit_code,
            0);
  EXPECT_EQ(type_in(copied, "blk.0.attn_q.weight"), "F16");
  EXPECT_EQ(type_in(copied, "blk.0.attn_k.weight"), "Q4_0");
}

TEST(GgufTypesByName, ConvertSaysWhatIsNoType) {
  const Scratch scratch;
  const auto refused = [&](const Words& more) {
    Words words = {"convert", tinystories(), scratch / "m.gguf"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_llmq(words);
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  };
  EXPECT_THAT(refused({"--to", "gguf", "--tensor-type", "q_proj"}), HasSubstr("'q_proj' is no NAME=TYPE"));
  EXPECT_THAT(refused({"--to", "gguf", "--tensor-type", "q_proj=q4_k_m"}), HasSubstr("types: dense, f32"));
  EXPECT_THAT(refused({"--to", "safetensors", "--tensor-type", "q_proj=f16"}), HasSubstr("--to gguf"));
}

}  // namespace
}  // namespace llmq::testing
