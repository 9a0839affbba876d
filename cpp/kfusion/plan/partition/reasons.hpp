// The sentence for each refusal, in the user's op names.
#pragma once
#include <string>

#include "kfusion/plan/partition/partition.hpp"

namespace kfusion {

/// The name that reports give a node: its stage's.
const std::string& label(const Graph& g, NodeId n);

/// What sentences are made from.
struct Case {
  const Graph& graph;
  const Partition& partition;
  const Device& device;
  const PlanOptions& options;
  Reason reason;
  NodeId producer, consumer;
  Part merged = {};          ///< for kResources: what would have been one kernel
  Edge because = {};         ///< for kReductionBarrier: the read that has to wait
  std::string missing = {};  ///< for kNotImplemented: why no executor runs it; for kNoGain: what speaks against it
};

/// One sentence: why `producer` and `consumer` are in different kernels.
std::string sentence(const Case& c);

/// The sentence for two kernels that read `shared` and do not read each other.
std::string sentence_of_siblings(const Case& c, NodeId shared);

}  // namespace kfusion
