// One clear sentence and the right exit code for everything that can be wrong with what a user hands over;
// and nothing left that looks finished.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "cli/program.h"

namespace llmq::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

Outcome quantize_model(const std::string& model, const std::string& output,
                       const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"quantize", "--model", model, "--output", output};
  if (std::find(more.begin(), more.end(), "--method") == more.end())
    arguments.insert(arguments.end(), {"--method", "rtn"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_llmq(arguments);
}

// Exit 2, one line on stderr that names `words`, and no output of that name.
void expect_refused(const Outcome& outcome, const std::string& output,
                    std::initializer_list<const char*> words) {
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  for (const char* word : words) EXPECT_THAT(outcome.err, HasSubstr(word));
  EXPECT_FALSE(fs::exists(output));
}

void replace_in(const std::string& path, const std::string& from, const std::string& to) {
  std::string text = read_file(path);
  const std::size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  write_file(path, text.replace(at, from.size(), to));
}

TEST(BadInput, MissingModel) {
  const Scratch scratch;
  expect_refused(quantize_model(scratch / "nothing", scratch / "q"), scratch / "q", {"nothing"});
}

TEST(BadInput, HubNameThatIsNotInTheCacheSaysHowToFetchIt) {
  const Scratch scratch;
  const Outcome outcome = run_llmq({"eval-ppl", "Qwen/Qwen3-32B"}, {"HF_HUB_CACHE=" + scratch.path()});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("hf download Qwen/Qwen3-32B"));
}

TEST(BadInput, TruncatedShard) {
  const Scratch scratch;
  const std::string model = copy_of_model(scratch);
  fs::resize_file(model + "/model.safetensors", fs::file_size(model + "/model.safetensors") - 100);
  expect_refused(quantize_model(model, scratch / "q"), scratch / "q", {"model.safetensors"});
}

TEST(BadInput, HeaderThatLies) {
  const Scratch scratch;
  const std::string model = copy_of_model(scratch);
  std::string bytes = read_file(model + "/model.safetensors");
  bytes[6] = '\x7f';  // a header length beyond any file
  write_file(model + "/model.safetensors", bytes);
  expect_refused(quantize_model(model, scratch / "q"), scratch / "q", {"model.safetensors"});
}

TEST(BadInput, GitLfsPointerIsNamed) {
  const Scratch scratch;
  const std::string model = copy_of_model(scratch);
  write_file(model + "/model.safetensors",
             "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  expect_refused(quantize_model(model, scratch / "q"), scratch / "q", {"LFS"});
}

TEST(BadInput, MissingShardAndShardOutsideTheDirectory) {
  const Scratch scratch;
  const std::string model = copy_of_model(scratch);
  const std::string tensor = "model.norm.weight";
  fs::rename(model + "/model.safetensors", scratch / "x.safetensors");
  write_file(model + "/model.safetensors.index.json", R"({"metadata":{"total_size":1},"weight_map":{")" +
                                                          tensor +
                                                          R"(":"model-00001-of-00001.safetensors"}})");
  expect_refused(quantize_model(model, scratch / "q"), scratch / "q", {"model-00001-of-00001.safetensors"});
  write_file(model + "/model.safetensors.index.json",
             R"({"metadata":{"total_size":1},"weight_map":{")" + tensor + R"(":"../x.safetensors"}})");
  expect_refused(quantize_model(model, scratch / "q"), scratch / "q", {"../x.safetensors"});
}

// Value 10 of an F32 tensor becomes `value`.
void poison(const std::string& model, const std::string& tensor, float value) {
  std::string bytes = read_file(model + "/model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  const Json table = Json::parse(std::string_view(bytes).substr(8, header), "header");
  std::memcpy(bytes.data() + 8 + header +
                  static_cast<std::size_t>(table.at(tensor).at("data_offsets").items()[0].as_integer()) + 40,
              &value, 4);
  write_file(model + "/model.safetensors", bytes);
}

TEST(BadInput, NotANumberIsNamedAndRefusedWhereverItStands) {
  const std::string linear = "model.layers.1.mlp.up_proj.weight";
  for (const std::string& tensor : {linear, std::string("model.layers.0.input_layernorm.weight"),
                                    std::string("model.norm.weight"), std::string("lm_head.weight")}) {
    const Scratch scratch;
    const std::string model = copy_of_model(scratch);
    poison(model, tensor, __builtin_nanf(""));
    expect_refused(quantize_model(model, scratch / "q"), scratch / "q",
                   {tensor.c_str(), "NaN", "column 10", "--allow-nonfinite"});
    const Outcome measured = run_llmq({"eval-ppl", model, "--max-windows", "1"});
    EXPECT_EQ(measured.exit_code, 2);
    EXPECT_THAT(measured.err, HasSubstr(tensor));
  }
}

TEST(BadInput, NotANumberMayBeAllowed) {
  const Scratch scratch;
  const std::string model = copy_of_model(scratch);
  poison(model, "model.layers.1.mlp.up_proj.weight", __builtin_inff());
  for (const std::string method : {"rtn", "awq"}) {
    const Outcome outcome =
        quantize_model(model, scratch / method,
                       {"--method", method, "--allow-nonfinite", "--json", "--set", "calibration.samples=2",
                        "--set", "calibration.sequence_length=64"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("model.layers.1.mlp.up_proj.weight: 1 values that are not finite"));
    EXPECT_EQ(run_llmq({"eval-ppl", scratch / method, "--max-windows", "1"}).exit_code, 0)
        << "the linear was mended";
  }
  poison(model, "model.norm.weight", __builtin_nanf(""));
  const Outcome copied = quantize_model(model, scratch / "copied", {"--allow-nonfinite", "--json"});
  EXPECT_EQ(copied.exit_code, 0) << copied.err;
  EXPECT_THAT(copied.out, HasSubstr("model.norm.weight holds NaN"));
  EXPECT_EQ(run_llmq({"eval-ppl", scratch / "copied", "--max-windows", "1"}).exit_code, 2);
}

TEST(BadInput, ConfigThatDisagreesWithTheShapes) {
  const Scratch scratch;
  const std::string model = copy_of_model(scratch);
  replace_in(model + "/config.json", "\"intermediate_size\": 384", "\"intermediate_size\": 512");
  expect_refused(quantize_model(model, scratch / "q"), scratch / "q", {"384", "512"});
}

TEST(BadInput, UnknownFamilyAndFieldsThatChangeTheMathematics) {
  const Scratch scratch;
  const std::string model = copy_of_model(scratch, "a");
  replace_in(model + "/config.json", "\"model_type\": \"llama\"", "\"model_type\": \"zebra\"");
  expect_refused(quantize_model(model, scratch / "q"), scratch / "q", {"zebra"});
  const std::string other = copy_of_model(scratch, "b");
  replace_in(other + "/config.json", "\"use_cache\": true", "\"attn_logit_softcapping\": 30.0");
  expect_refused(quantize_model(other, scratch / "q"), scratch / "q", {"attn_logit_softcapping"});
}

TEST(BadInput, TokenizerWithMoreTokensThanTheEmbedding) {
  const Scratch scratch;
  const std::string model = copy_of_model(scratch);
  replace_in(model + "/tokenizer.json", "\"added_tokens\": [",
             R"("added_tokens": [{"id": 5000, "content": "<beyond>", "single_word": false, "lstrip": false,
      "rstrip": false, "normalized": false, "special": true},)");
  const Outcome outcome = run_llmq({"eval-ppl", model});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("2048"));
}

TEST(BadInput, RecipeMistakesHaveLineAndColumn) {
  const Scratch scratch;
  write_file(scratch / "r.yaml", "version: 1\nmethod: rtn\nsheme: w4a16\n");
  const Outcome unknown = run_llmq(
      {"quantize", "--recipe", scratch / "r.yaml", "--model", tinystories(), "--output", scratch / "q"});
  expect_refused(unknown, scratch / "q", {"r.yaml", "3:", "sheme"});
  write_file(scratch / "d.yaml", "version: 1\nmethod: rtn\nmethod: awq\n");
  expect_refused(run_llmq({"quantize", "--recipe", scratch / "d.yaml", "--model", tinystories(), "--output",
                           scratch / "q"}),
                 scratch / "q", {"3:", "method"});
  write_file(scratch / "t.yaml", "version: 1\nmethod: rtn\ncalibration: {samples: many}\n");
  expect_refused(run_llmq({"quantize", "--recipe", scratch / "t.yaml", "--model", tinystories(), "--output",
                           scratch / "q"}),
                 scratch / "q", {"3:"});
}

TEST(BadInput, GroupThatDoesNotDivideNamesTheFirstModuleAndTheGroupsThatWould) {
  const Scratch scratch;
  expect_refused(quantize_model(tinystories(), scratch / "q", {"--set", "scheme=w4a16_g96_asym"}),
                 scratch / "q", {"q_proj", "96", "64"});
}

TEST(BadInput, SchemesAndFormatsThatDoNotExistHere) {
  const Scratch scratch;
  expect_refused(quantize_model(tinystories(), scratch / "q", {"--set", "scheme=w9a16"}), scratch / "q",
                 {"w9a16"});
  expect_refused(quantize_model(tinystories(), scratch / "q", {"--set", "format=gguf"}), scratch / "q",
                 {"gguf"});
  expect_refused(
      quantize_model(tinystories(), scratch / "q", {"--set", "format=awq", "--set", "scheme=w8a16_g64_asym"}),
      scratch / "q", {"awq"});
}

TEST(BadInput, CalibrationTextTooShort) {
  const Scratch scratch;
  write_file(scratch / "short.txt", "A short text.");
  const Outcome outcome = run_llmq({"quantize", "--method", "awq", "--model", tinystories(), "--output",
                                    scratch / "q", "--set", "calibration.text=" + (scratch / "short.txt")});
  expect_refused(outcome, scratch / "q", {"short.txt"});
}

TEST(BadInput, OutputsThatCannotBe) {
  const Scratch scratch;
  const std::string model = copy_of_model(scratch);
  expect_refused(quantize_model(model, model + "/q"), model + "/q", {"inside the model"});
  EXPECT_EQ(quantize_model(model, model + "/../model/").exit_code, 2);
  write_file(scratch / "file", "");
  for (const char* output : {"file", "file/q"}) {
    const Outcome outcome = quantize_model(model, scratch / output);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("file"));
  }
  EXPECT_EQ(read_file(scratch / "file"), "");
}

TEST(BadInput, ModelsThatAreNone) {
  const Scratch scratch;
  fs::create_directory(scratch / "empty");
  fs::create_directory(scratch / "x.gguf");
  for (const char* name : {"empty", "x.gguf"})
    expect_refused(quantize_model(scratch / name, scratch / "q"), scratch / "q", {name, "model.safetensors"});
  const std::string config = copy_of_model(scratch, "config");
  write_file(config + "/config.json", "[1, 2]");
  expect_refused(quantize_model(config, scratch / "q"), scratch / "q", {"config.json", "array"});
  const std::string weights = copy_of_model(scratch, "weights");
  write_file(weights + "/model.safetensors", "");
  expect_refused(quantize_model(weights, scratch / "q"), scratch / "q", {"model.safetensors", "0 bytes"});
  const std::string tokenizer = copy_of_model(scratch, "tokenizer");
  fs::remove(tokenizer + "/tokenizer.json");
  expect_refused(quantize_model(tokenizer, scratch / "q"), scratch / "q", {"no tokenizer.json there"});
  write_file(tokenizer + "/tokenizer.json", "<!DOCTYPE html><html>404</html>");
  expect_refused(quantize_model(tokenizer, scratch / "q"), scratch / "q",
                 {"tokenizer.json: this is an HTML page", "download"});
  write_file(tokenizer + "/tokenizer.json", "");
  expect_refused(quantize_model(tokenizer, scratch / "q"), scratch / "q",
                 {"tokenizer.json: the file is empty", "download"});
  EXPECT_EQ(run_llmq({"inspect", tinystories() + "/"}).exit_code, 0) << "a slash at the end is no mistake";
}

TEST(BadInput, TextThatIsNotUtf8NamesItsFile) {
  const Scratch scratch;
  write_file(scratch / "bytes.txt", "abc \xff");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"eval-ppl", tinystories(), "--text"},
        {"tokenize", tinystories(), "--text"},
        {"generate", tinystories(), "--prompt-file"},
        {"tokenize", tinystories(), "--decode", "--text"}}) {
    std::vector<std::string> words = arguments;
    words.push_back(scratch / "bytes.txt");
    const Outcome outcome = run_llmq(words);
    EXPECT_EQ(outcome.exit_code, 2) << arguments[0];
    EXPECT_THAT(outcome.err, HasSubstr("bytes.txt"));
  }
  EXPECT_THAT(run_llmq({"generate", tinystories(), "--prompt", "\xff"}).err, HasSubstr("--prompt"));
}

TEST(BadInput, IdsThatAreNone) {
  for (const char* ids :
       {"{\"a\": 1}", "[\"a\"]", "[4294967298]", "99999999999", "-1", "{\"ids\": 5}", "[1.5]"}) {
    const Outcome outcome = run_llmq({"tokenize", tinystories(), "--decode"}, {}, ids);
    EXPECT_EQ(outcome.exit_code, 2) << ids << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr("standard input"));
  }
}

TEST(BadInput, FlagsOutOfRange) {
  for (const char* threads : {"0", "-1", "100000", "x"})
    EXPECT_EQ(run_llmq({"eval-ppl", tinystories(), "--threads", threads}).exit_code, 2) << threads;
  EXPECT_EQ(run_llmq({"eval-ppl", tinystories(), "--max-ppl", "nan"}).exit_code, 2);
  EXPECT_EQ(run_llmq({"eval-ppl", tinystories(), "--memory-limit", "1GiB"}).exit_code, 2)
      << "a limit that nobody keeps is not taken silently";
  EXPECT_EQ(run_llmq({"--json"}).json().at("schema").as_string(), "llmq.error/1");
}

TEST(BadInput, ATokenizerOfAnotherModelIsNotCompared) {
  const Scratch scratch;
  const std::string model = copy_of_model(scratch);
  replace_in(model + "/tokenizer.json", "\"A\": 26", "\"A\": 27");
  replace_in(model + "/tokenizer.json", "\"B\": 27", "\"B\": 26");
  const Outcome outcome = run_llmq({"eval-ppl", model, "--against", tinystories(), "--max-windows", "1"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--against"));
}

TEST(BadInput, NoRoomOnDiskIsExitOneAndLeavesNothing) {
  const Scratch scratch;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{200000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  std::signal(SIGXFSZ, SIG_IGN);  // the write fails with EFBIG instead
  const Outcome outcome = quantize_model(tinystories(), scratch / "q");
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_FALSE(fs::exists(scratch / "q"));
  EXPECT_TRUE(fs::is_empty(scratch.path())) << "nothing half-written stays";
}

}  // namespace
}  // namespace llmq::testing
