// The first bytes of the formats that are found where a checkpoint was expected.
#include "io/foreign_file.h"

#include <array>
#include <string_view>

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

}  // namespace llmq
