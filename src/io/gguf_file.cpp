// Files of GGUF on the disk: one, or those of a split model as one.
#include <fmt/format.h>

#include <charconv>
#include <set>

#include "base/error.h"
#include "io/gguf.h"

namespace llmq {
namespace {

constexpr const char* kNumber = "split.no";
constexpr const char* kCount = "split.count";
constexpr const char* kTensors = "split.tensors.count";

GgufHeader map_part(Io& io, const Path& path, GgufFile& file) {
  std::shared_ptr<const Mapping> mapping = io.open(path)->map();
  if (mapping->in_memory())
    fail(ErrorKind::kUnsupported, {"a GGUF file is read through the page cache only",
                                   path.string(),
                                   {},
                                   "read it through the page cache, or give a directory of safetensors"});
  GgufHeader header = parse_gguf(mapping->bytes(), path.string());
  file.paths.push_back(path);
  file.mappings.push_back(std::move(mapping));
  return header;
}

void add_part(GgufHeader part, int number, int count, GgufHeader& whole) {
  const auto is = [&](const char* key, int value) {
    if (part.find_integer(key) == value) return;
    fail(ErrorKind::kBadInput, {fmt::format("is not {}, as part {} of {} has it", value, number + 1, count),
                                part.file, key, "is it of the same model?"});
  };
  is(kNumber, number);
  is(kCount, count);
  for (GgufTensor& tensor : part.tensors) {
    tensor.part = number;
    whole.tensors.push_back(std::move(tensor));
  }
}

void check_tensors(const GgufHeader& whole, std::optional<std::int64_t> announced) {
  std::set<std::string_view> names;
  for (const GgufTensor& tensor : whole.tensors)
    if (!names.insert(tensor.name).second)
      fail(ErrorKind::kBadInput,
           {"the tensor occurs in two parts of the model", whole.file, tensor.name, {}});
  if (announced && *announced != std::ssize(whole.tensors))
    fail(ErrorKind::kBadInput,
         {fmt::format("is {}, and the parts hold {} tensors", *announced, whole.tensors.size()), whole.file,
          kTensors, "are the parts of one model?"});
}

}  // namespace

std::string gguf_part_name(std::string_view stem, int number, int count) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", stem, number, count);
}

std::vector<std::string> further_gguf_parts(const std::string& first) {
  constexpr std::size_t kDigits = 5;
  const std::string ending = ".gguf";
  std::vector<std::string> names;
  if (!first.ends_with(ending) || first.size() < kDigits + ending.size()) return names;
  int count = 0;
  const char* const digits = first.data() + first.size() - ending.size() - kDigits;
  const auto [end, error] = std::from_chars(digits, digits + kDigits, count);
  const std::string whole = gguf_part_name("", 1, count);
  if (error != std::errc() || end != digits + kDigits || !first.ends_with(whole)) return names;
  for (int number = 2; number <= count; ++number)
    names.push_back(gguf_part_name(first.substr(0, first.size() - whole.size()), number, count));
  return names;
}

GgufFile open_gguf(Io& io, const Path& path) {
  GgufFile file;
  file.header = map_part(io, path, file);
  GgufHeader& header = file.header;
  const std::int64_t parts = header.find_integer(kCount).value_or(1);
  if (parts <= 1) return file;
  if (parts > UINT16_MAX)
    fail(ErrorKind::kBadInput,
         {fmt::format("is {}, more than any model is split into", parts), header.file, kCount, {}});
  const int count = static_cast<int>(parts);
  const std::int64_t place = header.find_integer(kNumber).value_or(0);
  if (place < 0 || place >= count)
    fail(ErrorKind::kBadInput, {fmt::format("is {}, and the model has the parts 0 to {}", place, count - 1),
                                header.file,
                                kNumber,
                                {}});
  if (place != 0)
    fail(ErrorKind::kUsage,
         {fmt::format("is part {} of {} of a model", place + 1, count), header.file, kNumber,
          fmt::format("pass the first part, NAME{}", gguf_part_name("", 1, count))});
  const std::vector<std::string> names = further_gguf_parts(path.filename().string());
  if (std::ssize(names) + 1 != count)
    fail(ErrorKind::kBadInput,
         {fmt::format("is the first of {} files of a model, which its name does not say", count), header.file,
          kCount, "give the files the names that they had: NAME" + gguf_part_name("", 1, count)});
  for (int number = 1; number < count; ++number) {
    const Path further = path.parent_path() / names[static_cast<std::size_t>(number - 1)];
    if (!io.exists(further))
      fail(ErrorKind::kBadInput, {fmt::format("part {} of {} of the model is missing", number + 1, count),
                                  further.string(),
                                  {},
                                  "is the download complete?"});
    add_part(map_part(io, further, file), number, count, header);
  }
  check_tensors(header, header.find_integer(kTensors));
  for (const char* key : {kNumber, kCount, kTensors}) header.metadata.erase(key);
  return file;
}

}  // namespace llmq
