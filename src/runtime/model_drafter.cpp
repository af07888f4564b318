// Guesses by a smaller model. It has a cache of its own, in which a sequence stands as far as it has been
// read: the tokens of the sequence, and guesses behind them that the next round takes back where they were
// wrong. A recurrent state goes back as the model's own does (model/sequence_state.h), and prefixes are found
// by snapshots of it.
#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "device/token_drawer.h"
#include "runtime/drafter.h"

namespace llmq {
namespace {

class ModelDrafter : public Drafter {
 public:
  ModelDrafter(Engine engine, std::int64_t vocabulary, std::int64_t chunk)
      : engine_(std::move(engine)),
        vocabulary_(std::min(vocabulary, engine_.spec().vocab_size)),
        chunk_(chunk) {}
  ~ModelDrafter() override {
    for (auto& entry : readers_) engine_.cache().blocks().close(entry.second.table);
  }

  std::string name() const override { return "model"; }
  double bytes_per_guess() const override { return static_cast<double>(engine_.weight_bytes()); }

  void forget(std::uint64_t sequence) override {
    const auto found = readers_.find(sequence);
    if (found == readers_.end()) return;
    engine_.cache().blocks().close(found->second.table);
    readers_.erase(found);
  }

  // The first pass reads what is new of every sequence, the others one guess of each that wants more.
  void propose(std::span<DraftJob> jobs) override {
    std::vector<Row> rows;
    std::int64_t budget = chunk_;
    for (DraftJob& job : jobs) {
      job.guesses.clear();
      if (Reader* reader = catch_up(job); reader && budget > 0) {
        const std::int64_t size = static_cast<std::int64_t>(job.tokens.size());
        const std::int64_t first = static_cast<std::int64_t>(reader->read.size());
        const std::int64_t count = std::min(budget, size - first);
        if (!reserve(*reader, first + count)) continue;
        leave_states(*reader, job, first, first + count);
        rows.push_back({&job, reader,
                        job.tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
                        first + count == size,
                        job.constrained ? job.constrained->state() : TextAutomaton::kDead});
        budget -= count;
      }
    }
    while (!rows.empty()) {
      run(rows);
      std::erase_if(rows, [&](Row& row) { return !prepare_next(row); });
    }
  }

 private:
  struct Reader {
    KvTable table;
    std::vector<std::int32_t> read;         // tokens whose pages are written
    std::unique_ptr<SequenceState> state;   // behind those, where the model has one
    std::int64_t begun = 0;                 // tokens that there were when it was opened
    std::vector<SnapshotPlace> saves = {};  // that the next step leaves
  };
  // Tokens that run on top of what a reader has read; a guess follows where all tokens of the sequence are
  // read then.
  struct Row {
    DraftJob* job;
    Reader* reader;
    std::span<const std::int32_t> tokens;
    bool guesses;
    TextAutomaton::State text;  // of a constrained answer, with the guesses; kDead: nothing is known of it
  };

  // The reader of a sequence, cut to what is true of it; null where the model cannot follow.
  Reader* catch_up(const DraftJob& job) {
    const auto size = static_cast<std::int64_t>(job.tokens.size());
    if (job.most < 1 || size + job.most > engine_.options().max_context) return nullptr;
    KvBlocks& blocks = engine_.cache().blocks();
    const auto known = readers_.find(job.sequence);
    Reader& reader = known != readers_.end() ? known->second : readers_[job.sequence];
    if (known == readers_.end()) {
      reader.table = blocks.open(job.tenant);
      const std::int64_t found = blocks.take_prefix(reader.table, job.tokens);
      reader.read.assign(job.tokens.begin(), job.tokens.begin() + found);
      reader.begun = size;
      reader.state = engine_.new_state();
      if (const std::int32_t snapshot = blocks.snapshot_of(reader.table); snapshot != kNoSnapshot)
        reader.state->copy_from(engine_.snapshot(snapshot));
    }
    const auto wrong =
        std::mismatch(reader.read.begin(), reader.read.end(), job.tokens.begin(), job.tokens.end()).first;
    // The last token is always run again, for what follows it.
    const auto kept = std::min(static_cast<std::size_t>(wrong - reader.read.begin()), job.tokens.size() - 1);
    reader.read.resize(kept);
    if (reader.state) engine_.take_back(*reader.state, static_cast<std::int64_t>(kept));
    blocks.truncate(reader.table, static_cast<std::int64_t>(kept));
    blocks.publish(reader.table, reader.read);
    blocks.release_passed(reader.table);  // `kept` never falls: a sequence only grows
    const auto fresh = job.tokens.subspan(kept);
    if (std::any_of(fresh.begin(), fresh.end(),
                    [&](std::int32_t id) { return id >= engine_.spec().vocab_size; }))
      return nullptr;
    return &reader;
  }

  bool reserve(Reader& reader, std::int64_t length) {
    std::vector<BlockCopy> copies;
    const bool there = engine_.cache().blocks().reserve(reader.table, length, copies);
    engine_.cache().copy(copies);
    return there;
  }

  // The last token is run again by the next round, and what follows it are guesses.
  void leave_states(Reader& reader, const DraftJob& job, std::int64_t first, std::int64_t end) {
    if (!reader.state) return;
    engine_.cache().blocks().take_places(reader.table, job.sequence, reader.begun, first, end, reader.saves);
    if (const auto size = static_cast<std::int64_t>(job.tokens.size()); end == size)
      reader.state->guess_from(size - 1, job.most);
  }

  void run(std::vector<Row>& rows) {
    std::vector<Engine::Step> steps;
    std::vector<StateSave> saves;
    std::vector<std::int32_t> last;
    std::int64_t total = 0;
    for (const Row& row : rows)
      for (auto place = row.reader->saves.begin(); place != row.reader->saves.end();)
        if (SequenceState* const snapshot = engine_.snapshot_with_room(place->slot)) {
          saves.push_back({place++->position, snapshot});
        } else {
          engine_.cache().blocks().drop(*place);
          place = row.reader->saves.erase(place);
        }
    auto save = saves.begin();
    for (const Row& row : rows) {
      const std::size_t own = row.reader->saves.size();
      steps.push_back({row.tokens,
                       static_cast<std::int64_t>(row.reader->read.size()),
                       row.reader->table.groups,
                       nullptr,
                       row.reader->state.get(),
                       {save, own}});
      save += static_cast<std::ptrdiff_t>(own);
      total += static_cast<std::int64_t>(row.tokens.size());
      if (row.guesses) last.push_back(static_cast<std::int32_t>(total - 1));
    }
    const Buffer normed = engine_.forward(steps);
    for (Row& row : rows) {
      Reader& reader = *row.reader;
      reader.read.insert(reader.read.end(), row.tokens.begin(), row.tokens.end());
      if (reader.saves.empty()) continue;
      KvBlocks& blocks = engine_.cache().blocks();
      blocks.publish(reader.table, reader.read);
      for (const SnapshotPlace& place : std::exchange(reader.saves, {})) blocks.offer(reader.table, place);
    }
    if (last.empty()) return;
    const TensorView logits = engine_.logits_of(normed, total, last);
    TensorView known = logits;  // of the tokens that the model has too
    known.shape = {logits.rows(), vocabulary_};
    if (!guess_on_device(rows, known)) guess_on_host(rows, engine_.on_host(logits));
  }

  // Where no row has to be looked at by the host.
  bool guess_on_device(std::vector<Row>& rows, const TensorView& logits) {
    TokenDrawer* const drawer = engine_.backend().extensions().token_drawer;
    if (drawer == nullptr) return false;
    std::vector<TokenDraw> draws;
    for (const Row& row : rows) {
      if (!row.guesses) continue;
      const auto draw = whole_row_draw(*row.job->sampling, row.job->draw + row.job->guesses.size());
      if (!draw || row.job->constrained) return false;
      draws.push_back(*draw);
    }
    std::vector<std::int32_t> tokens(draws.size());
    drawer->draw_tokens(logits, draws, tokens);
    auto token = tokens.begin();
    for (Row& row : rows)
      if (row.guesses) row.job->guesses.push_back(*token++);
    return true;
  }

  void guess_on_host(std::vector<Row>& rows, std::span<float> logits) {
    const auto width = static_cast<std::size_t>(engine_.spec().vocab_size);
    std::size_t at = 0;
    for (Row& row : rows) {
      if (!row.guesses) continue;
      const auto values = logits.subspan(at++ * width, static_cast<std::size_t>(vocabulary_));
      try {
        guess(row, values);
      } catch (const Error&) {  // the constraint is too dear, which the model finds out itself
        row.guesses = false;
      }
    }
  }

  // Draws among what the model may draw, too.
  static void guess(Row& row, std::span<float> logits) {
    DraftJob& job = *row.job;
    if (job.constrained) job.constrained->allow_only(row.text, logits, job.ends);
    job.guesses.push_back(sample_token(logits, *job.sampling, job.draw + job.guesses.size()));
    if (!job.constrained) return;
    row.text = job.constrained->after(row.text, job.guesses.back());
    row.guesses = row.text != TextAutomaton::kDead;
  }

  // The guess that was made is what runs next, where more are wanted.
  bool prepare_next(Row& row) {
    DraftJob& job = *row.job;
    if (!row.guesses || static_cast<std::int64_t>(job.guesses.size()) >= job.most) return false;
    job.guesses.reserve(static_cast<std::size_t>(job.most));  // a span looks at its end
    row.tokens = std::span(job.guesses).last(1);
    return reserve(*row.reader, static_cast<std::int64_t>(row.reader->read.size()) + 1);
  }

  Engine engine_;
  std::int64_t vocabulary_, chunk_;
  std::map<std::uint64_t, Reader> readers_;
};

std::string piece(const Tokenizer& tokenizer, std::int32_t id) {
  try {
    return tokenizer.token(id);
  } catch (const Error&) {
    return {};  // a hole in the vocabulary
  }
}

std::string quoted_token(const std::string& token) { return token.empty() ? "nothing" : "'" + token + "'"; }

}  // namespace

std::unique_ptr<Drafter> make_model_drafter(Engine draft, std::int64_t vocabulary, std::int64_t chunk) {
  return std::make_unique<ModelDrafter>(std::move(draft), vocabulary, chunk);
}

void check_same_vocabulary(const Tokenizer& model, const Tokenizer& draft, const std::string& draft_name) {
  const std::int32_t size = std::max(model.vocabulary_size(), draft.vocabulary_size());
  for (std::int32_t id = 0; id < size; ++id) {
    const std::string own = piece(model, id), other = piece(draft, id);
    if (own == other) continue;
    fail(ErrorKind::kBadInput,
         {fmt::format("the vocabularies differ: token {} is {} in the model and {} in the draft", id,
                      quoted_token(own), quoted_token(other)),
          draft_name, "--draft", "take a draft of the same tokenizer, or --draft ngram"});
  }
}

}  // namespace llmq
