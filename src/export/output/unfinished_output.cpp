#include "export/output/unfinished_output.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/new_name.h"
#include "base/sha256.h"
#include "export/output/job_difference.h"
#include "export/output/lock_words.h"
#include "export/output/published_output.h"
#include "io/digest_cache.h"

namespace llmq {
namespace {

constexpr const char* kJournalSchema = "llmq.journal/1";
constexpr const char *kLock = "lock", *kJournal = "journal", *kFiles = "files", *kPrevious = "previous",
                     *kPruned = "pruned", *kProbe = "probe-";

// A directory of files. A link in its place is removed, what it leads to is not.
void remove_tree(Io& io, const Path& directory) {
  if (!io.exists(directory)) return;
  if (io.read_link(directory).empty())
    for (const std::string& name : io.list(directory)) io.remove(directory / name);
  io.remove(directory);
}

bool holds_directories(Io& io, const Path& directory) {
  const std::vector<std::string> names = io.list(directory);
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return io.is_directory(directory / name); });
}

template <typename Step>
bool attempt(const Step& step) noexcept {
  try {
    step();
    return true;
  } catch (...) {  // the error that led here is the one to report
    return false;
  }
}

const Json* member_of(const Json& record, const char* name) {
  return record.is_object() ? record.find(name) : nullptr;
}

bool is_header(const Json& record) {
  const Json* schema = member_of(record, "schema");
  return schema != nullptr && *schema == Json(kJournalSchema) && record.find("job") != nullptr;
}

Path unfinished_place(const OutputTarget& target) {
  const Path output = tidy_path(target.directory);
  return parent_of(output) / (output.filename().string() + kUnfinishedSuffix);
}

std::string report_digest(Io& io, const Path& directory) {
  const std::string text = read_text(io, directory / kReportFile);
  return sha256_hex(std::as_bytes(std::span(text)));
}

}  // namespace

UnfinishedOutput::UnfinishedOutput(Io& io, const OutputTarget& target) : io_(io), target_(target) {
  target_.directory = tidy_path(target.directory);
  directory_ = unfinished_place(target);
  check_target();
  if (!io_.read_link(directory_).empty())
    fail(ErrorKind::kUsage, {"is a symbolic link", directory_.string(), {}, "remove it"});
  io_.make_directory(directory_);  // what stands in its place stays there
  try {
    take_lock();
    recover();
  } catch (...) {
    journal_.reset();
    lock_.reset();
    attempt([&] { io_.remove(directory_); });
    throw;
  }
}

void UnfinishedOutput::take_lock() {
  for (int attempts = 0; lock_ == nullptr; ++attempts) {
    io_.make_directory(directory_);
    std::string holder;
    try {
      lock_ = io_.lock(place(kLock), lock_words(), holder);
    } catch (const Error&) {
      // Its last holder may just have removed the directory.
      if (attempts == 8 || io_.is_directory(directory_)) throw;
      continue;
    }
    if (lock_ != nullptr) return;
    while (!holder.empty() && holder.back() == '\n') holder.pop_back();
    fail(ErrorKind::kResource, {"another llmq is at work on this output: " +
                                    (holder.empty() ? std::string("it does not say who") : holder),
                                target_.directory.string(),
                                {},
                                "wait for it, or name another output"});
  }
}

UnfinishedOutput::~UnfinishedOutput() {
  attempt([&] { remove_probe(); });
  const bool worth_keeping = !published_ && is_worth_keeping();
  if (!published_ && !worth_keeping && !attempt([&] { clear(); })) {
    remove_created(files());  // a broken disk may not list it any more
    attempt([&] { io_.remove(place(kJournal)); });
  }
  if (worth_keeping)
    attempt([&] {
      Log::get().note(fmt::format("{}: {} finished blocks {}are kept; the same command goes on from there",
                                  directory_.string(), blocks().size(),
                                  target_.measured.is_null() ? "" : "and what was measured "));
    });
  journal_.reset();
  lock_.reset();
  if (!worth_keeping) attempt([&] { io_.remove(directory_); });
}

void UnfinishedOutput::remove_created(const Path& directory) noexcept {
  for (const std::string& name : created_) attempt([&] { io_.remove(directory / name); });
  attempt([&] { io_.remove(directory); });
}

Path UnfinishedOutput::files() const { return place(kFiles); }

// A network's file system may remember for a minute that a name was not there: nobody has asked for this one.
std::string UnfinishedOutput::lay_probe() {
  probe_ = new_name(kProbe);
  io_.create(place(probe_.c_str()))->sync();
  return probe_;
}

void UnfinishedOutput::remove_probe() {
  if (!probe_.empty()) io_.remove(place(probe_.c_str()));
  probe_.clear();
}

Path unfinished_files(const OutputTarget& target) { return unfinished_place(target) / kFiles; }
Path probe_place(const OutputTarget& target, const std::string& probe) {
  return unfinished_place(target) / probe;
}

std::vector<Json> UnfinishedOutput::blocks() const {
  std::vector<Json> blocks;
  if (journal_)
    for (const Json& record : journal_->records())
      if (const Json* block = member_of(record, "block")) blocks.push_back(*block);
  return blocks;
}

bool UnfinishedOutput::is_worth_keeping() const {
  if (!journal_ || journal_->records().empty()) return false;
  return !blocks().empty() || member_of(journal_->records().front(), "measured") != nullptr;
}

void UnfinishedOutput::keep_blocks(std::size_t count) { journal_->keep(1 + count); }

void UnfinishedOutput::set_blocks(std::span<const Json> blocks) {
  const std::vector<Json> before = this->blocks();
  const auto [differs, ours] = std::mismatch(blocks.begin(), blocks.end(), before.begin(), before.end());
  if (ours != before.end()) keep_blocks(static_cast<std::size_t>(ours - before.begin()));
  for (auto block = differs; block != blocks.end(); ++block) add_block(*block);
}

void UnfinishedOutput::check_target() const {
  if (target_.single_file)
    check_output_file(io_, target_);
  else
    check_output_directory(io_, target_);
}

bool UnfinishedOutput::is_published(const Json& record) const {
  if (const Json* sha256 = member_of(record, "file"))
    return io_.exists(target_.directory) && *sha256 == Json(file_sha256(io_, target_.directory));
  const Json *to = member_of(record, "version"), *digest = member_of(record, "report");
  if (to == nullptr || digest == nullptr || !to->is_string() || !digest->is_string()) return false;
  const Path output = to->as_string().empty() ? target_.directory : target_.directory / to->as_string();
  if (!io_.exists(output / kReportFile)) return false;
  return report_digest(io_, output) == digest->as_string();
}

// What an earlier process left, whichever byte it came to.
void UnfinishedOutput::recover() {
  const auto refuse = [&](const std::string& message, const std::string& hint) {
    fail(ErrorKind::kUsage, {message, directory_.string(), {}, hint});
  };
  for (const std::string& name : io_.list(directory_)) {
    if (name.starts_with(kProbe)) {
      io_.remove(place(name.c_str()));
      continue;
    }
    const bool own = name == kFiles || name == kPrevious || name == kPruned;
    if (!own && name != kLock && name != kJournal)
      refuse(fmt::format("holds '{}', which llmq did not write", name), "move it away");
    if (!own) continue;
    if (!io_.read_link(place(name.c_str())).empty() || !io_.is_directory(place(name.c_str())) ||
        holds_directories(io_, place(name.c_str())))
      refuse(fmt::format("holds a '{}' that llmq did not write", name), "move it away");
  }
  if (io_.exists(place(kPrevious)) && !io_.exists(target_.directory)) {
    io_.rename(place(kPrevious), target_.directory);
    io_.sync_directory(parent_of(target_.directory));
  }
  if (!io_.exists(place(kJournal))) return clear();
  journal_ = Journal::open(io_, place(kJournal));
  const std::vector<Json>& records = journal_->records();
  if (records.empty() || !is_header(records.front())) return clear();
  if (const Json* publication = member_of(records.back(), "publication"); publication != nullptr) {
    if (is_published(*publication)) {
      finish_publication(Json(*publication));
      published_ = false;  // what comes now is another output
      return;
    }
    journal_->keep(records.size() - 1);
  }
  if (target_.restart || !is_worth_keeping() || !io_.exists(files())) return clear();
  const std::string difference = job_difference(records.front().at("job"), target_.job);
  if (difference.empty()) return;
  if (blocks().empty()) return clear();
  refuse(fmt::format("an interrupted run of another job left {} finished blocks here: {}", blocks().size(),
                     difference),
         "run that job to its end, pass --restart to throw its work away, or name another output");
}

void UnfinishedOutput::clear() {
  journal_.reset();
  remove_tree(io_, place(kFiles));
  if (io_.exists(target_.directory)) remove_tree(io_, place(kPrevious));
  remove_tree(io_, place(kPruned));
  io_.remove(place(kJournal));
}

void UnfinishedOutput::start_over() {
  clear();
  io_.make_directory(files());
}

void UnfinishedOutput::begin_journal() {
  io_.sync_directory(files());
  sync_place();
  if (target_.job.is_null() || journal_) return;
  journal_ = Journal::create(io_, place(kJournal));
  Json header = Json::object({{"schema", kJournalSchema}, {"job", target_.job}});
  if (!target_.measured.is_null()) header["measured"] = target_.measured;
  journal_->append(header);
  sync_place();
}

void UnfinishedOutput::sync_place() {
  io_.sync_directory(directory_);
  io_.sync_directory(parent_of(directory_));
}

void UnfinishedOutput::add_block(const Json& record) {
  if (journal_) journal_->append(Json::object({{"block", record}}));
}

void UnfinishedOutput::move_documents() {
  for (const std::string_view suffix : kBesideFile) {
    const Path document = files() / beside(suffix).filename();
    if (io_.exists(document)) io_.rename(document, beside(suffix));
  }
  io_.sync_directory(parent_of(target_.directory));
}

// Documents speak of one file: those of an earlier one go before it does, what vouches first.
void UnfinishedOutput::publish_file(const std::string& sha256, std::span<const std::string> further) {
  check_target();
  const Json publication = Json::object({{"version", ""}, {"latest", false}, {"file", sha256}});
  if (journal_) journal_->append(Json::object({{"publication", publication}}));
  for (auto suffix = kBesideFile.rbegin(); suffix != kBesideFile.rend(); ++suffix)
    io_.remove(beside(*suffix));
  io_.sync_directory(parent_of(target_.directory));
  for (const std::string& name : further) io_.rename(files() / name, parent_of(target_.directory) / name);
  io_.rename(files() / target_.directory.filename(), target_.directory);
  io_.sync_directory(parent_of(target_.directory));
  finish_publication(publication);
}

std::string UnfinishedOutput::publish(const std::string& digest, bool move_latest) {
  check_target();
  std::string version = target_.versioned ? next_version(io_, target_.directory, digest) : std::string();
  Json publication = Json::object({{"version", version}, {"latest", move_latest}});
  if (journal_) {
    publication["report"] = report_digest(io_, files());
    journal_->append(Json::object({{"publication", publication}}));
  }
  if (target_.versioned) {
    io_.make_directory(target_.directory);
    io_.sync_directory(parent_of(target_.directory));
  }
  give_name(version.empty() ? target_.directory : target_.directory / version);
  finish_publication(publication);
  return version;
}

// Without its directory's sync the name might not outlive a power cut, so a failure there takes it back.
void UnfinishedOutput::give_name(const Path& to) {
  const bool replaces = io_.exists(to) && !io_.list(to).empty();
  bool exchanged = false, aside = false, named = false;
  try {
    exchanged = replaces && io_.exchange(files(), to);
    if (!exchanged) {
      if (replaces) io_.rename(to, place(kPrevious));
      aside = replaces;
      io_.rename(files(), to);
    }
    named = true;
    io_.sync_directory(parent_of(to));
    io_.sync_directory(directory_);
  } catch (...) {
    if (exchanged) attempt([&] { io_.exchange(files(), to); });
    const bool back = named && !exchanged && attempt([&] { io_.rename(to, files()); });
    // Whole, but under a name that may not last: a journal lets the next run see to it.
    if (named && !exchanged && !back && !aside && !journal_) remove_created(to);
    if (aside && (back || !named)) attempt([&] { io_.rename(place(kPrevious), to); });
    throw;
  }
}

// The output has its name: what is left to do is done again after a kill, by the next run.
void UnfinishedOutput::finish_publication(const Json& publication) {
  const std::string version = publication.at("version").as_string();
  if (target_.single_file) move_documents();
  if (!version.empty() && publication.at("latest") == Json(true))
    move_latest(io_, target_.directory, version);
  published_ = true;
  if (!version.empty() && target_.keep > 0) prune(version);
  clear_or_warn();
}

void UnfinishedOutput::discard() {
  published_ = true;
  clear_or_warn();
}

void UnfinishedOutput::clear_or_warn() {
  try {
    clear();
  } catch (const Error& error) {
    Log::get().warn(fmt::format("{}: what is not needed any more could not be removed: {}",
                                directory_.string(), error.detail().message));
  }
}

// All but the newest `keep`; what `latest` names stays. A version loses its name before its files.
void UnfinishedOutput::prune(const std::string& newest) {
  std::vector<std::string> versions = versions_in(io_, target_.directory);
  const std::string latest = latest_version(io_, target_.directory);
  const auto most = static_cast<std::size_t>(target_.keep);
  for (std::size_t i = 0; i + most < versions.size(); ++i) {
    const Path old = target_.directory / versions[i];
    if (versions[i] == latest || versions[i] == newest) continue;
    try {
      if (holds_directories(io_, old)) continue;
      remove_tree(io_, place(kPruned));
      io_.rename(old, place(kPruned));
      io_.sync_directory(target_.directory);
      remove_tree(io_, place(kPruned));
    } catch (const Error& error) {
      Log::get().warn(
          fmt::format("{}: an old version could not be removed: {}", old.string(), error.detail().message));
    }
  }
}

Json measured_before(Io& io, const OutputTarget& target) {
  const Path journal = unfinished_place(target) / kJournal;
  if (target.restart || !io.exists(journal)) return Json();
  const std::vector<Json> records = Journal::open(io, journal).records();
  if (records.empty() || !is_header(records.front()) ||
      !job_difference(records.front().at("job"), target.job).empty())
    return Json();
  const Json* measured = member_of(records.front(), "measured");
  return measured == nullptr ? Json() : *measured;
}

void settle_publication(Io& io, const OutputTarget& target) {
  OutputTarget settled = target;
  settled.overwrite = true;
  const Path directory = tidy_path(target.directory);
  if (target.single_file && !io.exists(directory)) return;
  if (!io.exists(unfinished_place(target))) return;
  try {
    const UnfinishedOutput output(io, settled);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;  // else somebody else's work, which stays
  }
}

}  // namespace llmq
