// The first bytes of the formats that are found where a checkpoint was expected.
#include "io/foreign_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"

namespace llmq {
namespace {

using std::string_view_literals::operator""sv;  // NOLINT(misc-unused-using-decls): below it is used

struct Signature {
  std::string_view format;  // compared with `expected`
  std::size_t offset;
  std::string_view bytes;
  std::string_view what, hint;
};

constexpr std::string_view kDownloadAgain = "download the file again";
constexpr std::string_view kPickleHint =
    "PyTorch pickles are not read because they can run code; save the model as safetensors";

constexpr std::array<Signature, 11> kSignatures{{
    {"", 0, "version https://git-lfs"sv, "a Git LFS pointer, not the file it stands for",
     "run `git lfs pull` in the repository, or download the file itself"},
    {"", 0, "<!DOCTYPE"sv, "an HTML page", kDownloadAgain},
    {"", 0, "<!doctype"sv, "an HTML page", kDownloadAgain},
    {"", 0, "<html"sv, "an HTML page", kDownloadAgain},
    {"", 0, "Entry not found"sv, "the answer \"Entry not found\" of a failed download",
     "check the name of the file and download it again"},
    {"", 0, "PK\x03\x04"sv, "a zip archive (PyTorch saves its checkpoints in one)", kPickleHint},
    {"", 0, "\x80\x02"sv, "a Python pickle (an old PyTorch checkpoint)", kPickleHint},
    {"", 0, "\x80\x04"sv, "a Python pickle", kPickleHint},
    {"", 0, "\x1f\x8b\x08"sv, "gzip-compressed", "unpack it with gunzip"},
    {"GGUF", 0, "GGUF"sv, "a GGUF file", "give it a name that ends in .gguf and pass that as the model"},
    {"safetensors", 8, "{\""sv, "a safetensors file", "pass the directory that holds it and its config.json"},
}};

}  // namespace

std::optional<ForeignFile> recognize_foreign_file(std::span<const std::byte> bytes,
                                                  std::string_view expected) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (const Signature& signature : kSignatures) {
    if (signature.format == expected || text.size() < signature.offset) continue;
    if (text.substr(signature.offset, signature.bytes.size()) == signature.bytes)
      return ForeignFile{std::string(signature.what), std::string(signature.hint)};
  }
  return std::nullopt;
}

void refuse_foreign_directory(const Path& directory, const std::vector<std::string>& names,
                              const char* single, const char* index) {
  const auto first = [&](auto matches) -> std::string {
    const auto found = std::find_if(names.begin(), names.end(), matches);
    return found == names.end() ? std::string() : *found;
  };
  const std::string pickle = first([](const std::string& name) {
    return name.starts_with("pytorch_model") || name.ends_with(".pth") || name.ends_with(".pt");
  });
  if (!pickle.empty())
    fail(ErrorKind::kUnsupported,
         {fmt::format("holds its weights as a PyTorch pickle ({})", pickle),
          directory.string(),
          {},
          "pickles can run code and are not read; load the model in Transformers and "
          "save_pretrained() it as safetensors"});
  const std::string gguf = first([](const std::string& name) { return name.ends_with(".gguf"); });
  if (!gguf.empty())
    fail(ErrorKind::kBadInput, {"is not in Hugging Face layout",
                                directory.string(),
                                {},
                                fmt::format("pass the GGUF file: {}", (directory / gguf).string())});
  const std::string other = first([](const std::string& name) { return name.ends_with(".safetensors"); });
  fail(ErrorKind::kBadInput,
       {fmt::format("holds neither {} nor {}", single, index),
        directory.string(),
        {},
        other.empty() ? "is the download complete?"
                      : fmt::format("it has {} but no index that lists it; download the index too", other)});
}

}  // namespace llmq
