// The beginning of a job of several ranks: all begin, or none does and one sentence says why.
//
// Ranks whose bytes would differ without a word are found here: another version, another arithmetic, another
// file behind the same name. Cost: one message of each rank, and whatever it costs to know the facts.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "ranks/ranks.h"

namespace llmq {

// Something that every rank has to have in common.
struct Fact {
  std::string name;   // "version", "model/model.safetensors"; each is in a list once
  std::string value;  // compared as a whole
  std::string hint;   // what would do where it differs
};

// Thrown on every rank alike, where they do not begin or find that they cannot go on: what rank 0 prints, and
// the others' exit code.
class RanksRefused : public Error {
 public:
  using Error::Error;
};

// "rank 1 (node7) of 3"
std::string own_rank_text(const Ranks& ranks);

// prepare() on each rank, then facts(). Where either throws an Error or one of the standard library's errors,
// or a rank has other, more or fewer facts than rank 0, RanksRefused on all: an error that all have as it is,
// else with the ranks that have it and their hosts. Other exceptions pass: a signal ends more than this. One
// rank alone prepares, and is asked for no facts.
void begin_together(Ranks& ranks, const std::function<void()>& prepare,
                    const std::function<std::vector<Fact>()>& facts);

// The same where there is nothing to compare.
void begin_together(Ranks& ranks, const std::function<void()>& prepare);
// What rank 0 alone prepares for all.
void first_begins(Ranks& ranks, const std::function<void()>& prepare);

// A look at what all ranks have alike, so that it ends alike on each: its Error as RanksRefused.
void find_together(Ranks& ranks, const std::function<void()>& look);

}  // namespace llmq
