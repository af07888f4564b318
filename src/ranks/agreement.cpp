// Each rank sends rank 0 a document {host, error or null, facts: [[name, value, hint], ...]}; rank 0 answers
// with an error or null. Documents and not structures, for ranks of different versions have to understand
// each other.
#include "ranks/agreement.h"

#include <unistd.h>

#include <algorithm>
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

Json refusal_json(const Error& error) {
  const ErrorDetail& detail = error.detail();
  return Json::object({{"kind", kind_name(error.kind())},
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

// The value of the fact of that name.
std::string value_in(const Json::Array& facts, const Json& name) {
  const auto found =
      std::find_if(facts.begin(), facts.end(), [&](const Json& fact) { return fact.items()[0] == name; });
  return found == facts.end() ? "nothing of this name" : found->items()[1].as_string();
}

// The first fact in which a rank differs from rank 0; that one of them has more facts is a difference, too.
std::optional<Json> refused_for_a_difference(const std::vector<Json>& all) {
  const Json::Array& ours = all.front().at("facts").items();
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const Json::Array& theirs = all[rank].at("facts").items();
    for (std::size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
      if (i < ours.size() && i < theirs.size() && ours[i] == theirs[i]) continue;
      // Where rank 0's is there, but later, it is theirs that is too many.
      const bool of_ours = i >= theirs.size() || (i < ours.size() && value_in(theirs, ours[i].items()[0]) !=
                                                                         ours[i].items()[1].as_string());
      const Json::Array& fact = (of_ours ? ours : theirs)[i].items();
      return refusal_json(
          Error(ErrorKind::kBadInput,
                {fmt::format("{} has another {} than rank 0 ({}): {}, and not {}", ranks_text({rank}, all),
                             fact[0].as_string(), all.front().at("host").as_string(),
                             value_in(theirs, fact[0]), value_in(ours, fact[0])),
                 {},
                 "--ranks",
                 fact[2].as_string()}));
    }
  }
  return std::nullopt;
}

Json verdict_of(const std::vector<RankBytes>& documents) {
  std::vector<Json> all;
  for (const RankBytes& bytes : documents)
    all.push_back(Json::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "a rank"));
  if (const auto refusal = refused_for_an_error(all)) return *refusal;
  if (const auto refusal = refused_for_a_difference(all)) return *refusal;
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
  } catch (const std::runtime_error&) {  // an Error is one
    error = refusal_json(as_error(std::current_exception()));
  } catch (const std::logic_error&) {
    error = refusal_json(as_error(std::current_exception()));
  } catch (const std::bad_alloc&) {
    error = refusal_json(as_error(std::current_exception()));
  }
  Json list = Json::array();
  for (const Fact& fact : known) list.push_back(Json::array({fact.name, fact.value, fact.hint}));
  const std::string mine = Json::object({{"host", host_name()}, {"error", error}, {"facts", list}}).dump();
  const std::vector<RankBytes> documents = ranks.gather(0, std::as_bytes(std::span(mine)));
  const Json refusal = broadcast_json(ranks, 0, ranks.rank() == 0 ? verdict_of(documents) : Json());
  if (refusal.is_null()) return;
  throw RanksRefused(kind_named(refusal.at("kind").as_string()),
                     {refusal.at("message").as_string(), refusal.at("file").as_string(),
                      refusal.at("where").as_string(), refusal.at("hint").as_string()});
}

void begin_together(Ranks& ranks, const std::function<void()>& prepare) {
  begin_together(ranks, prepare, [] { return std::vector<Fact>(); });
}

void find_together(Ranks& ranks, const std::function<void()>& look) {
  try {
    look();
  } catch (const Error& error) {
    if (ranks.size() == 1) throw;
    throw RanksRefused(error.kind(), error.detail());
  }
}

void first_begins(Ranks& ranks, const std::function<void()>& prepare) {
  begin_together(ranks, [&] {
    if (ranks.rank() == 0) prepare();
  });
}

}  // namespace llmq
