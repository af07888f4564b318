#include "export/output/published_output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/parent_path.h"
#include "export/output/job_difference.h"
#include "io/gguf.h"

namespace llmq {
namespace {

constexpr std::string_view kPartialLink = "latest.partial-";
constexpr std::size_t kDigestDigits = 8;

// Of llmq; none where there is no such file.
std::optional<Json> read_report_file(Io& io, const Path& file) {
  if (!io.exists(file)) return std::nullopt;
  try {
    Json report = Json::parse(read_text(io, file), file.string());
    const Json* schema = report.find("schema");
    if (schema != nullptr && schema->is_string() && schema->as_string() == kReportSchema) return report;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;
  }
  return std::nullopt;  // some other program's report.json
}

std::optional<Json> read_report(Io& io, const Path& directory) {
  if (!io.exists(directory / "config.json")) return std::nullopt;
  return read_report_file(io, directory / kReportFile);
}

// Of "v0012-1f0c9a3e"; none for any other name.
std::optional<int> number_of(std::string_view name) {
  const std::size_t dash = name.find('-');
  if (dash == std::string_view::npos || dash < 5 || dash > 9 || name.front() != 'v' ||
      name.size() != dash + 1 + kDigestDigits)
    return std::nullopt;
  if (name.find_first_not_of("0123456789abcdef", dash + 1) != std::string_view::npos ||
      name.find_first_not_of("0123456789", 1) != dash)
    return std::nullopt;
  int number = 0;
  std::from_chars(name.data() + 1, name.data() + dash, number);
  if (number < 1 || fmt::format("v{:04}", number) != name.substr(0, dash)) return std::nullopt;
  return number;
}

bool is_own_directory(Io& io, const Path& path) {
  return io.is_directory(path) && io.read_link(path).empty();
}

void check_versioned(Io& io, const Path& path, const std::vector<std::string>& names,
                     const std::function<void(const std::string&, const std::string&)>& refuse) {
  for (const std::string& name : names) {
    const bool link = !io.read_link(path / name).empty();
    if (link ? name == kLatest || name.starts_with(kPartialLink)
             : number_of(name).has_value() && io.is_directory(path / name))
      continue;
    refuse(fmt::format("the output directory holds '{}', and a versioned output holds versions only", name),
           "name another output directory");
  }
}

}  // namespace

Path tidy_path(const Path& directory) {
  Path path = directory.lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

void check_output_directory(Io& io, const OutputTarget& target) {
  const Path path = tidy_path(target.directory);
  if (!io.exists(path)) return;
  const std::function<void(const std::string&, const std::string&)> refuse = [&](const std::string& message,
                                                                                 const std::string& hint) {
    fail(ErrorKind::kUsage, {message, path.string(), {}, hint});
  };
  const std::string elsewhere = "name another output directory";
  if (!io.read_link(path).empty()) refuse("the output is a symbolic link", "name the directory it leads to");
  if (!io.is_directory(path)) refuse("the output is a file, not a directory", elsewhere);
  const std::vector<std::string> names = io.list(path);
  if (names.empty()) return;
  if (target.versioned) return check_versioned(io, path, names, refuse);
  if (!read_report(io, path))
    refuse("the output directory holds something else than an output of llmq", elsewhere);
  if (!target.overwrite)
    refuse("the output directory holds an earlier output of llmq",
           "pass --overwrite to replace it, or " + elsewhere);
  for (const std::string& name : names)
    if (io.is_directory(path / name))
      refuse(fmt::format("the output directory holds the directory '{}', which llmq did not write", name),
             elsewhere);
}

void check_output_file(Io& io, const OutputTarget& target, const Path& first) {
  const Path& path = target.directory;
  const auto refuse = [&](const std::string& message, const std::string& hint) {
    fail(ErrorKind::kUsage, {message, path.string(), {}, hint});
  };
  if (path.extension() != ".gguf")
    refuse("a GGUF is one file, and this name does not end in .gguf", "write to NAME.gguf");
  if (target.versioned) refuse("a GGUF has no versions", "leave out output.versioned, or name each file");
  if (!io.exists(path)) return;
  if (!io.read_link(path).empty()) refuse("the output is a symbolic link", "name the file it leads to");
  if (io.is_directory(path)) refuse("a directory of this name exists already", "choose another name");
  const std::string named = (first.empty() ? path : first).string();
  const Path report = named + std::string(kBesideFile.front());
  if (!read_report_file(io, report) && !io.is_directory(named + kUnfinishedSuffix))
    refuse(
        fmt::format("the file exists already, and no {} says that llmq wrote it", report.filename().string()),
        "choose another name, or remove it yourself");
  if (!target.overwrite) refuse("the file exists already", "choose another name, or add --overwrite");
  std::array<std::byte, 4> magic{};
  const std::unique_ptr<File> existing = io.open(path);
  if (existing->size() >= magic.size()) existing->read_at(0, magic);
  if (std::memcmp(magic.data(), "GGUF", magic.size()) != 0)
    refuse("the file that exists is no GGUF and is not replaced", "choose another name");
}

std::vector<std::string> versions_in(Io& io, const Path& directory) {
  std::vector<std::string> versions;
  if (!io.is_directory(directory)) return versions;
  for (std::string& name : io.list(directory))
    if (number_of(name) && is_own_directory(io, directory / name)) versions.push_back(std::move(name));
  std::stable_sort(versions.begin(), versions.end(),
                   [](const std::string& a, const std::string& b) { return *number_of(a) < *number_of(b); });
  return versions;
}

std::string next_version(Io& io, const Path& directory, const std::string& digest) {
  const std::vector<std::string> versions = versions_in(io, directory);
  const int last = versions.empty() ? 0 : *number_of(versions.back());
  return fmt::format("v{:04}-{}", last + 1, digest.substr(digest.find(':') + 1, kDigestDigits));
}

std::string latest_version(Io& io, const Path& directory) { return io.read_link(directory / kLatest); }

std::string move_latest(Io& io, const Path& directory, const std::string& version) {
  std::vector<std::string> versions = versions_in(io, directory), fitting;
  for (const std::string& name : versions)
    if (name == version || name.substr(0, name.find('-')) == version) fitting.push_back(name);
  if (fitting.size() != 1) {
    std::string known;
    for (const std::string& name : versions) known += (known.empty() ? "" : ", ") + name;
    fail(ErrorKind::kUsage,
         {fitting.empty() ? fmt::format("there is no version '{}'", version)
                          : fmt::format("'{}' is more than one version", version),
          directory.string(),
          {},
          known.empty() ? "only an output written with versioned: true has versions" : "versions: " + known});
  }
  if (latest_version(io, directory) == fitting.front()) return fitting.front();
  if (io.exists(directory / kLatest) && io.read_link(directory / kLatest).empty())
    fail(ErrorKind::kUsage, {"'latest' is not a symbolic link", directory.string(), {}, "move it away"});
  const Path partial = directory / fmt::format("{}{}", kPartialLink, ::getpid());
  io.remove(partial);
  io.make_link(fitting.front(), partial);
  try {
    io.rename(partial, directory / kLatest);
  } catch (...) {
    try {
      io.remove(partial);
    } catch (const Error&) {  // the first error is the one to report
    }
    throw;
  }
  io.sync_directory(directory);
  return fitting.front();
}

namespace {

// A single file's own name; of a model in several files that of the first, where one alone is there.
Path first_file(Io& io, const Path& path) {
  if (io.exists(path) || path.extension() != ".gguf" || !io.is_directory(parent_of(path))) return path;
  const std::string beginning = path.stem().string() + "-00001-of-";
  Path first = path;
  for (const std::string& name : io.list(parent_of(path))) {
    if (!name.starts_with(beginning) ||
        name !=
            gguf_part_name(path.stem().string(), 1, 1 + static_cast<int>(further_gguf_parts(name).size())))
      continue;
    if (first != path) return path;
    first = parent_of(path) / name;
  }
  return first;
}

std::optional<std::string> digest_of_files(Io& io, const Path& first,
                                           const std::function<std::string(const Path&)>& sha256) {
  std::vector<NamedDigest> files = {{first.filename().string(), 0, sha256(first)}};
  for (const std::string& part : further_gguf_parts(first.filename().string())) {
    const Path path = parent_of(first) / part;
    if (!io.exists(path)) return std::nullopt;
    files.push_back({part, 0, sha256(path)});
  }
  return output_digest(files);
}

}  // namespace

std::optional<PublishedOutput> find_unchanged(Io& io, const OutputTarget& target,
                                              const std::function<std::string(const Path&)>& sha256) {
  Path path = tidy_path(target.directory);
  if (target.single_file) path = first_file(io, path);
  const bool there =
      target.single_file ? io.exists(path) && !io.is_directory(path) : is_own_directory(io, path);
  if (!there) return std::nullopt;
  PublishedOutput found{path, {}, {}};
  if (target.versioned) {
    const std::vector<std::string> versions = versions_in(io, path);
    if (versions.empty()) return std::nullopt;
    found.version = versions.back();
    found.directory = path / found.version;
  }
  std::optional<Json> report = target.single_file
                                   ? read_report_file(io, path.string() + std::string(kBesideFile.front()))
                                   : read_report(io, found.directory);
  if (!report) return std::nullopt;
  const Json *job = report->find("job"), *digest = report->find("digest");
  if (job == nullptr || digest == nullptr || !digest->is_string() ||
      !job_difference(*job, target.job).empty())
    return std::nullopt;
  const std::optional<std::string> now =
      target.single_file ? digest_of_files(io, path, sha256) : output_digest(io, found.directory, sha256);
  if (now != digest->as_string()) return std::nullopt;
  found.report = std::move(*report);
  return found;
}

}  // namespace llmq
