#include "runtime/engine.h"

#include <new>

#include "runtime/engine_state.h"

namespace llmq {
namespace {

bool plain_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

}  // namespace

DeviceTable load_table(Backend& backend, const LinearSource& source, const std::string& name) {
  const Checkpoint& checkpoint = source.checkpoint();
  const StoredTensor& tensor = source.finite(name);
  DeviceTable table;
  if (!plain_float(tensor.view.dtype)) {
    const std::vector<float> values = checkpoint.read_float32(tensor);
    table.storage = backend.allocate(values.size() * sizeof(float));
    table.view = table.storage.view(DType::kF32, tensor.view.shape);
    backend.upload(table.view, values.data());
  } else if (backend.device() == Device{}) {
    if (checkpoint.holds_in_memory()) table.held = checkpoint.hold(tensor);
    table.view = tensor.view;
  } else {
    const Lease lease = checkpoint.hold(tensor);
    table.storage = backend.allocate(tensor.view.bytes());
    table.view = table.storage.view(tensor.view.dtype, tensor.view.shape);
    backend.upload(table.view, tensor.view.pointer);
  }
  return table;
}

Engine Engine::load(const Checkpoint& checkpoint, std::shared_ptr<Backend> backend, const Options& options) {
  Engine engine;
  engine.state_ = std::make_shared<State>(checkpoint, std::move(backend), options);
  return engine;
}

const ModelSpec& Engine::spec() const { return state_->spec; }
Backend& Engine::backend() const { return *state_->backend; }
const std::shared_ptr<Backend>& Engine::shared_backend() const { return state_->backend; }
KvCache& Engine::cache() { return state_->cache; }
const Engine::Options& Engine::options() const { return state_->options; }

std::string Engine::device_name() const {
  const EarlyBlocks& early = state_->options.early;
  if (const std::vector<Backend*>& members = state_->members; members.size() > 1) {
    // On the host they differ by their threads alone.
    if (std::all_of(members.begin(), members.end(), [&](const Backend* one) {
          return one->device() == Device{} || one->name() == backend().name();
        }))
      return fmt::format("{} x {}", members.size(), backend().name());
    std::string names = backend().name();
    for (std::size_t i = 1; i < members.size(); ++i)
      names += fmt::format("{}{}", i + 1 == members.size() ? " and " : ", ", members[i]->name());
    return fmt::format("{} devices: {}", members.size(), names);
  }
  if (early.count == 0) return backend().name();
  return fmt::format("{}, and {} for the first {} of {} blocks", backend().name(), early.backend->name(),
                     early.count, spec().blocks.size());
}

std::shared_ptr<const PreparedAdapter> Engine::prepare(const LoraAdapter& adapter) {
  if (state_->early_context)
    fail(ErrorKind::kUnsupported, {"an adapter runs beside a model that is on one device only",
                                   {},
                                   "--gpu-layers",
                                   "leave it out, or merge the adapter with llmq merge"});
  auto prepared = std::make_shared<PreparedAdapter>(prepare_adapter(state_->members, adapter, state_->spec));
  prepared->number = ++state_->adapters;
  return prepared;
}

void Engine::adapt(const LoraAdapter& adapter) { state_->usual_adapter = prepare(adapter); }

const std::vector<Engine::Served>& Engine::served() const { return state_->served; }

std::vector<std::string> Engine::slower_than_possible() const {
  std::vector<std::string> reasons;
  if (state_->reordered > 0)
    reasons.push_back(
        fmt::format("{} linears of 4 or 8 bits run as dequantized weights, because columns of different "
                    "groups lie mixed (act-order); made with another order they would be read as they are",
                    state_->reordered));
  if (state_->dequantized > state_->reordered)
    reasons.push_back(fmt::format("{} packed linears run as dequantized weights on {}",
                                  state_->dequantized - state_->reordered, state_->backend->name()));
  if (state_->options.compute == Compute::kBFloat16)
    for (const KernelChoice& choice : state_->backend->kernel_choices())
      if (choice.is_second_best()) reasons.push_back(choice.sentence());
  return reasons;
}

std::size_t Engine::weight_bytes() const {
  std::size_t sum = state_->head->bytes;
  for (const std::vector<BlockWeights>& members : state_->blocks)
    for (const BlockWeights& member : members)
      for (const BlockLinear& linear : member.linears) sum += linear.bytes();
  return sum;
}

double Engine::bytes_read(std::int64_t rows) const {
  auto sum = static_cast<double>(state_->head->bytes);
  for (std::size_t b = 0; b < state_->blocks.size(); ++b)
    for (const BlockWeights& member : state_->blocks[b])
      for (std::size_t i = 0; i < member.linears.size(); ++i)
        sum += static_cast<double>(member.linears[i].bytes()) *
               spec().blocks[b].share_read(static_cast<LinearId>(i), rows);
  return sum;
}

std::unique_ptr<SequenceState> Engine::new_state() const {
  const ModelSpec& spec = state_->spec;
  if (spec.state_bytes() == 0) return nullptr;
  return std::make_unique<SequenceState>(spec.blocks, state_->backends());
}

SequenceState& Engine::snapshot(std::int32_t slot) {
  std::vector<std::unique_ptr<SequenceState>>& all = state_->snapshots;
  const auto place = static_cast<std::size_t>(slot);
  if (all.size() <= place) all.resize(place + 1);
  if (!all[place]) all[place] = new_state();
  return *all[place];
}

SequenceState* Engine::snapshot_with_room(std::int32_t slot) {
  try {
    return &snapshot(slot);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kResource) throw;
  } catch (const std::bad_alloc&) {
  }
  return nullptr;
}

std::int64_t Engine::snapshots_made() const {
  return std::count_if(state_->snapshots.begin(), state_->snapshots.end(),
                       [](const auto& made) { return made != nullptr; });
}

void Engine::take_back(SequenceState& state, std::int64_t length) {
  state.settle(length, [&](std::size_t block, const RecurrentState& of_block, const DeltaRows& rows) {
    replay_rows(*state_->backends_of(block).front(), *spec().blocks[block].delta(),
                state_->blocks[block].front(), rows, of_block);
  });
}

Buffer Engine::forward(std::span<const Step> steps) {
  State& state = *state_;
  state.place(steps);
  for (const Step& step : steps)
    if (step.state != nullptr) step.state->begin(step.saves);
  const auto count = static_cast<std::int64_t>(state.ids.size());
  const NamedRange range(*state.backend, "forward");
  const std::int64_t width = state.spec.hidden_size;
  const DType dtype = activation_dtype(state.options.compute);
  const Buffer hidden = state.backend->allocate(static_cast<std::size_t>(count * width) * sizeof(float));
  const TensorView hidden_view = hidden.view(DType::kF32, {count, width});
  state.embed(hidden_view, state.ids, state.rows.front().positions);
  const Buffer of_blocks = state.embed_blocks(hidden_view);
  if (state.early_context) state.run_early(hidden_view);
  state.run_rest(hidden_view);

  Buffer normed = state.backend->allocate(static_cast<std::size_t>(count * width) *
                                          static_cast<std::size_t>(element_bytes(dtype)));
  run_norm(*state.backend, state.spec.final_norm, state.final_norm, hidden_view,
           normed.view(dtype, {count, width}));
  for (const Step& step : steps)
    if (step.state != nullptr) step.state->end(step.first + static_cast<std::int64_t>(step.tokens.size()));
  return normed;
}

Buffer Engine::forward(KvSequence& sequence, std::span<const std::int32_t> tokens) {
  const std::int64_t first = sequence.length();
  sequence.extend(static_cast<std::int64_t>(tokens.size()));
  const Step step{tokens, first, sequence.tables(), nullptr, sequence.state([&] { return new_state(); })};
  try {
    return forward(std::span(&step, 1));
  } catch (...) {
    sequence.truncate(first);
    throw;
  }
}

TensorView Engine::logits(const TensorView& normed_rows) {
  State& state = *state_;
  const Shape shape{normed_rows.rows(), state.spec.vocab_size};
  const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * sizeof(float);
  if (state.logits.bytes() < bytes) {
    state.logits.reset();  // the old one goes before the new one comes
    state.logits = state.backend->allocate(bytes);
  }
  const TensorView view = state.logits.view(DType::kF32, shape);
  state.backend->linear(view, normed_rows, *state.head, {});
  if (state.spec.logit_softcap != 0) state.backend->softcap(view, state.spec.logit_softcap);
  return view;
}

void Engine::score(const TensorView& normed_rows, std::span<const std::int32_t> targets,
                   std::span<RowScore> scores) {
  state_->backend->score_products(normed_rows, *state_->head, state_->spec.logit_softcap, targets, scores);
}

TensorView Engine::logits_of(const Buffer& normed, std::int64_t total, std::span<const std::int32_t> rows) {
  State& state = *state_;
  Backend& backend = *state.backend;
  const DType dtype = activation_dtype(state.options.compute);
  const std::int64_t width = state.spec.hidden_size;
  const auto count = static_cast<std::int64_t>(rows.size());
  const TensorView all = normed.view(dtype, {total, width});
  const bool neighbours = rows.back() - rows.front() + 1 == count && std::is_sorted(rows.begin(), rows.end());
  Buffer gathered, rounded;
  TensorView chosen;
  if (neighbours) {
    chosen = all.row_slice(rows.front(), count);
  } else {  // rows of a table, as an embedding is; back to the type that they had
    const std::size_t elements = static_cast<std::size_t>(count * width);
    gathered = backend.allocate(elements * sizeof(float));
    chosen = gathered.view(DType::kF32, {count, width});
    backend.embed(chosen, all, rows);
    if (dtype != DType::kF32) {
      rounded = backend.allocate(elements * static_cast<std::size_t>(element_bytes(dtype)));
      const TensorView exact = rounded.view(dtype, {count, width});
      backend.convert(exact, chosen);
      chosen = exact;
    }
  }
  return logits(chosen);
}

std::span<float> Engine::on_host(const TensorView& result) {
  State& state = *state_;
  const auto elements = static_cast<std::size_t>(result.shape.elements());
  if (state.backend->device() == Device{}) return {result.as<float>(), elements};
  state.host_logits.resize(elements);
  state.backend->download(state.host_logits.data(), result);
  return state.host_logits;
}

}  // namespace llmq
