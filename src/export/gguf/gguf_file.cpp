#include "export/gguf/gguf_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "export/gguf/asked_types.h"
#include "export/gguf/gguf_metadata.h"
#include "export/output/published_output.h"
#include "io/codes/first_rounding.h"
#include "io/digest_cache.h"
#include "model/gguf/gguf_family.h"
#include "ranks/agreement.h"

namespace llmq {
namespace {

// What a model is called: the last part of its path, without ".gguf"; a hub name whole.
std::string model_name(Io& io, const Checkpoint& checkpoint, const std::string& name) {
  if (!io.exists(name) && name.find('/') != std::string::npos && name[0] != '/' && name[0] != '.')
    return name;
  Path path = std::filesystem::absolute(checkpoint.path()).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

// llama-quantize says no outer extents of 1: the gate of a shared expert is a vector there.
Shape declared_shape(const Shape& shape, const GgufFileType* file_type) {
  std::vector<std::int64_t> extents;
  for (int axis = 0; axis < shape.rank(); ++axis)
    if (!extents.empty() || shape[axis] != 1 || axis + 1 == shape.rank()) extents.push_back(shape[axis]);
  return file_type == nullptr || is_of_converter(*file_type) ? shape
                                                             : Shape(std::span<const std::int64_t>(extents));
}

// "blk.3." of "blk.3.attn_q.weight"; whatever else there is belongs together.
std::string block_of(const std::string& tensor) {
  if (!tensor.starts_with("blk.")) return {};
  return tensor.substr(0, tensor.find('.', 4) + 1);
}

// As llama-quantize: an embedding is looked up, not multiplied, and goes without; any other weight whose
// inputs are of another number is an error.
std::vector<float> importance_of(const Imatrix* importance, const GgufMixTensor& tensor,
                                 const std::string& file) {
  if (importance == nullptr || tensor.shape.rank() < 2) return {};
  std::vector<float> values = importance->importance(tensor.name);
  const std::int64_t matrices = tensor.shape.rank() > 2 ? tensor.shape[0] : 1;  // each has its own
  if (values.empty() || static_cast<std::int64_t>(values.size()) == matrices * tensor.shape.back())
    return values;
  if (tensor.name == "token_embd.weight") return {};
  fail(ErrorKind::kBadInput, {fmt::format("the importance matrix has {} values for it, and it has {} inputs",
                                          values.size(), tensor.shape.back()),
                              file, tensor.name, "use one that was made with this model"});
}

}  // namespace

double GgufWritten::bits_per_weight() const {
  double bits = 0, weights = 0;
  for (const Tensor& tensor : tensors) {
    const auto count = static_cast<double>(tensor.shape.elements());
    weights += count;
    bits += 8.0 * count * dtype_row(tensor.dtype).block_bytes / dtype_row(tensor.dtype).block_elements;
  }
  return weights == 0 ? 0 : bits / weights;
}

void check_gguf_destination(Io& io, const OutputTarget& target, const Path& source, const Path& first) {
  std::error_code ignored;
  if (std::filesystem::equivalent(target.directory, source, ignored))
    fail(ErrorKind::kUsage,
         {"the output is the model that is read", target.directory.string(), {}, "choose another name"});
  check_output_file(io, target, first);
}

GgufMixModel gguf_mix_model(const ModelSpec& spec) {
  const GgufFamily* const family = gguf_family(spec);
  const MixtureSpec* const mixture = spec.blocks.back().mixture();
  const AttentionSpec* const attention = gguf_attention(spec);
  return {family == nullptr ? GgufLarge::kNone : family->large,
          static_cast<int>(spec.blocks.size()),
          attention == nullptr ? 1 : attention->heads,
          attention == nullptr ? 1 : attention->kv_heads,
          mixture == nullptr ? 0 : static_cast<int>(mixture->experts.size()),
          family == nullptr ? GgufTypes::kUsual : family->types};
}

GgufOutput::GgufOutput(Io& io, const Checkpoint& checkpoint, const ModelSpec& spec, GgufRequest request)
    : io_(io),
      source_(checkpoint.path().string()),
      request_(std::move(request)),
      ranks_(ranks_of(request_.target)) {
  request_.target.single_file = true;
  begin_together(ranks_, [&] {
    tensors_ = open_gguf_tensors(request_.model_io != nullptr ? *request_.model_io : io, checkpoint, spec,
                                 request_.file_type == nullptr || is_of_converter(*request_.file_type));
    if (request_.file_type != nullptr)
      types_ = choose_gguf_types(*request_.file_type, gguf_mix_model(spec), tensors_->tensors(),
                                 request_.weighted);
    else
      for (const GgufMixTensor& tensor : tensors_->tensors()) types_.push_back(tensor.stored);
    give_asked_types(request_.asked_types, tensors_->tensors(), types_);
  });
  first_begins(ranks_, [&] { open_file(checkpoint, spec); });
  share_what_is_done();
}

// Opens or takes up the file.
void GgufOutput::open_file(const Checkpoint& checkpoint, const ModelSpec& spec) {
  if (request_.part_bytes == 0) check_gguf_destination(io_, request_.target, checkpoint.path());
  std::vector<TensorDeclaration> declarations;
  for (std::size_t i = 0; i < types_.size(); ++i)
    declarations.push_back({tensors_->tensors()[i].name, types_[i],
                            declared_shape(tensors_->tensors()[i].shape, request_.file_type)});
  parts_ = split_gguf(declarations, request_.part_bytes, request_.target.directory.string());
  name_parts(checkpoint.path());
  place_.emplace(io_, request_.target);
  if (spec.wrapper)
    Log::get().warn(fmt::format("{}: the decoder alone is written, without what stands around it", source_));
  std::optional<GgufFileType> stated;
  if (request_.file_type != nullptr) stated = stated_file_type(*request_.file_type, tensors_->tensors());
  GgufMetadata metadata = gguf_model_metadata(
      io_, checkpoint, spec, model_name(io_, checkpoint, request_.name), tensors_->tensors(), stated);
  if (!request_.license.empty()) metadata.set_string("general.license", request_.license);
  if (!request_.quantized_by.empty()) metadata.set_string("general.quantized_by", request_.quantized_by);
  if (place_->resumed() && !go_on(metadata)) {
    Log::get().warn(fmt::format("{}: the files of an interrupted run are damaged; it starts again",
                                place_->files().string()));
    place_->start_over();
  }
  if (writers_.empty()) {
    place_->start_over();
    for (const std::string& name : names_) place_->add_created(name);
    open_writers(metadata, FilePlace::kDirect);
    sync();
  }
  place_->begin_journal();
  for (const GgufMixTensor& tensor : tensors_->tensors())
    if (writer_of(tensor.name).is_whole(tensor.name)) finished_.insert(tensor.name);
}

// What an interrupted run left, from rank 0 to those who have no file.
void GgufOutput::share_what_is_done() {
  if (ranks_.size() == 1) return;
  std::string names, matrix;
  for (const std::string& name : finished_) names += name + '\n';
  if (place_ && importance_) {
    const std::unique_ptr<Mapping> file = io_.open(importance_file())->map();
    matrix.assign(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  }
  names = broadcast_text(ranks_, 0, names);
  matrix = broadcast_text(ranks_, 0, matrix);
  if (ranks_.rank() == 0) return;
  std::stringstream lines(names);
  for (std::string name; std::getline(lines, name);) finished_.insert(name);
  if (!matrix.empty()) importance_ = parse_imatrix(std::as_bytes(std::span(matrix)), "rank 0");
}

GgufOutput::~GgufOutput() = default;

// The first part's file is the target from here on: loaders are given its name.
void GgufOutput::name_parts(const Path& source) {
  Path& target = request_.target.directory;
  if (parts_.size() == 1 || target.extension() != ".gguf") {
    names_ = {target.filename().string()};
    return check_gguf_destination(io_, request_.target, source);
  }
  const std::string stem = target.stem().string();
  for (std::size_t i = 0; i < parts_.size(); ++i)
    names_.push_back(gguf_part_name(stem, static_cast<int>(i) + 1, static_cast<int>(parts_.size())));
  const Path folder = target.parent_path();
  for (const std::string& name : names_) {
    OutputTarget part = request_.target;
    part.directory = folder / name;
    check_gguf_destination(io_, part, source, folder / names_.front());
  }
  target = folder / names_.front();
}

void GgufOutput::open_writers(const GgufMetadata& metadata, FilePlace place) {
  writers_.clear();
  const int count = static_cast<int>(parts_.size());
  for (int i = 0; i < count; ++i) {
    const std::vector<TensorDeclaration>& tensors = parts_[static_cast<std::size_t>(i)];
    GgufMetadata own = i == 0 ? metadata : GgufMetadata();
    if (count > 1) say_gguf_part(i, count, types_.size(), own);
    writers_.emplace_back(io_, place_->files() / names_[static_cast<std::size_t>(i)], own, tensors, place);
    for (const TensorDeclaration& tensor : tensors) part_of_[tensor.name] = static_cast<std::size_t>(i);
  }
}

void GgufOutput::sync() {
  for (GgufWriter& writer : writers_) writer.sync();
}

Path GgufOutput::file() const { return place_->files() / names_.front(); }

Path GgufOutput::importance_file() const { return place_->files() / "importance.gguf"; }

// A record holds the SHA-256 of the importance, which is the first, or of the tensors of a block. False when
// nothing can be taken up.
bool GgufOutput::go_on(const GgufMetadata& metadata) {
  try {
    open_writers(metadata, FilePlace::kExisting);
  } catch (const Error& error) {
    writers_.clear();
    if (error.kind() == ErrorKind::kIo) throw;
    return false;
  }
  for (const std::string& name : names_) place_->add_created(name);
  const std::vector<Json> records = place_->blocks();
  std::size_t good = 0;
  for (; good < records.size() && accept(records[good]); ++good) ++resumed_;
  place_->keep_blocks(good);
  return true;
}

bool GgufOutput::accept(const Json& record) {
  if (const Json* importance = record.find("importance")) {
    if (!io_.exists(importance_file()) || file_sha256(io_, importance_file()) != importance->as_string())
      return false;
    place_->add_created(importance_file().filename().string());
    importance_ = load_imatrix(io_, importance_file());
    return true;
  }
  for (const auto& [name, sha256] : record.at("tensors").members())
    if (part_of_.count(name) == 0 || !writer_of(name).accept(name, sha256.as_string())) return false;
  return true;
}

void GgufOutput::keep_importance(Imatrix importance) {
  if (request_.target.job.is_null() || !place_) {
    importance_ = std::move(importance);
    return;
  }
  io_.remove(importance_file());  // of an interrupted run
  place_->add_created(importance_file().filename().string());
  save_imatrix(io_, importance_file(), importance);
  place_->add_block(Json::object({{"importance", file_sha256(io_, importance_file())}}));
  importance_ = std::move(importance);
}

std::string GgufOutput::told_of_second_rounding() const {
  for (std::size_t i = 0; i < types_.size(); ++i)
    if (is_block_type(types_[i]) && !copies(i))
      if (const std::string form = tensors_->first_rounding(i); !form.empty())
        return llmq::told_of_second_rounding(tensors_->tensors()[i].name, form);
  return {};
}

// The tensors of a block are done when one of another comes.
void GgufOutput::commit() {
  if (digests_.empty() || request_.target.job.is_null()) return digests_.clear();
  sync();
  Json tensors = Json::object();
  for (const auto& [name, sha256] : digests_) tensors.members().emplace_back(name, Json(sha256));
  place_->add_block(Json::object({{"tensors", std::move(tensors)}}));
  digests_.clear();
}

std::vector<float> GgufOutput::weights_of(std::size_t tensor, const Imatrix* importance) const {
  if (!is_block_type(types_[tensor])) return {};
  return importance_of(importance, tensors_->tensors()[tensor], source_);
}

// What this rank had open of the tensor before is let go first.
RankBytes GgufOutput::rounded(const GgufSlab& slab, const Imatrix* importance, ThreadPool& pool) {
  if (open_ != slab.tensor) {
    if (open_) tensors_->release(*open_);
    open_ = slab.tensor;
    weights_ = weights_of(slab.tensor, importance);
  }
  try {
    if (copies(slab.tensor)) return copied_slab(*tensors_, slab);
    return rounded_slab(*tensors_, slab, types_[slab.tensor], weights_, request_.search, pool);
  } catch (const Error& error) {
    if (!error.detail().file.empty()) throw;
    fail(error.kind(),
         {error.detail().message, source_, tensors_->tensors()[slab.tensor].name, error.detail().hint});
  }
}

void GgufOutput::take(const GgufSlab& slab, const RankBytes& bytes) {
  const std::string& name = tensors_->tensors()[slab.tensor].name;
  if (slab.first == 0) digest_ = std::make_unique<Sha256>();
  writer_of(name).append(name, bytes);
  digest_->update(bytes);
  if (slab.last) digests_[name] = digest_->hex();
}

// Round after round each rank has the next slab, and rank 0 takes all of them in their order.
void GgufOutput::write_slabs(const std::vector<GgufSlab>& slabs, const Imatrix* importance,
                             ThreadPool& pool) {
  const auto ranks = static_cast<std::size_t>(ranks_.size()), rank = static_cast<std::size_t>(ranks_.rank());
  const auto block = [&](std::size_t slab) { return block_of(tensors_->tensors()[slabs[slab].tensor].name); };
  const auto take_next = [&](std::size_t at, const RankBytes& bytes) {
    take(slabs[at], bytes);
    if (slabs[at].last && (at + 1 == slabs.size() || block(at + 1) != block(at))) commit();
  };
  const auto read_ahead = [&](std::size_t at) {  // where ranks share a tensor, none reads all of it
    if (ranks == 1 && at < slabs.size()) tensors_->read_ahead(slabs[at].tensor);
  };
  read_ahead(0);
  for (std::size_t at = 0; at < slabs.size(); at += ranks) {
    const std::size_t count = std::min(ranks, slabs.size() - at);
    for (std::size_t i = at; i < at + count; ++i) {
      if (slabs[i].first != 0) continue;
      std::size_t next = i;
      while (next < slabs.size() && slabs[next].tensor == slabs[i].tensor) ++next;
      read_ahead(next);
      if (request_.on_tensor) request_.on_tensor(tensors_->tensors()[slabs[i].tensor].name);
    }
    const RankBytes own = rank < count ? rounded(slabs[at + rank], importance, pool) : RankBytes();
    if (ranks == 1) {
      take_next(at, own);
      continue;
    }
    const std::vector<RankBytes> all = ranks_.gather(0, own);
    for (std::size_t i = 0; i < std::min(count, all.size()); ++i) take_next(at + i, all[i]);
  }
  if (open_) tensors_->release(*open_);
  open_.reset();
}

GgufWritten GgufOutput::write(const Imatrix* importance, ThreadPool& pool) {
  GgufWritten written;
  std::vector<GgufSlab> slabs;
  const std::vector<GgufMixTensor>& tensors = tensors_->tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string& name = tensors[i].name;
    written.tensors.push_back({name, types_[i], tensors[i].shape, !weights_of(i, importance).empty()});
    if (finished_.count(name) == 0) {
      for (const GgufSlab& slab : slabs_of(tensors[i].shape, i, request_.slab_values)) slabs.push_back(slab);
    } else if (request_.on_tensor) {
      request_.on_tensor(name);
    }
  }
  write_slabs(slabs, importance, pool);
  if (!place_) return written;
  for (std::size_t i = 0; i < writers_.size(); ++i) {
    writers_[i].finish();
    written.bytes += writers_[i].file_bytes();
    written.files.push_back(
        {names_[i], writers_[i].file_bytes(), file_sha256(io_, place_->files() / names_[i])});
  }
  written.sha256 = written.files.front().sha256;
  written.digest = output_digest(written.files);
  return written;
}

void GgufOutput::write_document(const Path& path, const std::string& text) {
  place_->add_created(path.filename().string());
  io_.remove(path);  // of an interrupted run
  const std::unique_ptr<File> document = io_.create(path);
  document->write_at(0, std::as_bytes(std::span(text)));
  document->sync();
}

void GgufOutput::publish(const GgufWritten& written, const std::string& report,
                         const ManifestText& manifest) {
  std::vector<NamedDigest> files = written.files;
  if (!report.empty()) {
    const Path path = file().string() + "." + kReportFile;
    write_document(path, report);
    files.push_back({path.filename().string(), report.size(), sha256_hex(std::as_bytes(std::span(report)))});
  }
  if (manifest) write_document(manifest_path(file()), manifest(files));
  io_.sync_directory(place_->files());
  place_->publish_file(written.sha256, std::span(names_).subspan(1));
}

}  // namespace llmq
