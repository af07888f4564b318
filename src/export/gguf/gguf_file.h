// A whole model as one .gguf file, or as several where a size is named (io/gguf.h): metadata, types chosen,
// every tensor rounded a few rows at a time.
//
// Without importance and with BlockSearch::kGgml the bytes of every tensor are those of llama.cpp's converter
// (F32, F16, BF16, Q8_0) and of llama-quantize (all others) for the same model. The file has its name only
// when it is whole; of several the first, which loaders are given, gets it last.
//
// Several ranks make one file: slabs of rows (export/gguf/rounded_slabs.h) are dealt to them in turn, and
// rank 0 alone writes. Every rank reads its own slabs, but of a tensor whose rows do not lie in order, or
// that is packed, all of it. Traffic: the bytes that others rounded; memory: at rank 0 a slab of each rank.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "base/threads.h"
#include "export/gguf/rounded_slabs.h"
#include "export/gguf/tensor_source.h"
#include "export/gguf/type_mix.h"
#include "export/output/unfinished_output.h"
#include "export/provenance/manifest.h"
#include "io/checkpoint.h"
#include "io/gguf_writer.h"
#include "io/imatrix.h"
#include "model/model_spec.h"
#include "tensor/ggml_quantize.h"

namespace llmq {

struct GgufRequest {
  OutputTarget target;     // `directory` is the file; of a split model NAME.gguf, where NAME-00001-of-... are
  std::string name;        // the model as the user named it
  Io* model_io = nullptr;  // by what its tensors are read and counted; null: by what the output is written
  const GgufFileType* file_type = nullptr;  // null, of a GGUF alone: its tensors keep their types
  // By tensor, in place of what that chooses (export/gguf/asked_types.h).
  std::map<std::string, DType> asked_types = {};
  bool copies = false;  // tensors that have the wanted type already (is_copied())
  // "general.license" and "general.quantized_by"; empty: the first as the model's card has it.
  std::string license = {}, quantized_by = {};
  bool weighted = false;  // an importance will be given
  BlockSearch search = BlockSearch::kGgml;
  std::uint64_t part_bytes = 0;                              // split_gguf()
  std::int64_t slab_values = Checkpoint::kBandElements;      // that are rounded at a time
  std::function<void(const std::string& tensor)> on_tensor;  // before each; may throw to stop
};

struct GgufWritten {
  struct Tensor {
    std::string name;
    DType dtype;
    Shape shape;
    bool weighted = false;  // rounded with importance
  };
  std::vector<Tensor> tensors;
  std::vector<NamedDigest> files;  // of a split model several
  std::uint64_t bytes = 0;         // of all
  std::string sha256;              // of the first
  std::string digest;              // "sha256:..." of the lines `sha256sum` prints for them
  double bits_per_weight() const;  // over all tensors
};

// Error(kUsage) where the destination may not be written: no .gguf in its name, something there that may not
// be replaced, or the model itself.
void check_gguf_destination(Io& io, const OutputTarget& target, const Path& source, const Path& first = {});

// What choose_gguf_types() looks at.
GgufMixModel gguf_mix_model(const ModelSpec& spec);

// A GGUF in the making, in "<output>.unfinished/" (export/output/unfinished_output.h) from the first byte
// until its name. With a job in its target it is journalled: the importance that was collected, then every
// block of tensors; a run of the same job goes on behind them.
class GgufOutput {
 public:
  // `checkpoint` and `spec` outlive it. Opens or takes up the file, at its final size. Of all ranks, as
  // write() is; what has a place or a name is rank 0's.
  GgufOutput(Io& io, const Checkpoint& checkpoint, const ModelSpec& spec, GgufRequest request);
  ~GgufOutput();
  GgufOutput(const GgufOutput&) = delete;
  GgufOutput& operator=(const GgufOutput&) = delete;

  const std::optional<Imatrix>& importance() const {
    return importance_;
  }  // that an interrupted run collected
  void keep_importance(Imatrix importance);
  // The warning of a tensor whose numbers were rounded before and are rounded to other codes, for all of
  // them; empty: there is none.
  std::string told_of_second_rounding() const;
  std::int64_t resumed_blocks() const { return resumed_; }
  GgufWritten write(const Imatrix* importance, ThreadPool& pool);
  const std::set<std::string>& finished_tensors() const { return finished_; }  // by an interrupted run
  Path file() const;  // as a loader may read it once it is written: the first
  // The report, and the manifest of it and the file where its text can be made, are whole before the file has
  // its name. What an earlier file had beside it goes.
  void publish(const GgufWritten& written, const std::string& report = {}, const ManifestText& manifest = {});

 private:
  Path importance_file() const;
  bool go_on(const GgufMetadata& metadata);
  bool accept(const Json& record);
  void open_file(const Checkpoint& checkpoint, const ModelSpec& spec);
  void share_what_is_done();
  void commit();
  bool copies(std::size_t tensor) const {
    return is_copied(tensors_->tensors()[tensor], types_[tensor], request_.copies);
  }
  std::vector<float> weights_of(std::size_t tensor, const Imatrix* importance) const;
  RankBytes rounded(const GgufSlab& slab, const Imatrix* importance, ThreadPool& pool);
  void take(const GgufSlab& slab, const RankBytes& bytes);
  void write_slabs(const std::vector<GgufSlab>& slabs, const Imatrix* importance, ThreadPool& pool);
  void name_parts(const Path& source);
  void open_writers(const GgufMetadata& metadata, FilePlace place);
  void sync();
  GgufWriter& writer_of(const std::string& tensor) { return writers_[part_of_.at(tensor)]; }
  void write_document(const Path& path, const std::string& text);

  Io& io_;
  std::string source_;  // the model, in errors
  GgufRequest request_;
  Ranks& ranks_;
  std::unique_ptr<GgufTensorSource> tensors_;
  std::vector<DType> types_;
  std::vector<std::vector<TensorDeclaration>> parts_;
  std::vector<std::string> names_;  // of the parts' files
  std::map<std::string, std::size_t> part_of_;
  std::optional<UnfinishedOutput> place_;  // of rank 0
  std::vector<GgufWriter> writers_;        // of the parts
  std::optional<Imatrix> importance_;
  std::int64_t resumed_ = 0;
  std::set<std::string> finished_;
  std::map<std::string, std::string> digests_;  // of tensors that are whole and in no record yet
  std::unique_ptr<Sha256> digest_;              // of the one that is coming
  std::optional<std::size_t> open_;             // the tensor that this rank reads, and how its errors weigh
  std::vector<float> weights_;
};

}  // namespace llmq
