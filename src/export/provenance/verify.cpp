#include "export/provenance/verify.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/parent_path.h"
#include "export/provenance/manifest.h"
#include "export/provenance/signature.h"
#include "io/gguf.h"

namespace llmq {
namespace {

constexpr int kMaxDepth = 16;
constexpr std::size_t kMaxEntries = 100'000;
constexpr std::uint64_t kMaxKeyBytes = 64 << 10;

// What OpenSSF Model Signing leaves out as well.
bool belongs_to_git(const std::string& name) {
  return name == ".git" || name == ".gitattributes" || name == ".github" || name == ".gitignore";
}

// The digest of what was a regular file when it was listed, and is the same file when it is opened.
NamedDigest digest_listed(Io& io, const Path& path, const std::string& name, const FileStamp& listed) {
  const std::unique_ptr<File> file = io.open(path);
  const FileStamp opened = file->stamp();
  if (opened.device != listed.device || opened.inode != listed.inode)
    fail(ErrorKind::kIo, {"was replaced while it was looked at", path.string(), {}, "verify it again"});
  return {name, opened.size, file_sha256(*file)};
}

void list_below(Io& io, const Path& directory, const std::string& prefix, int depth,
                const std::vector<std::string>& skip, DirectoryListing& into) {
  if (depth > kMaxDepth)
    fail(ErrorKind::kBadInput,
         {fmt::format("holds directories more than {} deep", kMaxDepth), directory.string(), {}, {}});
  for (const std::string& entry : io.list(directory)) {
    if (depth == 0 && (belongs_to_git(entry) || std::find(skip.begin(), skip.end(), entry) != skip.end()))
      continue;
    if (into.files.size() + into.other.size() >= kMaxEntries)
      fail(ErrorKind::kBadInput,
           {fmt::format("holds more than {} files", kMaxEntries), directory.string(), {}, {}});
    const std::string name = prefix + entry;
    const FileStamp stamp = io.stamp(directory / entry);
    if (stamp.kind == FileKind::kRegular)
      into.files.push_back(digest_listed(io, directory / entry, name, stamp));
    else if (stamp.kind == FileKind::kDirectory)
      list_below(io, directory / entry, name + "/", depth + 1, skip, into);
    else
      into.other.emplace_back(name,
                              stamp.kind == FileKind::kSymlink ? "a symbolic link" : "not a regular file");
  }
}

// A .gguf and its companions lie among files that are not theirs: only those the manifest may speak of are
// listed.
DirectoryListing list_file(Io& io, const Path& file) {
  DirectoryListing listing;
  const Path directory = parent_of(file);
  const std::string name = file.filename().string();
  std::vector<std::string> entries = further_gguf_parts(name);
  entries.insert(entries.begin(), {name, name + ".manifest.json", name + ".report.json"});
  for (const std::string& entry : entries) {
    const FileStamp stamp = io.stamp(directory / entry);
    if (stamp.kind == FileKind::kRegular)
      listing.files.push_back(digest_listed(io, directory / entry, entry, stamp));
    else if (stamp.kind != FileKind::kAbsent)
      listing.other.emplace_back(entry,
                                 stamp.kind == FileKind::kSymlink ? "a symbolic link" : "not a regular file");
  }
  return listing;
}

Json parse_file(Io& io, const Path& path) { return Json::parse(read_text(io, path), path.string()); }

// `listing` without the names at its top.
DirectoryListing without(DirectoryListing listing, const std::vector<std::string>& names) {
  const auto named = [&](const std::string& name) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& one) {
      return name == one || (name.starts_with(one) && name[one.size()] == '/');
    });
  };
  std::erase_if(listing.files, [&](const NamedDigest& file) { return named(file.name); });
  std::erase_if(listing.other, [&](const auto& entry) { return named(entry.first); });
  return listing;
}

// What vouches for an output lies in a directory, and beside a file.
struct OutputPlace {
  bool directory = false;
  Path manifest, signature;
};

OutputPlace place_of(Io& io, const Path& output) {
  if (io.is_directory(output)) return {true, output / kManifestFile, output / kSignatureFile};
  return {false, manifest_path(output), output.string() + kSignatureSuffix};
}

DirectoryListing list_output(Io& io, const Path& output, const OutputPlace& place) {
  return place.directory ? list_directory(io, output, {kSignatureFile}) : list_file(io, output);
}

void add(std::map<std::string, Mismatch>& all, std::vector<Mismatch> mismatches) {
  for (Mismatch& one : mismatches) all.emplace(one.path, std::move(one));
}

// A single file signed by model_signing is called "." and stands alone: what lies beside it is not spoken of.
std::vector<Mismatch> compare_signed(SignedFiles vouched, const DirectoryListing& listing, const Path& output,
                                     const OutputPlace& place) {
  if (place.directory || vouched.files.size() != 1 || vouched.files.front().name != ".")
    return compare_listing(vouched.files, without(listing, vouched.ignored));
  vouched.files.front().name = output.filename().string();
  return compare_listing(vouched.files, without(listing, {place.manifest.filename().string(),
                                                          output.filename().string() + ".report.json"}));
}

Json text_or_null(const std::optional<std::string>& text) { return text ? Json(*text) : Json(); }

}  // namespace

Json mismatches_json(const std::vector<Mismatch>& mismatches) {
  Json list = Json::array();
  for (const Mismatch& m : mismatches)
    list.push_back(Json::object(
        {{"path", m.path}, {"expected", text_or_null(m.expected)}, {"found", text_or_null(m.found)}}));
  return list;
}

Json Verification::to_json() const {
  return Json::object({{"schema", "llmq.verify/1"},
                       {"path", path},
                       {"ok", ok()},
                       {"files", static_cast<std::int64_t>(files)},
                       {"signature_checked", signature_checked},
                       {"problem", problem.empty() ? Json() : Json(problem)},
                       {"mismatches", mismatches_json(mismatches)}});
}

DirectoryListing list_directory(Io& io, const Path& directory, const std::vector<std::string>& skip) {
  DirectoryListing listing;
  list_below(io, directory, "", 0, skip, listing);
  std::sort(listing.files.begin(), listing.files.end(),
            [](const NamedDigest& a, const NamedDigest& b) { return a.name < b.name; });
  return listing;
}

std::vector<Mismatch> compare_listing(const std::vector<NamedDigest>& expected,
                                      const DirectoryListing& listing) {
  std::map<std::string, Mismatch> all;
  for (const NamedDigest& file : expected) all[file.name] = {file.name, file.sha256, std::nullopt};
  const auto found = [&](const std::string& name, const std::string& what) {
    Mismatch& one = all[name];
    one.path = name;
    one.found = what;
  };
  for (const NamedDigest& file : listing.files) found(file.name, file.sha256);
  for (const auto& [name, what] : listing.other) found(name, what);
  std::vector<Mismatch> mismatches;
  for (auto& [name, one] : all)
    if (one.expected != one.found) mismatches.push_back(std::move(one));
  return mismatches;
}

Verification verify_output(Io& io, const Path& output, const std::optional<Path>& public_key) {
  if (!io.exists(output))
    fail(ErrorKind::kBadInput,
         {"does not exist", output.string(), {}, "name an output directory or .gguf file"});
  const OutputPlace place = place_of(io, output);
  std::optional<EcdsaKey> key;
  if (public_key) key = EcdsaKey::public_key(read_text(io, *public_key, kMaxKeyBytes), public_key->string());
  const bool has_manifest = io.stamp(place.manifest).kind == FileKind::kRegular;
  if (!has_manifest && !key)
    fail(ErrorKind::kBadInput,
         {"there is no manifest of it", output.string(), place.manifest.filename().string(),
          "llmq quantize and llmq convert write one"});
  Verification result;
  result.path = output.string();
  try {
    std::optional<std::vector<NamedDigest>> recorded;
    std::optional<SignedFiles> vouched;
    if (key) vouched = read_signature(parse_file(io, place.signature), *key, place.signature.string());
    if (has_manifest) recorded = manifest_subjects(parse_file(io, place.manifest), place.manifest.string());
    const DirectoryListing listing = list_output(io, output, place);
    result.files = listing.files.size();
    std::map<std::string, Mismatch> all;
    if (recorded)
      add(all, compare_listing(*recorded, without(listing, {place.manifest.filename().string()})));
    if (vouched) add(all, compare_signed(*vouched, listing, output, place));
    for (auto& [name, one] : all) result.mismatches.push_back(std::move(one));
    result.signature_checked = vouched.has_value();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kBadInput) throw;
    result.problem = error.what();
  }
  return result;
}

Signed sign_output(Io& io, const Path& output, const Path& private_key) {
  const OutputPlace place = place_of(io, output);
  if (!place.directory && (!io.exists(output) || output.extension() != ".gguf"))
    fail(ErrorKind::kBadInput, {"is neither a directory nor a .gguf file",
                                output.string(),
                                {},
                                "a signature is of an output of llmq"});
  std::string pem = read_text(io, private_key, kMaxKeyBytes);
  const EcdsaKey key = EcdsaKey::private_key(pem, private_key.string());
  const DirectoryListing listing = list_output(io, output, place);
  if (!listing.other.empty())
    fail(ErrorKind::kBadInput,
         {"is " + listing.other.front().second + ", which cannot be signed", output.string(),
          listing.other.front().first, "remove it, or sign another output"});
  if (listing.files.empty()) fail(ErrorKind::kBadInput, {"holds no file to sign", output.string(), {}, {}});
  if (io.stamp(place.manifest).kind == FileKind::kRegular) {
    const auto mismatches =
        compare_listing(manifest_subjects(parse_file(io, place.manifest), place.manifest.string()),
                        without(listing, {place.manifest.filename().string()}));
    if (!mismatches.empty())
      fail(ErrorKind::kBadInput, {"is not what the manifest says, and is not signed", output.string(),
                                  mismatches.front().path, "llmq verify says what differs"});
  }
  Path name = output.filename();
  if (name.empty() || name == "." || name == "..")
    name = std::filesystem::absolute(output / ".").lexically_normal().parent_path().filename();
  write_text_atomically(io, place.signature, make_signature(name.string(), listing.files, key).dump() + "\n");
  return {place.signature, listing.files.size()};
}

}  // namespace llmq
