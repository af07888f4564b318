// An output as an OCI image layout whose artifact is a model in the ModelPack format of the CNCF:
//
//   DST/oci-layout                {"imageLayoutVersion": "1.0.0"}
//   DST/index.json                the one manifest, by digest, with its tag
//   DST/blobs/sha256/<digest>     manifest, model configuration, and every file as a layer of its own, as it
//                                 is
//
// https://github.com/opencontainers/image-spec/blob/main/image-layout.md,
// https://github.com/modelpack/model-spec
//
// Layers are not archived: a puller stores each under its own name (org.cncf.model.filepath), registries
// share the blobs that two versions have in common, and the digest of a layer is that of the file. No time
// enters, so that the same output packs into the same bytes. The layout has its name only when it is whole.
//
// Or as an ordinary image, for what mounts images and knows no ModelPack (volumes of Kubernetes, KServe):
// every file is a layer of one tar, /models/NAME, of user 0 and time 0, not compressed.
// https://github.com/opencontainers/image-spec/blob/main/{layer,config}.md
#pragma once
#include <string>
#include <vector>

#include "base/io.h"
#include "base/json.h"

namespace llmq {

enum class PackForm { kModelPack, kImage };

struct PackedLayer {
  std::string name, media_type, digest;  // "sha256:..."
  std::uint64_t bytes = 0;
};

struct OciLayout {
  PackForm form = PackForm::kModelPack;
  Path destination;
  std::string tag, digest;  // of the manifest
  std::vector<PackedLayer> layers;
  std::uint64_t bytes = 0;  // of all blobs
  Json to_json() const;     // schema llmq.pack/1
};

// `output`: a directory (without directories inside) or a .gguf file with its report and manifest.
// `destination` must not exist. Error(kBadInput) when a file is not what the output's manifest says.
OciLayout pack_oci(Io& io, const Path& output, const Path& destination, const std::string& tag,
                   PackForm form = PackForm::kModelPack);

}  // namespace llmq
