// Small models, written as GGUF as `llmq convert` does.
#pragma once
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/io.h"
#include "export/convert.h"
#include "io/gguf.h"
#include "model/gguf/gguf_fields.h"
#include "model/open_checkpoint.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/model/scratch_model.h"

namespace llmq::testing {

inline const Path kTinystories = Path(LLMQ_SOURCE_DIR) / "tests/models/tinystories-656k";

// SentencePiece's kind of BPE over a few letters.
inline constexpr const char* kFewLetters =
    R"({"version": "1.0", "added_tokens": [{"id": 0, "content": "<unk>", "special": true}],
  "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}, "pre_tokenizer": null, "post_processor": null,
  "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
  "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": {"<unk>": 0, "<0x41>": 1, "a": 2, "b": 3, "ab": 4, "\u2581": 5, "ba": 6, "aba": 7, "bab": 8},
            "merges": ["b a", "a b", "a ba", "b ab"]}})";

// A golden model (random weights of one family) with that tokenizer.
inline std::string golden_model(const TemporaryDirectory& directory, const std::string& name) {
  const Path from = Path(LLMQ_SOURCE_DIR) / "tests/golden/models" / name / "model", to = directory / name;
  std::filesystem::create_directory(to);
  for (const char* file : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(from / file, to / file);
  write_text_atomically(system_io(), to / "tokenizer.json", kFewLetters);
  return to.string();
}

inline ConvertReport to_gguf(Io& io, const std::string& source, const Path& destination,
                             const std::optional<std::string>& dtype, std::uint64_t split_max_size = 0) {
  ConvertRequest request;
  request.source = source;
  request.target.directory = destination;
  request.to = "gguf";
  request.dtype = dtype;
  request.threads = 1;
  request.split_max_size = split_max_size;
  return convert(io, open_checkpoint(io, request.source), request);
}

// A model as the GGUF that is written of it, and what stands in that.
class WrittenGguf {
 public:
  const GgufFile& write(const ScratchModel& model, const char* dtype = "f32") {
    std::filesystem::remove(path());
    const Checkpoint source = model.open();
    write_text_atomically(system_io(), source.path() / "tokenizer.json", kFewLetters);
    to_gguf(system_io(), source.path().string(), path(), dtype);
    return file_.emplace(open_gguf(system_io(), path()));
  }
  Path path() const { return disk_ / "m.gguf"; }
  std::vector<float> stored(const std::string& name) const {  // of an F32 tensor
    const GgufTensor& tensor = *find_gguf_tensor(file_->header, name);
    std::vector<float> values(static_cast<std::size_t>(tensor.shape.elements()));
    std::memcpy(values.data(), tensor.data, tensor.bytes);
    return values;
  }

 protected:
  TemporaryDirectory disk_;
  std::optional<GgufFile> file_;
};

}  // namespace llmq::testing
