#include "export/provenance/oci_layout.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/parent_path.h"
#include "base/sha256.h"
#include "export/provenance/manifest.h"
#include "export/provenance/tar_file.h"
#include "io/checkpoint.h"
#include "io/digest_cache.h"
#include "io/gguf.h"
#include "model/linear_source.h"
#include "model/model_spec.h"
#include "model/open_checkpoint.h"

namespace llmq {
namespace {

constexpr const char* kManifestType = "application/vnd.oci.image.manifest.v1+json";
constexpr const char* kIndexType = "application/vnd.oci.image.index.v1+json";
constexpr const char* kArtifactType = "application/vnd.cncf.model.manifest.v1+json";
constexpr const char* kConfigType = "application/vnd.cncf.model.config.v1+json";
constexpr const char* kWeights = "application/vnd.cncf.model.weight.v1.raw";
constexpr const char* kWeightConfig = "application/vnd.cncf.model.weight.config.v1.raw";
constexpr const char* kDocument = "application/vnd.cncf.model.doc.v1.raw";
constexpr const char* kImageConfigType = "application/vnd.oci.image.config.v1+json";
constexpr const char* kTarLayer = "application/vnd.oci.image.layer.v1.tar";
constexpr const char* kModelsDirectory = "models";  // below the root of an image
constexpr std::uint64_t kPiece = 1 << 20;

std::string media_type(const std::string& name) {
  const auto begins = [&](std::string_view with) { return name.starts_with(with); };
  if (name.ends_with(".safetensors") || name.ends_with(".gguf")) return kWeights;
  if (name.ends_with(".md") || name.ends_with(".html") || begins("LICENSE") || begins("NOTICE") ||
      begins("USE_POLICY") || name.ends_with("report.json") || name.ends_with(kManifestFile) ||
      name.ends_with(".sig"))
    return kDocument;
  return kWeightConfig;
}

// "134.5M": a decimal count with at most one digit behind the point, and its scale.
std::string parameter_text(std::int64_t parameters) {
  constexpr const char* kScales[] = {"K", "M", "B", "T"};
  double count = static_cast<double>(parameters) / 1000;
  std::size_t scale = 0;
  while (count >= 1000 && scale + 1 < std::size(kScales)) count /= 1000, ++scale;
  return fmt::format("{:.1f}{}", count, kScales[scale]);
}

Json layer_digests(const std::vector<PackedLayer>& layers) {
  Json digests = Json::array();
  for (const PackedLayer& layer : layers) digests.push_back(layer.digest);
  return digests;
}

// A layer is not compressed, so that its digest is that of its tar. No file of it can run, so any machine may
// mount it; a platform has to be named all the same.
Json image_config(const std::vector<PackedLayer>& layers) {
  Json history = Json::array();
  for (const PackedLayer& layer : layers)
    history.push_back(Json::object({{"created_by", "llmq pack --image: " + layer.name}}));
  return Json::object({{"architecture", "amd64"},
                       {"os", "linux"},
                       {"config", Json::object()},
                       {"rootfs", Json::object({{"type", "layers"}, {"diff_ids", layer_digests(layers)}})},
                       {"history", history}});
}

Json model_config(Io& io, const Path& output, const std::vector<PackedLayer>& layers) {
  const Checkpoint checkpoint = open_checkpoint(io, output.string());
  const ModelSpec spec = ModelSpec::read(checkpoint);
  Json config = Json::object({{"architecture", "transformer"},
                              {"format", checkpoint.is_gguf() ? "gguf" : "safetensors"},
                              {"paramSize", parameter_text(spec.parameters())}});
  if (const Json* dtype = checkpoint.config().find("torch_dtype"); dtype != nullptr && dtype->is_string())
    config["precision"] = *dtype;
  if (const Json* quantization = checkpoint.config().find("quantization_config"))
    if (const Json* method = quantization->find("quant_method"); method != nullptr && method->is_string())
      config["quantization"] = *method;
  Path name = std::filesystem::absolute(output).lexically_normal();
  if (!name.has_filename()) name = name.parent_path();
  return Json::object(
      {{"descriptor", Json::object({{"family", spec.family}, {"name", name.filename().string()}})},
       {"config", config},
       {"modelfs", Json::object({{"type", "layers"}, {"diffIds", layer_digests(layers)}})}});
}

// A file as it is, and as it was stored.
struct CopiedFile {
  NamedDigest file, blob;
};

// A layout in the making, beside the place where it will be; removed unless it is published.
class Layout {
 public:
  Layout(Io& io, Path destination)
      : io_(io),
        destination_(std::move(destination)),
        partial_(destination_.string() + fmt::format(".partial-{}", ::getpid())) {
    if (io_.exists(destination_))
      fail(ErrorKind::kUsage, {"exists already", destination_.string(), "--oci", "name a new directory"});
    io_.make_directory(blobs());
  }
  ~Layout() {
    if (published_) return;
    try {
      for (const std::string& name : written_) io_.remove(partial_ / name);
      for (const char* directory : {"blobs/sha256", "blobs", ""}) io_.remove(partial_ / directory);
    } catch (...) {
    }
  }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;

  std::uint64_t bytes() const { return bytes_; }

  // Copies a file, in a tar where `directory` is not empty, and hashes it and what is written, in one pass.
  CopiedFile add_file(const Path& from, std::string_view directory) {
    const std::unique_ptr<File> source = io_.open(from);
    const std::uint64_t size = source->size();
    const TarFile tar = directory.empty() ? TarFile() : tar_file(directory, from.filename().string(), size);
    const std::uint64_t before = tar.before.size(), written = before + size + tar.after.size();
    const std::string name = "blobs/sha256/being-copied";
    written_.push_back(name);
    Sha256 digest, whole;
    {
      const std::unique_ptr<File> copy = io_.create(partial_ / name);
      copy->reserve(written);
      const auto add_text = [&](std::uint64_t at, const std::string& text) {
        if (text.empty()) return;
        whole.update(std::as_bytes(std::span(text)));
        copy->write_at(at, std::as_bytes(std::span(text)));
      };
      add_text(0, tar.before);
      std::vector<std::byte> piece(static_cast<std::size_t>(std::min(size, kPiece)));
      for (std::uint64_t at = 0; at < size; at += piece.size()) {
        const auto part = std::span(piece).first(static_cast<std::size_t>(std::min(kPiece, size - at)));
        source->read_at(at, part);
        digest.update(part);
        if (!directory.empty()) whole.update(part);
        copy->write_at(before + at, part);
      }
      add_text(before + size, tar.after);
      copy->sync();
    }
    CopiedFile copied{{from.filename().string(), size, digest.hex()}, {}};
    copied.blob = directory.empty() ? copied.file : NamedDigest{copied.file.name, written, whole.hex()};
    name_blob(name, copied.blob.sha256, written);
    return copied;
  }

  NamedDigest add_text(const std::string& text) {
    const std::string sha256 = sha256_hex(std::as_bytes(std::span(text)));
    const std::string name = "blobs/sha256/being-copied";
    write(name, text);
    name_blob(name, sha256, text.size());
    return {{}, text.size(), sha256};
  }

  void write(const std::string& name, const std::string& text) {
    written_.push_back(name);
    const std::unique_ptr<File> file = io_.create(partial_ / name);
    file->write_at(0, std::as_bytes(std::span(text)));
    file->sync();
  }

  void publish() {
    for (const Path& directory : {blobs(), partial_ / "blobs", partial_}) io_.sync_directory(directory);
    io_.rename(partial_, destination_);
    partial_ = destination_;  // from here on, what is taken back lies there
    io_.sync_directory(parent_of(destination_));
    published_ = true;
  }

 private:
  Path blobs() const { return partial_ / "blobs" / "sha256"; }
  void name_blob(const std::string& from, const std::string& sha256, std::uint64_t size) {
    const std::string to = "blobs/sha256/" + sha256;
    io_.rename(partial_ / from, partial_ / to);
    if (blobs_.insert(sha256).second) bytes_ += size;
    written_.push_back(to);
  }

  Io& io_;
  Path destination_, partial_;
  std::vector<std::string> written_;
  std::set<std::string> blobs_;
  std::uint64_t bytes_ = 0;
  bool published_ = false;
};

Json blob(const char* type, const std::string& digest, std::uint64_t bytes) {
  return Json::object({{"mediaType", type}, {"digest", digest}, {"size", Json(bytes)}});
}

// What a puller stores under its name, unless it unpacks the layer.
Json layer_json(const PackedLayer& layer, bool named) {
  Json json = blob(layer.media_type.c_str(), layer.digest, layer.bytes);
  if (!named) return json;
  json["annotations"] =
      Json::object({{"org.cncf.model.filepath", layer.name}, {"org.opencontainers.image.title", layer.name}});
  return json;
}

// The files to pack: plain ones only, by name.
std::vector<Path> files_of(Io& io, const Path& output) {
  std::vector<Path> files;
  if (!io.is_directory(output)) {
    for (const std::string& more :
         {std::string(), std::string(".report.json"), std::string(".manifest.json")})
      if (io.exists(output.string() + more)) files.emplace_back(output.string() + more);
    for (const std::string& part : further_gguf_parts(output.filename().string()))
      files.push_back(output.parent_path() / part);
  } else {
    for (const std::string& name : io.list(output)) files.push_back(output / name);
  }
  for (const Path& file : files)
    if (io.stamp(file).kind != FileKind::kRegular)
      fail(ErrorKind::kBadInput,
           {"is not a plain file, and cannot be packed", file.string(), {}, "pack an output of llmq"});
  return files;
}

std::map<std::string, std::string> recorded_digests(Io& io, const Path& output) {
  std::map<std::string, std::string> digests;
  const Path manifest = io.is_directory(output) ? output / kManifestFile : manifest_path(output);
  if (io.exists(manifest))
    for (const NamedDigest& file :
         manifest_subjects(Json::parse(read_text(io, manifest), manifest.string()), manifest.string()))
      digests[file.name] = file.sha256;
  return digests;
}

void check_tag(const std::string& tag) {
  const auto is_word = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  const bool sound =
      !tag.empty() && tag.size() <= 128 && is_word(tag.front()) &&
      std::all_of(tag.begin(), tag.end(), [&](char c) { return is_word(c) || c == '.' || c == '-'; });
  if (!sound)
    fail(ErrorKind::kUsage,
         {"'" + tag + "' is not a tag", {}, "--tag", "use letters, digits, '_', '.' and '-'"});
}

}  // namespace

Json OciLayout::to_json() const {
  Json list = Json::array();
  for (const PackedLayer& layer : layers) list.push_back(layer_json(layer, true));
  return Json::object({{"schema", "llmq.pack/1"},
                       {"form", form == PackForm::kImage ? "image" : "modelpack"},
                       {"destination", destination.string()},
                       {"tag", tag},
                       {"digest", digest},
                       {"bytes", Json(bytes)},
                       {"layers", list}});
}

OciLayout pack_oci(Io& io, const Path& output, const Path& destination, const std::string& tag,
                   PackForm form) {
  check_tag(tag);
  const std::vector<Path> files = files_of(io, output);
  const std::map<std::string, std::string> recorded = recorded_digests(io, output);
  const bool image = form == PackForm::kImage;
  OciLayout result;
  result.form = form;
  result.destination = destination.has_filename() ? destination : destination.parent_path();
  result.tag = tag;
  Layout layout(io, result.destination);
  for (const Path& path : files) {
    if (image && path.filename().string().starts_with(".wh."))
      fail(ErrorKind::kBadInput,
           {"would delete a file of the image, by its name", path.string(), {}, "pack an output of llmq"});
    const auto [file, stored] = layout.add_file(path, image ? kModelsDirectory : "");
    if (const auto known = recorded.find(file.name); known != recorded.end() && known->second != file.sha256)
      fail(ErrorKind::kBadInput,
           {"is not what the manifest says", path.string(), {}, "llmq verify says what differs"});
    result.layers.push_back({image ? fmt::format("{}/{}", kModelsDirectory, file.name) : file.name,
                             image ? kTarLayer : media_type(file.name), "sha256:" + stored.sha256,
                             stored.bytes});
  }
  const NamedDigest config =
      layout.add_text((image ? image_config(result.layers) : model_config(io, output, result.layers)).dump());
  Json layers = Json::array();
  for (const PackedLayer& layer : result.layers) layers.push_back(layer_json(layer, !image));
  Json content = Json::object({{"schemaVersion", 2}, {"mediaType", kManifestType}});
  if (!image) content["artifactType"] = kArtifactType;
  content["config"] = blob(image ? kImageConfigType : kConfigType, "sha256:" + config.sha256, config.bytes);
  content["layers"] = layers;
  const NamedDigest manifest = layout.add_text(content.dump());
  result.digest = "sha256:" + manifest.sha256;
  Json entry = blob(kManifestType, result.digest, manifest.bytes);
  if (!image) entry["artifactType"] = kArtifactType;
  entry["annotations"] = Json::object({{"org.opencontainers.image.ref.name", tag}});
  layout.write(
      "index.json",
      Json::object({{"schemaVersion", 2}, {"mediaType", kIndexType}, {"manifests", Json::array({entry})}})
          .dump());
  layout.write("oci-layout", R"({"imageLayoutVersion":"1.0.0"})");
  layout.publish();
  result.bytes = layout.bytes();
  return result;
}

}  // namespace llmq
