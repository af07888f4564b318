#include "job/deploy/deployment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/json_text.h"
#include "export/deploy/manifest.h"
#include "export/formats/output_format.h"
#include "export/inspect.h"
#include "model/linear_source.h"
#include "model/model_spec.h"
#include "model/open_checkpoint.h"
#include "quant/plan/capacity_estimate.h"

namespace llmq {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kVllmImage = "vllm/vllm-openai";
constexpr const char* kVllmTag = "v0.33.0";
constexpr std::int64_t kDraftedTokens = 4;
constexpr std::uint64_t kProcessBytes = std::uint64_t{4} << 30;  // of Python, CUDA and pinned buffers

struct KvWord {
  const char *llmq, *vllm;
};
constexpr std::array<KvWord, 7> kKvWords = {{{"auto", "auto"},
                                             {"bf16", "bfloat16"},
                                             {"fp16", "float16"},
                                             {"int8", "int8_per_token_head"},
                                             {"int4", "int4_per_token_head"},
                                             {"fp8", "fp8"},
                                             {"fp8_e5m2", "fp8_e5m2"}}};

[[noreturn]] void refuse_deployment(const std::string& message, const std::string& flag,
                                    const std::string& hint) {
  fail(ErrorKind::kUsage, {message, {}, flag, hint});
}

const KvWord& kv_word(const std::string& word) {
  std::string names;
  for (const KvWord& one : kKvWords) {
    if (word == one.llmq) return one;
    names += std::string(names.empty() ? "" : ", ") + one.llmq;
  }
  refuse_deployment("no KV cache that is deployed is of type '" + word + "'", "--kv-cache-dtype",
                    "types: " + names);
}

void check_combination(const DeploymentRequest& r) {
  if (r.engine == "llmq" && r.target == "vllm-stack")
    refuse_deployment("vllm-stack starts `vllm serve` and no other program", "--engine",
                      "take --engine vllm, or --to kubernetes");
  if (!r.disaggregation) return;
  if (r.engine == "llmq")
    refuse_deployment("llmq serve does not hand a KV cache to another server", "--disaggregate",
                      "take --engine vllm");
  if (r.target != "kserve")
    refuse_deployment(fmt::format("{} by itself has no router that parts prefill from decoding", r.target),
                      "--disaggregate", "take --to kserve, whose scheduler does");
  if (r.replicas != 1)
    refuse_deployment("--disaggregate says how many servers there are", "--replicas", "leave it out");
}

// What vLLM says to the checkpoint, or to the draft.
void check_vllm_loads(const Inspection& found, const std::string& flag) {
  if (found.format == kGgufFormat)
    fail(ErrorKind::kBadInput, {"is a GGUF file, which vLLM 0.33 reads by a plug-in only", found.path, flag,
                                "take --engine llmq, or a checkpoint in safetensors files"});
  for (const LoaderVerdict& verdict : found.loaders)
    if (!verdict.fits && verdict.loader.starts_with("vLLM"))
      fail(ErrorKind::kBadInput,
           {fmt::format("does not load in {}: {}", verdict.loader, verdict.reason), found.path, flag,
            "take --engine llmq, or quantize it by a scheme that vLLM takes"});
}

std::string last_name(const std::string& path) {
  Path whole = Path(path).lexically_normal();
  return whole.has_filename() ? whole.filename().string() : whole.parent_path().filename().string();
}

// A label of DNS (RFC 1035), as names of Services are: small letters, digits and dashes, a letter first.
std::string dns_label(const std::string& name) {
  std::string label;
  for (const char c : name) {
    const bool small = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'), capital = c >= 'A' && c <= 'Z';
    const char next = small ? c : capital ? static_cast<char>(c - 'A' + 'a') : '-';
    if (label.empty() && !(next >= 'a' && next <= 'z')) continue;
    if (next == '-' && label.back() == '-') continue;
    label += next;
  }
  label.resize(std::min<std::size_t>(label.size(), 40));
  while (!label.empty() && label.back() == '-') label.pop_back();
  return label.empty() ? "model" : label;
}

// "$(NAME)" is a variable for Kubernetes, "$$(NAME)" is not.
std::string not_expanded(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "$(") == 0) out += '$';
    out += text[i];
  }
  return out;
}

// KServe's start script hands the variable to a shell.
std::string shell_words(const Words& words) {
  std::string line;
  for (const std::string& word : words) {
    line += line.empty() ? "'" : " '";
    for (const char c : word) line += c == '\'' ? "'\\''" : std::string(1, c);
    line += '\'';
  }
  return line;
}

struct Room {
  std::int64_t context = 0, gpus = 0;  // 0 GPUs: llmq's runtime on the CPU
  std::uint64_t weight_bytes = 0, kv_bytes = 0, memory_bytes = 0;
  std::string words;
};

Room room_of(Io& io, const DeploymentRequest& request, const Checkpoint& checkpoint) {
  const ModelSpec spec = ModelSpec::read(checkpoint);
  Room room;
  room.context = std::min(spec.max_position, kLongestDeployedContext);
  EstimateRequest asked;
  asked.schemes = {"original"};
  asked.contexts = {room.context};
  asked.batches = {kDeployedSequences};
  if (request.kv_cache != "auto") asked.kv_cache = request.kv_cache;
  const Estimate found = estimate(io, request.model, asked, request.machine);
  room.weight_bytes = found.schemes.front().weight_bytes;
  room.kv_bytes = found.schemes.front().cells.front().kv_bytes;
  const std::string cache = fmt::format("a KV cache of {} x {} positions in {}, {}", kDeployedSequences,
                                        room.context, found.kv_cache.name, bytes_text(room.kv_bytes));
  if (request.engine == "llmq") {
    room.weight_bytes = std::max(
        room.weight_bytes, 2 * static_cast<std::uint64_t>(std::max<std::int64_t>(0, spec.parameters())));
    room.memory_bytes = room.weight_bytes + room.kv_bytes + kProcessBytes;
    room.words = fmt::format("weights as llmq holds them, {}, and {}", bytes_text(room.weight_bytes), cache);
    return room;
  }
  const double needed = static_cast<double>(room.weight_bytes) + static_cast<double>(room.kv_bytes);
  for (const std::int64_t gpus : {1, 2, 4, 8})
    if (room.gpus == 0 &&
        needed <= 0.9 * static_cast<double>(gpus) * static_cast<double>(request.machine.memory_bytes))
      room.gpus = gpus;
  if (room.gpus == 0)
    refuse_deployment(fmt::format("the weights, {}, and {} do not fit into eight of {}",
                                  bytes_text(room.weight_bytes), cache, request.machine.name),
                      "--machine", "name one with more memory, a smaller --kv-cache-dtype, or quantize");
  room.memory_bytes = room.weight_bytes + kProcessBytes;
  room.words = fmt::format("weights, {}, and {}, in {} of {}", bytes_text(room.weight_bytes), cache,
                           room.gpus, request.machine.name);
  return room;
}

// What every way to start vLLM is given in the same words.
Words vllm_options(const DeploymentRequest& request, const std::string& draft_at) {
  Words words;
  if (request.kv_cache != "auto")
    words.insert(words.end(), {"--kv-cache-dtype", kv_word(request.kv_cache).vllm});
  if (request.draft == "ngram")
    words.insert(words.end(),
                 {"--speculative-config", Json::object({{"method", "ngram"},
                                                        {"num_speculative_tokens", kDraftedTokens},
                                                        {"prompt_lookup_max", 4}})
                                              .dump()});
  else if (!draft_at.empty())
    words.insert(words.end(),
                 {"--speculative-config", Json::object({{"method", "draft_model"},
                                                        {"model", draft_at},
                                                        {"num_speculative_tokens", kDraftedTokens}})
                                              .dump()});
  if (request.disaggregation)
    words.insert(words.end(),
                 {"--kv-transfer-config",
                  Json::object({{"kv_connector", "NixlConnector"}, {"kv_role", "kv_both"}}).dump()});
  return words;
}

Words arguments_of(const DeploymentRequest& request, const Room& room, const std::string& model_at,
                   const std::string& draft_at, const std::string& served) {
  const std::string context = std::to_string(room.context);
  if (request.engine == "llmq") {
    Words words = {"serve",
                   model_at,
                   "--host",
                   "0.0.0.0",
                   "--port",
                   "8000",
                   "--max-model-len",
                   context,
                   "--served-model-name",
                   served,
                   "--metrics-compat",
                   "vllm",
                   "--kv-memory",
                   std::to_string(room.kv_bytes)};
    if (request.kv_cache != "auto") words.insert(words.end(), {"--kv-cache-dtype", request.kv_cache});
    if (!request.draft.empty())
      words.insert(words.end(), {"--draft", request.draft == "ngram" ? request.draft : draft_at});
    return words;
  }
  Words words = {model_at,
                 "--served-model-name",
                 served,
                 "--max-model-len",
                 context,
                 "--tensor-parallel-size",
                 std::to_string(room.gpus)};
  for (std::string& word : vllm_options(request, draft_at)) words.push_back(std::move(word));
  return words;
}

Json list_of(const Words& words) {
  Json list = Json::array();
  for (const std::string& word : words) list.push_back(word);
  return list;
}

// Whether vLLM multiplies keys and values by scales of the checkpoint: of fp8 and modelopt even where none
// are stored, and beside E5M2 it then does not start (vLLM, _init_kv_cache_quant).
bool has_kv_scales_for_vllm(const Checkpoint& checkpoint) {
  if (LinearSource::open(checkpoint).kv_cache()) return true;
  const Json* const said = checkpoint.config().find("quantization_config");
  const Json* const method = said == nullptr || !said->is_object() ? nullptr : said->find("quant_method");
  return method != nullptr && method->is_string() &&
         (method->as_string() == "fp8" || method->as_string().starts_with("modelopt"));
}

}  // namespace

Json deployment(Io& io, const DeploymentRequest& request) {
  check_combination(request);
  kv_word(request.kv_cache);
  const Checkpoint checkpoint = open_checkpoint(io, request.model);
  const Inspection found = inspect(io, request.model, false);
  if (request.engine == "vllm") {
    check_vllm_loads(found, "MODEL");
    if (request.kv_cache == "fp8_e5m2" && has_kv_scales_for_vllm(checkpoint))
      refuse_deployment(
          "vLLM keeps no E5M2 beside a checkpoint with scales of a KV cache, nor beside one of "
          "quant_method fp8 or modelopt",
          "--kv-cache-dtype", "take fp8, or --engine llmq");
  }
  const std::string source = std::filesystem::absolute(checkpoint.path()).lexically_normal().string();
  const std::string name = last_name(source);
  std::string draft_source, draft_name;
  if (!request.draft.empty() && request.draft != "ngram") {
    const Inspection draft = inspect(io, request.draft, false);
    if (request.engine == "vllm") check_vllm_loads(draft, "--draft");
    draft_source = std::filesystem::absolute(draft.path).lexically_normal().string();
    draft_name = last_name(draft_source);
    if (draft_name == name)
      refuse_deployment(fmt::format("the model and its draft are both called '{}'", name), "--draft",
                        "give one of the directories another name");
  }
  const Room room = room_of(io, request, checkpoint);
  const std::string root = request.target == "vllm-stack" ? "/data/" : "/models/";
  const std::string model_at = request.target == "kserve" ? "/mnt/models" : root + name;
  const std::string draft_at = draft_name.empty() ? "" : root + draft_name;

  Words words = arguments_of(request, room, model_at, draft_at, name);
  Words more = vllm_options(request, draft_at);
  Words additional = {"--max-model-len", std::to_string(room.context), "--tensor-parallel-size",
                      std::to_string(room.gpus)};
  additional.insert(additional.end(), more.begin(), more.end());
  more.insert(more.begin(), {"--served-model-name", name});
  if (request.target != "compose") {
    for (std::string& word : words) word = not_expanded(word);
    for (std::string& word : more) word = not_expanded(word);
  }
  Json ports = Json::array(), mounts = Json::array();
  for (std::int64_t i = 0; i < request.replicas; ++i)
    ports.push_back(fmt::format("127.0.0.1:{}:8000", 8000 + i));
  mounts.push_back(Json::object({{"source", source}, {"target", model_at}}));
  if (!draft_name.empty()) mounts.push_back(Json::object({{"source", draft_source}, {"target", draft_at}}));

  const bool vllm = request.engine == "vllm";
  const std::string repository = vllm ? kVllmImage : "llmq", tag = vllm ? kVllmTag : request.llmq_version;
  const std::string digest = found.report.is_object() ? text_at(found.report, "digest") : "";
  Json shown =
      Json::object({{"target", request.target},
                    {"engine", request.engine},
                    {"source", source},
                    {"directory", name},
                    {"served_name", name},
                    {"name", dns_label(name)},
                    {"digest", digest},
                    {"image", repository + ":" + tag},
                    {"repository", repository},
                    {"tag", tag},
                    {"replicas", request.disaggregation ? request.disaggregation->decode : request.replicas},
                    {"prefill", request.disaggregation ? request.disaggregation->prefill : 0},
                    {"context", room.context},
                    {"sequences", kDeployedSequences},
                    {"gpus", room.gpus},
                    {"memory_bytes", Json(room.memory_bytes)},
                    {"memory_words", room.words},
                    {"draft", draft_name},
                    {"command", list_of(vllm ? Words{"vllm", "serve"} : Words{"llmq"})},
                    {"arguments", list_of(words)},
                    {"extra_arguments", list_of(more)},
                    {"additional_arguments", not_expanded(shell_words(additional))},
                    {"ports", ports},
                    {"mounts", mounts}});
  const std::string manifest = render_manifest(request.target, shown);
  return Json::object({{"schema", "llmq.deploy/1"},
                       {"target", request.target},
                       {"engine", request.engine},
                       {"model", source},
                       {"digest", digest.empty() ? Json() : Json(digest)},
                       {"context", room.context},
                       {"weight_bytes", Json(room.weight_bytes)},
                       {"kv_bytes", Json(room.kv_bytes)},
                       {"memory_bytes", Json(room.memory_bytes)},
                       {"gpus", room.gpus},
                       {"manifest", manifest}});
}

}  // namespace llmq
