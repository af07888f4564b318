// Where an output is made: "<output>.unfinished/" beside the target, from the first byte until the name.
//
//   lock      who is at work; goes with the process
//   journal   the job and what was measured for it, then one record a finished block: what lies in the files,
//             with digests (io/journal.h)
//   files/    the output, every shard at its final size from the start; renamed into place as a whole
//             (of a single file: it and its documents, each renamed into place, the file first)
//   probe-... for a moment, where several ranks write: what the others have to see
//   previous/ an earlier output on its way out, where the file system cannot exchange two names
//
// A journal is kept only for a target that names its job: what decides every byte. A run of the same job goes
// on with the blocks recorded; another one is told what differs and touches nothing. Without a journal, or
// before its first block where nothing was measured, what is left is thrown away: by a run that fails, or,
// after a kill, by the next one.
//
// Durability: files and directories are synced before the journal says so, the journal before the next step.
// The name is given by rename, or by exchanging it with the earlier output's, and synced; a failure up to
// there takes it back.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "export/output/model_writer.h"
#include "io/journal.h"

namespace llmq {

class UnfinishedOutput {
 public:
  // Takes the lock. Error(kResource) naming its holder, Error(kUsage) for a target that may not be written,
  // or one whose unfinished place holds another job's work or something that llmq did not write.
  UnfinishedOutput(Io& io, const OutputTarget& target);
  ~UnfinishedOutput();
  UnfinishedOutput(const UnfinishedOutput&) = delete;
  UnfinishedOutput& operator=(const UnfinishedOutput&) = delete;

  Path files() const;
  // A file beside files(), of a name that nobody has asked for before, for other ranks to look for. It
  // goes with the next call, or with this.
  std::string lay_probe();
  void remove_probe();
  void add_created(const std::string& name) { created_.push_back(name); }  // inside files()
  const std::vector<std::string>& created() const { return created_; }
  bool resumed() const { return journal_.has_value(); }
  std::vector<Json> blocks() const;  // the records of the run that this one goes on with
  void keep_blocks(std::size_t count);
  // The journal has these blocks from here on.
  void set_blocks(std::span<const Json> blocks);
  // Empty files/ and no journal.
  void start_over();
  // The files are whole in size and synced: from now on they are worth a journal.
  void begin_journal();
  void add_block(const Json& record);

  // Gives files/ the target's name, or that of a new version, which is returned; `digest` is the output's.
  std::string publish(const std::string& digest, bool move_latest);
  // Of a single file: every file of this place called as the target is, or that and a suffix of kBesideFile,
  // gets its name there.
  // `further`, names in files(), belong to it and get theirs before.
  void publish_file(const std::string& sha256, std::span<const std::string> further = {});
  // All of it is where another process has it: nothing is left here.
  void discard();

 private:
  Path place(const char* name) const { return directory_ / name; }
  void take_lock();
  void recover();
  bool is_published(const Json& record) const;
  void clear();
  void clear_or_warn();
  void remove_created(const Path& directory) noexcept;
  void sync_place();
  bool is_worth_keeping() const;
  void give_name(const Path& to);
  void finish_publication(const Json& record);
  void check_target() const;
  Path beside(std::string_view suffix) const { return target_.directory.string() + std::string(suffix); }
  void move_documents();
  void prune(const std::string& newest);

  Io& io_;
  OutputTarget target_;
  Path directory_;
  std::unique_ptr<NameLock> lock_;
  std::optional<Journal> journal_;
  std::vector<std::string> created_;
  std::string probe_;
  bool published_ = false;
};

// files() of the output that some process makes here; and where the probe lies that it laid.
Path unfinished_files(const OutputTarget& target);
Path probe_place(const OutputTarget& target, const std::string& probe);

// OutputTarget::measured of the interrupted run of the same job; null where there is none.
Json measured_before(Io& io, const OutputTarget& target);

// Ends what a run that was killed just after it gave the output its name had left to do; nothing where
// another is at work.
void settle_publication(Io& io, const OutputTarget& target);

}  // namespace llmq
