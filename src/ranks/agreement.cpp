// Each rank sends rank 0 a document {host, error or null, facts: [[name, value], ...]}; rank 0 answers with
// an error or null. Documents and not structures, for ranks of different versions have to understand each
// other.
#include "ranks/agreement.h"

#include <unistd.h>

#include <array>
#include <optional>

#include "base/json.h"

namespace llmq {
namespace {

constexpr ErrorKind kErrorKinds[] = {ErrorKind::kUsage,   ErrorKind::kBadInput, ErrorKind::kUnsupported,
                                     ErrorKind::kIo,      ErrorKind::kDevice,   ErrorKind::kResource,
                                     ErrorKind::kInternal};

ErrorKind kind_named(const std::string& name) {
  for (const ErrorKind kind : kErrorKinds)
    if (name == kind_name(kind)) return kind;
  return ErrorKind::kInternal;
}

Json refusal_json(ErrorKind kind, const ErrorDetail& detail) {
  return Json::object({{"kind", kind_name(kind)},
                       {"message", detail.message},
                       {"file", detail.file},
                       {"where", detail.where},
                       {"hint", detail.hint}});
}

std::string host_name() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "a host of no name";
}

// "ranks 1 (node7) and 2 (node8) of 3"
std::string ranks_text(const std::vector<std::size_t>& which, const std::vector<Json>& all) {
  std::string text = which.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < which.size(); ++i)
    text += fmt::format("{}{} ({})",
                        i == 0                  ? ""
                        : i + 1 == which.size() ? " and "
                                                : ", ",
                        which[i], all[which[i]].at("host").as_string());
  return text + fmt::format(" of {}", all.size());
}

// The ranks whose `key` is that of rank `like`.
std::vector<std::size_t> alike(const std::vector<Json>& all, const char* key, std::size_t like) {
  std::vector<std::size_t> which;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].at(key) == all[like].at(key)) which.push_back(rank);
  return which;
}

// The first error, with who has it where not all have.
std::optional<Json> refused_for_an_error(const std::vector<Json>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].at("error").is_null()) continue;
    Json refusal = all[rank].at("error");
    const std::vector<std::size_t> which = alike(all, "error", rank);
    if (which.size() < all.size())
      refusal["message"] = ranks_text(which, all) + " cannot begin: " + refusal.at("message").as_string();
    return refusal;
  }
  return std::nullopt;
}

// The first fact in which a rank differs from rank 0.
std::optional<Json> refused_for_a_difference(const std::vector<Json>& all, const std::vector<Fact>& facts) {
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const Json::Array& theirs = all[rank].at("facts").items();
    for (std::size_t i = 0; i < facts.size(); ++i) {
      const Json ours = Json::array({facts[i].name, facts[i].value});
      if (i < theirs.size() && theirs[i] == ours) continue;
      const std::string found = i < theirs.size() && theirs[i].items()[0] == Json(facts[i].name)
                                    ? theirs[i].items()[1].as_string()
                                    : "nothing of this name";
      return refusal_json(
          ErrorKind::kBadInput,
          {fmt::format("{} has another {} than rank 0 ({}): {}, and not {}", ranks_text({rank}, all),
                       facts[i].name, all.front().at("host").as_string(), found, facts[i].value),
           {},
           "--ranks",
           facts[i].hint});
    }
  }
  return std::nullopt;
}

Json verdict_of(const std::vector<RankBytes>& documents, const std::vector<Fact>& facts) {
  std::vector<Json> all;
  for (const RankBytes& bytes : documents)
    all.push_back(Json::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "a rank"));
  if (const auto refusal = refused_for_an_error(all)) return *refusal;
  if (const auto refusal = refused_for_a_difference(all, facts)) return *refusal;
  return {};
}

}  // namespace

std::string own_rank_text(const Ranks& ranks) {
  return fmt::format("rank {} ({}) of {}", ranks.rank(), host_name(), ranks.size());
}

void begin_together(Ranks& ranks, const std::function<void()>& prepare,
                    const std::function<std::vector<Fact>()>& facts) {
  if (ranks.size() == 1) return prepare();
  Json error;
  std::vector<Fact> known;
  try {
    prepare();
    known = facts();
  } catch (const Error& thrown) {
    error = refusal_json(thrown.kind(), thrown.detail());
  }
  Json list = Json::array();
  for (const Fact& fact : known) list.push_back(Json::array({fact.name, fact.value}));
  const std::string mine = Json::object({{"host", host_name()}, {"error", error}, {"facts", list}}).dump();
  const std::vector<RankBytes> documents = ranks.gather(0, std::as_bytes(std::span(mine)));
  const std::string verdict =
      broadcast_text(ranks, 0, ranks.rank() == 0 ? verdict_of(documents, known).dump() : "");
  const Json refusal = Json::parse(verdict, "rank 0");
  if (refusal.is_null()) return;
  throw RanksRefused(kind_named(refusal.at("kind").as_string()),
                     {refusal.at("message").as_string(), refusal.at("file").as_string(),
                      refusal.at("where").as_string(), refusal.at("hint").as_string()});
}

}  // namespace llmq
