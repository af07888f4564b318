// Opening models: directories, shards and their index, GGUF, and a precise sentence for everything that is
// not one.
#include "io/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "io/gguf.h"
#include "io/safetensors.h"
#include "io/shard_index.h"
#include "tests/support/failing_io.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/io/small_gguf.h"

namespace llmq {
namespace {

using testing::as_bytes;
using testing::expect_refusal;
using testing::FailingIo;
using testing::safetensors_file;
using testing::TemporaryDirectory;

constexpr const char* kIndex = "model.safetensors.index.json";

// One FP32 tensor of two values per name.
std::string shard_of(const std::vector<std::string>& names, float value) {
  std::string header = "{";
  for (std::size_t i = 0; i < names.size(); ++i)
    header += (i ? ",\"" : "\"") + names[i] + R"(":{"dtype":"F32","shape":[2],"data_offsets":[)" +
              std::to_string(8 * i) + "," + std::to_string(8 * i + 8) + "]}";
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string file = safetensors_file(header);
  for (std::size_t i = 0; i < 2 * names.size(); ++i)
    file += testing::little_endian(value + static_cast<float>(i));
  return file;
}

Checkpoint open(const TemporaryDirectory& directory) {
  return Checkpoint::open(system_io(), directory.path().string());
}

void write_sharded(const TemporaryDirectory& directory) {
  directory.write("config.json", R"({"model_type":"llama"})");
  directory.write("m-1.safetensors", shard_of({"a", "b"}, 1));
  directory.write("m-2.safetensors", shard_of({"c"}, 10));
  directory.write(
      kIndex,
      R"({"metadata":{"total_size":24},"weight_map":{"a":"m-1.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"}})");
}

TEST(Checkpoint, OpensOneFile) {
  TemporaryDirectory directory;
  directory.write("config.json", R"({"model_type":"llama"})");
  directory.write("model.safetensors", shard_of({"y", "x"}, 1));
  directory.write("tokenizer.json", "{}");
  directory.write("LICENSE", "");
  directory.write("README.md", "");
  const Checkpoint checkpoint = open(directory);
  ASSERT_EQ(checkpoint.tensors().size(), 2u);
  EXPECT_EQ(checkpoint.tensors()[0].name, "x");
  EXPECT_EQ(checkpoint.read_float32(checkpoint.at("x")), (std::vector<float>{3, 4}));
  EXPECT_EQ(checkpoint.find("z"), nullptr);
  EXPECT_EQ(checkpoint.tensor_bytes(), 16u);
  EXPECT_FALSE(checkpoint.is_gguf());
  EXPECT_EQ(checkpoint.config().at("model_type").as_string(), "llama");
  EXPECT_EQ(checkpoint.companion_files(),
            (std::vector<Path>{directory / "LICENSE", directory / "tokenizer.json"}));
  expect_refusal(ErrorKind::kBadInput, "no such tensor", [&] { checkpoint.at("z"); });
  checkpoint.release(checkpoint.at("x"));
  EXPECT_EQ(checkpoint.read_float32(checkpoint.at("x")), (std::vector<float>{3, 4}));
}

TEST(Checkpoint, OpensShards) {
  TemporaryDirectory directory;
  write_sharded(directory);
  const Checkpoint checkpoint = open(directory);
  EXPECT_EQ(checkpoint.shards().size(), 2u);
  EXPECT_EQ(checkpoint.read_float32(checkpoint.at("c")), (std::vector<float>{10, 11}));
  EXPECT_EQ(checkpoint.at("c").shard, 1);
}

TEST(Checkpoint, FollowsTheSymbolicLinksOfAHubSnapshot) {
  TemporaryDirectory directory;
  directory.write("blobs/1", R"({"model_type":"llama"})");
  directory.write("blobs/2", shard_of({"a"}, 1));
  std::filesystem::create_directories(directory / "snapshot");
  std::filesystem::create_symlink("../blobs/1", directory / "snapshot/config.json");
  std::filesystem::create_symlink("../blobs/2", directory / "snapshot/model.safetensors");
  EXPECT_EQ(Checkpoint::open(system_io(), (directory / "snapshot").string()).tensors().size(), 1u);
}

TEST(Checkpoint, ReadsTensorsAtOddAddresses) {
  TemporaryDirectory directory;
  directory.write("config.json", "{}");
  const std::string header =
      R"({"o":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  directory.write("model.safetensors", safetensors_file(header) + "x" + testing::little_endian(1.5f) +
                                           testing::little_endian(-2.0f));
  const Checkpoint checkpoint = open(directory);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(checkpoint.at("w").view.pointer) % 4, 0u);
  EXPECT_EQ(checkpoint.read_float32(checkpoint.at("w")), (std::vector<float>{1.5f, -2.0f}));
}

// Every tensor under its own name, q's rows in two heads.
GgufReading as_named(const GgufHeader& header) {
  GgufReading reading{Json::object({{"model_type", "any"}}), {}};
  for (std::size_t i = 0; i < header.tensors.size(); ++i)
    reading.tensors.push_back(
        {header.tensors[i].name, i, header.tensors[i].name == "blk.0.attn_q.weight" ? 2 : 0});
  return reading;
}

TEST(Checkpoint, OpensGgufAsItsReaderSays) {
  TemporaryDirectory directory;
  const Path path = directory.write("m.gguf", testing::small_gguf("any").bytes());
  const Checkpoint checkpoint = Checkpoint::open(system_io(), path.string(), as_named);
  EXPECT_TRUE(checkpoint.is_gguf());
  EXPECT_EQ(checkpoint.config().at("model_type").as_string(), "any");
  EXPECT_EQ(checkpoint.tensors().size(), 11u);
  // Heads of 4: Hugging Face's rows 0 1 2 3 are rows 0 2 1 3 of the file.
  const auto q = checkpoint.read_float32(checkpoint.at("blk.0.attn_q.weight"));
  const std::size_t order[8] = {0, 2, 1, 3, 4, 6, 5, 7};
  for (std::size_t r = 0; r < 8; ++r) EXPECT_EQ(q[r * 8], testing::placed(3, order[r], 0));
}

TEST(Checkpoint, RefusesGgufWithoutAReader) {
  TemporaryDirectory directory;
  const Path path = directory.write("m.gguf", testing::small_gguf("llama").bytes());
  expect_refusal(ErrorKind::kUnsupported, "m.gguf", [&] { Checkpoint::open(system_io(), path.string()); });
}

TEST(Checkpoint, RefusesWhatIsNoModel) {
  const auto refused = [](ErrorKind kind, const char* part,
                          const std::vector<std::pair<std::string, std::string>>& files) {
    SCOPED_TRACE(part);
    TemporaryDirectory directory;
    for (const auto& [name, text] : files) directory.write(name, text);
    expect_refusal(kind, part, [&] { open(directory); });
  };
  const std::string weights = shard_of({"a"}, 1);
  refused(ErrorKind::kBadInput, "holds neither", {});
  refused(ErrorKind::kBadInput, "no config.json", {{"model.safetensors", weights}});
  refused(ErrorKind::kUnsupported, "pytorch_model.bin", {{"config.json", "{}"}, {"pytorch_model.bin", "x"}});
  refused(ErrorKind::kUnsupported, "consolidated.00.pth",
          {{"params.json", "{}"}, {"consolidated.00.pth", "x"}});
  refused(ErrorKind::kBadInput, "m.gguf", {{"m.gguf", "GGUF"}});
  refused(ErrorKind::kBadInput, "no index",
          {{"config.json", "{}"}, {"model-00001-of-00002.safetensors", weights}});
  refused(ErrorKind::kBadInput, "config.json", {{"config.json", "[]"}, {"model.safetensors", weights}});
  refused(ErrorKind::kBadInput, "config.json", {{"config.json", "{"}, {"model.safetensors", weights}});
  refused(ErrorKind::kBadInput, "git lfs pull",
          {{"config.json", "version https://git-lfs.github.com/spec/v1\n"}, {"model.safetensors", weights}});
  refused(ErrorKind::kBadInput, "git lfs pull",
          {{"config.json", "{}"}, {"model.safetensors", "version https://git-lfs.github.com/spec/v1\n"}});
  refused(ErrorKind::kBadInput, "truncated",
          {{"config.json", "{}"}, {"model.safetensors", weights.substr(0, weights.size() - 1)}});
  refused(ErrorKind::kBadInput, "0 bytes", {{"config.json", "{}"}, {"model.safetensors", ""}});
}

TEST(Checkpoint, RefusesIndexesThatLie) {
  const auto refused = [](const char* part, const std::string& index) {
    SCOPED_TRACE(index);
    TemporaryDirectory directory;
    write_sharded(directory);
    directory.write(kIndex, index);
    expect_refusal(ErrorKind::kBadInput, part, [&] { open(directory); });
  };
  const std::string a = R"("a":"m-1.safetensors",)", b = R"("b":"m-1.safetensors")",
                    c = R"(,"c":"m-2.safetensors")";
  refused("weight_map", "{}");
  refused("weight_map", R"({"weight_map":[]})");
  refused("no tensor", R"({"weight_map":{}})");
  refused("not a string", R"({"weight_map":{"a":1}})");
  refused("twice", R"({"weight_map":{"a":"m-1.safetensors","a":"m-2.safetensors"}})");
  refused("missing", R"({"weight_map":{)" + a + b + c + R"(,"d":"m-3.safetensors"}})");
  refused("does not hold it", R"({"weight_map":{)" + a + b + c + R"(,"d":"m-2.safetensors"}})");
  refused("and m-1.safetensors holds it", R"({"weight_map":{"a":"m-2.safetensors",)" + b + c + "}}");
  for (const char* name : {"../m-1.safetensors", "/etc/m.safetensors", "x/m-1.safetensors", "..", ".", "",
                           "m-1.bin", "..\\\\m-1.safetensors", ".safetensors", ".hidden.safetensors",
                           "m\\u0000.safetensors", "m\\n.safetensors"})
    refused("plain name", std::string(R"({"weight_map":{"a":")") + name + "\"}}");
  refused("plain name", R"({"weight_map":{"a":")" + std::string(256, 'x') + R"(.safetensors"}})");
}

TEST(Checkpoint, RefusesATensorInTwoShards) {
  TemporaryDirectory directory;
  write_sharded(directory);
  directory.write("m-2.safetensors", shard_of({"c", "a"}, 10));
  expect_refusal(ErrorKind::kBadInput, "a", [&] { open(directory); });
}

TEST(Checkpoint, RefusesAShardThatIsNoRegularFile) {
  TemporaryDirectory directory;
  write_sharded(directory);
  std::filesystem::remove(directory / "m-2.safetensors");
  std::filesystem::create_directory(directory / "m-2.safetensors");
  expect_refusal(ErrorKind::kBadInput, "m-2.safetensors", [&] { open(directory); });
  std::filesystem::remove(directory / "m-2.safetensors");
  ASSERT_EQ(::mkfifo((directory / "m-2.safetensors").c_str(), 0600), 0);
  expect_refusal(ErrorKind::kBadInput, "m-2.safetensors", [&] { open(directory); });
}

TEST(Checkpoint, EveryFailingReadIsAnError) {
  TemporaryDirectory directory;
  write_sharded(directory);
  int failures = 0;
  for (int call = 0;; ++call) {
    FailingIo io(call);
    try {
      Checkpoint::open(io, directory.path().string());
      break;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
      ++failures;
    }
  }
  EXPECT_EQ(failures, 1 + 2 * 2 + 2 * 2);  // list; open and read config and index; open and map two shards
}

TEST(ShardIndex, CompanionNames) {
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
        "generation_config.json", "chat_template.jinja", "merges.txt", "vocab.json", "LICENSE.txt",
        "qwen.tiktoken", "preprocessor_config.json", "video_preprocessor_config.json",
        "processor_config.json"})
    EXPECT_TRUE(is_companion_name(name)) << name;
  for (const char* name :
       {"config.json", "model.safetensors", "README.md", "training_args.bin", "modeling_x.py"})
    EXPECT_FALSE(is_companion_name(name)) << name;
}

}  // namespace
}  // namespace llmq
