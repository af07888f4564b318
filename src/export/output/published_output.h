// Outputs that have their names: what may be replaced, which versions there are, and which one `latest`
// names.
//
//   plain      DIR/config.json ...                      replaced as a whole
//   versioned  DIR/v0001-1f0c9a3e/config.json ...       never replaced; the digits begin the output's digest
//              DIR/latest -> v0001-1f0c9a3e             moves in one step
//
// A symbolic link in the place of a directory is never followed to remove or to replace anything.
#pragma once
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/io.h"
#include "base/json.h"
#include "base/parent_path.h"
#include "export/output/model_writer.h"

namespace llmq {

inline constexpr const char* kReportFile = "report.json";
inline constexpr const char* kReportSchema = "llmq.report/1";
inline constexpr const char* kLatest = "latest";
// What is not whole yet lies beside the output, in the directory that is called as it is and this.
inline constexpr const char* kUnfinishedSuffix = ".unfinished";

// "out/x/" and "out/x" are the same place, whose sibling is "out/x.unfinished".
Path tidy_path(const Path& directory);

// Error(kUsage) when `target` may not be written: it is a missing or an empty directory; or, with
// `overwrite`, an earlier output of llmq (config.json, a report.json of llmq.report/1, no directory inside);
// or, versioned, holds versions only.
void check_output_directory(Io& io, const OutputTarget& target);

// The documents beside a .gguf file are called as it is and this.
inline constexpr std::array<std::string_view, 3> kBesideFile = {".report.json", ".manifest.json", ".sig"};
// The same of a target that is a single file: nothing is there, or, with `overwrite`, a GGUF of llmq, whose
// report lies beside it or is about to (the file gets its name first). `first`: of a GGUF in several files,
// the one whose name the report has.
void check_output_file(Io& io, const OutputTarget& target, const Path& first = {});

// Names "v<number>-<8 hexadecimal digits>" of directories, by number.
std::vector<std::string> versions_in(Io& io, const Path& directory);
std::string next_version(Io& io, const Path& directory,
                         const std::string& digest);  // "sha256:..." -> "v0004-..."
// What `latest` names; empty without one.
std::string latest_version(Io& io, const Path& directory);
// Moves `latest` in one step. `version`: a whole name, or its number ("v0003"). Error(kUsage) listing the
// versions there are.
std::string move_latest(Io& io, const Path& directory, const std::string& version);

// The output that `target` names already (of a versioned one: the newest), when the same job made it and
// every file loaders read is as it was. `sha256` gives the digest of a file.
struct PublishedOutput {
  Path directory;
  std::string version;  // empty for a plain one
  Json report;
};
std::optional<PublishedOutput> find_unchanged(Io& io, const OutputTarget& target,
                                              const std::function<std::string(const Path&)>& sha256);

}  // namespace llmq
